"""Checks between engines, against exact draws, of single chains, and of the price of a draw."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from ppl_samplers.core.evidence import finish
from ppl_samplers.core.logspace import log_mean_exp
from ppl_samplers.core.weights import elbo, eubo, forward_ess, relative_ess, sanitize
from ppl_samplers.diagnostics import agreement
from ppl_samplers.diagnostics.modes import mode_table
from ppl_samplers.diagnostics.psis import arviz, khat
from ppl_samplers.diagnostics.record import RunRecord


@dataclass(frozen=True)
class CrossEngineCheck:
    """What the engines of one run say about each other.

    Attributes:
        verdict: ``"agree"``, ``"weights disagree"`` (same modes, different masses or evidences), ``"modes disagree"``
            (one engine has mass where another has none) or ``"unknown"`` (one engine).
        forward_ess: ``(R, R)``, entry ``[a, b]``: forward ESS per draw of engine ``a`` on draws of engine ``b``'s
            chains; near 0 where ``a`` misses what ``b`` found. NaN on the diagonal and where unknown.
        excess_share: ``(R, R)``: share of ``b``'s draws in regions that ``a`` never proposes.
        evidence_z: ``(R, R)``: difference of the evidences in standard errors.
        rhat: R-hat between engines of each unconstrained dimension, ``(D,)``.
        message: The verdict in words.
    """

    verdict: str
    forward_ess: np.ndarray
    excess_share: np.ndarray
    evidence_z: np.ndarray
    rhat: np.ndarray
    message: str


def cross_engine_check(record: RunRecord, *, max_points: int = 256, seed: int = 0) -> CrossEngineCheck:
    """Compare the engines of a run: coverage of each other's draws, evidences, and R-hat between them.

    The draws of one engine outside the support of another are the only cheap evidence of a missed mode. A mode that
    *all* engines miss cannot be seen.

    Args:
        record: The run.
        max_points: Draws of each engine to be weighed under the others.
        seed: Seed of their choice.
    """
    engines = record.num_engines
    on_others = agreement.weights_on_others(record, max_points, seed)
    forward = np.full((engines, engines), np.nan)
    if on_others is not None:
        for a in range(engines):
            for b in range(engines):
                if a != b and not np.all(np.isnan(on_others[a, b])):
                    forward[a, b] = float(forward_ess(np.where(np.isnan(on_others[a, b]), np.inf, on_others[a, b])))
    share = agreement.excess_share(record, on_others)
    between = agreement.engine_rhat(record)
    results = [[float(v) for v in finish(s)] for s in np.asarray(record.evidence_sums, dtype=np.float64)]
    values, errors, _, counts = (np.array(column) for column in zip(*results))
    fresh = np.atleast_2d(np.asarray(record.fresh_log_weights, dtype=np.float64))
    khats = np.array([khat(row[~np.isnan(row)]) for row in fresh])
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.abs(values[:, None] - values)
        z = (values[:, None] - values) / np.hypot(errors[:, None], errors)
        far = gap > agreement.log_z_tolerance(errors, khats, counts)
    np.fill_diagonal(z, 0.0)

    def conclude(verdict: str, message: str) -> CrossEngineCheck:
        return CrossEngineCheck(verdict, forward, share, z, between.rhat, message)

    if engines < 2:
        return conclude(
            "unknown",
            "There is one engine: coverage is unknown. Run with num_engines=2 or more.",
        )
    missed = [(a, b) for a, b in zip(*np.nonzero(np.nan_to_num(share) > agreement.EXCESS_SHARE))]
    if missed:
        a, b = missed[0]
        return conclude(
            "modes disagree",
            f"Engine {a} never proposes the region that holds {share[a, b]:.0%} of the draws of engine {b}: it misses "
            "a mode. Train longer, use more engines, or one that anneals from the prior.",
        )
    if between.significant and on_others is None:
        # Without weights at given points only the draws can tell a missing mode from a wrong mass.
        table = mode_table(record, seed=seed)
        lonely = [f for f in table.flags if "visited by engine" in f]
        if lonely:
            return conclude("modes disagree", " ".join(lonely))
    if between.significant:
        return conclude(
            "weights disagree",
            f"The engines cover the same region, but their chains give different shares (R-hat between engines "
            f"{between.largest:.2f}): draw more samples.",
        )
    if far.any():
        a, b = sorted(int(i) for i in np.unravel_index(np.argmax(np.where(far, gap, -1.0)), gap.shape))
        return conclude(
            "weights disagree",
            f"The evidences of engines {a} and {b} differ ({values[a]:.2f} and {values[b]:.2f}): one of them misses "
            "mass that the other has, or its weights are too uneven. Train longer.",
        )
    return conclude(
        "agree",
        "The engines agree in draws and evidence. A mode that all of them miss cannot be seen this way.",
    )


@dataclass(frozen=True)
class Coverage:
    """How well a proposal covers a target with exact draws.

    Attributes:
        reverse_ess: ESS per draw of the proposal's draws; blind to missed modes.
        forward_ess: ESS per draw on exact draws; near 0 where modes are missed.
        elbo: ``E_q[log w]``, a lower bound of ``log Z``.
        eubo: ``E_p[log w]``, an upper bound.
        log_z: The estimate of the proposal.
        log_z_forward: ``-log E_p[1/w]``: ``log Z`` where the proposal's support covers the target's.
        collapsed: The proposal misses a substantial part of the target.
        message: The finding in a sentence.
    """

    reverse_ess: float
    forward_ess: float
    elbo: float
    eubo: float
    log_z: float
    log_z_forward: float
    collapsed: bool
    message: str


def coverage_against_exact(
    log_w_at_q: np.ndarray, log_w_at_exact_draws: np.ndarray, log_z: float | None = None
) -> Coverage:
    """Coverage of a target whose exact draws are known (benchmarks and tests).

    A proposal has *collapsed* when its forward ESS is below a tenth of its reverse ESS, or (``log_z`` known) when
    ``EUBO - log Z``, the forward Kullback-Leibler divergence, exceeds 5.

    Args:
        log_w_at_q: ``log p - log q`` at draws of the proposal, ``(N,)``.
        log_w_at_exact_draws: The same at exact draws of the target, ``(M,)``; ``+inf`` where ``q`` is zero.
        log_z: Exact log normalising constant.

    Example:
        >>> x = np.random.default_rng(0).normal(4.0, 1.0, 5000)              # one of two equal modes at -4 and 4
        >>> y = x * np.where(np.arange(5000) % 2, 1, -1)
        >>> log_w = lambda t: np.logaddexp(-0.5 * (t - 4)**2, -0.5 * (t + 4)**2) - np.log(2) + 0.5 * (t - 4)**2
        >>> coverage_against_exact(log_w(x), log_w(y), log_z=0.0).collapsed
        True
    """
    at_q = sanitize(np.asarray(log_w_at_q, dtype=np.float64).ravel())
    at_p = np.asarray(log_w_at_exact_draws, dtype=np.float64).ravel()
    at_p = np.where(np.isnan(at_p), np.inf, at_p)
    reverse = float(relative_ess(at_q))
    with np.errstate(all="ignore"):
        forward = float(forward_ess(at_p)) if np.all(at_p < np.inf) else 0.0
        lower, upper = float(elbo(at_q)), float(eubo(at_p))
        estimate, from_p = float(log_mean_exp(at_q)), -float(log_mean_exp(-at_p))
    collapsed = forward < 0.1 * reverse or (log_z is not None and upper - log_z > 5)
    if collapsed:
        message = (
            f"The proposal has collapsed: it looks even on its own draws (reverse ESS {reverse:.3f}) but misses part "
            f"of the target (forward ESS {forward:.2g}, EUBO {upper:.2f} against ELBO {lower:.2f})."
        )
    else:
        message = f"The proposal covers the target (reverse ESS {reverse:.3f}, forward ESS {forward:.3f})."
    return Coverage(reverse, forward, lower, upper, estimate, from_p, collapsed, message)


@dataclass(frozen=True)
class AcceptanceProfile:
    """Acceptance of each chain.

    Attributes:
        mean: Mean acceptance rate of each chain, ``(C,)``.
        longest: Longest run of draws without a move, ``(C,)``.
        hung_at: Log weight at which that run hung, ``(C,)``; NaN if not recorded.
        stuck: Chains whose longest run is suspicious, ``(C,)`` booleans.
        message: The finding in a sentence.
    """

    mean: np.ndarray
    longest: np.ndarray
    hung_at: np.ndarray
    stuck: np.ndarray
    message: str


def acceptance_profile(record: RunRecord) -> AcceptanceProfile:
    """Longest rejection run of each chain: independence chains stick at points of large weight.

    A run is suspicious when it is longer than ten mean waiting times and than 20 draws, or than 5 per cent of the chain
    (and 20 draws).
    """
    x = np.asarray(record.unconstrained)
    chains, draws = x.shape[:2]
    moved = np.any(x[:, 1:] != x[:, :-1], axis=-1)
    longest, where = np.ones(chains, dtype=int), np.zeros(chains, dtype=int)
    for c in range(chains):
        # Starts of runs of equal draws; a run ends where the next begins.
        starts = np.concatenate([[0], np.flatnonzero(moved[c]) + 1])
        lengths = np.diff(np.concatenate([starts, [draws]]))
        if draws:
            longest[c], where[c] = lengths.max(), starts[np.argmax(lengths)]
    rate = np.asarray(record.sample_stats.get("acceptance_rate", np.pad(moved, ((0, 0), (0, 1)))), dtype=float)
    mean = np.nanmean(rate, axis=1) if draws else np.full(chains, np.nan)
    log_weight = record.sample_stats.get("log_weight")
    hung = np.full(chains, np.nan) if log_weight is None else np.asarray(log_weight)[np.arange(chains), where]
    with np.errstate(divide="ignore"):
        limit = np.minimum(10 / mean, 0.05 * draws)
    stuck = longest > np.maximum(limit, 20)
    if stuck.any():
        c = int(np.argmax(np.where(stuck, longest, 0)))
        message = (
            f"Chain {c} stood still for {longest[c]} of {draws} draws (mean acceptance {mean[c]:.2f}): the engine "
            "proposes too little where it hung. Train longer, or use local moves more often."
        )
    else:
        message = f"No chain stood still for long (longest: {int(longest.max())} draws)."
    return AcceptanceProfile(mean, longest, hung, stuck, message)


@dataclass(frozen=True)
class Efficiency:
    """Price of an effective draw, training included and excluded: the fair comparison with NUTS.

    Attributes:
        min_ess: Smallest bulk ESS over the unconstrained dimensions.
        per_evaluation: ``min_ess`` per evaluation of the log density, gradients counted as one more; NaN if unknown.
        per_second: ``min_ess`` per second of training and sampling.
        per_second_sampling: ``min_ess`` per second of sampling alone.
    """

    min_ess: float
    per_evaluation: float
    per_second: float
    per_second_sampling: float


def efficiency(record: RunRecord) -> Efficiency:
    """Effective draws per density evaluation and per second."""
    x = np.asarray(record.unconstrained, dtype=np.float64)
    values = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for d in range(x.shape[2]):
            values.append(
                float(arviz().ess(np.ascontiguousarray(x[..., d]), method="bulk")) if x.shape[1] > 3 else np.nan
            )
    smallest = float(np.nanmin(values)) if values and not np.all(np.isnan(values)) else float("nan")
    counts = record.counts
    nothing = float("nan")

    def per(amount: float) -> float:
        return smallest / amount if amount > 0 else nothing

    evaluations = counts.get("num_energy_evaluations", nothing) + counts.get("num_gradient_evaluations", 0)
    train, sample = counts.get("train_seconds", nothing), counts.get("sample_seconds", nothing)
    return Efficiency(smallest, per(evaluations), per(train + sample), per(sample))
