"""Importance weights: normalisation and effective sample sizes, from log weights ``log p - log q``."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from ppl_samplers.core.logspace import log_mean_exp, logsumexp

Array = Any


def sanitize(log_w: Array) -> Array:
    """Log weights with NaN and ``+inf`` turned into ``-inf``: a point without a sound weight has none."""
    xp = array_namespace(log_w)
    sound = (log_w == log_w) & (log_w != float("inf"))
    return xp.where(sound, log_w, xp.full_like(log_w, -float("inf")))


def log_normalize(log_w: Array) -> Array:
    """Normalised log weights, ``(N,) -> (N,)``; all ``-inf`` when no weight is positive."""
    xp = array_namespace(log_w)
    total = logsumexp(log_w)
    return log_w - xp.where(xp.isfinite(total), total, xp.zeros_like(total))


def normalize(log_w: Array) -> Array:
    """Weights that sum to one, ``(N,) -> (N,)``; zeros when no weight is positive."""
    xp = array_namespace(log_w)
    return xp.exp(log_normalize(log_w))


def ess(log_w: Array) -> Array:
    """Kish effective sample size ``(sum w)^2 / sum w^2``, between 0 and ``N``.

    Blind to modes that the proposal never visits: print it together with :func:`forward_ess` or a mode table.

    Args:
        log_w: Unnormalised log weights of draws from the proposal, ``(N,)``.

    Returns:
        A scalar; 0 when no weight is positive.

    References:
        Leslie Kish, Survey Sampling, 1965.
    """
    xp = array_namespace(log_w)
    total, squares = logsumexp(log_w), logsumexp(2 * log_w)
    sound = xp.isfinite(total)
    zero = xp.zeros_like(total)
    return xp.where(sound, xp.exp(2 * xp.where(sound, total, zero) - xp.where(sound, squares, zero)), zero)


def relative_ess(log_w: Array) -> Array:
    """:func:`ess` per draw, between 0 and 1."""
    return ess(log_w) / log_w.shape[0]


def forward_ess(log_w_at_target: Array) -> Array:
    """Forward ESS per draw, ``1 / (E_p[w] E_p[1/w])``, from log weights at draws of the *target*.

    Near 0 when the target has mass where the proposal has none, which the reverse ESS cannot see.

    Args:
        log_w_at_target: Log weights at draws from the target, ``(N,)``; ``+inf`` where the proposal has no density.

    Returns:
        A scalar between 0 and 1.
    """
    xp = array_namespace(log_w_at_target)
    out = xp.exp(-log_mean_exp(log_w_at_target) - log_mean_exp(-log_w_at_target))
    return xp.where(out == out, out, xp.zeros_like(out))


def elbo(log_w: Array) -> Array:
    """Evidence lower bound ``E_q[log w]`` from log weights at draws of the proposal."""
    return array_namespace(log_w).mean(log_w)


def eubo(log_w_at_target: Array) -> Array:
    """Evidence upper bound ``E_p[log w]`` from log weights at draws of the target."""
    return array_namespace(log_w_at_target).mean(log_w_at_target)
