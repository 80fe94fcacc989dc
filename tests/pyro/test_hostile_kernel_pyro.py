"""Every hostile model runs through the kernel, on an affine transport: 20 units, 20 draws, four chains and one."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch

from ppl_samplers.pyro import (
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
from ppl_samplers.testing.hostile_pyro import HOSTILE

# Where the density falls back to a Python loop, a run of this size would take minutes.
RUNNABLE = [case for case in HOSTILE if case.expect == "vmap"]
# What strains an engine that starts from the prior and fits a spline flow.
STRESS = {
    "eight_schools", "correlation", "dirichlet_weights", "latent_bounds", "factor_ring", "masked_and_scaled",
    "circular", "with_param", "one_scalar", "double_data", "improper",
}  # fmt: skip
REFUSED = [case for case in HOSTILE if case.expect == "refused"]
# Compiling their graphs takes longer than everything else here.
SLOW = {"enumerated_hmm", "ode_loop", "enumerated_mixture"}


def kernel(case, engine="BoltzmannGenerator"):
    cheap = dict(local_move=HMC(num_leapfrog=4), num_reseat=128, probe=Probe(num_points=16, num_steps=5))
    if engine == "CMT":
        return CMT(case.make(), flow=SplineCoupling(layers=2), buffer_size=2048, grad_steps=30, **cheap)
    pilot = Pilot(num_particles=128, num_moves=2, final_moves=4, max_stages=15)
    return BoltzmannGenerator(case.make(), flow=Affine(), pilot=pilot, **cheap)


def ids(case):
    return f"{case.number}-{case.name}"


def marked(cases):
    return [pytest.param(c, id=ids(c), marks=[pytest.mark.slow] if c.name in SLOW else []) for c in cases]


@pytest.fixture(autouse=True)
def seeded():
    pyro.clear_param_store()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        # Tiny budgets earn honest warnings about weights and engines; the checks below are about shapes and numbers.
        warnings.simplefilter("ignore")
        yield
    pyro.clear_param_store()


@pytest.mark.parametrize("case", marked(RUNNABLE))
@pytest.mark.parametrize("chains", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_hostile_model_through_the_kernel(case, chains):
    check(case, chains, "BoltzmannGenerator")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in RUNNABLE if case.name in STRESS], ids=ids)
def test_hostile_model_through_cmt(case):
    check(case, 4, "CMT")


def check(case, chains, engine):
    mcmc = MCMC(kernel(case, engine), num_samples=20, warmup_steps=20, num_chains=chains, disable_progbar=True)
    mcmc.run(*case.args, **case.kwargs)
    run = record(mcmc)
    assert run.unconstrained.shape == (chains, 20, case.dim)
    for name, draws in run.posterior.items():
        assert draws.shape[:2] == (chains, 20), name
        assert bool(torch.isfinite(torch.as_tensor(draws)).all()), name
    assert bool(torch.isfinite(torch.as_tensor(run.sample_stats["lp"])).all())
    if chains == 4:
        assert len(mcmc_report(mcmc)) > 100
        assert to_arviz(mcmc) is not None


@pytest.mark.parametrize("case", REFUSED, ids=ids)
def test_refused_models_are_refused_before_any_training(case):
    mcmc = MCMC(kernel(case), num_samples=2, warmup_steps=1, num_chains=1, disable_progbar=True)
    with pytest.raises(Exception, match=case.match):
        mcmc.run(*case.args, **case.kwargs)
