"""The examples of a Boltzmann generator in Pyro: the user's draws, the ensemble, importance-weighted draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ppl_samplers.backends.settings import check_draws
from ppl_samplers.core import acceptance, evidence, resampling, weights
from ppl_samplers.engines.boltzmann import maths

if TYPE_CHECKING:
    from ppl_samplers.engines.boltzmann.transport_pyro import FlowState, FlowTransport

# A training step on fresh importance weights needs so many effective draws, absolute and per proposal.
_MIN_ESS, _MIN_SHARE = 64.0, 0.02
# Proposals of a fine-tuning round, and how many of the largest weights are clipped (for training only).
ROUND, _CLIPPED = 4096, 10


def given(draws: Any, density: Any, dtype: torch.dtype) -> Tensor:
    """The user's draws as points ``(n, D)`` on the unconstrained space."""
    if isinstance(draws, dict):
        values = {name: torch.as_tensor(value) for name, value in draws.items()}
        for site in density.space:
            shape, wanted = None if site.name not in values else tuple(values[site.name].shape), site.constrained_shape
            fits = shape is not None and len(shape) > len(wanted) and shape[len(shape) - len(wanted) :] == tuple(wanted)
            if not fits or shape[: len(shape) - len(wanted)] != _lead(values, density.space[0]):
                found = "is missing" if shape is None else f"has shape {shape}"
                raise ValueError(
                    f"ForwardKL(draws=...): site '{site.name}' {found}; hand over mcmc.get_samples(): for every latent "
                    f"site an array of n draws, here (n, {', '.join(map(str, wanted))})"
                )
        points = density.unconstrain(values)
    else:
        points = torch.as_tensor(draws)
    points = points.reshape(-1, points.shape[-1]).to(dtype)
    if points.shape[-1] != density.dim:
        raise ValueError(f"ForwardKL(draws=...): draws have {points.shape[-1]} columns, the space {density.dim}")
    check_draws(torch.isfinite(points).cpu().numpy(), density.space)
    if len(points) < 2:
        raise ValueError("ForwardKL(draws=...): give at least two draws")
    return points


def _lead(values: dict[str, Tensor], site: Any) -> tuple[int, ...]:
    """Leading shape of the draws of the first site: that of all of them."""
    shape = tuple(values[site.name].shape) if site.name in values else ()
    return shape[: len(shape) - len(site.constrained_shape)]


@torch.no_grad()
def refresh_ensemble(transport: FlowTransport, state: FlowState, density: Any) -> None:
    """One independence step from the flow (it moves particles between modes), two HMC moves, into the buffer."""
    n = len(state.particles)
    x, log_q = transport._draw(state, n)
    log_p, grad = density.value_and_grad(x)
    log_w = weights.sanitize(log_p.double() - log_q)
    _note(state, log_w)
    old = weights.sanitize(state.log_p.double() - transport._log_q(state, state.particles))
    taken = acceptance.imh(log_w, old, torch.rand_like(old).log())
    here = torch.where(taken[:, None], x, state.particles)
    log_p = torch.where(taken, log_p, state.log_p)
    grad = torch.where(taken[:, None], grad, state.grad)
    before = state.move.num_evals
    for _ in range(2):
        state.move, here, log_p, grad, _ = transport.move.step(state.move, density, here, log_p, grad, adapt=True)
    state.particles, state.log_p, state.grad = here, log_p, grad
    state.num_evals += n + state.move.num_evals - before
    size = len(state.buffer)
    fresh = here[: max(size // 8, 1)]
    at = (state.cursor + torch.arange(len(fresh), device=here.device)) % size
    state.buffer = state.buffer.index_copy(0, at, fresh)
    state.cursor = (state.cursor + len(fresh)) % size


@torch.no_grad()
def fine_tune(transport: FlowTransport, state: FlowState, density: Any) -> bool:
    """Fill the buffer with the flow's own importance-weighted draws, if enough of them are effective."""
    x, log_w = transport.propose(state, density, ROUND)
    ess = _note(state, log_w)
    if ess < max(_MIN_ESS, _MIN_SHARE * ROUND):
        return False
    training = maths.truncate(log_w, _CLIPPED)
    state.buffer = x[resampling.systematic(training, torch.rand_like(training[0]), len(state.buffer))]
    return True


def _note(state: FlowState, log_w: Tensor) -> float:
    """Write the relative ESS and the evidence of fresh proposals into the metrics; returns the ESS."""
    ess = float(weights.ess(log_w))
    state.metrics |= {"ess": ess / len(log_w), "log_evidence": float(evidence.log_evidence(log_w)[0])}
    return ess
