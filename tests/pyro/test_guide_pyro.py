"""AutoFlow and the losses under stock SVI, against exact answers."""

import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.infer.reparam import NeuTraReparam

import ppl_samplers.pyro as door
from ppl_samplers.backends.pyro.density import LogDensity
from ppl_samplers.backends.pyro.guide import AutoFlow
from ppl_samplers.backends.torch.flows import Affine, SplineCoupling
from ppl_samplers.engines.boltzmann.bridge_pyro import guide_to_trained
from ppl_samplers.engines.boltzmann.losses_pyro import ForwardKL, ReverseKL, log_joint
from ppl_samplers.engines.boltzmann.objectives import ByEnergy, ByExample, parse
from ppl_samplers.engines.boltzmann.pyro import BoltzmannGenerator

LOG_Z = -39.6948
X = torch.tensor(np.random.RandomState(0).standard_normal((40, 4)), dtype=torch.float32)
Y = X @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.5 * torch.tensor(
    np.random.RandomState(1).standard_normal(40), dtype=torch.float32
)
PRECISION = torch.eye(4) + X.T @ X / 0.25
MEAN = torch.linalg.solve(PRECISION, X.T @ Y / 0.25)
COVARIANCE = torch.linalg.inv(PRECISION)
SMALL = SplineCoupling(layers=2, width=16, depth=1)


