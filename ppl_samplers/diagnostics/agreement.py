"""Do independently trained engines agree? The tests behind the verdicts of the evidence and the cross-engine check."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from ppl_samplers.core.weights import sanitize
from ppl_samplers.diagnostics.psis import arviz
from ppl_samplers.diagnostics.record import RunRecord

# A gap of 0.02 in log Z moves a Bayes factor by two per cent, and single precision alone can cause it.
LOG_Z_FLOOR = 0.02
RHAT_LIMIT = 1.05
# A weight exp(5) = 150 times above the largest of all fresh ones would have dominated the evidence had it been drawn.
WEIGHT_EXCESS = 5.0
# A point of a region as wide as the posterior, whose typical log density lies log(200) lower, stands for half a percent
# of the mass; in many dimensions points of one region differ by more than that, and the lowest hundredth of the draws
# is the bound. Further out lie the tails, where light-tailed flows have huge weights on next to no mass.
DENSITY_DROP = math.log(200.0)
# Share of another engine's draws with an excess weight. Heavy tails of k-hat 0.5 reach 0.02 %, of 0.7 about 1.5 %.
EXCESS_SHARE = 0.02
# Chance of a false alarm over all coordinates and pairs together.
FALSE_ALARM = 1e-4


def log_z_tolerance(errors: np.ndarray, khats: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """How far two engines' ``log Z`` may lie apart by chance, ``(R, R)``: four standard errors, at least 0.02.

    The delta-method error assumes a finite variance. With a tail index ``k > 1/2`` the mean of ``n`` weights converges
    like ``n^(k-1)`` and not like ``n^(-1/2)``, so the error is multiplied by ``n^(k-1/2)`` (k at most 1): otherwise
    two heavy-tailed engines would be said to differ by mere noise.

    Args:
        errors: Standard errors, ``(R,)``.
        khats: Tail indices, ``(R,)``; NaN (unknown) and infinite count as 1 and 1/2 is the least.
        counts: Numbers of proposals, ``(R,)``.
    """
    k = np.clip(np.where(np.isnan(khats), 1.0, khats), 0.5, 1.0)
    wide = errors * np.maximum(counts, 1.0) ** (k - 0.5)
    return np.maximum(4 * np.hypot(wide[:, None], wide[None, :]), LOG_Z_FLOOR)


def engine_of_draws(record: RunRecord) -> np.ndarray:
    """Engine index of each draw, ``(C, S)``; from ``sample_stats``, else by the rule ``c * R // C``."""
    chains, draws = record.unconstrained.shape[:2]
    if "engine" in record.sample_stats:
        return np.asarray(record.sample_stats["engine"]).astype(int).reshape(chains, draws)
    owner = np.arange(chains) * record.num_engines // max(chains, 1)
    return np.broadcast_to(owner[:, None], (chains, draws))


@dataclass(frozen=True)
class EngineRhat:
    """R-hat between engines.

    Attributes:
        rhat: Per unconstrained dimension, ``(D,)``; NaN with one engine.
        significant: Whether some dimension has R-hat above 1.05 *and* engine means that differ by more than chance.
        worst: Index of the dimension with the largest R-hat, -1 if unknown.
    """

    rhat: np.ndarray
    significant: bool
    worst: int

    @property
    def largest(self) -> float:
        """Largest R-hat; NaN with one engine."""
        return float(self.rhat[self.worst]) if self.worst >= 0 else float("nan")


def _chain_ess(z: np.ndarray) -> float:
    """Effective size of equal-length sequences ``(C, S)``; ``C * S`` at most."""
    if z.shape[1] < 4:
        return float(z.size)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        value = float(arviz().ess(np.ascontiguousarray(z), method="mean"))
    return min(value, z.size) if np.isfinite(value) else 1.0


