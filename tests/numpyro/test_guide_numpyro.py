"""AutoFlow and the losses under stock SVI, against exact answers."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.reparam import NeuTraReparam
from numpyro.infer.util import log_density

import ppl_samplers.numpyro as door
from ppl_samplers.backends.jax.flows import Affine, SplineCoupling
from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.backends.numpyro.guide import AutoFlow
from ppl_samplers.backends.numpyro.record import record
from ppl_samplers.backends.numpyro.trained import Trained
from ppl_samplers.core import evidence
from ppl_samplers.engines.boltzmann.bridge_numpyro import guide_to_trained
from ppl_samplers.engines.boltzmann.losses_numpyro import ForwardKL, ReverseKL
from ppl_samplers.engines.boltzmann.numpyro import BoltzmannGenerator
from ppl_samplers.engines.boltzmann.objectives import ByEnergy, ByExample, parse

LOG_Z = -39.6948
X = jnp.array(np.random.RandomState(0).standard_normal((40, 4)), dtype=jnp.float32)
Y = X @ jnp.array([1.0, -2.0, 0.5, 0.0]) + 0.5 * jnp.array(np.random.RandomState(1).standard_normal(40), jnp.float32)
COVARIANCE = np.linalg.inv(np.eye(4) + np.asarray(X.T @ X, np.float64) / 0.25)
MEAN = COVARIANCE @ np.asarray(X.T @ Y, np.float64) / 0.25
SMALL = SplineCoupling(layers=2, width=16, depth=1)


def regression(x, y):
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
    with numpyro.plate("rows", 40):
        numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def unordered():
    """Sites not in alphabetical order, of different shapes; log Z = 0 and the posterior is the prior."""
    numpyro.sample("b", dist.Normal(jnp.arange(6.0).reshape(2, 3), 0.5).to_event(2))
    numpyro.sample("a", dist.LogNormal(0.3, 0.4))


def train(model, guide, loss, steps, *args, lr=0.05, seed=0):
    schedule = optax.cosine_decay_schedule(lr, steps, 0.05)
    svi = SVI(model, guide, optax.chain(optax.clip_by_global_norm(10.0), optax.adam(schedule)), loss)
    return svi.run(random.key(seed), steps, *args, progress_bar=False)


def scrambled(params, scale=0.1):
    """Parameters away from the identity, so that nothing holds by chance."""
    leaves, tree = jax.tree.flatten(params)
    noise = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [v + scale * noise.standard_normal(v.shape).astype(v.dtype) for v in leaves])


def started(model, flow, *args, **options):
    """A guide that has seen its model, and untrained parameters."""
    guide = AutoFlow(model, flow=flow, **options)
    svi = SVI(model, guide, optax.adam(0.01), Trace_ELBO())
    return guide, svi.get_params(svi.init(random.key(0), *args))


def elbo(params, model, guide, *args):
    return -float(
        jax.jit(lambda key: ReverseKL(num_particles=2000).loss(key, params, model, guide, *args))(random.key(9))
    )


@pytest.fixture(scope="module")
def plain():
    return started(unordered, SMALL)


@pytest.fixture(scope="module")
def by_energy():
    guide = AutoFlow(regression, flow=SMALL)
    return guide, train(regression, guide, ReverseKL(num_particles=32), 2000, X, Y, lr=0.02)


def test_identity_start_and_site_map(plain):
    guide, params = plain
    assert [(s.name, s.slice) for s in guide.space] == [("b", slice(0, 6)), ("a", slice(6, 7))]
    density = LogDensity(unordered)
    assert [(s.name, s.slice) for s in density.space] == [(s.name, s.slice) for s in guide.space]
    q = guide.get_posterior(params)
    x = q.sample(random.key(0), (20,))
    expected = dist.MultivariateNormal(guide._frozen["loc"], scale_tril=guide._frozen["scale_tril"])
    np.testing.assert_allclose(q.log_prob(x), expected.log_prob(x), atol=1e-3)
    np.testing.assert_allclose(guide._frozen["loc"], [0, 1, 2, 3, 4, 5, 0.3], atol=0.15)
    np.testing.assert_allclose(np.diag(guide._frozen["scale_tril"]), [0.5] * 6 + [0.4], rtol=0.2)
    draws = guide.sample_posterior(random.key(1), params, sample_shape=(7,))
    assert draws["b"].shape == (7, 2, 3) and draws["a"].shape == (7,)
    np.testing.assert_allclose(guide.flatten(draws), density.unconstrain(draws), atol=1e-5)
    np.testing.assert_allclose(guide.flatten({k: v[None] for k, v in draws.items()}), guide.flatten(draws))
    unpacked = guide._unpack_latent(x[0])
    np.testing.assert_allclose(unpacked["b"].ravel(), x[0, :6])


def test_transform(plain):
    guide, params = plain
    transform = guide.get_transform(scrambled(params))
    z = random.normal(random.key(2), (5, 7))
    x = transform(z)
    exact = jnp.linalg.slogdet(jax.vmap(jax.jacfwd(transform))(z))[1]
    assert float(jnp.abs(exact).max()) > 0.1
    np.testing.assert_allclose(transform.log_abs_det_jacobian(z, x), exact, atol=1e-3)
    np.testing.assert_allclose(transform.inv(x), z, atol=2e-3)
    np.testing.assert_allclose(
        guide.get_posterior(scrambled(params)).log_prob(x), guide.get_base_dist().log_prob(z) - exact, atol=5e-3
    )


def test_gradient_of_a_constrained_site(plain):
    """The pathwise gradient on the flat space, Jacobian included: an independent computation from the density."""
    guide, params = plain
    params = scrambled(params)
    density, key, n = LogDensity(unordered), random.key(3), 4

    def direct(params):
        q = guide.get_posterior(params)
        keys = [handler_key(k) for k in random.split(key, n)]
        x = jnp.stack([q.sample(k) for k in keys])
        return jnp.mean(q.log_prob(x) - density(x))

    def handler_key(k):
        # The key that the guide's one random site receives: model and guide split it, then the seed handler does.
        return random.split(random.split(k)[1])[1]

    ours = jax.jit(jax.value_and_grad(lambda p: ReverseKL(num_particles=n).loss(key, p, unordered, guide)))(params)
    exact = jax.jit(jax.value_and_grad(direct))(params)
    np.testing.assert_allclose(ours[0], exact[0], rtol=1e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3, rtol=1e-2), ours[1], exact[1])


@pytest.mark.slow
def test_reverse_kl_reaches_the_evidence(by_energy):
    guide, result = by_energy
    assert LOG_Z - 0.08 < elbo(result.params, regression, guide, X, Y) < LOG_Z + 0.02
    x = np.asarray(guide.get_posterior(result.params).sample(random.key(1), (4000,)))
    deviation = np.sqrt(np.diag(COVARIANCE))
    assert (np.abs(x.mean(0) - MEAN) < (4 / math.sqrt(4000) + 0.1) * deviation).all()
    # The same value by NumPyro's own estimator.
    stock = Trace_ELBO(num_particles=2000)
    value = float(jax.jit(lambda key: stock.loss(key, result.params, regression, guide, X, Y))(random.key(2)))
    assert abs(-value - LOG_Z) < 0.1


@pytest.mark.slow
def test_predictive_and_equal_seeds(by_energy):
    guide, result = by_energy
    draws = Predictive(regression, guide=guide, params=result.params, num_samples=6)(random.key(0), X, None)
    assert draws["y"].shape == (6, 40)
    again = train(regression, AutoFlow(regression, flow=SMALL), ReverseKL(num_particles=32), 2000, X, Y, lr=0.02)
    np.testing.assert_allclose(again.losses, result.losses)
    low, high = guide.quantiles(result.params, [0.16, 0.84])["beta"]
    np.testing.assert_allclose((high - low) / 2, np.sqrt(np.diag(COVARIANCE)), rtol=0.15)
    np.testing.assert_allclose(guide.median(result.params)["beta"], MEAN, atol=0.03)


@pytest.mark.slow
def test_bridge_keeps_the_spline_and_the_two_affine_layers(plain):
    guide, params = plain
    params = scrambled(params)
    trained = guide_to_trained(guide, params, unordered, defensive=0.0)
    x = guide.get_posterior(params).sample(random.key(0), (20,))
    density, state = LogDensity(unordered), jax.tree.map(lambda leaf: leaf[0], trained.states)
    log_w = trained.transport.log_weight(state, None, density, x)
    np.testing.assert_allclose(log_w, density(x) - guide.get_posterior(params).log_prob(x), atol=5e-3)
    with pytest.raises(ValueError, match="flat space"):
        guide_to_trained(guide, params, regression, X, Y)
    with pytest.raises(ValueError, match=r"substitute\(model, data=\{'shift'"):
        guide_to_trained(guide, {**params, "shift": 1.0}, unordered)


@pytest.mark.slow
def test_bridge_to_the_kernel(by_energy, tmp_path):
    """Two sets of parameters, one of them disturbed, as engines without warm-up: exact draws and the exact evidence."""
    guide, result = by_energy
    # Off by about half a posterior standard deviation in every coordinate.
    worse = {"auto_flow": {**result.params["auto_flow"], "shift": result.params["auto_flow"]["shift"] + 0.05}}
    trained = guide_to_trained(guide, [result.params, worse], regression, X, Y)
    _, log_w = trained.propose(8000, random.key(4))
    w = np.exp(np.asarray(log_w, np.float64) - LOG_Z)
    assert 0.2 < w.std() and abs(w.mean() - 1) < 4 * w.std() / math.sqrt(8000) + 1e-3
    kernel = BoltzmannGenerator(regression, flow=guide.flow, trained=trained, local_move=None, probe=None)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc.run(random.key(1), X, Y)
    kept = record(mcmc)
    log_z, error, _, _ = evidence.finish(evidence.merge(kept.evidence_sums))
    assert error < 0.05 and abs(log_z - LOG_Z) < 4 * error + 1e-3
    draws = np.asarray(mcmc.get_samples()["beta"], np.float64)
    # Independence draws from good proposals: at least a quarter of the 4000 are effective.
    deviation = np.sqrt(np.diag(COVARIANCE))
    assert (np.abs(draws.mean(0) - MEAN) < 4 * deviation / math.sqrt(1000)).all()
    assert (np.abs(draws.std(0) / deviation - 1) < 4 / math.sqrt(2000)).all()
    trained.save(tmp_path / "guide.npz")
    again = Trained.load(tmp_path / "guide.npz", BoltzmannGenerator(regression, flow=guide.flow), X, Y)
    np.testing.assert_allclose(again.propose(10)[1], trained.propose(10)[1], atol=1e-4)


def test_forward_kl_on_exact_draws():
    draws = np.random.default_rng(0).multivariate_normal(MEAN, COVARIANCE, 4000)
    guide = AutoFlow(regression, flow=Affine())
    result = train(regression, guide, ForwardKL(draws={"beta": draws}), 1000, X, Y)
    assert LOG_Z - 0.1 < elbo(result.params, regression, guide, X, Y) < LOG_Z + 0.1


def test_positive_site_has_its_jacobian():
    guide = AutoFlow(unordered, flow=Affine(), init_scale=0.2)
    # The guide starts up to 25 of its own scales away, and Adam moves by one learning rate per step at most.
    params = train(unordered, guide, ReverseKL(), 600, lr=0.3).params
    assert abs(elbo(params, unordered, guide)) < 0.05
    draws = guide.sample_posterior(random.key(1), params, sample_shape=(4000,))
    mean, sd = math.exp(0.38), math.exp(0.38) * math.sqrt(math.exp(0.16) - 1)
    assert abs(float(draws["a"].mean()) - mean) < 4 * sd / math.sqrt(4000) + 0.05
    np.testing.assert_allclose(draws["b"].mean(0), np.arange(6.0).reshape(2, 3), atol=0.08)


def test_nan_gradients_and_zero_density_do_no_harm():
    def broken():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.factor("f", jnp.where(a > 0, jnp.sqrt(a), 0.0))
        numpyro.factor("g", jnp.where(a > -1, 0.0, -jnp.inf))

    guide = AutoFlow(broken, flow=Affine())
    result = train(broken, guide, ReverseKL(num_particles=32), 50)
    assert np.isfinite(result.losses).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def test_neutra_density(plain):
    """The model behind ``NeuTraReparam`` has the density of the flat space times the Jacobian of the transform."""
    guide, params = plain
    neutra = NeuTraReparam(guide, scrambled(params))
    model, transform = handlers.seed(neutra.reparam(unordered), 0), neutra.transform
    z = random.normal(random.key(3), (10, 7))
    exact = LogDensity(unordered)(transform(z)) + jnp.linalg.slogdet(jax.vmap(jax.jacfwd(transform))(z))[1]
    ours = jax.jit(jax.vmap(lambda u: log_density(model, (), {}, {"auto_shared_latent": u})[0]))(z)
    np.testing.assert_allclose(ours, exact, atol=1e-4)


@pytest.mark.slow
def test_neutra(plain):
    """Any invertible transform leaves the target as it is: here one that was never trained, only disturbed a little."""
    guide, params = plain
    neutra = NeuTraReparam(guide, scrambled(params, 0.03))
    mcmc = MCMC(NUTS(neutra.reparam(unordered)), num_warmup=300, num_samples=2000, progress_bar=False)
    mcmc.run(random.key(5))
    latent = mcmc.get_samples()["auto_shared_latent"]
    draws = neutra.transform_sample(latent)
    assert effective_sample_size(np.asarray(latent)[None]).min() > 300
    np.testing.assert_allclose(draws["b"].mean(0), np.arange(6.0).reshape(2, 3), atol=4 * 0.5 / math.sqrt(300))
    np.testing.assert_allclose(jnp.log(draws["a"]).mean(), 0.3, atol=4 * 0.4 / math.sqrt(300))
    np.testing.assert_allclose(jnp.log(draws["a"]).std(), 0.4, atol=4 * 0.4 / math.sqrt(600))


def test_losses_are_objectives_and_guides_pickle(plain):
    assert isinstance(ReverseKL(), ByEnergy) and isinstance(ForwardKL(), ByExample)
    assert parse((ReverseKL(weight=0.3), ForwardKL()))[0].weight == 0.3
    assert BoltzmannGenerator(unordered, objective=(ReverseKL(), ForwardKL())).transport.example is not None
    assert (door.AutoFlow, door.ReverseKL, door.ForwardKL) == (AutoFlow, ReverseKL, ForwardKL)
    assert ReverseKL() == ReverseKL() and hash(ReverseKL()) == hash(ReverseKL())
    assert isinstance(hash(ForwardKL(draws={"x": np.zeros(3)})), int)
    guide, _ = plain
    again = pickle.loads(pickle.dumps(guide))
    assert again.flow == guide.flow


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (None, r"ForwardKL\(draws=mcmc.get_samples\(\)\)"),
        ({"b": np.zeros((5, 2, 3))}, "no site 'a'"),
        ({"b": np.zeros((5, 3, 2)), "a": np.ones(5)}, "site 'b' have shape"),
        ({"b": np.zeros((5, 2, 3)), "a": np.ones(4)}, "site 'a' are 4"),
        ({"b": np.zeros((5, 2, 3)), "a": -np.ones(5)}, "site 'a' lie outside"),
        (np.zeros((5, 6)), r"\(n, 7\)"),
    ],
)
def test_unfit_draws_are_refused(plain, draws, message):
    guide, params = plain
    with pytest.raises(ValueError, match=message):
        ForwardKL(draws=draws).loss(random.key(0), params, unordered, guide)


def test_unfit_models_are_refused():
    def local():
        with numpyro.plate("rows", 10, subsample_size=5):
            numpyro.sample("z", dist.Normal(0.0, 1.0))

    def nested():
        a = numpyro.sample("a", dist.Uniform(0.5, 2.0))
        numpyro.sample("b", dist.Uniform(0.0, a))

    with pytest.raises(ValueError, match="local latent variables"):
        started(local, Affine())
    with pytest.raises(ValueError, match="support of site 'b'"):
        started(nested, Affine())
    with pytest.raises(ValueError, match="flow="):
        AutoFlow(local, flow=3)
    with pytest.raises(RuntimeError, match="not seen its model"):
        AutoFlow(unordered).get_base_dist()
