"""Pilot run: annealed sequential Monte Carlo from an over-dispersed Gaussian to the target.

It hands the engine examples of the target, a standardisation, a tuned local move, and a first log evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

from ppl_samplers.backends.jax.flows import standard_normal_log_prob
from ppl_samplers.backends.jax.moves import HMC, HMCState, moments, robust_scale
from ppl_samplers.backends.jax.noise import normal
from ppl_samplers.core.logspace import log_mean_exp
from ppl_samplers.core.resampling import systematic
from ppl_samplers.core.schedules import next_temperature

Array = jax.Array


@dataclass(frozen=True)
class Pilot:
    """Settings of the pilot run.

    Attributes:
        num_particles: Particles.
        num_moves: Local steps per temperature.
        ess_target: Relative effective sample size that a temperature step keeps.
        max_stages: Temperatures at most; the last step then goes straight to the target.
        final_moves: Local steps at the target; the particles after each of them are the examples.

    References:
        Pierre Del Moral, Arnaud Doucet, Ajay Jasra, Sequential Monte Carlo samplers, 2006.
    """

    num_particles: int = 1024
    num_moves: int = 3
    ess_target: float = 0.8
    max_stages: int = 50
    final_moves: int = 8

    @property
    def buffer_size(self) -> int:
        """Number of examples."""
        return self.num_particles * self.final_moves


class PilotResult(NamedTuple):
    """What a pilot run leaves: see the names; ``loc`` and ``scale_tril`` are the moments of ``buffer``."""

    particles: Array
    buffer: Array
    loc: Array
    scale_tril: Array
    move: HMCState
    log_z: Array
    reference: Array
    num_evals: Array
    num_grad_evals: Array
    stages: Array


class _Tempered(NamedTuple):
    """``q0^(1-beta) p^beta`` with a Gaussian ``q0`` of independent coordinates."""

    density: Any
    loc: Array
    scale: Array
    beta: Array

    def log_q0(self, x: Array) -> Array:
        return standard_normal_log_prob((x - self.loc) / self.scale) - jnp.sum(jnp.log(self.scale))

    def join(self, x: Array, log_p: Array, grad: Array) -> tuple[Array, Array]:
        grad_q0 = -(x - self.loc) / self.scale**2
        rest = 1 - self.beta
        return rest * self.log_q0(x) + self.beta * log_p, rest * grad_q0 + self.beta * grad

    def value_and_grad(self, x: Array) -> tuple[Array, Array]:
        return self.join(x, *self.density.value_and_grad(x))


class _Carry(NamedTuple):
    key: Array
    x: Array
    beta: Array
    log_z: Array
    log_step: Array
    count: Array
    buffer: Array
    best: Array
    stage: Array
    final: Array
    moves: Array


def run_pilot(pilot: Pilot, move: HMC, key: Array, density: Any, initial: Array | None = None) -> PilotResult:
    """Run the pilot; pure, for use under ``jit``.

    Args:
        pilot: Settings.
        move: Local move.
        key: PRNG key.
        density: A ``LogDensity``.
        initial: Points ``(k, D)`` of the user; they replace the first particles when the target is reached.
    """
    start_key, draw_key, loop_key = random.split(key, 3)
    n = pilot.num_particles
    x0 = density.initial_points(start_key, n)
    dim, dtype = x0.shape[-1], x0.dtype
    loc, scale = robust_scale(x0)
    x = loc + scale * normal(draw_key, (n, dim), dtype)
    zero = jnp.zeros((), dtype)
    begin = move.start(jnp.eye(dim, dtype=dtype))
    carry = _Carry(
        loop_key,
        x,
        zero,
        zero,
        begin.log_step,
        begin.count,
        jnp.zeros((pilot.final_moves, n, dim), dtype),
        jnp.full((), jnp.inf, dtype),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
    )

    def body(c: _Carry) -> _Carry:
        # Temperature steps and the moves at the target share one body, so that the density is compiled once for both.
        key, u_key, move_key = random.split(c.key, 3)
        at_target = c.beta >= 1
        log_p, grad = density.value_and_grad(c.x)
        log_ratio = log_p - _Tempered(density, loc, scale, c.beta).log_q0(c.x)
        beta = jnp.where(c.stage >= pilot.max_stages - 1, 1.0, next_temperature(log_ratio, c.beta, pilot.ess_target))
        log_w = jnp.where(beta > c.beta, (beta - c.beta) * log_ratio, 0.0)
        index = systematic(log_w, random.uniform(u_key, (), dtype))
        index = jnp.where(at_target, jnp.arange(n), index)
        x, log_p, grad = c.x[index], log_p[index], grad[index]
        if initial is not None:
            k = min(len(initial), n)
            x, log_p, grad = lax.cond(
                (c.final == 0) & at_target,
                lambda: _replace_first(density, x, log_p, grad, initial[:k].astype(dtype)),
                lambda: (x, log_p, grad),
            )
        tempered = _Tempered(density, loc, scale, beta)
        value, slope = tempered.join(x, log_p, grad)
        state = HMCState(c.log_step, moments(x)[1], c.count)

        def one(i: Array, inner: tuple) -> tuple:
            return move.step(inner[0], random.fold_in(move_key, i), tempered, *inner[1:4], adapt=True)[:4]

        count = jnp.where(at_target, 1, pilot.num_moves)
        state, x, value, _ = lax.fori_loop(0, count, one, (state, x, value, slope))
        buffer = jnp.where(at_target, lax.dynamic_update_index_in_dim(c.buffer, x, c.final, 0), c.buffer)
        best = jnp.where(at_target, jnp.minimum(c.best, jnp.min(-value)), c.best)
        return _Carry(
            key,
            x,
            beta,
            c.log_z + log_mean_exp(log_w),
            state.log_step,
            state.count,
            buffer,
            best,
            c.stage + jnp.where(at_target, 0, 1).astype(jnp.int32),
            c.final + at_target.astype(jnp.int32),
            c.moves + count.astype(jnp.int32),
        )

    c = lax.while_loop(lambda c: c.final < pilot.final_moves, body, carry)
    # Oldest first by blocks of particles; the engine overwrites one block at a time.
    buffer = c.buffer.reshape(-1, dim)
    loc_b, lower = moments(buffer)
    grads = c.moves * (n * move.num_leapfrog) + (c.stage + c.final) * n
    reference = jnp.where(jnp.isfinite(c.best), c.best, 0.0)
    return PilotResult(
        c.x, buffer, loc_b, lower, HMCState(c.log_step, lower, c.count), c.log_z, reference, grads, grads, c.stage
    )


def _replace_first(density: Any, x: Array, log_p: Array, grad: Array, initial: Array) -> tuple[Array, Array, Array]:
    value, slope = density.value_and_grad(initial)
    k = initial.shape[0]
    return x.at[:k].set(initial), log_p.at[:k].set(value), grad.at[:k].set(slope)
