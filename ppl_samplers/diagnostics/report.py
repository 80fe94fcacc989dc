"""A finished run on one page of text, with the verdict at the end."""

from __future__ import annotations

import warnings
from typing import IO

import numpy as np

from ppl_samplers.diagnostics.checks import acceptance_profile
from ppl_samplers.diagnostics.evidence import Evidence, evidence_from_record
from ppl_samplers.diagnostics.modes import mode_table
from ppl_samplers.diagnostics.psis import arviz
from ppl_samplers.diagnostics.record import RunRecord, elements


def mcmc_report(
    record: RunRecord,
    file: IO[str] | None = None,
    *,
    prob: float = 0.9,
    max_rows: int = 60,
    modes: bool = True,
) -> str:
    """Summary of a run: sites, engines, evidence, modes, and in words whether to trust it.

    Args:
        record: The run.
        file: Text stream to write to, for example ``sys.stdout``; nothing is written by default.
        prob: Probability of the central interval shown.
        max_rows: Most rows of the table of sites.
        modes: Look for modes (a second or two).

    Returns:
        The text.

    Warns:
        UserWarning: The engines disagree: neither draws nor evidence can be trusted.
    """
    parts = [f"{record.engine} ({record.backend}): {_shape(record)}", _sites(record, prob, max_rows)]
    evidence = _evidence(record)
    if evidence is not None:
        parts.append(_engines(record, evidence))
    profile = acceptance_profile(record)
    findings = [profile.message] if profile.stuck.any() else []
    if modes and record.unconstrained.shape[2]:
        table = mode_table(record)
        if len(table) > 1:
            parts.append(f"Modes\n{table.table()}")
        findings += list(table.flags)
    findings += list(record.notes)
    if findings:
        parts.append("Remarks\n" + "\n".join(f"- {finding}" for finding in findings))
    parts.append("Verdict\n" + _verdict(record, evidence))
    text = "\n\n".join(parts) + "\n"
    if file is not None:
        file.write(text)
    if evidence is not None and evidence.verdict == "disagree":
        warnings.warn(f"The engines disagree, do not use these draws. {evidence.message}", UserWarning, stacklevel=2)
    return text


def _shape(record: RunRecord) -> str:
    chains, draws, dim = record.unconstrained.shape
    engines = record.num_engines
    return f"{chains} chains of {draws} draws, {engines} engine{'s' if engines != 1 else ''}, {dim} dimensions"


def _evidence(record: RunRecord) -> Evidence | None:
    if np.asarray(record.evidence_sums)[:, 2].sum() == 0:
        return None
    return evidence_from_record(record, force=True)


def _sites(record: RunRecord, prob: float, max_rows: int) -> str:
    tail = (1 - prob) / 2
    low, high = f"{100 * tail:.1f}%", f"{100 * (1 - tail):.1f}%"
    rows, left = [], 0
    az = arviz()
    posterior = {site: np.asarray(value, np.float64) for site, value in record.posterior.items()}
    for name, x in elements(posterior, 2):
        if len(rows) == max_rows:
            left += 1
            continue
        ess = rhat = float("nan")
        if x.shape[1] > 3 and np.ptp(x) > 0:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                x = np.ascontiguousarray(x)
                ess = float(az.ess(x, method="bulk"))
                rhat = float(az.rhat(x)) if len(x) > 1 else rhat
        rows.append((name, x.mean(), x.std(), np.quantile(x, tail), np.quantile(x, 1 - tail), ess, rhat))
    width = max([len(r[0]) for r in rows] + [4])
    lines = [f"{'':{width}s} {'mean':>10s} {'sd':>10s} {low:>10s} {high:>10s} {'ess':>8s} {'r_hat':>6s}"]
    for name, mean, sd, lower, upper, ess, rhat in rows:
        lines.append(f"{name:{width}s} {mean:10.4g} {sd:10.4g} {lower:10.4g} {upper:10.4g} {ess:8.0f} {rhat:6.2f}")
    if left:
        lines.append(f"... and {left} more rows")
    return "\n".join(lines)


def _engines(record: RunRecord, evidence: Evidence) -> str:
    # A number that does not exist is not printed: under an improper prior the engines' normalisers are arbitrary.
    shown = record.evidence_kind != "undefined"
    head = f"{'log Z':>12s} {'error':>8s} " if shown else ""
    lines = [f"{'engine':6s} {head}{'proposals':>10s} {'ess':>8s} {'k-hat':>6s} {'last loss':>10s}"]
    loss = record.training.get("loss")
    for r, e in enumerate(evidence.per_engine):
        row = np.full(1, np.nan) if loss is None else np.asarray(loss, dtype=float)[r]
        known = row[np.isfinite(row)]
        final = known[-1] if known.size else np.nan
        figures = f"{e.log_z:12.4f} {e.standard_error:8.4f} " if shown else ""
        lines.append(f"{r:<6d} {figures}{e.num_proposals:10d} {e.ess:8.0f} {e.pareto_k:6.2f} {final:10.4g}")
    costs = [f"{name.replace('_', ' ')}: {value:g}" for name, value in record.counts.items()]
    return "\n".join([*lines, *(["; ".join(costs)] if costs else [])])


def _verdict(record: RunRecord, evidence: Evidence | None) -> str:
    if evidence is None:
        return "No proposals were drawn after the training: there is no evidence, and coverage is unknown."
    if record.evidence_kind != "undefined":
        return evidence.message
    reason = record.evidence_reason.rstrip(".") or "the prior is improper"
    said = f"The evidence is undefined: {reason}."
    if evidence.verdict == "disagree":
        return f"{said} The engines disagree: do not trust the draws, train longer or use more engines."
    if evidence.verdict == "agree":
        return f"{said} The engines agree, so the draws can be used."
    return f"{said} Whether all modes were found is unknown with one engine: run with num_engines=2 or more."
