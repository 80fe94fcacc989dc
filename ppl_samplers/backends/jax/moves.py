"""Local moves on many points at once; step sizes adapt in warm-up and are then frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

from ppl_samplers.backends.jax.noise import normal
from ppl_samplers.core.acceptance import metropolis

Array = jax.Array


class HMCState(NamedTuple):
    """Log step size, preconditioner ``L`` (lower triangular, ``(D, D)``) and the number of adaptation steps."""

    log_step: Array
    scale_tril: Array
    count: Array


def robust_scale(x: Array) -> tuple[Array, Array]:
    """Median and half the distance of the 16 % and 84 % quantiles per coordinate, ``(N, D) -> (D,), (D,)``."""
    low, middle, high = jnp.quantile(x, jnp.asarray([0.16, 0.5, 0.84], x.dtype), axis=0)
    return middle, jnp.clip(0.5 * (high - low), 1e-3, 1e3)


def moments(x: Array) -> tuple[Array, Array]:
    """Mean ``(D,)`` and a Cholesky factor ``(D, D)`` of the covariance, shrunk where draws are few."""
    n, dim = x.shape
    loc = jnp.mean(x, 0)
    centred = x - loc
    variance = jnp.maximum(jnp.mean(centred * centred, 0), 1e-12)
    share = dim / (dim + n) if n > dim else 1.0
    # Factorised as a correlation matrix: scales of very different size would spoil a float32 factorisation.
    unit = centred / jnp.sqrt(variance)
    correlation = (1 - share) * (unit.T @ unit) / n + share * jnp.eye(dim, dtype=x.dtype)
    factor = jnp.linalg.cholesky(correlation + 1e-6 * jnp.eye(dim, dtype=x.dtype))
    factor = jnp.where(jnp.all(jnp.isfinite(factor)), factor, jnp.eye(dim, dtype=x.dtype))
    return loc, jnp.sqrt(variance)[:, None] * factor


@dataclass(frozen=True)
class HMC:
    """Preconditioned Hamiltonian Monte Carlo; with one leapfrog step, the Metropolis-adjusted Langevin algorithm.

    Attributes:
        num_leapfrog: Gradient evaluations per step.
        step_size: First step size, in units of the preconditioner.
        target_accept: Mean acceptance that warm-up aims at.
        spread: Step sizes are log-uniform over this range below 1.2 times the adapted one. Wide, it serves modes of
            different widths at once: one step size is too long for the narrow ones or too short between them.

    References:
        Simon Duane, Anthony Kennedy, Brian Pendleton, Duncan Roweth, Hybrid Monte Carlo, 1987.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax import random
        >>> from ppl_samplers.backends.numpyro.density import LogDensity
        >>> density = LogDensity.from_callable(lambda x: -0.5 * jnp.sum(x**2, -1), 2)
        >>> move, x = HMC(), random.normal(random.key(0), (16, 2))
        >>> begin, now = move.init(density, x), density.value_and_grad(x)
        >>> state, x, log_p, grad, accept = move.step(begin, random.key(1), density, x, *now)
        >>> x.shape, accept.shape
        ((16, 2), (16,))
    """

    num_leapfrog: int = 8
    step_size: float = 0.2
    target_accept: float = 0.8
    spread: float = 0.4

    def init(self, density: Any, x: Array) -> HMCState:
        """State for points like ``x`` ``(N, D)``: their quantiles give the scales."""
        _, scale = robust_scale(x)
        return self.start(jnp.diag(scale))

    def start(self, scale_tril: Array) -> HMCState:
        """State with a given preconditioner ``L``, ``(D, D)``."""
        log_step = jnp.log(jnp.asarray(self.step_size, scale_tril.dtype))
        return HMCState(log_step, scale_tril, jnp.zeros((), jnp.int32))

    def step(
        self, state: HMCState, key: Array, density: Any, x: Array, log_p: Array, grad: Array, adapt: Any = False
    ) -> tuple[HMCState, Array, Array, Array, Array]:
        """One step of every point.

        Args:
            state: See :class:`HMCState`.
            key: PRNG key.
            density: Anything with ``value_and_grad``.
            x: Points, ``(N, D)``.
            log_p: Their log density, ``(N,)``.
            grad: Its gradient, ``(N, D)``.
            adapt: Whether the step size moves towards the target acceptance; may be a traced boolean.

        Returns:
            State, points, log density, gradient, and acceptance probabilities ``(N,)``.
        """
        momentum_key, jitter_key, accept_key = random.split(key, 3)
        p = normal(momentum_key, x.shape, x.dtype)
        shrink = jnp.exp(-self.spread * random.uniform(jitter_key, x.shape[:1], x.dtype))
        eps = (1.2 * jnp.exp(state.log_step) * shrink)[:, None]
        lower = state.scale_tril

        def leapfrog(_: Any, carry: tuple) -> tuple:
            y, p, _, g = carry
            p = p + 0.5 * eps * (g @ lower)
            y = y + eps * (p @ lower.T)
            value, g = density.value_and_grad(y)
            return y, p + 0.5 * eps * (g @ lower), value, g

        y, q, value, g = lax.fori_loop(0, self.num_leapfrog, leapfrog, (x, p, log_p, grad))
        kinetic = 0.5 * (jnp.sum(p * p, -1) - jnp.sum(q * q, -1))
        lost = log_p == -jnp.inf
        # A point of zero density takes any point that has one; energies are compared only between sound points.
        change = jnp.where(lost, jnp.inf, value - jnp.where(lost, 0.0, log_p) + kinetic)
        sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(y), -1) & ~jnp.isnan(change)
        log_ratio = jnp.where(sound, change, -jnp.inf)
        accept = metropolis(log_ratio, jnp.log(random.uniform(accept_key, log_p.shape, x.dtype)))
        probability = jnp.exp(jnp.minimum(log_ratio, 0.0))
        x = jnp.where(accept[:, None], y, x)
        log_p = jnp.where(accept, value, log_p)
        grad = jnp.where(accept[:, None], g, grad)
        on = jnp.asarray(adapt)
        gain = 0.5 / jnp.maximum(1.0, state.count / 10.0)
        shift = jnp.where(on, gain * (jnp.mean(probability) - self.target_accept), 0.0).astype(x.dtype)
        state = HMCState(state.log_step + shift, lower, state.count + on.astype(jnp.int32))
        return state, x, log_p, grad, probability
