"""Sums in log space that stay right when every term is ``-inf``."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

Array = Any


def _finite_max(x: Array, axis: int | None, keepdims: bool) -> Array:
    """Maximum along ``axis``, with 0 where it is not finite: subtracting it then never makes ``inf - inf``."""
    xp = array_namespace(x)
    top = xp.max(x, axis=axis, keepdims=keepdims)
    return xp.where(xp.isfinite(top), top, xp.zeros_like(top))


def logsumexp(x: Array, axis: int | None = None) -> Array:
    """``log(sum(exp(x)))`` along ``axis`` (all axes by default).

    Args:
        x: Real array; ``-inf`` entries are zeros of the sum.
        axis: Axis to sum over, or ``None`` for all.

    Returns:
        The log sum; ``-inf`` (not NaN) where every term is ``-inf``, with finite gradients elsewhere.

    Example:
        >>> import numpy as np
        >>> float(logsumexp(np.array([-np.inf, -np.inf])))
        -inf
    """
    xp = array_namespace(x)
    top = _finite_max(x, axis, keepdims=True)
    total = xp.sum(xp.exp(x - top), axis=axis, keepdims=True)
    # log(0) has an infinite derivative: the sum is replaced before the logarithm, not after it.
    empty = total == 0
    out = xp.log(xp.where(empty, xp.ones_like(total), total)) + top
    out = xp.where(empty, xp.full_like(out, -float("inf")), out)
    return xp.squeeze(out, axis=tuple(range(x.ndim)) if axis is None else axis)


def logaddexp(a: Array, b: Array) -> Array:
    """``log(exp(a) + exp(b))`` elementwise, ``-inf`` where both are."""
    xp = array_namespace(a, b)
    top = xp.where(a > b, a, b)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    total = xp.exp(a - top) + xp.exp(b - top)
    empty = total == 0
    out = xp.log(xp.where(empty, xp.ones_like(total), total)) + top
    return xp.where(empty, xp.full_like(out, -float("inf")), out)


def log_mean_exp(x: Array, axis: int | None = None) -> Array:
    """``log(mean(exp(x)))`` along ``axis`` (all axes by default)."""
    count = x.shape[axis] if axis is not None else _size(x)
    xp = array_namespace(x)
    total = logsumexp(x, axis)
    return total - xp.log(xp.full_like(total, float(count)))


def softplus(x: Array) -> Array:
    """``log(1 + exp(x))`` without overflow."""
    xp = array_namespace(x)
    return xp.where(x > 0, x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def _size(x: Array) -> int:
    count = 1
    for length in x.shape:
        count *= length
    return count
