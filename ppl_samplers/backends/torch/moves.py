"""Local moves on all points at once: preconditioned Hamiltonian Monte Carlo, and MALA as its one-step case."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ppl_samplers.core.acceptance import metropolis

# Robbins-Monro gain for the log step size, constant over the first steps and then falling as 1/n.
_GAIN, _HELD = 0.5, 10


def scale_tril_of(x: Tensor, floor: float = 1e-6) -> Tensor:
    """Cholesky factor ``(D, D)`` of the covariance of points ``(N, D)``, shrunk towards its diagonal.

    The shrinkage is ``D / N``, so that few points in many dimensions give a diagonal.

    Args:
        x: Points; rows that are not finite are left out.
        floor: Smallest standard deviation, absolute.
    """
    x = x[torch.isfinite(x).all(-1)]
    n, dim = x.shape
    if n < 2:
        return torch.eye(dim, dtype=x.dtype, device=x.device)
    centred = (x - x.mean(0)).double()
    covariance = centred.mT @ centred / (n - 1)
    deviation = torch.diagonal(covariance).sqrt().clamp(min=floor)
    correlation = covariance / deviation[:, None] / deviation[None, :]
    share = min(1.0, dim / n) if 2 * dim < n else 1.0
    correlation = (1 - share) * correlation
    correlation.diagonal().fill_(1.0)
    factor, failed = torch.linalg.cholesky_ex(correlation)
    if int(failed):
        factor = torch.eye(dim, dtype=torch.float64, device=x.device)
    return (deviation[:, None] * factor).to(x.dtype)


@dataclass
class HMCState:
    """What :class:`HMC` adapts.

    Attributes:
        log_step: Log step size.
        scale_tril: Preconditioner ``L``, ``(D, D)``.
        count: Adaptation steps done.
        num_evals: Gradient evaluations done.
    """

    log_step: float
    scale_tril: Tensor
    count: int = 0
    num_evals: int = field(default=0, compare=False)


@dataclass(frozen=True)
class HMC:
    """Hamiltonian Monte Carlo in ``y`` with ``x = L y``, every point with its own random step size.

    Attributes:
        num_leapfrog: Leapfrog steps; 1 is MALA.
        step_size: First step size, in units of the preconditioned space.
        target_accept: Acceptance that adaptation aims at.
        spread: Step sizes are log-uniform over this range below 1.2 times the adapted one. Wide, it serves modes of
            different widths at once: one step size is too long for the narrow ones or too short between them.

    References:
        Simon Duane, Anthony Kennedy, Brian Pendleton, Duncan Roweth, Hybrid Monte Carlo, 1987.

    Example:
        >>> class Normal:
        ...     def value_and_grad(self, x):
        ...         return -0.5 * (x * x).sum(-1), -x
        >>> move, x = HMC(), torch.randn(100, 2)
        >>> state = move.init(Normal(), x)
        >>> state, x, log_p, grad, accept = move.step(state, Normal(), x, *Normal().value_and_grad(x))
        >>> x.shape
        torch.Size([100, 2])
    """

    num_leapfrog: int = 8
    step_size: float = 0.2
    target_accept: float = 0.8
    spread: float = 0.4

    def init(self, density: Any, x: Tensor, scale_tril: Tensor | None = None) -> HMCState:
        """State with the preconditioner of the points ``x`` ``(N, D)``, unless one is given."""
        return HMCState(math.log(self.step_size), scale_tril_of(x) if scale_tril is None else scale_tril)

    @torch.no_grad()
    def step(
        self, state: HMCState, density: Any, x: Tensor, log_p: Tensor, grad: Tensor, adapt: bool = False
    ) -> tuple[HMCState, Tensor, Tensor, Tensor, Tensor]:
        """One transition of every point.

        Args:
            state: Step size and preconditioner.
            density: Anything with ``value_and_grad``.
            x: Points, ``(N, D)``.
            log_p: Their log densities, ``(N,)``; a point at ``-inf`` takes any proposal of finite density.
            grad: Their gradients, ``(N, D)``.
            adapt: Adapt the step size (in warm-up only).

        Returns:
            ``state, x, log_p, grad, accept_prob``, the last ``(N,)``.
        """
        factor = state.scale_tril
        shrink = torch.exp(-self.spread * torch.rand(len(x), 1, dtype=x.dtype, device=x.device))
        step = 1.2 * math.exp(state.log_step) * shrink
        start = torch.randn_like(x)
        momentum, place, slope, value = start, x, grad, log_p
        momentum = momentum + 0.5 * step * (slope @ factor)
        for index in range(self.num_leapfrog):
            place = place + step * (momentum @ factor.mT)
            value, slope = density.value_and_grad(place)
            sound = torch.isfinite(slope).all(-1, keepdim=True)
            slope = torch.where(sound, slope, torch.zeros_like(slope))
            share = 1.0 if index < self.num_leapfrog - 1 else 0.5
            momentum = momentum + share * step * (slope @ factor)
        kinetic = 0.5 * (start.square().sum(-1) - momentum.square().sum(-1)).double()
        ratio = value.double() - log_p.double() + kinetic
        ratio = torch.where(log_p == -math.inf, torch.full_like(ratio, math.inf), ratio)
        allowed = torch.isfinite(value) & sound[:, 0] & torch.isfinite(place).all(-1) & ~torch.isnan(ratio)
        ratio = torch.where(allowed, ratio, torch.full_like(ratio, -math.inf))
        accept_prob = ratio.clamp(max=0.0).exp()
        taken = metropolis(ratio, torch.rand_like(ratio).log())
        x = torch.where(taken[:, None], place, x)
        grad = torch.where(taken[:, None], slope, grad)
        log_p = torch.where(taken, value, log_p)
        state = replace(state, num_evals=state.num_evals + self.num_leapfrog * len(x))
        if adapt:
            gain = _GAIN * min(1.0, _HELD / (state.count + 1))
            change = gain * (float(accept_prob.mean()) - self.target_accept)
            state = replace(state, log_step=state.log_step + change, count=state.count + 1)
        return state, x, log_p, grad, accept_prob.to(x.dtype)
