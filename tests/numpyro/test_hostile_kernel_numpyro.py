"""Hostile models through the kernel on an affine transport: 20 units, 20 draws, vectorised and single.

A model costs twenty seconds of compilation, so that they stand in the slow suite.
"""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest

from ppl_samplers.numpyro import (
    CMT,
    HMC,
    MCMC,
    Affine,
    BoltzmannGenerator,
    Pilot,
    Probe,
    SplineCoupling,
    mcmc_report,
    record,
    to_arviz,
)
from ppl_samplers.testing.hostile_numpyro import HOSTILE, other_data, runnable

# What strains an engine that starts from the prior and fits a spline flow: bounded, circular and improper sites, NaN
# gradients, discrete sites that are summed out, funnels.
STRESS = {"2", "3", "5a", "6", "7b", "8", "16", "20b", "22a", "24b"}
REFUSED = [case for case in HOSTILE if case.expect == "error"]


def kernel(case, engine="BoltzmannGenerator"):
    cheap = dict(local_move=HMC(num_leapfrog=4), num_reseat=128, probe=Probe(num_points=16, num_steps=5))
    if engine == "CMT":
        return CMT(case.make(), flow=SplineCoupling(layers=2), buffer_size=2048, grad_steps=30, **cheap)
    pilot = Pilot(num_particles=128, num_moves=2, final_moves=4, max_stages=15)
    return BoltzmannGenerator(case.make(), flow=Affine(), pilot=pilot, **cheap)


@pytest.fixture(autouse=True)
def honest_warnings_are_expected():
    with warnings.catch_warnings():
        # Tiny budgets earn honest warnings about weights and engines; the checks below are about shapes and numbers.
        warnings.simplefilter("ignore")
        yield


@pytest.mark.slow
@pytest.mark.parametrize("case", runnable(), ids=lambda case: case.id)
def test_hostile_model_through_the_kernel(case):
    check(case, "BoltzmannGenerator")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in runnable() if case.id in STRESS], ids=lambda case: case.id)
def test_hostile_model_through_cmt(case):
    check(case, "CMT")


def check(case, engine):
    mcmc = MCMC(kernel(case, engine), num_warmup=20, num_samples=20, num_chains=4, progress_bar=False)
    mcmc.run(jax.random.key(0), *case.args, **case.kwargs)
    if case.id != "9b":  # NumPyro's own summary cannot reshape a site without entries
        mcmc.print_summary()
    run = record(mcmc)
    assert run.unconstrained.shape == (4, 20, case.dim)
    for name, draws in run.posterior.items():
        assert draws.shape[:2] == (4, 20), name
        assert np.all(np.isfinite(np.asarray(draws, float))), name
    assert np.all(np.isfinite(run.sample_stats["lp"]))
    assert len(mcmc_report(mcmc)) > 100
    if case.id not in {"16", "17a"}:  # no pointwise term where a discrete site is summed out
        to_arviz(mcmc)
    mcmc.run(jax.random.key(1), *other_data(case), **case.kwargs)
    assert np.all(np.isfinite(record(mcmc).sample_stats["lp"]))


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in runnable() if case.id == "2"], ids=lambda case: case.id)
def test_one_chain_has_no_chain_axis_in_its_state(case):
    mcmc = MCMC(kernel(case), num_warmup=20, num_samples=20, num_chains=1, progress_bar=False)
    mcmc.run(jax.random.key(0), *case.args, **case.kwargs)
    assert record(mcmc).unconstrained.shape == (1, 20, case.dim)


def test_data_that_no_point_can_explain_are_refused_by_name():
    case = next(case for case in runnable() if case.id == "6")
    mcmc = MCMC(kernel(case), num_warmup=1, num_samples=2, num_chains=4, progress_bar=False)
    with pytest.raises(ValueError, match=r"not finite at any of 64 starting points.*is -inf or NaN"):
        mcmc.run(jax.random.key(0), *(3 * np.asarray(a) for a in case.args))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_refused_models_are_refused_before_any_training(case):
    mcmc = MCMC(kernel(case), num_warmup=1, num_samples=2, num_chains=1, progress_bar=False)
    with pytest.raises(case.error, match=case.fragment):
        mcmc.run(jax.random.key(0), *case.args, **case.kwargs)
