"""Every hostile model runs through the kernel, on an affine transport: 20 units, 20 draws, four chains and one."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch

from ppl_samplers.pyro import HMC, MCMC, Affine, BoltzmannGenerator, Pilot, Probe, mcmc_report, record, to_arviz
from ppl_samplers.testing.hostile_pyro import HOSTILE

# Where the density falls back to a Python loop, a run of this size would take minutes.
RUNNABLE = [case for case in HOSTILE if case.expect == "vmap"]
REFUSED = [case for case in HOSTILE if case.expect == "refused"]
# Compiling their graphs takes longer than everything else here.
SLOW = {"enumerated_hmm", "ode_loop", "enumerated_mixture"}


def kernel(case):
    return BoltzmannGenerator(
        case.make(),
        flow=Affine(),
        pilot=Pilot(num_particles=128, num_moves=2, final_moves=4, max_stages=15),
        local_move=HMC(num_leapfrog=4),
        num_reseat=128,
        probe=Probe(num_points=16, num_steps=5),
    )


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
    mcmc = MCMC(kernel(case), num_samples=20, warmup_steps=20, num_chains=chains, disable_progbar=True)
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
