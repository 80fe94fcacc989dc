"""The pilot run: annealed sequential Monte Carlo that finds where the mass is, before any network is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppl_samplers.backends.torch.moves import HMC, scale_tril_of
from ppl_samplers.core.logspace import log_mean_exp
from ppl_samplers.core.resampling import systematic
from ppl_samplers.core.schedules import next_temperature


@dataclass
class PilotResult:
    """What a pilot run leaves.

    Attributes:
        x: Particles, ``(N, D)``, about distributed as the target.
        log_p: Their log densities, ``(N,)``.
        grad: Their gradients, ``(N, D)``.
        examples: Points for training, ``(N * final_moves, D)``.
        loc: Mean of the examples, ``(D,)``.
        scale_tril: Cholesky factor of their covariance, ``(D, D)``.
        move: State of the adapted HMC moves.
        log_z: First estimate of the log evidence.
        reference: Lowest energy seen.
        num_evals: Evaluations of the density, with gradients.
        num_grad_evals: Those with a gradient.
        stages: Temperatures used.
    """

    x: Tensor
    log_p: Tensor
    grad: Tensor
    examples: Tensor
    loc: Tensor
    scale_tril: Tensor
    move: Any
    log_z: float
    reference: float
    num_evals: int
    num_grad_evals: int
    stages: int


class _Tempered:
    """``base^(1 - beta) target^beta`` with a diagonal normal base."""

    def __init__(self, density: Any, loc: Tensor, scale: Tensor, beta: float):
        self.density, self.loc, self.scale, self.beta = density, loc, scale, beta

    def base(self, x: Tensor) -> Tensor:
        z = (x - self.loc) / self.scale
        return -0.5 * z.square().sum(-1) - self.scale.log().sum() - 0.5 * x.shape[-1] * math.log(2 * math.pi)

    def mix(self, x: Tensor, log_p: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        slope = (1 - self.beta) * (self.loc - x) / self.scale.square() + self.beta * grad
        return (1 - self.beta) * self.base(x) + self.beta * log_p, slope

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.mix(x, *self.density.value_and_grad(x))


@dataclass(frozen=True)
class Pilot:
    """Annealed sequential Monte Carlo from an over-dispersed normal reference to the target.

    Attributes:
        num_particles: Particles, ``N``.
        num_moves: HMC moves of every particle at every temperature.
        ess_target: Relative effective sample size that a temperature step keeps.
        max_stages: The last stage goes to temperature 1 whatever the effective sample size.
        final_moves: Moves at temperature 1; each adds its particles to the examples.

    References:
        Pierre Del Moral, Arnaud Doucet, Ajay Jasra, Sequential Monte Carlo samplers, 2006.
    """

    num_particles: int = 1024
    num_moves: int = 3
    ess_target: float = 0.8
    max_stages: int = 50
    final_moves: int = 8

    @torch.no_grad()
    def run(
        self, density: Any, move: HMC, initial: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> PilotResult:
        """Run it.

        Args:
            density: A log density with ``initial_points`` and ``value_and_grad``.
            move: The HMC settings; step size and preconditioner are adapted.
            initial: The user's starting points ``(k, D)`` on the unconstrained space; they take the place of the first
                particles once the target is reached.
            dtype: Of the particles; that of the starting points if ``None``.

        Raises:
            ValueError: If no particle has a finite log density.
        """
        start = density.initial_points(self.num_particles).to(dtype=dtype)
        n = len(start)
        low, middle, high = torch.quantile(start.double(), start.new_tensor([0.16, 0.5, 0.84]).double(), dim=0)
        loc, scale = middle.to(start.dtype), (0.5 * (high - low)).clamp(1e-3, 1e3).to(start.dtype)
        tempered = _Tempered(density, loc, scale, 0.0)
        x = loc + scale * torch.randn_like(start)
        log_p, grad = density.value_and_grad(x)
        evals, log_z, beta, stages = n, 0.0, 0.0, 0
        if not bool((log_p > -math.inf).any()):
            # The reference is a summary of the starting points: where it misses the support, they may still be inside.
            x = start
            log_p, grad = density.value_and_grad(x)
            evals += n
        if not bool((log_p > -math.inf).any()):
            raise ValueError(
                f"the log density is -inf at all {n} starting points: give starting values inside the support with "
                "initial_params={site: values}, or check the data against the likelihood's support"
            )
        state = move.init(density, x, scale_tril=torch.diag(scale))
        while beta < 1.0:
            ratio = torch.where(log_p > -math.inf, log_p - tempered.base(x), torch.full_like(log_p, -math.inf)).double()
            stages += 1
            last = stages >= self.max_stages
            new = 1.0 if last else float(next_temperature(ratio, torch.tensor(beta).to(ratio), self.ess_target))
            log_w = (new - beta) * ratio
            log_z, beta = log_z + float(log_mean_exp(log_w)), new
            keep = systematic(log_w, torch.rand((), dtype=log_w.dtype, device=log_w.device))
            x, log_p, grad = x[keep], log_p[keep], grad[keep]
            state.scale_tril = scale_tril_of(x)
            tempered.beta = beta
            value, slope = tempered.mix(x, log_p, grad)
            for _ in range(self.num_moves):
                state, x, value, slope, _ = move.step(state, tempered, x, value, slope, adapt=True)
            log_p, grad = density.value_and_grad(x)
            evals += n
        if initial is not None:
            k = min(len(initial), n)
            x = torch.cat([initial[:k].to(x), x[k:]])
            log_p, grad = density.value_and_grad(x)
            evals += n
        kept = []
        for _ in range(self.final_moves):
            state, x, log_p, grad, _ = move.step(state, density, x, log_p, grad, adapt=True)
            kept.append(x)
        examples = torch.cat(kept) if kept else x
        state.scale_tril = scale_tril_of(examples)
        evals += state.num_evals
        loc, reference = examples.mean(0), float(-log_p.max())
        return PilotResult(
            x, log_p, grad, examples, loc, state.scale_tril, state, log_z, reference, evals, evals, stages
        )
