"""A flow and its affine layers as a ``torch`` transform from the base space to the flat unconstrained space."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import constraints
from torch import Tensor, nn
from torch.distributions import Transform

from ppl_samplers.backends.torch.flows import Flow


class GuideFlow(nn.Module):
    """``x = loc + L (shift + S y)`` with ``y`` from a flow: what an ``AutoFlow`` guide trains.

    ``loc`` and ``L`` are the frozen standardisation of the flow; ``shift`` and the lower triangular ``S`` are trained,
    so that a posterior far narrower than the prior draws of the standardisation is reached by a few parameters and
    leaves the shape to the network.

    Args:
        flow: The flow with its standardisation set.
    """

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow
        like = flow.loc
        self.shift = nn.Parameter(torch.zeros_like(like))
        self.log_diagonal = nn.Parameter(torch.zeros_like(like))
        self.lower = nn.Parameter(torch.zeros_like(flow.scale_tril))

    def scale_tril(self) -> Tensor:
        """``S``, ``(D, D)``."""
        return torch.tril(self.lower, -1) + torch.diag(self.log_diagonal.exp())

    def log_volume(self) -> Tensor:
        """``log |det L S|``, a scalar."""
        return self.flow.log_volume() + self.log_diagonal.sum()

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Base points ``(N, D)`` to points of the flat space ``(N, D)``, with ``log |dx/dz|`` ``(N,)``."""
        y, log_det = self.flow.generate(z)
        return self.flow.unwhiten(self.shift + y @ self.scale_tril().mT), log_det + self.log_volume()

    def invert(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Points of the flat space to base points, with ``log |dx/dz|``."""
        whitened = self.flow.whiten(x) - self.shift
        y = torch.linalg.solve_triangular(self.scale_tril(), whitened.mT, upper=False).mT
        if self.flow.transform is None:
            return y, self.log_volume().expand(len(x))
        z, log_det = self.flow.transform().call_and_ladj(y)
        return z, self.log_volume() - log_det

    @torch.no_grad()
    def affine(self) -> tuple[Tensor, Tensor]:
        """Both affine layers as one, ``loc`` ``(D,)`` and ``L`` ``(D, D)`` of ``x = loc + L y``."""
        return self.flow.unwhiten(self.shift), torch.tril(self.flow.scale_tril @ self.scale_tril())


class FlowTransform(Transform):
    """A :class:`GuideFlow` as a bijection of vectors ``(..., D)``. Make a new one after each change of the parameters.

    The Jacobian of the last point, which comes with its image, is kept.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, network: GuideFlow) -> None:
        super().__init__(cache_size=1)
        self.network = network
        self._last: tuple[Any, Any, Any] = (None, None, None)

    def __getstate__(self) -> dict[str, Any]:
        # Tensors inside a graph can be neither copied nor sent to another process.
        state = super().__getstate__()
        state["_last"] = (None, None, None)
        return state

    def with_cache(self, cache_size: int = 1) -> FlowTransform:
        """A transform of its own with an empty cache."""
        return FlowTransform(self.network)

    def _rows(self, fn: Any, points: Tensor) -> tuple[Tensor, Tensor]:
        out, log_det = fn(points.reshape(-1, points.shape[-1]))
        return out.reshape(points.shape), log_det.reshape(points.shape[:-1])

    def _call(self, x: Tensor) -> Tensor:
        y, log_det = self._rows(self.network, x)
        self._last = (x, y, log_det)
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        x, log_det = self._rows(self.network.invert, y)
        self._last = (x, y, log_det)
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Log Jacobian determinant at ``x``, ``(...,)``."""
        if self._last[0] is x and self._last[1] is y:
            return self._last[2]
        return self._rows(self.network, x)[1]
