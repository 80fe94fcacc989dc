"""The door for NumPyro: engines, settings and results.

Example:
    >>> import jax.numpy as jnp
    >>> from jax import random
    >>> from ppl_samplers.numpyro import MCMC, Affine, BoltzmannGenerator, LogDensity
    >>> density = LogDensity.from_callable(lambda x: -0.5 * jnp.sum(x * x, -1), 2)
    >>> kernel = BoltzmannGenerator(log_density=density, flow=Affine())
    >>> mcmc = MCMC(kernel, num_warmup=2, num_samples=50, num_chains=4, progress_bar=False)
    >>> mcmc.run(random.key(0))
    >>> mcmc.get_samples()["x"].shape
    (200, 2)
"""

from __future__ import annotations

from ppl_samplers.backends.jax.flowjax import FlowJax
from ppl_samplers.backends.jax.flows import Affine, SplineCoupling
from ppl_samplers.backends.jax.moves import HMC
from ppl_samplers.backends.jax.pilot import Pilot
from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.backends.numpyro.guide import AutoFlow
from ppl_samplers.backends.numpyro.mcmc import MCMC
from ppl_samplers.backends.numpyro.record import record
from ppl_samplers.backends.numpyro.trained import Trained
from ppl_samplers.backends.settings import IMH, ISIR, Probe
from ppl_samplers.diagnostics.door import results
from ppl_samplers.engines.boltzmann.bridge_numpyro import guide_to_trained
from ppl_samplers.engines.boltzmann.losses_numpyro import ForwardKL, ReverseKL
from ppl_samplers.engines.boltzmann.numpyro import BoltzmannGenerator
from ppl_samplers.engines.cmt.numpyro import CMT

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
    "FlowJax",
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
