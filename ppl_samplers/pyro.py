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

from ppl_samplers.backends.pyro.chains import MCMC
from ppl_samplers.backends.pyro.density import LogDensity
from ppl_samplers.backends.pyro.guide import AutoFlow
from ppl_samplers.backends.pyro.record import record
from ppl_samplers.backends.pyro.trained import Trained
from ppl_samplers.backends.settings import IMH, ISIR, Probe
from ppl_samplers.backends.torch.flows import Affine, SplineCoupling
from ppl_samplers.backends.torch.moves import HMC
from ppl_samplers.backends.torch.pilot import Pilot
from ppl_samplers.backends.torch.zuko import Zuko
from ppl_samplers.diagnostics.door import results
from ppl_samplers.engines.boltzmann.bridge_pyro import guide_to_trained
from ppl_samplers.engines.boltzmann.losses_pyro import ForwardKL, ReverseKL
from ppl_samplers.engines.boltzmann.pyro import BoltzmannGenerator
from ppl_samplers.engines.cmt.pyro import CMT

log_evidence, to_arviz, mcmc_report = results(record)

__all__ = [
    "CMT",
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
    "Zuko",
    "guide_to_trained",
    "log_evidence",
    "mcmc_report",
    "record",
    "to_arviz",
]