def regression(x, y):
    beta = pyro.sample("beta", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def unordered():
    """Sites not in alphabetical order, of different shapes; log Z = 0 and the posterior is the prior."""
    pyro.sample("b", dist.Normal(torch.arange(6.0).reshape(2, 3), 0.5).to_event(2))
    pyro.sample("a", dist.LogNormal(0.3, 0.4))


def train(model, guide, loss, steps, *args, lr=0.03):
    optimiser = pyro.optim.ClippedAdam({"lr": lr, "lrd": 0.05 ** (1 / steps), "clip_norm": 10.0})
    svi = SVI(model, guide, optimiser, loss)
    return [svi.step(*args) for _ in range(steps)]


def scramble(guide, scale=0.3):
    """Parameters away from the identity, so that nothing holds by chance."""
    with torch.no_grad():
        for parameter in guide.network.parameters():
            parameter += scale * torch.randn_like(parameter)


@pytest.fixture(scope="module")
def by_energy():
    torch.manual_seed(0)
    guide = AutoFlow(regression, flow=Affine())
    train(regression, guide, ReverseKL(), 250, X, Y, lr=0.1)
    return guide


@pytest.mark.parametrize("flow", [Affine(), SMALL])
def test_identity_start(flow):
    torch.manual_seed(0)
    guide = AutoFlow(unordered, flow=flow)
    guide()
    z = guide.get_posterior().sample((50,))
    expected = dist.MultivariateNormal(guide.network.flow.loc, scale_tril=guide.network.flow.scale_tril)
    assert torch.allclose(guide.get_posterior().log_prob(z), expected.log_prob(z), atol=1e-4)
    # From prior draws: medians and half-widths of the prior, in trace order.
    assert torch.allclose(guide.network.flow.loc, torch.tensor([0.0, 1, 2, 3, 4, 5, 0.3]), atol=0.15)
    assert torch.allclose(guide.network.flow.scale_tril.diagonal(), torch.tensor([0.5] * 6 + [0.4]), rtol=0.2)


@pytest.mark.parametrize("dim", [1, 3])
def test_transform(dim):
    torch.manual_seed(1)

    def model():
        pyro.sample("x", dist.Normal(torch.zeros(dim), 2.0).to_event(1))

    guide = AutoFlow(model, flow=SMALL)
    guide()
    scramble(guide)
    transform = guide.get_transform()
    z = torch.randn(5, dim)
    x = transform(z)
    jacobian = torch.stack([torch.autograd.functional.jacobian(lambda u: guide.get_transform()(u), row) for row in z])
    exact = torch.linalg.slogdet(jacobian)[1]
    assert exact.abs().max() > 0.1
    assert torch.allclose(transform.log_abs_det_jacobian(z, x), exact, atol=1e-4)
    again = guide.get_transform()
    assert torch.allclose(again.inv(x), z, atol=1e-3)
    assert torch.allclose(again.log_abs_det_jacobian(z, x), exact, atol=1e-4)
    assert again(z.reshape(5, 1, dim)).shape == (5, 1, dim)
    base = guide.get_base_dist().log_prob(z) - exact
    assert torch.allclose(guide.get_posterior().log_prob(x), base, atol=2e-3)


def test_site_map_in_trace_order():
    guide = AutoFlow(unordered, flow=Affine())
    guide()
    assert [(s.name, s.slice) for s in guide.space] == [("b", slice(0, 6)), ("a", slice(6, 7))]
    density = LogDensity(unordered)
    assert [(s.name, s.slice) for s in density.space] == [(s.name, s.slice) for s in guide.space]
    draws = guide.sample_posterior(7)
    assert draws["b"].shape == (7, 2, 3) and draws["a"].shape == (7,)
    assert torch.allclose(guide.flatten(draws), density.unconstrain(draws), atol=1e-5)
    assert torch.allclose(guide.flatten({k: v[None] for k, v in draws.items()}), guide.flatten(draws))


def test_log_joint_is_the_flat_density():
    torch.manual_seed(0)
    guide = AutoFlow(unordered, flow=SMALL)
    guide()
    z = guide.get_posterior().sample((20,))
    assert torch.allclose(log_joint(unordered, guide, z, (), {}), LogDensity(unordered)(z), atol=1e-4)


def test_reverse_kl_is_the_negative_elbo(by_energy):
    # The same guide under Pyro's own estimator; both see an exact posterior up to little noise.
    ours = ReverseKL(num_particles=2000).loss(regression, by_energy, X, Y)
    pyros = Trace_ELBO(num_particles=100).loss(regression, by_energy, X, Y)
    assert abs(ours - pyros) < 0.05


def test_reverse_kl_reaches_the_evidence(by_energy):
    torch.manual_seed(1)
    elbo = -ReverseKL(num_particles=4000).loss(regression, by_energy, X, Y)
    assert LOG_Z - 0.05 < elbo < LOG_Z + 0.01
    x = by_energy.get_posterior().sample((4000,))
    error = COVARIANCE.diagonal().sqrt() / math.sqrt(4000)
    assert ((x.mean(0) - MEAN).abs() < 4 * error + 0.1 * COVARIANCE.diagonal().sqrt()).all()
    assert torch.allclose(torch.cov(x.T), COVARIANCE, atol=0.15 * float(COVARIANCE.diagonal().max()))


def test_forward_kl_on_exact_draws():
    torch.manual_seed(2)
    posterior = dist.MultivariateNormal(MEAN, COVARIANCE)
    guide = AutoFlow(regression, flow=Affine())
    train(regression, guide, ForwardKL(draws={"beta": posterior.sample((4000,))}, batch_size=128), 200, X, Y, lr=0.1)
    elbo = -ReverseKL(num_particles=2000).loss(regression, guide, X, Y)
    assert LOG_Z - 0.15 < elbo < LOG_Z + 0.05
    test = posterior.sample((4000,))
    entropy = float(posterior.entropy())
    assert entropy - 0.1 < ForwardKL(draws=test, batch_size=None).loss(regression, guide, X, Y) < entropy + 0.15


def test_starting_from_draws_is_already_close():
    torch.manual_seed(3)
    draws = dist.MultivariateNormal(MEAN, COVARIANCE).sample((4000,))
    guide = AutoFlow(regression, flow=SMALL, draws={"beta": draws})
    elbo = -ReverseKL(num_particles=2000).loss(regression, guide, X, Y)
    assert LOG_Z - 0.05 < elbo < LOG_Z + 0.05


def test_log_weights_of_the_draws():
    torch.manual_seed(4)

    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    draws = torch.randn(2000)
    # Weights of N(1, 1) on draws of N(0, 1).
    for batch_size in (None, 500):
        loss = ForwardKL(draws={"x": draws}, log_weights=draws - 0.5, batch_size=batch_size)
        guide = AutoFlow(model, flow=Affine(), prefix=f"guide{batch_size}")
        train(model, guide, loss, 80, lr=0.1)
        weight = torch.softmax(draws, 0)
        assert abs(float(guide.network.affine()[0]) - float((weight * draws).sum())) < 0.05


def test_positive_site_has_its_jacobian():
    torch.manual_seed(5)
    guide = AutoFlow(unordered, flow=Affine(), init_scale=0.2)
    train(unordered, guide, ReverseKL(), 150, lr=0.1)
    assert abs(ReverseKL(num_particles=4000).loss(unordered, guide)) < 0.05
    draws = guide.sample_posterior(4000)
    mean, sd = math.exp(0.3 + 0.08), math.exp(0.3 + 0.08) * math.sqrt(math.exp(0.16) - 1)
    assert abs(float(draws["a"].mean()) - mean) < 4 * sd / math.sqrt(4000) + 0.05
    assert torch.allclose(draws["b"].mean(0), torch.arange(6.0).reshape(2, 3), atol=0.08)
    median = guide.median()
    assert abs(float(median["a"]) - math.exp(0.3)) < 0.1 and median["b"].shape == (2, 3)
    quantiles = guide.quantiles([0.16, 0.84])
    assert quantiles["a"].shape == (2,) and quantiles["b"].shape == (2, 2, 3)
    assert torch.allclose(quantiles["a"].log(), torch.tensor([0.3 - 0.4, 0.3 + 0.4]), atol=0.1)


def test_gradient_of_a_constrained_site():
    """The pathwise gradient on the flat space, Jacobian included: an independent computation from the density."""
    torch.manual_seed(6)
    guide = AutoFlow(unordered, flow=Affine())
    guide()
    scramble(guide)
    torch.manual_seed(0)
    ReverseKL(num_particles=8).differentiable_loss(unordered, guide).backward()
    ours = [p.grad.clone() for p in guide.network.parameters()]
    guide.network.zero_grad()
    torch.manual_seed(0)
    q = guide.get_posterior()
    z = q.rsample((8,))
    (q.log_prob(z) - LogDensity(unordered)(z)).mean().backward()
    for mine, exact in zip(ours, (p.grad for p in guide.network.parameters()), strict=True):
        assert torch.allclose(mine, exact, atol=1e-4)


def test_nan_gradients_and_zero_density_do_no_harm():
    def broken():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        # NaN gradient for a < 0 by the chain rule, and no density at all below -1.
        pyro.factor("f", torch.where(a > 0, torch.sqrt(a), torch.zeros_like(a)))
        pyro.factor("g", torch.where(a > -1, torch.zeros_like(a), torch.full_like(a, -torch.inf)))

    torch.manual_seed(7)
    guide = AutoFlow(broken, flow=SMALL)
    losses = train(broken, guide, ReverseKL(num_particles=32), 30)
    assert np.isfinite(losses).all()
    assert all(torch.isfinite(p).all() for p in guide.network.parameters())


def test_no_density_anywhere():
    def impossible():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.factor("f", a * 0 - torch.inf)

    guide = AutoFlow(impossible, flow=Affine())
    losses = train(impossible, guide, ReverseKL(), 3)
    assert losses == [math.inf] * 3
    assert all(torch.isfinite(p).all() for p in guide.network.parameters())


def test_subsampled_data_and_parameters_of_the_model():
    data = torch.randn(100, generator=torch.Generator().manual_seed(0)) + 2.0

    def model(data, size):
        shift = pyro.param("shift", torch.tensor(0.0))
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(data), subsample_size=size) as index:
            pyro.sample("y", dist.Normal(mu + shift, 1.0), obs=data[index])

    torch.manual_seed(8)
    guide = AutoFlow(model, flow=Affine(), init_scale=0.1)
    guide(data, 20)
    full = ReverseKL(num_particles=500).loss(model, guide, data, 100)
    parts = torch.tensor([ReverseKL(num_particles=20).loss(model, guide, data, 20) for _ in range(200)])
    assert abs(float(parts.mean()) - full) < 4 * float(parts.std()) / math.sqrt(200) + 1.0
    train(model, guide, ReverseKL(num_particles=4), 300, data, 50, lr=0.1)
    # The shift takes what the prior of mu resists.
    assert abs(float(pyro.param("shift").detach()) - float(data.mean())) < 0.4


