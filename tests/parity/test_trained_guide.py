"""A trained engine as a guide: the same density, draws for ``Predictive``, and a start for ``SVI``."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyro")
pytest.importorskip("numpyro")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
import optax  # noqa: E402
import pyro  # noqa: E402
from jax import random  # noqa: E402

import ppl_samplers.numpyro as numpyro_door  # noqa: E402
import ppl_samplers.pyro as pyro_door  # noqa: E402
from ppl_samplers.backends.jax.flows import affine_log_det, whiten  # noqa: E402

Y = np.array([0.9, 1.2, 0.4, 1.1])
SMALL = dict(buffer_size=2048, grad_steps=50, num_engines=2, probe=None, local_move=None)


def _numpyro_model(y):
    scale = numpyro.sample("scale", numpyro.distributions.HalfNormal(1.0))
    shift = numpyro.sample("shift", numpyro.distributions.Normal(0.0, 1.0))
    numpyro.sample("y", numpyro.distributions.Normal(shift, scale), obs=y)


def _pyro_model(y):
    scale = pyro.sample("scale", pyro.distributions.HalfNormal(torch.tensor(1.0)))
    shift = pyro.sample("shift", pyro.distributions.Normal(torch.tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", pyro.distributions.Normal(shift, scale), obs=y)


@pytest.fixture(scope="module")
def by_numpyro():
    kernel = numpyro_door.CMT(_numpyro_model, flow=numpyro_door.SplineCoupling(layers=2), **SMALL)
    return kernel.fit(random.key(0), jnp.asarray(Y), num_warmup=10, progress=False)


@pytest.fixture(scope="module")
def by_pyro():
    torch.manual_seed(0)
    kernel = pyro_door.CMT(_pyro_model, flow=pyro_door.SplineCoupling(layers=2), **SMALL)
    return kernel.fit(torch.as_tensor(Y, dtype=torch.float32), num_warmup=10, progress=False)


def _moments(trained):
    """Weighted mean and sd of the flat coordinates by the exact weights."""
    x, log_w = (np.asarray(v, float) for v in trained.propose(20_000))
    w = np.exp(log_w - log_w.max())[:, None]
    mean = (w * x).sum(0) / w.sum()
    return mean, np.sqrt((w * (x - mean) ** 2).sum(0) / w.sum())


def test_numpyro_guide_is_the_engine(by_numpyro):
    for engine in (0, 1):
        guide, params = by_numpyro.guide(engine)
        state = jax.tree.map(lambda leaf, engine=engine: leaf[engine], by_numpyro.states)
        x = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
        own = by_numpyro.transport.flow.log_prob(state.params, whiten(state.loc, state.scale_tril, x))
        wanted = own - affine_log_det(state.scale_tril)
        np.testing.assert_allclose(guide.get_posterior(params).log_prob(x), wanted, rtol=1e-4, atol=1e-4)
    draws = numpyro.infer.Predictive(_numpyro_model, guide=guide, params=params, num_samples=4000)(random.key(1), None)
    assert draws["y"].shape[0] == 4000
    sites = guide.sample_posterior(random.key(2), params, sample_shape=(4000,))
    mean, sd = _moments(by_numpyro)
    flat = np.stack([np.log(sites["scale"]), sites["shift"]], -1)
    assert np.all(np.abs(flat.mean(0) - mean) < 0.25 * sd)


@pytest.mark.slow
def test_numpyro_training_goes_on_from_there(by_numpyro):
    guide, _ = by_numpyro.guide()
    svi = numpyro.infer.SVI(_numpyro_model, guide, optax.adam(1e-4), numpyro.infer.Trace_ELBO(num_particles=200))
    result = svi.run(random.key(0), 5, jnp.asarray(Y), progress_bar=False)
    # The first losses are those of the trained flow: a negative bound on the evidence, and close to it.
    log_z = by_numpyro.log_evidence().log_z
    assert -log_z - 0.1 < float(result.losses[0]) < -log_z + 0.5


def test_pyro_guide_is_the_engine(by_pyro):
    pyro.clear_param_store()
    for engine in (0, 1):
        guide = by_pyro.guide(engine, prefix=f"engine{engine}")
        x = torch.as_tensor(np.random.default_rng(0).normal(size=(7, 2)), dtype=torch.float32)
        wanted = by_pyro.states[engine].flow.log_prob(x)
        torch.testing.assert_close(guide.get_posterior().log_prob(x), wanted, rtol=1e-4, atol=1e-4)
    torch.manual_seed(1)
    sites = guide.sample_posterior(4000)
    mean, sd = _moments(by_pyro)
    flat = np.stack([np.log(sites["scale"]), sites["shift"]], -1)
    assert np.all(np.abs(flat.mean(0) - mean) < 0.25 * sd)


def test_pyro_training_goes_on_from_there(by_pyro):
    pyro.clear_param_store()
    torch.manual_seed(0)
    guide = by_pyro.guide()
    loss = pyro.infer.Trace_ELBO(num_particles=100)
    svi = pyro.infer.SVI(_pyro_model, guide, pyro.optim.Adam({"lr": 1e-4}), loss)
    first = svi.step(torch.as_tensor(Y, dtype=torch.float32))
    log_z = by_pyro.log_evidence().log_z
    assert -log_z - 0.2 < first < -log_z + 0.5


def test_what_is_no_model_makes_no_guide():
    density = numpyro_door.LogDensity.from_callable(lambda x: -0.5 * jnp.sum(x * x, -1), 2)
    kernel = numpyro_door.BoltzmannGenerator(log_density=density, flow=numpyro_door.Affine(), num_engines=1)
    with pytest.raises(ValueError, match="a guide belongs to a model"):
        kernel.fit(random.key(0), num_warmup=2, progress=False).guide()
