"""The examples of a Boltzmann generator in NumPyro: the user's draws, the ensemble, importance-weighted draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax, random

from ppl_samplers.backends.jax.moves import moments
from ppl_samplers.backends.jax.training import when
from ppl_samplers.core import acceptance, evidence, weights
from ppl_samplers.core.resampling import systematic
from ppl_samplers.engines.boltzmann import maths

if TYPE_CHECKING:
    from ppl_samplers.engines.boltzmann.transport_numpyro import FlowState, FlowTransport

Array = jax.Array


def given(draws: Any, density: Any) -> Array:
    """The user's draws on the unconstrained space, ``(n, D)``."""
    if isinstance(draws, dict):
        missing = [site.name for site in density.space if site.name not in draws]
        if missing:
            raise ValueError(
                f"ForwardKL(draws=...) lacks site {missing[0]!r}: hand over mcmc.get_samples(), constrained draws "
                f"of every latent site ({', '.join(site.name for site in density.space)})"
            )
        x = density.unconstrain(draws).reshape(-1, density.dim)
    else:
        x = jnp.asarray(draws, jnp.result_type(float))
    if x.ndim != 2 or x.shape[-1] != density.dim or len(x) < 2:
        raise ValueError(f"ForwardKL(draws=...) must be (n, {density.dim}) with n >= 2, got {tuple(x.shape)}")
    return x


def measure(transport: FlowTransport, state: FlowState, key: Array, density: Any) -> FlowState:
    """Weigh one ensemble of fresh proposals, where there are no examples to renew."""
    n = transport.pilot.num_particles
    _, log_w = transport.propose(state, key, density, n)
    return _note(state, log_w, jnp.asarray(n), n)


def refresh(transport: FlowTransport, state: FlowState, key: Array, density: Any, fine: Array) -> FlowState:
    """Renew the examples: by importance resampling in the fine-tuning, else by moving the ensemble."""
    n, blocks = state.particles.shape[0], transport.pilot.final_moves
    size, dim = state.buffer.shape
    propose_key, clip_key, ensemble_key = random.split(key, 3)

    # The ensemble needs one block of proposals, the fine-tuning all: one compiled body, run as often as needed.
    def block(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        x, log_w = transport.propose(state, random.fold_in(propose_key, j), density, n)
        return lax.dynamic_update_slice(carry[0], x, (j * n, 0)), lax.dynamic_update_slice(carry[1], log_w, (j * n,))

    count = jnp.where(fine, blocks, 1)
    empty = (jnp.zeros((size, dim), state.buffer.dtype), jnp.full((size,), -jnp.inf, state.buffer.dtype))
    x, log_w = lax.fori_loop(0, count, block, empty)
    state = _note(state, log_w, count * n, count * n)
    rich = fine & (weights.ess(log_w) >= max(64.0, 0.02 * size))

    def resample(s: FlowState) -> FlowState:
        # Clipped weights are for training only; every correction uses the exact ones.
        index = systematic(maths.truncate(log_w, 10), random.uniform(clip_key, (), log_w.dtype))
        return s._replace(buffer=x[index])

    state = when(rich, resample, state)
    if transport.example.draws is not None:
        return state
    return when(~rich, lambda s: _ensemble(transport, s, ensemble_key, density, x[:n], log_w[:n]), state)


def _ensemble(
    transport: FlowTransport, state: FlowState, key: Array, density: Any, x_new: Array, log_w_new: Array
) -> FlowState:
    weight_key, u_key, move_key = random.split(key, 3)
    x, n = state.particles, state.particles.shape[0]
    log_w = transport.log_weight(state, weight_key, density, x)
    accept = acceptance.imh(log_w_new, log_w, jnp.log(random.uniform(u_key, (n,), log_w.dtype)))
    x = jnp.where(accept[:, None], x_new, x)

    def one(i: Array, carry: tuple) -> tuple:
        move, x, log_p, grad, _ = transport.move.step(
            carry[0], random.fold_in(move_key, i), density, *carry[1:4], adapt=True
        )
        return move, x, log_p, grad, carry[4]

    begin = state.move._replace(scale_tril=moments(state.buffer)[1])
    move, x, _, _, _ = lax.fori_loop(0, 2, one, (begin, x, *density.value_and_grad(x), 0))
    buffer = lax.dynamic_update_slice(state.buffer, x, (state.slot * n, 0))
    evals = n * (2 + 2 * transport.move.num_leapfrog)
    return state._replace(
        particles=x,
        buffer=buffer,
        slot=(state.slot + 1) % transport.pilot.final_moves,
        move=move,
        num_evals=state.num_evals + evals,
    )


def _note(state: FlowState, log_w: Array, count: Array, evals: Any) -> FlowState:
    """Record ESS and evidence of ``count`` log weights (the rest of ``log_w`` is ``-inf``)."""
    first, second, _ = evidence.sums_of(log_w)
    log_z, _, ess, _ = evidence.finish(jnp.stack([first, second, count.astype(log_w.dtype)]))
    metrics = {"ess": ess / count, "log_evidence": log_z}
    return state._replace(metrics=metrics, num_evals=state.num_evals + jnp.asarray(evals, jnp.int32))