def test_model_that_vmap_cannot_take():
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        scale = 1.0 if float(a) > -100 else 2.0
        pyro.sample("y", dist.Normal(a, scale), obs=y)

    guide = AutoFlow(model, flow=Affine())
    with pytest.warns(UserWarning, match="one by one"):
        first = ReverseKL(num_particles=4).loss(model, guide, torch.tensor(0.3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReverseKL(num_particles=4).loss(model, guide, torch.tensor(0.3))
    assert math.isfinite(first)


def test_other_guides_and_torch_optimisers():
    torch.manual_seed(9)
    guide = AutoMultivariateNormal(regression)
    losses = train(regression, guide, ReverseKL(), 60, X, Y, lr=0.1)
    assert np.mean(losses[-10:]) < losses[0] - 50
    module = ReverseKL()(regression, flow := AutoFlow(regression, flow=Affine()))
    module(X, Y)
    optimiser = torch.optim.Adam(module.parameters(), 0.05)
    before = float(flow.network.log_diagonal.detach().sum())
    for _ in range(5):
        optimiser.zero_grad()
        module(X, Y).backward()
        optimiser.step()
    assert float(flow.network.log_diagonal.detach().sum()) < before - 0.1


def test_trace_elbo_trains_it():
    torch.manual_seed(10)
    guide = AutoFlow(unordered, flow=SMALL, init_scale=0.2)
    for vectorize in (False, True):
        loss = Trace_ELBO(num_particles=4, vectorize_particles=vectorize)
        assert np.isfinite(train(unordered, guide, loss, 3)).all()


def test_predictive_and_equal_seeds():
    runs = []
    for _ in range(2):
        pyro.clear_param_store()
        torch.manual_seed(11)
        guide = AutoFlow(regression, flow=SMALL)
        train(regression, guide, ReverseKL(num_particles=4), 3, X, Y)
        runs.append(Predictive(regression, guide=guide, num_samples=6)(X, None))
    assert runs[0]["beta"].reshape(6, 4).shape == (6, 4) and runs[0]["y"].shape == (6, 40)
    assert torch.equal(runs[0]["beta"], runs[1]["beta"]) and torch.equal(runs[0]["y"], runs[1]["y"])


@pytest.mark.slow
def test_neutra():
    """Any invertible transform leaves the target as it is: here one that was never trained, only disturbed."""
    y = torch.tensor([0.4, 0.9, 1.3])

    def model():
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu, 1.0).expand([3]).to_event(1), obs=y)
        return scale

    torch.manual_seed(12)
    guide = AutoFlow(model, flow=SMALL, prefix="spline")
    guide()
    scramble(guide, 0.2)
    z = torch.randn(10, 2)
    transform = guide.get_transform()
    exact = log_joint(model, guide, x := transform(z), (), {}) + transform.log_abs_det_jacobian(z, x)
    ours = []
    for row in z:
        given = poutine.condition(NeuTraReparam(guide).reparam(model), data={"scale_shared_latent": row})
        ours.append(poutine.trace(given).get_trace().log_prob_sum())
    assert torch.allclose(torch.stack(ours), exact, atol=1e-3)

    guide = AutoFlow(model, flow=Affine())
    guide()
    scramble(guide)
    neutra = NeuTraReparam(guide)
    mcmc = MCMC(NUTS(neutra.reparam(model)), 300, 100, disable_progbar=True)
    mcmc.run()
    with torch.no_grad():
        draws = neutra.transform_sample(mcmc.get_samples()["scale_shared_latent"])
    assert set(draws) == {"scale", "mu"}
    # mu | y is N(0.65, 1/4), log scale keeps its prior; at least 100 of the 300 draws are effective.
    assert abs(float(draws["mu"].mean()) - 0.65) < 4 * 0.5 / 10
    assert abs(float(draws["mu"].std()) - 0.5) < 4 * 0.5 / math.sqrt(200)
    assert abs(float(draws["scale"].log().mean())) < 4 * 0.5 / 10
    assert abs(float(draws["scale"].log().std()) - 0.5) < 4 * 0.5 / math.sqrt(200)


