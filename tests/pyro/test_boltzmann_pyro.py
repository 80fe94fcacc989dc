import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from ppl_samplers.core import evidence
from ppl_samplers.engines.boltzmann.pyro import BoltzmannGenerator, FlowTransport
from ppl_samplers.pyro import HMC, MCMC, Affine, ForwardKL, LogDensity, Pilot, ReverseKL, SplineCoupling, record

# Conjugate regression: exact values of the model below.
LOG_Z = -39.6948
MEAN = torch.tensor([1.0577, -2.0507, 0.5006, 0.0383])


def regression_data():
    x = np.random.RandomState(0).randn(40, 4).astype(np.float32)
    noise = np.random.RandomState(1).randn(40).astype(np.float32)
    x = torch.tensor(x)
    return x, x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.5 * torch.tensor(noise)


def regression(x, y):
    beta = pyro.sample("beta", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    pyro.sample("y", dist.Normal(x @ beta, 0.5).to_event(1), obs=y)


def exact_sd(x):
    return torch.linalg.inv(x.T @ x / 0.25 + torch.eye(4)).diagonal().sqrt()


def two_modes(x):
    half = 0.5 * x.shape[-1] * math.log(2 * math.pi)
    return torch.logaddexp(-0.5 * ((x - 4) ** 2).sum(-1), -0.5 * ((x + 4) ** 2).sum(-1)) - math.log(2) - half


SMALL = Pilot(num_particles=128, num_moves=2, final_moves=4)


def log_z_of(kernel):
    log_z, error, _, _ = evidence.finish(evidence.merge(kernel.ensemble.sums))
    return float(log_z), float(error)


def check_moments(values, mean, sd):
    """Mean and standard deviation of draws ``(C, S, D)`` within 4 Monte Carlo errors, by the spread of batch means."""
    for got, truth in ((values, mean), ((values - mean) ** 2, sd**2)):
        batches = got.reshape(-1, 50, got.shape[-1]).mean(1)
        error = batches.std(0) / math.sqrt(len(batches))
        assert ((got.mean((0, 1)) - truth).abs() < 4 * error).all(), (got.mean((0, 1)), truth, error)


def test_conjugate_regression_with_an_affine_flow():
    x, y = regression_data()
    torch.manual_seed(0)
    kernel = BoltzmannGenerator(regression, flow=Affine(), pilot=SMALL)
    mcmc = MCMC(kernel, num_samples=500, warmup_steps=10, num_chains=4, disable_progbar=True)
    mcmc.run(x, y)
    log_z, error = log_z_of(kernel)
    assert abs(log_z - LOG_Z) < max(3 * error, 1e-4) and abs(log_z - LOG_Z) < 0.01
    check_moments(mcmc.get_samples(group_by_chain=True)["beta"], MEAN, exact_sd(x))


@pytest.mark.parametrize("correction", ["imh", "isir"])
def test_bad_frozen_proposal_is_corrected(correction):
    x, y = regression_data()
    torch.manual_seed(1)
    trained = BoltzmannGenerator(regression, flow=Affine(), pilot=SMALL).fit(x, y, num_warmup=5, progress=False)
    for state in trained.states:
        sd = torch.diagonal(state.flow.scale_tril)
        state.flow.standardise(state.flow.loc + 0.8 * sd, 1.4 * state.flow.scale_tril)
    kernel = BoltzmannGenerator(regression, trained=trained, correction=correction, local_move=None, num_reseat=40000)
    mcmc = MCMC(kernel, num_samples=2000, warmup_steps=0, num_chains=4, disable_progbar=True)
    mcmc.run(x, y)
    assert mcmc.diagnostics()["acceptance rate"]["chain 0"] < 0.9
    log_z, error = log_z_of(kernel)
    assert abs(log_z - LOG_Z) < 3 * error and error < 0.01
    check_moments(mcmc.get_samples(group_by_chain=True)["beta"], MEAN, exact_sd(x))


def test_bad_frozen_proposal_with_local_moves_and_one_alternating_chain():
    x, y = regression_data()
    torch.manual_seed(2)
    trained = BoltzmannGenerator(regression, flow=Affine(), pilot=SMALL).fit(x, y, num_warmup=5, progress=False)
    # The engines differ: a stale log weight after a block, or after a local move, would show.
    for state, shift, scale in zip(trained.states, (1.5, -1.0), (1.5, 0.9)):
        sd = torch.diagonal(state.flow.scale_tril)
        state.flow.standardise(state.flow.loc + shift * sd, scale * state.flow.scale_tril)
    kernel = BoltzmannGenerator(regression, trained=trained, block=7, local_move=HMC(num_leapfrog=2), local_every=3)
    mcmc = MCMC(kernel, num_samples=3000, warmup_steps=0, num_chains=1, disable_progbar=True)
    mcmc.run(x, y)
    assert set(record(mcmc).sample_stats["engine"].ravel()) == {0, 1}
    check_moments(mcmc.get_samples(group_by_chain=True)["beta"], MEAN, exact_sd(x))


def test_weights_of_proposals_and_of_given_points_are_the_same():
    torch.manual_seed(0)
    density = LogDensity.from_callable(two_modes, 2)
    transport = FlowTransport(flow=SplineCoupling(layers=2, width=16), train_steps=20, pilot=SMALL)
    state = transport.init(density, 1)
    state = transport.train_step(state, density)
    x, log_w = transport.propose(state, density, 200)
    assert log_w.dtype == torch.float64
    torch.testing.assert_close(transport.log_weight(state, density, x), log_w, rtol=0, atol=2e-3)


def test_untrained_weights_give_the_evidence():
    """Whatever the network is, the weights are exact: E[w] = Z."""
    torch.manual_seed(3)
    density = LogDensity.from_callable(two_modes, 1)
    transport = FlowTransport(flow=SplineCoupling(), pilot=SMALL)
    state = transport.init(density, 1)
    with torch.no_grad():
        for parameter in state.flow.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    _, log_w = transport.propose(state, density, 20000)
    log_z, error = evidence.log_evidence(log_w)
    assert abs(float(log_z)) < 4 * float(error)


@pytest.mark.parametrize("objective", [ReverseKL(), ForwardKL(), (ForwardKL(), ReverseKL(weight=((0, 0), (1, 1))))])
def test_every_objective_trains(objective):
    torch.manual_seed(0)
    density = LogDensity.from_callable(lambda x: -0.5 * ((x - 3) ** 2).sum(-1) - 0.1 * (x**4).sum(-1), 2)
    transport = FlowTransport(
        flow=SplineCoupling(layers=2, width=16), objective=objective, train_steps=60, batch_size=64, pilot=SMALL
    )
    state = transport.init(density, 4)
    for _ in range(4):
        state = transport.train_step(state, density)
    assert state.done and math.isfinite(state.loss) and state.num_skipped == 0
    _, log_w = transport.propose(state, density, 1000)
    # One dimension: quadrature of exp(-(x-3)^2/2 - 0.1 x^4), squared for two.
    grid = torch.linspace(-10, 10, 20001, dtype=torch.float64)
    truth = 2 * torch.trapezoid(torch.exp(-0.5 * (grid - 3) ** 2 - 0.1 * grid**4), grid).log()
    log_z, error = evidence.log_evidence(log_w)
    assert abs(float(log_z - truth)) < 4 * float(error) and float(error) < 0.02


def test_draws_of_the_user_are_learnt():
    x, y = regression_data()
    torch.manual_seed(0)
    exact = torch.distributions.MultivariateNormal(MEAN, precision_matrix=x.T @ x / 0.25 + torch.eye(4))
    objective = ForwardKL(draws={"beta": exact.sample((1000,))})
    kernel = BoltzmannGenerator(regression, flow=Affine(), objective=objective)
    trained = kernel.fit(x, y, num_warmup=1, progress=False)
    _, log_w = trained.propose(2000)
    log_z, error = evidence.log_evidence(log_w)
    assert abs(float(log_z) - LOG_Z) < 4 * float(error) and float(error) < 0.02
    with pytest.raises(ValueError, match="columns"):
        BoltzmannGenerator(regression, objective=ForwardKL(draws=torch.zeros(9, 3))).fit(x, y, num_warmup=1)


def test_float64_model_gets_a_float64_flow():
    x, y = (value.double() for value in regression_data())
    torch.manual_seed(0)
    kernel = BoltzmannGenerator(regression, flow=Affine(), pilot=SMALL, num_engines=1)
    trained = kernel.fit(x, y, num_warmup=2, progress=False)
    assert trained.states[0].flow.loc.dtype == torch.float64
    assert trained.propose(3)[0].dtype == torch.float64


def test_save_and_load_give_the_same_weights(tmp_path):
    torch.manual_seed(0)
    density = LogDensity.from_callable(two_modes, 3)
    kernel = BoltzmannGenerator(log_density=density, flow=SplineCoupling(2, width=8), train_steps=9, pilot=SMALL)
    path = tmp_path / "engine.npz"
    trained = kernel.fit(num_warmup=2, progress=False, checkpoint=str(path))
    again = type(trained).load(path, BoltzmannGenerator(log_density=density, flow=SplineCoupling(2, width=8)))
    x, _ = trained.propose(20)
    for old, new in zip(trained.states, again.states):
        expected = trained.transport.log_weight(old, density, x)
        torch.testing.assert_close(again.transport.log_weight(new, density, x), expected, rtol=0, atol=0)
    assert again.transport.flow == trained.transport.flow
    other = LogDensity.from_callable(two_modes, 2)
    with pytest.raises(ValueError, match="sites"):
        type(trained).load(path, BoltzmannGenerator(log_density=other, flow=SplineCoupling(2, width=8)))


def test_wrong_settings_are_refused_in_words():
    with pytest.raises(ValueError, match="ReverseKL"):
        BoltzmannGenerator(regression, objective="reverse_kl")
    with pytest.raises(ValueError, match="defensive"):
        BoltzmannGenerator(regression, defensive=1.0)
    with pytest.raises(ValueError, match="isir"):
        BoltzmannGenerator(regression, correction="gibbs")
    with pytest.raises(ValueError, match="model"):
        BoltzmannGenerator()


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2])
def test_default_finds_both_modes(dim):
    torch.manual_seed(dim)
    kernel = BoltzmannGenerator(log_density=LogDensity.from_callable(two_modes, dim))
    mcmc = MCMC(kernel, num_samples=1000, warmup_steps=40, num_chains=4, disable_progbar=True)
    mcmc.run()
    right = (mcmc.get_samples(group_by_chain=True)["x"][..., 0] > 0).double()
    batches = right.reshape(-1, 50).mean(1)
    assert abs(float(right.mean()) - 0.5) < 4 * float(batches.std()) / math.sqrt(len(batches))
    log_z, error = log_z_of(kernel)
    assert abs(log_z) < max(3 * error, 0.01)


