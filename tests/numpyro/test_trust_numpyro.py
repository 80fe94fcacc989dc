"""A run that is wrong says so: engines that were trained into one of two modes."""

import math
import warnings

import jax
import jax.numpy as jnp
import pytest

from ppl_samplers.numpyro import MCMC, Affine, BoltzmannGenerator, LogDensity, Pilot, log_evidence

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
SMALL = {"flow": Affine(), "pilot": Pilot(num_particles=256)}


def right_mode(x):
    return -0.5 * (x[:, 0] - 4) ** 2 - HALF_LOG_2PI


def both_modes(x):
    return jnp.logaddexp(right_mode(x), -0.5 * (x[:, 0] + 4) ** 2 - HALF_LOG_2PI) - math.log(2)


def spread(key, n):
    return 5 * jax.random.normal(key, (n, 1))


@pytest.mark.slow
@pytest.mark.parametrize("num_engines", [1, 2])
def test_engines_that_cover_one_of_two_modes_are_reported(num_engines):
    half = LogDensity.from_callable(right_mode, 1, sample_prior=spread)
    kernel = BoltzmannGenerator(log_density=half, num_engines=num_engines, **SMALL)
    trained = kernel.fit(jax.random.key(0), num_warmup=5, progress=False)
    whole = LogDensity.from_callable(both_modes, 1, sample_prior=spread)
    mcmc = MCMC(
        BoltzmannGenerator(log_density=whole, trained=trained, **SMALL),
        num_warmup=0,
        num_samples=1000,
        progress_bar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(jax.random.key(1))
        evidence = log_evidence(mcmc)
    assert not evidence.reliable
    assert evidence.verdict == ("unknown" if num_engines == 1 else "disagree") or "misses a mode" in evidence.message