def test_saved_and_loaded():
    torch.manual_seed(13)
    guide = AutoFlow(regression, flow=SMALL)
    guide(X, Y)
    scramble(guide)
    other = AutoFlow(regression, flow=SMALL, prefix="other")
    other(X, Y)
    z = guide.get_posterior().sample((10,))
    assert not torch.allclose(other.get_posterior().log_prob(z), guide.get_posterior().log_prob(z))
    other.load_state_dict(guide.state_dict())
    assert torch.allclose(other.get_posterior().log_prob(z), guide.get_posterior().log_prob(z))


def test_two_guides_do_not_share_parameters():
    guide = AutoFlow(unordered, flow=Affine())
    train(unordered, guide, ReverseKL(), 2)
    other = AutoFlow(unordered, flow=Affine())
    with pytest.warns(UserWarning, match="auto_1"):
        other()
    before = guide.network.shift.detach().clone()
    train(unordered, other, ReverseKL(), 2)
    assert torch.equal(guide.network.shift, before) and (other.network.shift != 0).all()


def test_bridge_to_the_kernel(by_energy):
    torch.manual_seed(14)
    trained = guide_to_trained(by_energy, X, Y)
    x, log_w = trained.propose(4000)
    w = torch.exp(log_w - log_w.max())
    error = float((w / w.mean()).std()) / math.sqrt(4000)
    estimate = float(torch.logsumexp(log_w, 0)) - math.log(4000)
    assert abs(estimate - LOG_Z) < 4 * error + 1e-3
    assert torch.allclose((w[:, None] * x).sum(0) / w.sum(), MEAN.double(), atol=0.01)
    kernel = BoltzmannGenerator(regression, trained=trained, num_engines=1)
    mcmc = MCMC(kernel, 200, 0, disable_progbar=True)
    mcmc.run(X, Y)
    draws = mcmc.get_samples()["beta"]
    # Independence draws with nearly exact proposals: at least half of them effective.
    assert ((draws.mean(0) - MEAN).abs() < 4 * COVARIANCE.diagonal().sqrt() / 10).all()


