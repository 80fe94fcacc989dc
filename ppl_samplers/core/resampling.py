"""Resampling of weighted draws, from uniforms or Gumbel noise that the caller draws."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from ppl_samplers.core.weights import normalize

Array = Any


def _inverse_cdf(log_w: Array, positions: Array) -> Array:
    """Indices of sorted positions in (0, 1) under the weights' cumulative distribution."""
    xp = array_namespace(log_w)
    cdf = xp.cumulative_sum(normalize(log_w)) if hasattr(xp, "cumulative_sum") else xp.cumsum(normalize(log_w), 0)
    # A position can round up to the last entry; the first draw that reaches that entry is the last one with weight.
    last = xp.sum(xp.astype(cdf < cdf[-1], xp.int32))
    index = xp.searchsorted(cdf, positions * cdf[-1], side="right")
    return xp.where(index < last, index, xp.astype(last, index.dtype))


def stratified(log_w: Array, u: Array) -> Array:
    """Stratified resampling, one uniform per stratum.

    Args:
        log_w: Unnormalised log weights, ``(N,)``.
        u: Uniforms in [0, 1), ``(n,)``.

    Returns:
        Indices, ``(n,)``, in rising order; index ``i`` is chosen ``n w_i`` times on average.
    """
    xp = array_namespace(log_w, u)
    n = u.shape[0]
    return _inverse_cdf(log_w, (xp.arange(n, dtype=u.dtype) + u) / n)


def systematic(log_w: Array, u: Array, n: int | None = None) -> Array:
    """Systematic resampling: stratified with one uniform ``u`` (a scalar array) shared by all ``n`` strata.

    Example:
        >>> import numpy as np
        >>> systematic(np.log(np.array([0.5, 0.5])), np.asarray(0.3)).tolist()
        [0, 1]
    """
    xp = array_namespace(log_w, u)
    n = log_w.shape[0] if n is None else n
    return _inverse_cdf(log_w, (xp.arange(n, dtype=log_w.dtype) + u) / n)


def categorical(log_w: Array, gumbel: Array) -> Array:
    """Independent draws by the Gumbel-max rule over the last axis; the weights are never exponentiated.

    Args:
        log_w: Unnormalised log weights, ``(..., N)``.
        gumbel: Standard Gumbel noise, broadcastable to ``(..., N)``.

    Returns:
        Indices, ``(...)``.
    """
    return array_namespace(log_w, gumbel).argmax(log_w + gumbel, axis=-1)
