"""The equations of a Boltzmann generator, on arrays of any framework.

References:
    Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators: sampling equilibrium states of many-body
    systems
    with deep learning, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from array_api_compat import array_namespace

from ppl_samplers.core.logspace import logaddexp
from ppl_samplers.core.weights import normalize

Array = Any


def lin_log(energy: Array, high: float = 1e3, maximum: float = 1e9) -> Array:
    """Energy up to ``high``, its logarithm above, constant above ``maximum``: ``u`` or ``high + log(1 + u - high)``.

    It enters training losses only, never a weight. A plain cut-off would have no gradient to pull a bad point back.

    Args:
        energy: ``-log p`` less a reference near its minimum, ``(N,)``; without the reference, large data sets would be
            flattened everywhere.
        high: Where the logarithm starts.
        maximum: Energies are clipped here first, so that one point cannot dominate in float32.
    """
    xp = array_namespace(energy)
    clipped = xp.where(energy < maximum, energy, xp.full_like(energy, maximum))
    above = xp.where(clipped > high, clipped - high, xp.zeros_like(clipped))
    return xp.where(clipped < high, clipped, high + xp.log1p(above))


def reverse_kl(log_q: Array, log_p: Array, reference: Array, high: float = 1e3, maximum: float = 1e9) -> Array:
    """Training by energy: mean of ``lin_log(-log_p - reference) + log_q`` over draws of the flow with a finite density.

    Equals ``KL(q || p)`` up to a constant where no energy is above ``high``. Mode-seeking: alone, it loses modes.

    Args:
        log_q: Flow log density at its own draws, ``(N,)``, differentiable through the draws.
        log_p: Target log density at the same draws, ``(N,)``.
        reference: Energy taken as zero, a scalar (the lowest energy seen in the pilot run).
        high: See :func:`lin_log`.
        maximum: See :func:`lin_log`.

    Returns:
        A scalar; 0 where no draw has a finite density.
    """
    xp = array_namespace(log_q)
    sound = xp.isfinite(log_p) & xp.isfinite(log_q)
    zero = xp.zeros_like(log_q)
    energy = xp.where(sound, -log_p - reference, zero)
    terms = xp.where(sound, lin_log(energy, high, maximum) + xp.where(sound, log_q, zero), zero)
    count = xp.sum(xp.astype(sound, log_q.dtype))
    return xp.sum(terms) / xp.where(count > 0, count, xp.ones_like(count))


def forward_kl(log_q: Array, log_w: Array | None = None) -> Array:
    """Training by example: ``-sum_i w_i log q(x_i)`` with normalised weights, ``KL(p || q)`` up to a constant.

    Args:
        log_q: Flow log density at the examples, ``(N,)``.
        log_w: Their unnormalised log weights, ``(N,)``; equal if ``None``.
    """
    xp = array_namespace(log_q)
    sound = xp.isfinite(log_q)
    weights = (
        xp.astype(sound, log_q.dtype) if log_w is None else xp.where(sound, normalize(log_w), xp.zeros_like(log_q))
    )
    total = xp.sum(weights)
    terms = weights * xp.where(sound, log_q, xp.zeros_like(log_q))
    return -xp.sum(terms) / xp.where(total > 0, total, xp.ones_like(total))


def weight_at(progress: Array, knots: Sequence[tuple[float, float]]) -> Array:
    """Piecewise-linear weight at ``progress`` (a scalar array in [0, 1]), constant outside the knots."""
    xp = array_namespace(progress)
    value = xp.full_like(progress, knots[0][1])
    for (left, low), (right, high) in pairwise(knots):
        inside = low + (high - low) * (progress - left) / max(right - left, 1e-12)
        value = xp.where(progress >= left, xp.where(progress < right, inside, xp.full_like(progress, high)), value)
    return value


def truncate(log_w: Array, top: int) -> Array:
    """Log weights clipped at the ``top``-th largest, ``(N,)``: for *training* weights only, never for corrections."""
    xp = array_namespace(log_w)
    ceiling = xp.sort(log_w)[log_w.shape[0] - max(top, 1)]
    return xp.where(log_w > ceiling, ceiling, log_w)


# --- the defensive component -----------------------------------------------------------------------------------------


def student_t(eps: Array, chi2: Array, df: float = 3.0) -> Array:
    """Multivariate Student-t draws from standard normals ``(N, D)`` and chi-square(df) draws ``(N,)``."""
    xp = array_namespace(eps, chi2)
    return eps / xp.sqrt(chi2 / df)[:, None]


def student_t_log_prob(y: Array, df: float = 3.0) -> Array:
    """Log density of the standard multivariate Student-t, ``(N, D) -> (N,)``."""
    xp = array_namespace(y)
    dim = y.shape[-1]
    constant = math.lgamma(0.5 * (df + dim)) - math.lgamma(0.5 * df) - 0.5 * dim * math.log(df * math.pi)
    return constant - 0.5 * (df + dim) * xp.log1p(xp.sum(y * y, axis=-1) / df)


def defensive_log_prob(log_q: Array, log_t: Array, share: float) -> Array:
    """Log density of the mixture ``(1 - share) q + share t``, ``(N,)``.

    The heavy-tailed component bounds the weights where the flow's tails are too light.

    References:
        Tim Hesterberg, Weighted average importance sampling and defensive mixture distributions, 1995.
    """
    if share <= 0:
        return log_q
    return logaddexp(log_q + math.log1p(-share), log_t + math.log(share))
