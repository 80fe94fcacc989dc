"""Normalizing flows: a network on whitened coordinates inside a frozen affine standardisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ppl_samplers.backends.torch.spline import Spline

# zuko turns torch's validation of distributions off for the whole process on import: that is the user's to decide.
_VALIDATION = Distribution._validate_args
from zuko.flows import ElementWiseTransform  # noqa: E402
from zuko.flows.coupling import GeneralCouplingTransform  # noqa: E402
from zuko.lazy import LazyComposedTransform, LazyTransform  # noqa: E402
from zuko.transforms import CouplingTransform  # noqa: E402

Distribution.set_default_validate_args(_VALIDATION)

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class SplineCoupling:
    """Coupling flow of rational-quadratic splines, the identity before training.

    In one dimension, where nothing can be coupled, a chain of unconditional splines.

    Attributes:
        layers: Coupling layers; ``None``: 4 up to 8 dimensions, 6 up to 32, else 8.
        bins: Spline bins; ``None``: 16 up to 4 dimensions, else 8.
        interval: Splines act on ``[-interval, interval]`` of the whitened space, and are the identity outside.
        width: Width of the conditioners.
        depth: Hidden layers of the conditioners.

    References:
        Conor Durkan, Artur Bekasov, Iain Murray, George Papamakarios, Neural spline flows, 2019.

    Example:
        >>> flow = Flow(SplineCoupling(layers=2), dim=3)
        >>> x, log_q = flow.sample(5)
        >>> x.shape, log_q.shape
        (torch.Size([5, 3]), torch.Size([5]))
    """

    layers: int | None = None
    bins: int | None = 8
    interval: float = 5.0
    width: int = 64
    depth: int = 2

    def build(self, dim: int) -> LazyTransform | None:
        """The trainable transform from whitened points to the base space, for ``dim`` dimensions."""
        layers = self.layers if self.layers is not None else (4 if dim <= 8 else 6 if dim <= 32 else 8)
        bins = self.bins if self.bins is not None else (16 if dim <= 4 else 8)
        shapes, spline = [(3 * bins - 1,)], partial(Spline, bound=self.interval)

        if dim == 1:
            stack = [ElementWiseTransform(1, univariate=spline, shapes=shapes) for _ in range(layers)]
            for layer in stack:
                for parameter in layer.parameters():
                    nn.init.zeros_(parameter)
            return LazyComposedTransform(*stack)
        stack, mask = [], torch.zeros(dim, dtype=torch.bool)
        for index in range(layers):
            if index % 2:
                mask = ~mask
            elif dim == 2:
                mask = torch.tensor([False, True])
            else:
                # A new random split for every pair of layers, so that every coordinate comes to depend on every other.
                mask = torch.zeros(dim, dtype=torch.bool)
                mask[torch.randperm(dim)[: dim // 2]] = True
            layer = GeneralCouplingTransform(
                dim,
                mask=mask,
                univariate=spline,
                shapes=shapes,
                hidden_features=[self.width] * self.depth,
                activation=nn.SiLU,
            )
            last = layer.hyper[-1]
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            stack.append(layer)
        return LazyComposedTransform(*stack)


@dataclass(frozen=True)
class Affine:
    """No network: a Gaussian with the moments of the examples. Cheap; for nearly Gaussian targets and for tests."""

    def build(self, dim: int) -> LazyTransform | None:
        """Nothing to train."""
        return None


class Flow(nn.Module):
    """Density ``q`` of ``x = loc + L y`` with ``y`` from a flow over a standard normal base.

    ``loc`` and ``L`` (lower triangular) are buffers: set from draws, not trained by gradients.

    Args:
        settings: :class:`SplineCoupling`, :class:`Affine`, or whatever else has ``build(dim)``.
        dim: Number of dimensions, ``D``.
        dtype: Of parameters and points; torch's default if ``None``.
        device: Of parameters and points.
    """

    loc: Tensor
    scale_tril: Tensor

    def __init__(
        self,
        settings: SplineCoupling | Affine,
        dim: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ):
        super().__init__()
        self.settings, self.dim = settings, dim
        self.register_buffer("loc", torch.zeros(dim))
        self.register_buffer("scale_tril", torch.eye(dim))
        self.transform = settings.build(dim)
        self.to(dtype=dtype or torch.get_default_dtype(), device=device)

    @torch.no_grad()
    def standardise(self, loc: Tensor, scale_tril: Tensor) -> None:
        """Set the affine standardisation from ``loc`` ``(D,)`` and ``scale_tril`` ``(D, D)``."""
        self.loc.copy_(loc)
        self.scale_tril.copy_(scale_tril)

    def whiten(self, x: Tensor) -> Tensor:
        """Points ``(N, D)`` in whitened coordinates."""
        return torch.linalg.solve_triangular(self.scale_tril, (x - self.loc).mT, upper=False).mT

    def unwhiten(self, y: Tensor) -> Tensor:
        """Whitened coordinates ``(N, D)`` back to points."""
        return self.loc + y @ self.scale_tril.mT

    def log_volume(self) -> Tensor:
        """``log |det L|``, a scalar: what is subtracted from a log density in whitened coordinates."""
        return torch.log(torch.diagonal(self.scale_tril)).sum()

    def whitened_log_prob(self, y: Tensor) -> Tensor:
        """Log density at whitened points, with respect to them, ``(N, D) -> (N,)``."""
        if self.transform is None:
            return -0.5 * (y * y).sum(-1) - 0.5 * self.dim * _LOG_2PI
        z, log_det = self.transform().call_and_ladj(y)
        return log_det - 0.5 * (z * z).sum(-1) - 0.5 * self.dim * _LOG_2PI

    def generate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Base points ``(N, D)`` to whitened points ``(N, D)`` with ``log |det dy/dz|`` ``(N,)``."""
        if self.transform is None:
            return z, torch.zeros_like(z[:, 0])
        if not isinstance(self.settings, SplineCoupling):
            return self.transform().inv.call_and_ladj(z)
        total = torch.zeros_like(z[:, 0])
        # Layer by layer: zuko's inverse of a coupling works out its conditioner twice.
        for layer in reversed(self.transform.transforms):
            step = layer()
            if isinstance(step, CouplingTransform):
                kept, moved = step.split(z)
                moved, log_det = step.meta(kept).base.inverse_and_ladj(moved)
                z = step.merge(kept, moved, z.shape)
            else:
                z, log_det = step.base.inverse_and_ladj(z)
            total = total + log_det.sum(-1)
        return z, total

    def sample_whitened(self, n: int) -> tuple[Tensor, Tensor]:
        """``n`` whitened draws ``(n, D)`` and their log densities ``(n,)``, differentiable in the parameters."""
        z = torch.randn(n, self.dim, dtype=self.loc.dtype, device=self.loc.device)
        log_q = -0.5 * (z * z).sum(-1) - 0.5 * self.dim * _LOG_2PI
        y, log_det = self.generate(z)
        return y, log_q - log_det

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density at points ``(N, D)``, ``(N,)``."""
        return self.whitened_log_prob(self.whiten(x)) - self.log_volume()

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """``n`` draws ``(n, D)`` with their log densities ``(n,)``."""
        y, log_q = self.sample_whitened(n)
        return self.unwhiten(y), log_q - self.log_volume()
