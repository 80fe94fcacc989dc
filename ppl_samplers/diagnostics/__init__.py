"""Diagnostics of a finished run: evidence with a verdict, ArviZ, mode tables, checks between engines, report, plots.

Everything here reads a :class:`RunRecord`; NumPy, SciPy and ArviZ alone are needed.
"""

from ppl_samplers.diagnostics.arviz import compare, load, loo, save, summary, to_arviz
from ppl_samplers.diagnostics.calibration import Calibration, plot_calibration, simulation_based_calibration
from ppl_samplers.diagnostics.checks import acceptance_profile, coverage_against_exact, cross_engine_check, efficiency
from ppl_samplers.diagnostics.citations import cite
from ppl_samplers.diagnostics.comparison import EvidenceComparison, WeightedLoo, compare_evidence, loo_weighted
from ppl_samplers.diagnostics.evidence import (
    EngineEvidence,
    Evidence,
    evidence_from_log_weights,
    evidence_from_record,
)
from ppl_samplers.diagnostics.modes import ModeTable, mode_table
from ppl_samplers.diagnostics.plots import plot_modes, plot_schedule, plot_training, plot_weights
from ppl_samplers.diagnostics.psis import khat, psis
from ppl_samplers.diagnostics.record import RunRecord
from ppl_samplers.diagnostics.report import mcmc_report
from ppl_samplers.diagnostics.sensitivity import power_scaling

__all__ = [
    "Calibration",
    "EngineEvidence",
    "Evidence",
    "EvidenceComparison",
    "ModeTable",
    "RunRecord",
    "WeightedLoo",
    "acceptance_profile",
    "cite",
    "compare",
    "compare_evidence",
    "coverage_against_exact",
    "cross_engine_check",
    "efficiency",
    "evidence_from_log_weights",
    "evidence_from_record",
    "khat",
    "load",
    "loo",
    "loo_weighted",
    "mcmc_report",
    "mode_table",
    "plot_calibration",
    "plot_modes",
    "plot_schedule",
    "plot_training",
    "plot_weights",
    "power_scaling",
    "psis",
    "save",
    "simulation_based_calibration",
    "summary",
    "to_arviz",
]