def test_bridge_keeps_the_spline_and_the_two_affine_layers():
    torch.manual_seed(15)
    guide = AutoFlow(unordered, flow=SMALL)
    guide()
    scramble(guide, 0.1)
    trained = guide_to_trained(guide, defensive=0.0)
    x = guide.get_posterior().sample((20,))
    log_w = trained.transport.log_weight(trained.states[0], trained.density, x)
    exact = LogDensity(unordered)(x) - guide.get_posterior().log_prob(x)
    assert torch.allclose(log_w.float(), exact, atol=2e-3)
    with pytest.raises(ValueError, match="flat space"):
        guide_to_trained(guide, density=LogDensity(regression, (X, Y)))


def test_losses_are_objectives():
    assert isinstance(ReverseKL(), ByEnergy) and isinstance(ForwardKL(), ByExample)
    assert parse((ReverseKL(weight=0.3), ForwardKL()))[0].weight == 0.3
    BoltzmannGenerator(unordered, objective=(ReverseKL(), ForwardKL()))  # accepted
    assert (door.AutoFlow, door.ReverseKL, door.ForwardKL) == (AutoFlow, ReverseKL, ForwardKL)
    assert ReverseKL() == ReverseKL() and hash(ReverseKL()) == hash(ReverseKL())
    assert isinstance(hash(ForwardKL(draws={"x": torch.zeros(3)})), int)


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (None, r"ForwardKL\(draws=mcmc.get_samples\(\)\)"),
        ({"b": torch.zeros(5, 2, 3)}, "no site 'a'"),
        ({"b": torch.zeros(5, 3, 2), "a": torch.ones(5)}, "site 'b' have shape"),
        ({"b": torch.zeros(5, 2, 3), "a": torch.ones(4)}, "site 'a' are 4"),
        ({"b": torch.zeros(5, 2, 3), "a": -torch.ones(5)}, "site 'a' lie outside"),
        (torch.zeros(5, 6), r"\(n, 7\)"),
    ],
)
def test_unfit_draws_are_refused(draws, message):
    with pytest.raises(ValueError, match=message):
        train(unordered, AutoFlow(unordered, flow=Affine()), ForwardKL(draws=draws), 1)


def test_unfit_models_are_refused():
    def discrete():
        pyro.sample("k", dist.Categorical(torch.ones(3)))

    def local(data):
        with pyro.plate("rows", 10, subsample_size=5):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    def angle():
        pyro.sample("phi", dist.VonMises(0.0, 1.0))

    def nested():
        a = pyro.sample("a", dist.Uniform(0.5, 2.0))
        pyro.sample("b", dist.Uniform(torch.zeros(()), a))

    with pytest.raises(ValueError, match="discrete sample site 'k'"):
        AutoFlow(discrete)()
    with pytest.raises(ValueError, match="'z' is local to plate 'rows'"):
        AutoFlow(local)(None)
    with pytest.raises(ValueError, match="'phi' is an angle"):
        AutoFlow(angle)()
    with pytest.raises(ValueError, match="support of site 'b'"):
        AutoFlow(nested)()
    with pytest.raises(ValueError, match="flow="):
        AutoFlow(angle, flow=3)
    with pytest.raises(RuntimeError, match="not seen its model"):
        AutoFlow(unordered).get_base_dist()
    with pytest.raises(ValueError, match="AutoNormal"):
        train(unordered, AutoNormal(unordered), ReverseKL(), 1)

    def mixture():
        pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("k", dist.Categorical(torch.ones(3)))

    guide = AutoFlow(poutine.block(mixture, hide=["k"]), flow=Affine(), prefix="mixture")
    with pytest.raises(ValueError, match="'k' is not in the guide"):
        train(mixture, guide, ReverseKL(), 1)


def test_improper_prior_starts_from_the_initial_point():
    def model():
        scale = pyro.sample("scale", dist.ImproperUniform(dist.constraints.positive, (), ()))
        pyro.sample("y", dist.Normal(0.0, scale), obs=torch.tensor(1.0))
        pyro.factor("tail", -scale)

    from pyro.infer.autoguide.initialization import init_to_value

    guide = AutoFlow(
        model, flow=Affine(), init_loc_fn=init_to_value(values={"scale": torch.tensor(2.0)}), init_scale=0.1
    )
    guide()
    assert torch.allclose(guide.network.affine()[0], torch.tensor([math.log(2.0)]))
    assert torch.allclose(guide.network.affine()[1], torch.tensor([[0.1]]))
