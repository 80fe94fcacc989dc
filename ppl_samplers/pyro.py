"""The door for Pyro: engines, settings and results.

Example:
    >>> import torch
    >>> from ppl_samplers.pyro import MCMC, Affine, BoltzmannGenerator, LogDensity
    >>> density = LogDensity.from_callable(lambda x: -0.5 * (x * x).sum(-1), dim=2)
    >>> kernel = BoltzmannGenerator(log_density=density, flow=Affine())
    >>> mcmc = MCMC(kernel, num_samples=50, warmup_steps=2, disable_progbar=True)
    >>> mcmc.run()
    >>> mcmc.get_samples()["x"].shape
    torch.Size([200, 2])
"""

from __future__ import annotations

import sys
from typing import Any

from ppl_samplers.backends.pyro.chains import MCMC
from ppl_samplers.backends.pyro.density import LogDensity
from ppl_samplers.backends.pyro.guide import AutoFlow
from ppl_samplers.backends.pyro.record import record
from ppl_samplers.backends.pyro.trained import Trained
from ppl_samplers.backends.settings import IMH, ISIR, Probe
from ppl_samplers.backends.torch.flows import Affine, SplineCoupling
from ppl_samplers.backends.torch.moves import HMC
from ppl_samplers.backends.torch.pilot import Pilot
from ppl_samplers.engines.boltzmann.bridge_pyro import guide_to_trained
from ppl_samplers.engines.boltzmann.losses_pyro import ForwardKL, ReverseKL
from ppl_samplers.engines.boltzmann.pyro import BoltzmannGenerator


def log_evidence(x: Any, **options: Any) -> Any:
    """Log evidence with its error, effective sample size and verdict.

    Args:
        x: A finished ``MCMC``, its kernel, or what ``fit`` gave.
        **options: Passed on to :func:`ppl_samplers.diagnostics.evidence.evidence_from_record`.

    Raises:
        ValueError: If the model's evidence is undefined (an improper prior), or nothing has been drawn.
    """
    from ppl_samplers.diagnostics.evidence import evidence_from_record

    return evidence_from_record(record(x), **options)


def to_arviz(x: Any, **options: Any) -> Any:
    """The run as ArviZ data: posterior, sample_stats, log_likelihood, observed_data and training curves."""
    from ppl_samplers.diagnostics.arviz import to_arviz as convert

    return convert(record(x), **options)


def mcmc_report(x: Any, file: Any = None, **options: Any) -> str:
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


__all__ = [
    "HMC",
    "IMH",
    "ISIR",
    "MCMC",
    "Affine",
    "AutoFlow",
    "BoltzmannGenerator",
    "ForwardKL",
    "LogDensity",
    "Pilot",
    "Probe",
    "ReverseKL",
    "SplineCoupling",
    "Trained",
    "guide_to_trained",
    "log_evidence",
    "mcmc_report",
    "record",
    "to_arviz",
]
