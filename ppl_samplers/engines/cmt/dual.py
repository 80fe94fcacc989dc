"""The multipliers of a step from log densities at draws alone: a concave dual, solved by nested root finding.

In float64 on the host; both frameworks call it with two arrays. The dual function is

    g(lam, eta) = -(1 + lam + eta) log Z'(lam, eta) - lam eps_tr + eta (H(q) - eps_ent),

with ``dg/dlam = KL(q' || q) - eps_tr`` and ``dg/deta = H(q) - H(q') - eps_ent``: complementary slackness. For fixed
``eta`` the first falls with ``lam``, and along the maximum over ``lam`` the second falls with ``eta``, so that one root
inside another finds the maximum for certain.

References:
    Christopher von Klitzing, Denis Blessing, Henrik Schopmans, Pascal Friederich, Gerhard Neumann, Learning Boltzmann
    generators via constrained mass transport, 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from ppl_samplers.core.logspace import logsumexp
from ppl_samplers.engines.cmt.maths import exponents, log_weights

STATUSES = ("target", "trust", "entropy", "both", "ladder")
TARGET, TRUST, ENTROPY, BOTH, LADDER = range(5)
# Largest multiplier that a bracket reaches for: beyond, the target has no overlap with the draws.
_LARGEST = 1e15


class Step(NamedTuple):
    """Solution of one step; plain numbers, so that it passes through arrays.

    Attributes:
        lam: Multiplier of the trust region.
        eta: Multiplier of the entropy constraint.
        status: Index into ``STATUSES``: which constraints hold the step back; 0 if none does, 4 on a fixed ladder.
        kl: ``KL(q' || q)``.
        entropy: ``H(q)`` of the present density.
        next_entropy: ``H(q')`` of the next one; their difference is the nominal decay.
        log_z: Log normaliser ``log E_q[p^b / q^c]`` of the next density; the evidence where ``status`` is 0.
        step_ess: Relative effective sample size of the weights of the step.
        target_ess: The same of the weights ``p / q`` of the target itself.
        target_entropy: Self-normalised estimate of the target's entropy.
        elbo: Mean of ``log p - log q`` over the draws, a lower bound of the log evidence.
        eps_tr: Trust region in use (halved where the weights were poor).
        num_invalid: Draws with NaN or ``+inf`` densities, or without a finite ``log q``.
        num_outside: Draws where the target is zero.
    """

    lam: float
    eta: float
    status: int
    kl: float
    entropy: float
    next_entropy: float
    log_z: float
    step_ess: float
    target_ess: float
    target_entropy: float
    elbo: float
    eps_tr: float
    num_invalid: int
    num_outside: int

    @property
    def exponents(self) -> tuple[float, float]:
        """``(b, c)``."""
        return exponents(self.lam, self.eta)

    @property
    def unreachable(self) -> bool:
        """Almost no step at all: the target and the draws have next to no overlap."""
        return self.exponents[0] < 1e-6


@dataclass(frozen=True)
class _Draws:
    """Draws inside the support; ``log_base`` sums to one over those that count in the constraints."""

    log_p: np.ndarray
    log_q: np.ndarray
    log_base: np.ndarray

    def at(self, lam: float, eta: float) -> tuple[float, float]:
        """``KL(q' || q)`` and ``H(q')`` for these multipliers."""
        b, c = exponents(lam, eta)
        ratio = b * self.log_p - c * self.log_q
        ratio = ratio - float(logsumexp(ratio + self.log_base))
        w = np.exp(ratio + self.log_base)
        # 0 times -inf is 0 here: points without weight take no part.
        some = w > 0
        return float(w[some] @ ratio[some]), float(-(w[some] @ (ratio[some] + self.log_q[some])))


def solve(
    log_p: np.ndarray,
    log_q: np.ndarray,
    eps_tr: float,
    eps_ent: float,
    *,
    log_base: np.ndarray | None = None,
    max_draws: int = 8192,
    multipliers: tuple[float, float] | None = None,
) -> Step:
    """Multipliers of the step, and what they do.

    Args:
        log_p: Unnormalised log target at draws of ``q``, ``(N,)``.
        log_q: Log density of ``q`` there, as it was when it drew them, ``(N,)``.
        eps_tr: Trust region; ``inf`` leaves it out.
        eps_ent: Largest loss of entropy; ``inf`` leaves it out.
        log_base: Log weights under which the points represent ``q`` (a grid, for example); uniform by default.
        max_draws: Draws that the root finding looks at; all of them give the figures.
        multipliers: ``(lam, eta)`` that are set beforehand instead of found, as those of a fixed ladder are.

    Raises:
        ValueError: More than half of the draws have no sound density, none has positive density, or a bound is not
            positive.

    Example:
        >>> x = np.random.default_rng(0).normal(3.0, 2.0, 4000)
        >>> step = solve(-0.5 * x**2, -0.5 * ((x - 3) / 2) ** 2 - np.log(2 * np.sqrt(2 * np.pi)), 0.2, 0.15)
        >>> STATUSES[step.status], round(step.kl, 4), round(step.entropy - step.next_entropy, 2)
        ('both', 0.2, 0.15)
    """
    if not (eps_tr > 0 and eps_ent > 0):
        raise ValueError(f"eps_tr={eps_tr} and eps_ent={eps_ent} must be positive; float('inf') leaves one out")
    log_p, log_q = np.array(log_p, np.float64), np.array(log_q, np.float64)
    base = np.full(log_p.shape, -np.log(len(log_p))) if log_base is None else np.array(log_base, np.float64)
    invalid = np.isnan(log_p) | (log_p == np.inf) | ~np.isfinite(log_q)
    if np.exp(base[invalid]).sum() > 0.5:
        raise ValueError(
            f"{int(invalid.sum())} of {len(log_p)} draws have a log density that is NaN or +inf: the model is broken "
            "where the engine draws; look for overflow, or for a scale that may be zero"
        )
    log_p[invalid] = -np.inf
    inside = np.isfinite(log_p)
    if not inside.any():
        raise ValueError(f"the log density is -inf at all {len(log_p)} draws: start from points inside the support")
    full = _Draws(log_p[inside], log_q[inside], base[inside])
    mass = float(np.exp(logsumexp(full.log_base)))
    # The part of q outside the support costs -log(mass) of KL at any step. Where that alone would use up the trust
    # region, the step is taken from q restricted to the support.
    restricted = -np.log(mass) > 0.5 * eps_tr
    if restricted:
        full = _Draws(full.log_p, full.log_q - np.log(mass), full.log_base - np.log(mass))
    if multipliers is None:
        found = full if len(full.log_p) <= max_draws else _subset(full, max_draws)
        lam, eta = _multipliers(found, _entropy(found), eps_tr, eps_ent)
        status = (TRUST if lam > 0 else TARGET) if eta == 0 else (BOTH if lam > 0 else ENTROPY)
    else:
        lam, eta = multipliers
        status = LADDER if lam > 0 or eta > 0 else TARGET
    kl, next_entropy = full.at(lam, eta)
    b, c = exponents(lam, eta)
    step, target = log_weights(log_p, log_q, b, c), log_weights(log_p, log_q, 1.0, 1.0)
    sound = ~invalid
    return Step(
        lam,
        eta,
        status,
        kl,
        _entropy(full),
        next_entropy,
        float(logsumexp(step + base)),
        _ess(step, base),
        _ess(target, base),
        full.at(0.0, 0.0)[1],
        float(np.exp(base[sound]) @ target[sound]) if inside[sound].all() else -np.inf,
        eps_tr,
        int(invalid.sum()),
        int((~inside & sound).sum()),
    )


def solve_guarded(log_p: np.ndarray, log_q: np.ndarray, eps_tr: float, eps_ent: float, **options: Any) -> Step:
    """:func:`solve` with a trust region that is halved, up to five times, while the weights of the step are poor.

    A step of ``KL = eps`` that moves without changing shape has a relative ESS of ``exp(-2 eps)``; below half of that
    a few draws carry the step.
    """
    step = solve(log_p, log_q, eps_tr, eps_ent, **options)
    for _ in range(5):
        if not np.isfinite(eps_tr) or step.step_ess >= 0.5 * np.exp(-2 * eps_tr):
            break
        eps_tr = 0.5 * eps_tr
        step = solve(log_p, log_q, eps_tr, eps_ent, **options)
    return step


def dual(
    lam: float, eta: float, log_p: np.ndarray, log_q: np.ndarray, eps_tr: float, eps_ent: float, log_base: np.ndarray
) -> float:
    """The dual function ``g`` of the module, to be maximised; the entropy enters with a plus."""
    b, c = exponents(lam, eta)
    log_z = float(logsumexp(b * log_p - c * log_q + log_base))
    entropy = -float(np.exp(log_base) @ log_q)
    return -(1 + lam + eta) * log_z - lam * eps_tr + eta * (entropy - eps_ent)


def _multipliers(draws: _Draws, entropy: float, eps_tr: float, eps_ent: float) -> tuple[float, float]:
    def kl_excess(lam: float, eta: float) -> float:
        return draws.at(lam, eta)[0] - eps_tr

    def lam_of(eta: float) -> float:
        if np.isinf(eps_tr) or kl_excess(0.0, eta) <= 0:
            return 0.0
        return _root(lambda lam: kl_excess(lam, eta), draws)

    def decay_excess(eta: float) -> float:
        return entropy - draws.at(lam_of(eta), eta)[1] - eps_ent

    if np.isinf(eps_ent) or decay_excess(0.0) <= 0:
        return lam_of(0.0), 0.0
    eta = _root(decay_excess, draws)
    return lam_of(eta), eta


def _root(excess, draws: _Draws) -> float:
    """Where a falling function that is positive at zero becomes zero; multipliers of 100 are ordinary, hence log1p."""
    high = 1.0
    while excess(high) > 0:
        high *= 4.0
        if high > _LARGEST:
            low, top = draws.log_p.min(), draws.log_p.max()
            raise ValueError(
                "no step fulfils the constraints: the log density ranges from "
                f"{low:.3g} to {top:.3g} over the draws; start closer to the target, or give larger eps_tr and eps_ent"
            )
    t: Any = brentq(lambda t: excess(np.expm1(t)), 0.0, np.log1p(high), xtol=1e-10)
    return float(np.expm1(t))


def _subset(draws: _Draws, count: int) -> _Draws:
    """Every k-th draw, with the same total base weight."""
    index = np.linspace(0, len(draws.log_p) - 1, count).astype(int)
    base = draws.log_base[index]
    return _Draws(
        draws.log_p[index], draws.log_q[index], base - float(logsumexp(base)) + float(logsumexp(draws.log_base))
    )


def _entropy(draws: _Draws) -> float:
    """``-E_q[log q]`` over the draws inside, normalised by their base weight."""
    w = np.exp(draws.log_base - float(logsumexp(draws.log_base)))
    return float(-(w @ draws.log_q))


def _ess(log_w: np.ndarray, log_base: np.ndarray) -> float:
    """Relative effective sample size of weights on top of base weights."""
    return float(np.exp(2 * float(logsumexp(log_w + log_base)) - float(logsumexp(2 * log_w + log_base))))