def engine_rhat(record: RunRecord) -> EngineRhat:
    """Rank-normalised R-hat with the engines in the place of chains, and whether the difference is more than chance.

    The standard error of an engine's mean counts its effective draws, never more than its distinct points: a stuck
    chain is no evidence that engines differ.

    References:
        Aki Vehtari, Andrew Gelman, Daniel Simpson, Bob Carpenter, Paul-Christian Buerkner, Rank-normalization, folding,
        and localization: an improved R-hat for assessing convergence of MCMC, 2021.
    """
    x = np.asarray(record.unconstrained, dtype=np.float64)
    chains, draws, dim = x.shape
    owner = engine_of_draws(record)
    engines = [r for r in range(record.num_engines) if np.any(owner == r)]
    if len(engines) < 2 or dim == 0 or draws == 0:
        return EngineRhat(np.full(dim, np.nan), False, -1)
    masks = [owner == r for r in engines]
    distinct = [len(np.unique(x[m], axis=0)) for m in masks]
    rhat = np.full(dim, np.nan)
    significant = False
    pairs = len(engines) * (len(engines) - 1) / 2
    limit = norm.isf(0.5 * FALSE_ALARM / (dim * pairs))
    for d in range(dim):
        ranks = rankdata(x[..., d]).reshape(chains, draws)
        z = norm.ppf((ranks - 0.375) / (ranks.size + 0.25))
        means = np.array([z[m].mean() for m in masks])
        within = np.mean([z[m].var() for m in masks])
        total = within + means.var(ddof=1)
        if total <= 0:
            continue
        rhat[d] = np.sqrt(total / within) if within > 0 else np.inf
        if not rhat[d] > RHAT_LIMIT:
            continue
        # Standardised ranks have variance one: the pooled value is the cautious one when engines sit in single modes.
        errors = []
        for r, m, unique in zip(engines, masks, distinct):
            whole = np.all(owner == r, axis=1)
            sequences = z[whole] if whole.any() else z[m][None, :]
            errors.append(1 / np.sqrt(max(1.0, min(_chain_ess(sequences), unique))))
        gaps = np.abs(means[:, None] - means) / np.hypot(np.array(errors)[:, None], errors)
        significant = significant or bool(gaps.max() > limit)
    worst = int(np.nanargmax(rhat)) if np.isfinite(rhat).any() or np.isposinf(rhat).any() else -1
    return EngineRhat(rhat, significant, worst)


def largest_fresh(record: RunRecord) -> np.ndarray:
    """Largest finite fresh log weight of each engine, ``(R,)``; ``-inf`` without one."""
    fresh = sanitize(np.atleast_2d(np.asarray(record.fresh_log_weights, dtype=np.float64)))
    if fresh.shape[-1] == 0:
        return np.full(record.num_engines, -np.inf)
    return fresh.max(axis=-1)


def missed_by_probe(record: RunRecord) -> np.ndarray:
    """Number of probe points that show a mode an engine missed, ``(R,)``.

    A point counts when its log weight exceeds the largest fresh one by more than 5 and its log density is not
    negligible: not below the lowest hundredth of the draws' log densities, or not more than log 200 below their median.
    """
    engines = record.num_engines
    if record.probe_log_weights is None or record.probe_log_density is None or "lp" not in record.sample_stats:
        return np.zeros(engines, dtype=int)
    lp = np.asarray(record.sample_stats["lp"], dtype=np.float64)
    lp = lp[np.isfinite(lp)]
    if lp.size == 0:
        return np.zeros(engines, dtype=int)
    weights = np.atleast_2d(np.asarray(record.probe_log_weights, dtype=np.float64))
    density = np.broadcast_to(np.asarray(record.probe_log_density, dtype=np.float64), weights.shape)
    top = largest_fresh(record)
    # Where the engine has no density at all the weight is +inf: the clearest miss there is.
    excess = (weights > top[:, None] + WEIGHT_EXCESS) & np.isfinite(top)[:, None]
    return np.sum(excess & (density >= min(np.quantile(lp, 0.01), np.median(lp) - DENSITY_DROP)), axis=1)


def weights_on_others(record: RunRecord, max_points: int = 256, seed: int = 0) -> np.ndarray | None:
    """Log weights of each engine at draws of every other, ``(R, R, M)``, NaN on the diagonal and where there are none.

    Entry ``[a, b]`` holds engine ``a``'s weights at draws of engine ``b``'s chains. ``None`` without
    ``record.log_weight_at`` or with one engine.
    """
    engines = record.num_engines
    if record.log_weight_at is None or engines < 2:
        return None
    owner = engine_of_draws(record)
    x = np.asarray(record.unconstrained)
    rng = np.random.default_rng(seed)
    out = np.full((engines, engines, max_points), np.nan)
    for b in range(engines):
        points = x[owner == b]
        if len(points) == 0:
            continue
        # With replacement: one shape for all calls, so that a compiled density is compiled once.
        chosen = points[rng.choice(len(points), max_points, replace=len(points) < max_points)]
        for a in range(engines):
            if a != b:
                out[a, b] = np.asarray(record.log_weight_at(a, chosen), dtype=np.float64)
    return out


def excess_share(record: RunRecord, on_others: np.ndarray | None) -> np.ndarray:
    """Share of engine ``b``'s draws that engine ``a`` never proposes, ``(R, R)``; NaN where unknown.

    A draw counts when its log weight exceeds the largest fresh one of ``a`` by more than 5.
    """
    engines = record.num_engines
    if on_others is None:
        return np.full((engines, engines), np.nan)
    top = largest_fresh(record)[:, None, None]
    known = ~np.isnan(on_others)
    above = np.where(known, on_others, -np.inf) > top + WEIGHT_EXCESS
    counts = known.sum(-1)
    return np.where(counts > 0, above.sum(-1) / np.maximum(counts, 1), np.nan)
