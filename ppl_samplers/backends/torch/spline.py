"""A rational-quadratic spline with few operations: it is most of the price of a training step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Transform, constraints

# Smallest slope of a bin; knot parameters are softly limited by it, so that no step can build a nearly flat spline.
_LOG_SLOPE = math.log(1e-3)


class Spline(Transform):
    """Monotonic rational-quadratic spline on ``[-bound, bound]``, the identity outside and where all parameters are 0.

    The same function of the same parameters as zuko's ``MonotonicRQSTransform``; widths and heights share one softmax,
    the knots one gather, and the inverse comes with its Jacobian.

    Args:
        parameters: Widths, heights and inner derivatives, unconstrained, ``(..., 3 bins - 1)``.
        bound: Half the length of the interval.

    References:
        Conor Durkan, Artur Bekasov, Iain Murray, George Papamakarios, Neural spline flows, 2019.

    Example:
        >>> spline = Spline(torch.zeros(2, 11))
        >>> spline(torch.tensor([0.5, 7.0]))
        tensor([0.5000, 7.0000])
    """

    domain = constraints.real
    codomain = constraints.real
    bijective = True
    sign = +1

    def __init__(self, parameters: Tensor, bound: float = 5.0):
        super().__init__()
        bins = (parameters.shape[-1] + 1) // 3
        self.bound = bound
        sizes = parameters[..., : 2 * bins].unflatten(-1, (2, bins))
        sizes = F.softmax(sizes / (1 + (2 / -_LOG_SLOPE) * sizes.abs()), dim=-1)
        slopes = parameters[..., 2 * bins :]
        slopes = slopes / (1 - slopes.abs() / _LOG_SLOPE)
        places = F.pad(bound * (2 * torch.cumsum(sizes, dim=-1) - 1), (1, 0), value=-bound)
        # (..., 3, bins + 1): horizontal places, vertical places and log derivatives of the knots.
        self.knots = torch.cat([places, F.pad(slopes, (1, 1)).unsqueeze(-2)], dim=-2)

    def _bin(self, value: Tensor, row: int) -> tuple[Tensor, ...]:
        """Corners and derivatives of the bin that holds ``value`` on the horizontal (0) or vertical (1) axis."""
        index = (self.knots[..., row, 1:-1].detach() < value.detach().unsqueeze(-1)).sum(-1)
        index = torch.stack([index, index + 1], dim=-1).unsqueeze(-2)
        index = index.expand(*index.shape[:-2], 3, 2)
        found = self.knots.expand(*index.shape[:-2], *self.knots.shape[-2:]).gather(-1, index)
        left, right = found.unbind(-1)
        x0, y0, d0 = left.unbind(-1)
        x1, y1, d1 = right.unbind(-1)
        return x0, x1 - x0, y0, y1 - y0, d0.exp(), d1.exp()

    def _log_slope(self, z: Tensor, mixed: Tensor, s: Tensor, d0: Tensor, d1: Tensor, below: Tensor) -> Tensor:
        rise = 2 * s * mixed + d0 * (1 - z).square() + d1 * z.square()
        return (rise * (s / below).square()).log()

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Value and log slope at ``x``."""
        # The search and the formula see clamped points: outside they would make the gradients NaN, before any `where`.
        inside = x.abs() < self.bound
        x0, width, y0, height, d0, d1 = self._bin(clamped := x.clamp(-self.bound, self.bound), 0)
        z, s = (clamped - x0) / width, height / width
        mixed = z * (1 - z)
        below = s + (d0 + d1 - 2 * s) * mixed
        y = y0 + height * (s * z.square() + d0 * mixed) / below
        log_slope = self._log_slope(z, mixed, s, d0, d1, below)
        return torch.where(inside, y, x), torch.where(inside, log_slope, torch.zeros_like(log_slope))

    def inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inverse and log slope of the *inverse* at ``y``."""
        inside = y.abs() < self.bound
        x0, width, y0, height, d0, d1 = self._bin(clamped := y.clamp(-self.bound, self.bound), 1)
        s, rise = height / width, clamped - y0
        curve = d0 + d1 - 2 * s
        a, b, c = height * (s - d0) + rise * curve, height * d0 - rise * curve, -s * rise
        # Rounding can push the discriminant below zero; this form of the root does not cancel.
        z = 2 * c / (-b - (b.square() - 4 * a * c).clamp(min=1e-30).sqrt())
        z = z.clamp(0.0, 1.0)
        mixed = z * (1 - z)
        log_slope = self._log_slope(z, mixed, s, d0, d1, s + curve * mixed)
        return torch.where(inside, x0 + z * width, y), torch.where(inside, -log_slope, torch.zeros_like(log_slope))

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return self.inverse_and_ladj(y)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Log slope at ``x``."""
        return self.call_and_ladj(x)[1]
