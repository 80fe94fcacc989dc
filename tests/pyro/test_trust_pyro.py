"""A run that is wrong says so: engines trained into one of two modes, and a flow collapsed by reverse KL."""

import math
import warnings

import numpy as np
import pytest
import torch

from ppl_samplers.diagnostics import coverage_against_exact
from ppl_samplers.pyro import MCMC, Affine, BoltzmannGenerator, LogDensity, Pilot, ReverseKL, log_evidence
from ppl_samplers.testing import targets

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def right_mode(x):
    return -0.5 * (x[:, 0] - 4) ** 2 - HALF_LOG_2PI


def both_modes(x):
    return torch.logaddexp(right_mode(x), -0.5 * (x[:, 0] + 4) ** 2 - HALF_LOG_2PI) - math.log(2)


def spread(n):
    return 5 * torch.randn(n, 1)


@pytest.mark.parametrize("num_engines", [1, 2])
def test_engines_that_cover_one_of_two_modes_are_reported(num_engines):
    torch.manual_seed(0)
    half = LogDensity.from_callable(right_mode, 1, sample_prior=spread)
    trained = BoltzmannGenerator(
        log_density=half, flow=Affine(), num_engines=num_engines, pilot=Pilot(num_particles=256)
    ).fit(num_warmup=5, progress=False)
    whole = LogDensity.from_callable(both_modes, 1, sample_prior=spread)
    mcmc = MCMC(
        BoltzmannGenerator(log_density=whole, trained=trained),
        num_samples=1000, warmup_steps=0, num_chains=4, disable_progbar=True,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run()
        evidence = log_evidence(mcmc)
    assert not evidence.reliable
    assert evidence.verdict == ("unknown" if num_engines == 1 else "disagree") or "misses a mode" in evidence.message


@pytest.mark.slow
@pytest.mark.parametrize("start", ["pilot", "one well"])
def test_exact_draws_show_whether_reverse_kl_has_collapsed(start):
    """Standardised by the pilot run the flow keeps all sixteen wells; started in one well it stays there."""
    target = targets.many_well(8)
    torch.manual_seed(0)
    density = LogDensity.from_callable(target.log_density, target.dim)
    settings = {"objective": ReverseKL(), "num_engines": 1, "train_steps": 600, "defensive": 0.0}
    transport = BoltzmannGenerator(log_density=density, **settings).transport
    with warnings.catch_warnings():
        # Trial points of the annealing run fall where the quartic overflows.
        warnings.simplefilter("ignore")
        state = transport.init(density, 10)
        if start == "one well":
            state.flow.standardise(torch.tensor([1.7, 0.0] * 4), 0.3 * torch.eye(8))
        for _ in range(10):
            state = transport.train_step(state, density)
    _, log_w = transport.propose(state, density, 4000)
    exact = torch.as_tensor(target.sample(np.random.default_rng(0), 4000), dtype=torch.float32)
    at_exact = transport.log_weight(state, density, exact)
    coverage = coverage_against_exact(log_w.numpy(), at_exact.numpy(), log_z=target.log_z)
    assert coverage.collapsed == (start == "one well"), coverage
