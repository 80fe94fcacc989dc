"""Exact accept and select decisions from given noise."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from ppl_samplers.core.resampling import categorical

Array = Any


def metropolis(log_ratio: Array, log_u: Array) -> Array:
    """Accept with probability ``min(1, exp(log_ratio))``: True where ``log_u < log_ratio``; NaN is refused."""
    return log_u < log_ratio


def imh_log_ratio(log_w_new: Array, log_w_old: Array) -> Array:
    """Log acceptance ratio of independence Metropolis-Hastings, ``(C,), (C,) -> (C,)``.

    A chain that stands on a point of zero weight takes any point of positive weight; a proposal of zero weight is
    never taken.

    References:
        Luke Tierney, Markov chains for exploring posterior distributions, 1994.
    """
    xp = array_namespace(log_w_new, log_w_old)
    minus, zero = -float("inf"), xp.zeros_like(log_w_new)
    lost = log_w_old == minus
    ratio = xp.where(lost, zero, log_w_new) - xp.where(lost, zero, log_w_old)
    return xp.where(log_w_new == minus, xp.full_like(ratio, minus), ratio)


def imh(log_w_new: Array, log_w_old: Array, log_u: Array) -> Array:
    """Accept decisions of independence Metropolis-Hastings from log weights and log uniforms, ``(C,) -> (C,)`` bool."""
    return metropolis(imh_log_ratio(log_w_new, log_w_old), log_u)


def isir(log_w: Array, gumbel: Array) -> Array:
    """Index chosen by iterated sampling importance resampling, ``(..., M) -> (...)``.

    Candidate 0 is the chain's current point, the other ``M - 1`` are fresh; the choice is a draw from
    ``softmax(log_w)``. Exact for any ``M >= 2``.
    If no candidate has positive weight, the current point is kept.

    References:
        Christophe Andrieu, Anthony Lee, Matti Vihola, Uniform ergodicity of the iterated conditional SMC and geometric
        ergodicity of particle Gibbs samplers, 2018.
    """
    xp = array_namespace(log_w, gumbel)
    index = categorical(log_w, gumbel)
    return xp.where(xp.any(log_w > -float("inf"), axis=-1), index, xp.zeros_like(index))
