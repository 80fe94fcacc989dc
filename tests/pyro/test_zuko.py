"""zuko's flows as transports: forward, inverse and density belong together, and the correction is exact."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import zuko

from ppl_samplers.backends.torch.flows import Flow
from ppl_samplers.pyro import CMT, MCMC, AutoFlow, BoltzmannGenerator, LogDensity, Zuko, log_evidence


def small(dim):
    return zuko.flows.NSF(dim, transforms=2, bins=4, hidden_features=(8,), passes=2)


def autoregressive(dim):
    return zuko.flows.MAF(dim, transforms=2, hidden_features=(8,))


@pytest.mark.parametrize("make", [small, autoregressive])
def test_draws_and_their_densities_belong_together(make):
    torch.manual_seed(0)
    flow = Flow(Zuko(make), 3, torch.float64)
    for parameter in flow.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    flow.standardise(torch.tensor([1.0, 2.0, 3.0]), torch.diag(torch.tensor([0.5, 1.0, 2.0])))
    x, log_q = flow.sample(6)
    torch.testing.assert_close(flow.log_prob(x), log_q, atol=1e-5, rtol=1e-5)
    # The density by the derivative of the map, one point at a time.
    y = flow.whiten(x)
    for k in range(3):
        jacobian = torch.autograd.functional.jacobian(lambda v: flow.transform()(v), y[k])
        base = torch.distributions.Normal(0.0, 1.0).log_prob(flow.transform()(y[k])).sum()
        torch.testing.assert_close(
            base + torch.linalg.slogdet(jacobian)[1] - flow.log_volume(), log_q[k], atol=1e-5, rtol=1e-5
        )


def test_something_else_is_refused():
    with pytest.raises(ValueError, match=r"zuko\.flows\.NSF"):
        Zuko(lambda dim: torch.nn.Linear(dim, dim)).build(2)


def _two_modes(x):
    return torch.logaddexp(-0.5 * ((x - 2) ** 2).sum(-1), -0.5 * ((x + 2) ** 2).sum(-1)) - np.log(4 * np.pi)


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (BoltzmannGenerator, {}),
        (CMT, {"buffer_size": 2048, "grad_steps": 50}),
    ],
)
def test_engines_are_exact_with_a_flow_of_zuko(engine, options, tmp_path):
    torch.manual_seed(0)
    density = LogDensity.from_callable(_two_modes, 2, sample_prior=lambda n: 3 * torch.randn(n, 2))
    kernel = engine(log_density=density, flow=Zuko(small), **options)
    mcmc = MCMC(kernel, warmup_steps=10, num_samples=500, num_chains=4, disable_progbar=True)
    mcmc.run()
    evidence = log_evidence(mcmc, force=True)
    assert abs(evidence.log_z) < 4 * evidence.standard_error + 0.01
    assert 0.35 < float((mcmc.get_samples()["x"].sum(-1) > 0).double().mean()) < 0.65
    trained = engine(log_density=density, flow=Zuko(small), **options).fit(num_warmup=2, progress=False)
    trained.save(tmp_path / "engine.npz")
    loaded = type(trained).load(tmp_path / "engine.npz", engine(log_density=density, flow=Zuko(small), **options))
    proposals = []
    for one in (loaded, trained):
        torch.manual_seed(1)
        proposals.append(one.propose(100))
    torch.testing.assert_close(*proposals)
    with pytest.raises(ValueError, match="flow"):
        type(trained).load(tmp_path / "engine.npz", engine(log_density=density, **options))


def test_guide_takes_a_flow_of_zuko():
    def model():
        pyro.sample("x", dist.Normal(1.0, 2.0).expand([2]).to_event(1))

    torch.manual_seed(0)
    pyro.clear_param_store()
    guide = AutoFlow(model, flow=Zuko(small))
    optimiser = pyro.optim.ClippedAdam({"lr": 1e-2, "lrd": 0.99})
    svi = pyro.infer.SVI(model, guide, optimiser, pyro.infer.Trace_ELBO(num_particles=8))
    for _ in range(400):
        svi.step()
    # Nothing is observed: the evidence is one, and the gap of the bound is the divergence from the prior.
    gap = np.mean([svi.evaluate_loss() for _ in range(50)])
    assert -0.01 < gap < 0.05
    draws = np.stack([guide()["x"].detach().numpy() for _ in range(500)])
    assert np.allclose(draws.mean(0), 1.0, atol=0.5)
    assert np.allclose(draws.std(0), 2.0, atol=0.4)