@pytest.mark.slow
def test_conjugate_regression_with_the_default():
    x, y = regression_data()
    torch.manual_seed(0)
    kernel = BoltzmannGenerator(regression)
    mcmc = MCMC(kernel, num_samples=1000, warmup_steps=40, num_chains=4, disable_progbar=True)
    mcmc.run(x, y)
    log_z, error = log_z_of(kernel)
    assert abs(log_z - LOG_Z) < 3 * error and abs(log_z - LOG_Z) < 0.01
    check_moments(mcmc.get_samples(group_by_chain=True)["beta"], MEAN, exact_sd(x))


@pytest.mark.parametrize("flow", ["spline", Affine])
def test_a_flow_that_is_none_is_named(flow):
    with pytest.raises(ValueError, match=r"write one of SplineCoupling\(\), Affine\(\), Zuko\(make\)"):
        BoltzmannGenerator(regression, flow=flow)


@pytest.mark.parametrize("draws", [{"nu": torch.zeros(9)}, {"beta": torch.zeros(9, 3)}, {"beta": torch.zeros(4)}])
def test_draws_of_a_wrong_shape_or_name_are_named(draws):
    x, y = regression_data()
    with pytest.raises(ValueError, match=r"site 'beta'.*get_samples"):
        BoltzmannGenerator(regression, objective=ForwardKL(draws=draws)).fit(x, y, num_warmup=1, progress=False)
