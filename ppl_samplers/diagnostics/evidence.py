"""The evidence of a run: one number with an error bar, and a verdict in plain words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppl_samplers.core.evidence import finish, merge, sums_of
from ppl_samplers.core.weights import sanitize
from ppl_samplers.diagnostics import agreement
from ppl_samplers.diagnostics.psis import khat, khat_threshold
from ppl_samplers.diagnostics.record import RunRecord

# A standard error of 0.1 in log Z; below it the error bar itself is a guess.
MIN_ESS = 100.0


@dataclass(frozen=True)
class EngineEvidence:
    """The evidence of one engine.

    Attributes:
        log_z: Log evidence.
        standard_error: Its delta-method error.
        ess: Effective number of its proposals.
        pareto_k: Tail index of its weights; NaN with too few of them.
        num_proposals: Number of proposals it was estimated from.
    """

    log_z: float
    standard_error: float
    ess: float
    pareto_k: float
    num_proposals: int


@dataclass(frozen=True)
class Evidence:
    """Log evidence with its error and a verdict; ``print`` shows the message.

    Attributes:
        log_z: Log of the mean of ``Z`` over the engines, weighted by their numbers of proposals.
        standard_error: Error of ``log_z``: the larger of the sampling error and the spread between engines.
        ess: Effective number of proposals of all engines together.
        pareto_k: Largest tail index of the engines.
        per_engine: One :class:`EngineEvidence` per engine.
        verdict: ``"agree"``, ``"disagree"`` or ``"unknown"`` (one engine: nothing to compare with).
        reliable: The engines agree and their weights are sound. Never true with one engine.
        message: Two to five sentences for the reader.
        kind: ``"absolute"`` (log p(data)), ``"relative"`` (up to a constant) or ``"undefined"``.
        num_proposals: Number of fresh proposals of all engines.
    """

    log_z: float
    standard_error: float
    ess: float
    pareto_k: float
    per_engine: tuple[EngineEvidence, ...]
    verdict: str
    reliable: bool
    message: str
    kind: str = "absolute"
    num_proposals: int = 0

    def __str__(self) -> str:
        return self.message


def evidence_from_log_weights(
    log_w: np.ndarray, *, kind: str = "absolute", reason: str = "", force: bool = False
) -> Evidence:
    """Evidence of log weights of independent proposals.

    Args:
        log_w: ``(n,)`` of one engine, or ``(R, n)`` of ``R`` independently trained ones (NaN-padded).
        kind: ``"absolute"``, ``"relative"`` or ``"undefined"``.
        reason: Why the evidence is relative or undefined, in words.
        force: Compute it although it is undefined.

    Raises:
        ValueError: ``kind`` is ``"undefined"`` and ``force`` is false, or there are no weights.

    Example:
        >>> x = np.random.default_rng(0).standard_normal((2, 4000))        # two engines that are both right
        >>> evidence_from_log_weights(np.full_like(x, -3.0)).log_z
        -3.0
    """
    rows = np.atleast_2d(np.asarray(log_w, dtype=np.float64))
    sums = np.stack([_sums(row) for row in rows])
    engines = [_engine(s, row) for s, row in zip(sums, rows)]
    return _conclude(sums, engines, [], kind, reason, force)


def evidence_from_record(record: RunRecord, *, force: bool = False, cross_check: bool = True) -> Evidence:
    """Evidence of a run, over all fresh proposals of its sampling phase.

    The engines disagree when their evidences lie further apart than chance allows, when their chains describe different
    distributions (R-hat between engines), or when a point from elsewhere (the probe, or another engine's draws) has a
    weight far above everything an engine ever proposed: a mode that it missed.

    Args:
        record: The run.
        force: Compute the evidence although the prior is improper.
        cross_check: Weigh up to 256 draws of each engine under the others (costs as many density evaluations per pair).

    Raises:
        ValueError: The evidence is undefined (improper prior) and ``force`` is false; or there are no proposals.
    """
    sums = np.asarray(record.evidence_sums, dtype=np.float64)
    fresh = np.atleast_2d(np.asarray(record.fresh_log_weights, dtype=np.float64))
    engines = [_engine(s, row) for s, row in zip(sums, fresh)]
    against: list[str] = []
    for r, count in enumerate(agreement.missed_by_probe(record)):
        if count:
            against.append(
                f"engine {r} misses a mode: {count} independent test point{'s' if count > 1 else ''} found a region of "
                "high posterior density that it never proposes"
            )
    if cross_check:
        share = agreement.excess_share(record, agreement.weights_on_others(record))
        for a, b in zip(*np.nonzero(np.nan_to_num(share) > agreement.EXCESS_SHARE)):
            against.append(
                f"engine {a} never proposes the region that holds {share[a, b]:.0%} of the draws of engine {b}"
            )
    between = agreement.engine_rhat(record)
    if between.significant:
        against.append(f"their draws describe different distributions (R-hat between engines {between.largest:.2f})")
    return _conclude(sums, engines, against, record.evidence_kind, record.evidence_reason, force)


def _sums(row: np.ndarray) -> np.ndarray:
    """Accumulator of one NaN-padded row: padding is not a proposal."""
    kept = row[~np.isnan(row)]
    if kept.size == 0:
        return np.array([-np.inf, -np.inf, 0.0])
    return np.asarray(sums_of(sanitize(kept)))


# Nearly constant weights have a tail too, but its shape is noise and what it holds of the variance is next to nothing:
# fits with an ESS of 99.6 % and the exact evidence were measured to show k-hat 1.5.
EVEN_ENOUGH = 0.95


def _engine(sums: np.ndarray, fresh: np.ndarray) -> EngineEvidence:
    log_z, error, ess, count = (float(v) for v in finish(sums))
    return EngineEvidence(log_z, error, ess, khat(fresh[~np.isnan(fresh)]), round(count))


def _combine(sums: np.ndarray, engines: list[EngineEvidence]) -> tuple[float, float, float]:
    """``log Z``, error and ESS over engines: mean of ``Z`` weighted by the numbers of proposals."""
    log_z, within, ess, _ = (float(v) for v in finish(merge(sums)))
    if len(engines) < 2 or not np.isfinite(log_z):
        return log_z, within, ess
    share = sums[:, 2] / sums[:, 2].sum()
    relative = np.exp(np.array([e.log_z for e in engines]) - log_z)
    errors = relative * np.array([e.standard_error if np.isfinite(e.standard_error) else 0.0 for e in engines])
    within = float(np.sqrt(np.sum((share * errors) ** 2)))
    # Spread of the engines' Z round their mean; it holds the sampling noise too, so the larger of both is taken.
    used = share > 0
    freedom = max(used.sum() - 1, 1)
    between = float(np.sqrt(np.sum(share * (relative - 1) ** 2) / freedom))
    return log_z, max(within, between), ess


def _conclude(
    sums: np.ndarray,
    engines: list[EngineEvidence],
    against: list[str],
    kind: str,
    reason: str,
    force: bool,
) -> Evidence:
    if kind == "undefined" and not force:
        raise ValueError(
            "The evidence is undefined for this model"
            + (f": {reason.rstrip('.')}." if reason else ": it has an improper prior.")
            + " An improper prior has no normalising constant, so log Z would depend on an arbitrary factor. "
            "Give every latent site a proper prior (for example Normal(0, 10) instead of a flat one), or call with "
            "force=True if only differences between fits of this same model matter."
        )
    counts = np.array([e.num_proposals for e in engines], dtype=float)
    if counts.sum() == 0:
        raise ValueError(
            "No proposals were drawn after the training, so there is no evidence yet: run with num_samples > 0."
        )
    log_z, error, ess = _combine(sums, engines)
    values = np.array([e.log_z for e in engines])
    khats = np.array([e.pareto_k for e in engines])
    if len(engines) > 1:
        tolerance = agreement.log_z_tolerance(np.array([e.standard_error for e in engines]), khats, counts)
        with np.errstate(invalid="ignore"):
            excess = np.nan_to_num(np.abs(values[:, None] - values) - tolerance, nan=-np.inf)
        a, b = sorted(np.unravel_index(np.argmax(excess), excess.shape))
        if excess[a, b] > 0:
            against = [
                *against,
                f"engines {a} and {b} give log Z = {values[a]:.2f} and {values[b]:.2f}, further apart than chance "
                "allows",
            ]
    doubts: list[str] = []
    for r, e in enumerate(engines):
        limit = khat_threshold(e.num_proposals)
        if np.isnan(e.pareto_k):
            doubts.append(f"engine {r} has too few proposals with a positive weight to judge them")
        elif e.pareto_k >= limit and e.ess < EVEN_ENOUGH * e.num_proposals:
            doubts.append(
                f"the weights of engine {r} are heavy-tailed (Pareto k-hat {e.pareto_k:.2f}, limit {limit:.2f})"
            )
        elif e.ess < MIN_ESS:
            doubts.append(f"the proposals of engine {r} are worth only {e.ess:.0f} independent draws")
    verdict = "disagree" if against else ("agree" if len(engines) > 1 else "unknown")
    reliable = verdict == "agree" and not doubts
    message = _message(log_z, error, len(engines), int(counts.sum()), verdict, against, doubts, kind, reason)
    worst = float(np.nanmax(khats)) if not np.all(np.isnan(khats)) else float("nan")
    return Evidence(log_z, error, ess, worst, tuple(engines), verdict, reliable, message, kind, int(counts.sum()))


def _message(
    log_z: float,
    error: float,
    engines: int,
    proposals: int,
    verdict: str,
    against: list[str],
    doubts: list[str],
    kind: str,
    reason: str,
) -> str:
    """Two to five sentences: the number, whether to trust it, why not, what to do next."""
    plural = f"{engines} independently trained engines" if engines > 1 else "one engine"
    said = [f"Log evidence: {log_z:.3f} +- {error:.3f} ({proposals} proposals of {plural})."]
    if kind == "relative":
        said.append(
            f"It is relative, known up to a constant{f' ({_clause(reason)})' if reason else ''}: compare it only with "
            "models that leave out the same constant."
        )
    elif kind == "undefined":
        said.append(
            "The prior is improper, so the number has no meaning by itself and was computed because you forced it."
        )
    if verdict == "disagree":
        said.append(f"Do not trust it or the draws: {_listing(against)}.")
        if doubts:
            said.append(f"Also, {_listing(doubts)}.")
        said.append(
            "Train longer (more warm-up units), use more engines (num_engines=4) or one that anneals from the prior, "
            "and run again."
        )
    elif doubts:
        said.append(f"The error bar cannot be trusted: {_listing(doubts)}.")
        if verdict == "agree":
            said.append("The engines do agree within their noise.")
            said.append("Train longer (more warm-up units) or draw more samples, and run again.")
        else:
            said.append("Whether all modes were found is unknown too, since there is only one engine.")
            said.append("Train longer (more warm-up units), with num_engines=2 or more, and run again.")
    elif verdict == "unknown":
        said.append(
            "The weights are even, but whether all modes were found is unknown: with one engine there is nothing to "
            "compare with, and a missed mode leaves no trace."
        )
        said.append("Run with num_engines=2 or more before you use this number.")
    else:
        said.append("The engines agree and their weights are even, so the number and its error bar can be trusted.")
        said.append("Only a mode that every engine missed could still hide; num_engines=4 makes that less likely.")
    return " ".join(said)


def _listing(parts: list[str], most: int = 3) -> str:
    shown = parts[:most] + ([f"{len(parts) - most} more findings of this kind"] if len(parts) > most else [])
    return "; ".join(shown)


def _clause(reason: str) -> str:
    return reason.strip().rstrip(".")
