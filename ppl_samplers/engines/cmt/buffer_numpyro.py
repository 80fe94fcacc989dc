"""Buffers of constrained mass transport in JAX: draws of the flow and of its anchor, with their densities.

References:
    Art Owen, Yi Zhou, Safe and effective importance sampling, 2000 (the mixture as the density of all draws).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, random

from ppl_samplers.backends.jax.flows import affine, affine_log_det, standard_normal_log_prob, whiten
from ppl_samplers.backends.jax.noise import normal
from ppl_samplers.core import weights
from ppl_samplers.engines.boltzmann.maths import defensive_log_prob

Array = jax.Array
# Points that are pushed through the flow, or handed to the density, at once.
_CHUNK = 4096


def parts(transport: Any) -> tuple[int, int]:
    """Parts that a buffer is drawn in, and how many of them the anchor draws."""
    count = max(-(-transport.buffer_size // _CHUNK), 8)
    return count, round(transport.anchor * count)


def draw(transport: Any, state: Any, key: Array, density: Any) -> tuple[Array, Array, Array, Array]:
    """A buffer: ``x (N, D)``, ``log p (N,)``, ``log q (N,)``, and the flow's own log weights ``(N,)``.

    ``q`` is the flow, or its mixture with the anchor. The last are ``-inf`` where the anchor drew the point.
    """
    dim, dtype, n = state.loc.shape[0], state.loc.dtype, transport.buffer_size
    count, from_anchor = parts(transport)
    size = -(-n // count)
    share = from_anchor / count

    def one(k: Array) -> tuple[Array, Array, Array]:
        z = normal(random.fold_in(key, k), (size, dim), dtype)
        by_anchor = state.anchored & (k >= count - from_anchor)
        params, loc, scale_tril = jax.tree.map(partial(jnp.where, by_anchor), state.anchor, state.present)
        y, log_det = transport.flow.forward(params, z)
        x = affine(loc, scale_tril, y)
        own = standard_normal_log_prob(z) - log_det - affine_log_det(scale_tril)

        def mixture() -> Array:
            params, loc, scale_tril = jax.tree.map(partial(jnp.where, by_anchor), state.present, state.anchor)
            other = transport.flow.log_prob(params, whiten(loc, scale_tril, x)) - affine_log_det(scale_tril)
            drawn, not_drawn = (defensive_log_prob(own, other, s) for s in (share, 1 - share))
            return jnp.where(by_anchor, not_drawn, drawn)

        mixed = lax.cond(state.anchored, mixture, lambda: own) if from_anchor else own
        return x, mixed, jnp.where(by_anchor, jnp.inf, own)

    x, log_q, own = lax.map(one, jnp.arange(count))
    # Point by point from all parts in turn, so that the points that are held out are of both kinds.
    x, log_q, own = x.transpose(1, 0, 2).reshape(-1, dim)[:n], log_q.T.reshape(-1)[:n], own.T.reshape(-1)[:n]
    log_p = _in_chunks(density, x)
    return x, log_p, log_q, weights.sanitize(log_p - own)


def _in_chunks(density: Any, x: Array) -> Array:
    """Log densities ``(N,)`` of a whole buffer, some thousand points at once."""
    parts = -(-len(x) // _CHUNK)
    size = -(-len(x) // parts)
    rows = jnp.arange(parts * size) % len(x)
    return lax.map(density, x[rows].reshape(parts, size, -1)).reshape(-1)[: len(x)]
