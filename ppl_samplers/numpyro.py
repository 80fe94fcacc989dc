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

import warnings
from typing import Any

import numpyro.infer

from ppl_samplers.backends.jax.flowjax import FlowJax
from ppl_samplers.backends.jax.flows import Affine, SplineCoupling
from ppl_samplers.backends.jax.moves import HMC
from ppl_samplers.backends.jax.pilot import Pilot
from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.backends.numpyro.guide import AutoFlow
from ppl_samplers.backends.numpyro.record import record
from ppl_samplers.backends.numpyro.trained import Trained
from ppl_samplers.backends.settings import IMH, ISIR, Probe
from ppl_samplers.diagnostics.door import results
from ppl_samplers.engines.boltzmann.bridge_numpyro import guide_to_trained
from ppl_samplers.engines.boltzmann.losses_numpyro import ForwardKL, ReverseKL
from ppl_samplers.engines.boltzmann.numpyro import BoltzmannGenerator
from ppl_samplers.engines.cmt.numpyro import CMT


class MCMC(numpyro.infer.MCMC):
    """NumPyro's ``MCMC`` with ``chain_method="vectorized"`` and four chains by default: all chains share the engines.

    Everything else is NumPyro's.
    """

    def __init__(
        self,
        sampler: Any,
        *,
        num_warmup: int,
        num_samples: int,
        num_chains: int = 4,
        chain_method: Any = "vectorized",
        **options: Any,
    ):
        super().__init__(
            sampler,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            chain_method=chain_method,
            **options,
        )

    def run(self, rng_key: Any, *args: Any, **kwargs: Any) -> None:
        """Train and sample; see NumPyro's ``MCMC.run``."""
        try:
            super().run(rng_key, *args, **kwargs)
        except KeyboardInterrupt:
            warnings.warn(
                "NumPyro cannot keep an interrupted run: to be able to stop and resume, train first with "
                'trained = engine.fit(key, ..., checkpoint="engine.npz") and sample with trained=trained, num_warmup=0',
                UserWarning,
                stacklevel=2,
            )
            raise


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
