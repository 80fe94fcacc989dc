"""The equations of constrained mass transport, on arrays of any framework.

A step from the present density ``q`` towards the target ``p`` solves ``min KL(q' || p)`` with ``KL(q' || q) <= eps_tr``
and ``H(q) - H(q') <= eps_ent``. With multipliers ``lam, eta >= 0`` of the two constraints and ``D = 1 + lam + eta``,

    log q' = a log q + b log p + constant,    a = lam / D,  b = 1 / D,

or, relative to ``q`` with ``c = 1 - a``, ``log q' - log q = b log p - c log q + constant``.

References:
    Christopher von Klitzing, Denis Blessing, Henrik Schopmans, Pascal Friederich, Gerhard Neumann, Learning Boltzmann
    generators via constrained mass transport, 2026.
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from ppl_samplers.core.weights import sanitize

Array = Any
# Relative effective size of the target's weights from which on the target counts as in sight.
IN_SIGHT = 0.01


def exponents(lam: Any, eta: Any) -> tuple[Any, Any]:
    """``(b, c)`` of the multipliers: ``b = 1 / (1 + lam + eta)``, ``c = (1 + eta) b``; ``0 < b <= c <= 1``."""
    b = 1 / (1 + lam + eta)
    return b, (1 + eta) * b


def log_weights(log_p: Array, log_q: Array, b: Any, c: Any) -> Array:
    """``b log p - c log q``: log weights of draws of ``q`` for the next density, up to a constant.

    Args:
        log_p: Unnormalised log target at the draws, ``(N,)``; ``-inf`` where it is zero.
        log_q: Log density that drew them, ``(N,)``.
        b: See the module.
        c: See the module.

    Returns:
        ``(N,)``; ``-inf`` where the target is zero or either density is not a number.
    """
    return sanitize(b * log_p - c * log_q)


def ladder_log_weights(log_p: Array, log_q: Array, log_q0: Array, beta: Any) -> Array:
    """Log weights for a fixed geometric ladder, ``q0^(1 - beta) p^beta``: the baseline without constraints."""
    return sanitize((1 - beta) * log_q0 + beta * log_p - log_q)


def tempered_log_weights(log_p: Array, log_q: Array, temperature: Any) -> Array:
    """Log weights for the target at a temperature, ``p^(1 / T)``.

    References:
        Henrik Schopmans, Pascal Friederich, Temperature-annealed Boltzmann generators, 2025.
    """
    return sanitize(log_p / temperature - log_q)


def ladder_multipliers(before: float, beta: float) -> tuple[float, float]:
    """``(lam, eta)`` of the step between two rungs of the geometric ladder ``q0^(1 - beta) p^beta``.

    From ``q ~ q0^(1 - before) p^before``: ``q^(1 - b) p^b`` with ``b = (beta - before) / (1 - before)`` is the next
    rung, so that a ladder needs no copy of ``q0``; with a fitted ``q`` it is followed as the other paths are.

    Args:
        before: Present inverse temperature, 0 at the start.
        beta: Next one, larger; 1 is the target.
    """
    return (1 - beta) / (beta - before), 0.0


def tempered_multipliers(temperature: float) -> tuple[float, float]:
    """``(lam, eta)`` of the step to ``p^(1 / T)`` from anywhere: a step without trust region forgets where it began.

    References:
        Henrik Schopmans, Pascal Friederich, Temperature-annealed Boltzmann generators, 2025.
    """
    return 0.0, temperature - 1


def path_step(u: Any, v: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """Exponents of ``q0`` and of the target after a step, from ``u = 1, v = 0``: ``u <- a u``, ``v <- a v + b``."""
    a = 1 - c
    return a * u, a * v + b


def path_coordinates(u: Any, v: Any) -> tuple[Any, Any]:
    """``beta = 1 - u`` and ``alpha = v / beta`` after a step or more: ``q0^(1 - beta) (p^alpha)^beta``."""
    return 1 - u, v / (1 - u)


def auto_entropy_bound(
    unit: Any, num_units: Any, dim: int, eps_tr: float, entropy: Any, target_entropy: Any, kappa: float = 1.0
) -> Any:
    """Bound of the entropy lost in a step, ``max(kappa sqrt(D eps_tr), (H - H_target) / max(I / 2 - i, 3))``.

    A product density that contracts at ``KL = eps_tr`` loses about ``sqrt(D eps_tr)`` nats: the first term stops what
    collapses faster. The second catches up where the budget is short.

    Args:
        unit: Index ``i`` of the step.
        num_units: Steps ``I`` in all.
        dim: Dimension ``D``.
        eps_tr: Trust region in use.
        entropy: Entropy of the present density.
        target_entropy: Self-normalised estimate of the target's entropy from the same draws.
        kappa: Scale of the first term.
    """
    xp = array_namespace(entropy)
    left = 0.5 * num_units - unit
    left = xp.where(left > 3, left, xp.zeros_like(left) + 3)
    pace = (entropy - target_entropy) / left
    floor = xp.zeros_like(pace) + kappa * math.sqrt(dim * eps_tr)
    return xp.where(pace > floor, pace, floor)
