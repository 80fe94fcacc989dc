"""Evidence from log weights: the estimate, its delta-method error, and a streaming accumulator.

The accumulator is the triple ``(logsumexp(log w), logsumexp(2 log w), count)``: it merges, it needs no stored draws,
and
it gives the evidence, its error and the effective sample size of everything it has seen.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from ppl_samplers.core.logspace import logaddexp, logsumexp

Array = Any


def empty_sums(like: Array) -> Array:
    """Accumulator of no weights, ``(3,)``, in the namespace and dtype of ``like``."""
    xp = array_namespace(like)
    return xp.asarray([-float("inf"), -float("inf"), 0.0], dtype=like.dtype)


def sums_of(log_w: Array) -> Array:
    """Accumulator of one batch of log weights, ``(N,) -> (3,)``."""
    xp = array_namespace(log_w)
    total, squares = logsumexp(log_w), logsumexp(2 * log_w)
    return xp.stack([total, squares, xp.full_like(total, float(log_w.shape[0]))])


def combine(a: Array, b: Array) -> Array:
    """Accumulator of two accumulators, ``(..., 3), (..., 3) -> (..., 3)``."""
    xp = array_namespace(a, b)
    logs = logaddexp(a[..., :2], b[..., :2])
    return xp.concat([logs, a[..., 2:] + b[..., 2:]], axis=-1)


def add(sums: Array, log_w: Array) -> Array:
    """Accumulator after a further batch of log weights, ``(3,), (N,) -> (3,)``."""
    return combine(sums, sums_of(log_w))


def merge(sums: Array) -> Array:
    """One accumulator from ``R`` of them, ``(R, 3) -> (3,)``."""
    xp = array_namespace(sums)
    return xp.stack([logsumexp(sums[:, 0]), logsumexp(sums[:, 1]), xp.sum(sums[:, 2])])


def finish(sums: Array) -> tuple[Array, Array, Array, Array]:
    """Evidence of an accumulator.

    ``log Z = L1 - log n`` and, by the delta method, ``se(log Z) = sqrt(exp(L2 - 2 L1) - 1/n)`` with ``L1`` and ``L2``
    the log sums of the weights and of their squares; ``ESS = exp(2 L1 - L2)``.

    Args:
        sums: Accumulator, ``(3,)``.

    Returns:
        ``log_z, standard_error, ess, count``. Without a positive weight: ``-inf``, ``inf``, 0. The error means nothing
        where the weights are heavy-tailed (Pareto k above 0.7).
    """
    xp = array_namespace(sums)
    first, second, count = sums[0], sums[1], sums[2]
    sound = xp.isfinite(first)
    zero = xp.zeros_like(first)
    first_, second_ = xp.where(sound, first, zero), xp.where(sound, second, zero)
    count_ = xp.where(count > 0, count, xp.ones_like(count))
    spread = xp.exp(second_ - 2 * first_) - 1 / count_
    # Equal weights leave a spread of rounding error, of either sign.
    error = xp.sqrt(xp.where(spread > 0, spread, zero))
    infinite = xp.full_like(first, float("inf"))
    log_z = xp.where(sound, first_ - xp.log(count_), -infinite)
    return log_z, xp.where(sound, error, infinite), xp.where(sound, xp.exp(2 * first_ - second_), zero), count


def log_evidence(log_w: Array) -> tuple[Array, Array]:
    """``log Z`` and its standard error from log weights of independent proposals, ``(N,)``.

    Example:
        >>> import numpy as np
        >>> log_z, error = log_evidence(np.zeros(100))
        >>> float(log_z), float(error)
        (0.0, 0.0)
    """
    log_z, error, _, _ = finish(sums_of(log_w))
    return log_z, error
