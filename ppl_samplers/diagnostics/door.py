"""The three functions that a user calls on a finished run, the same behind both doors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import IO, Any

from ppl_samplers.diagnostics.evidence import Evidence, evidence_from_record
from ppl_samplers.diagnostics.record import RunRecord


def results(record: Callable[[Any], RunRecord]) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """``log_evidence``, ``to_arviz`` and ``mcmc_report`` for the runs that ``record`` understands."""

    def log_evidence(x: Any, **options: Any) -> Evidence:
        """Log evidence with its error, effective sample size and verdict.

        Args:
            x: A finished ``MCMC``, or what ``fit`` gave.
            **options: Passed on to :func:`ppl_samplers.diagnostics.evidence.evidence_from_record`.

        Raises:
            ValueError: If the model's evidence is undefined (an improper prior), or nothing has been drawn.
        """
        return evidence_from_record(record(x), **options)

    def to_arviz(x: Any, **options: Any) -> Any:
        """The run as ArviZ data: posterior, sample_stats, log_likelihood, observed_data and training curves.

        Args:
            x: A finished ``MCMC``.
            **options: Passed on to :func:`ppl_samplers.diagnostics.arviz.to_arviz`.
        """
        from ppl_samplers.diagnostics.arviz import to_arviz as convert

        return convert(record(x), **options)

    def mcmc_report(x: Any, file: IO[str] | None = None, **options: Any) -> str:
        """Prints what the run found and whether to trust it, in words and figures; returns the text.

        Args:
            x: A finished ``MCMC``, or what ``fit`` gave.
            file: Text stream to print to; standard output by default.
            **options: Passed on to :func:`ppl_samplers.diagnostics.report.mcmc_report`.

        Warns:
            UserWarning: The engines disagree.
        """
        from ppl_samplers.diagnostics.report import mcmc_report as report

        return report(record(x), file=sys.stdout if file is None else file, **options)

    return log_evidence, to_arviz, mcmc_report
