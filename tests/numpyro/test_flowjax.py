"""flowjax's flows as transports: the density is whole, files keep it, and the correction is exact."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flowjax.distributions import Normal, StandardNormal
from flowjax.flows import coupling_flow, masked_autoregressive_flow
from jax import random

from ppl_samplers.numpyro import CMT, MCMC, AutoFlow, BoltzmannGenerator, FlowJax, LogDensity, log_evidence


def small(key, dim):
    return coupling_flow(key, base_dist=StandardNormal((dim,)), flow_layers=2, nn_width=8)


def autoregressive(key, dim):
    return masked_autoregressive_flow(key, base_dist=StandardNormal((dim,)), flow_layers=2, nn_width=8)


def _moved(flow, dim):
    """Parameters away from their start: a random network."""
    params = flow.init(random.key(0), dim)
    network = {k: v + 0.3 * random.normal(random.key(i), v.shape) for i, (k, v) in enumerate(params["network"].items())}
    return {**params, "network": network}


@pytest.mark.parametrize("make", [small, autoregressive])
def test_forward_inverse_and_density_belong_together(make):
    flow = FlowJax(make)
    params = _moved(flow, 3)
    z = random.normal(random.key(1), (6, 3))
    y, log_det = jax.jit(flow.forward)(params, z)
    back, inverse_log_det = flow.inverse(params, y)
    np.testing.assert_allclose(back, z, atol=1e-4)
    np.testing.assert_allclose(inverse_log_det, -log_det, atol=1e-4)
    jacobian = jax.vmap(jax.jacfwd(lambda z: flow.forward(params, z[None])[0][0]))(z)
    np.testing.assert_allclose(log_det, jnp.linalg.slogdet(jacobian)[1], atol=1e-4)
    np.testing.assert_allclose(flow.log_prob(params, y), dist.Normal().log_prob(z).sum(-1) - log_det, atol=1e-4)


def test_the_parameters_are_the_whole_flow_permutations_included():
    """The flow that flowjax built and the one put together from our arrays are one density."""
    theirs = small(random.key(5), 4)
    flow = FlowJax(small)
    params = flow.init(random.key(5), 4)
    integers = [v for v in params["fixed"].values() if jnp.issubdtype(v.dtype, jnp.integer)]
    assert integers, "flowjax's permutations are integer arrays, and belong to the state"
    y = random.normal(random.key(6), (7, 4))
    np.testing.assert_allclose(flow.log_prob(params, y), theirs.log_prob(y), rtol=1e-5, atol=1e-5)
    # With the permutations of another draw it is another density: leaving them out could not go unseen here.
    other = flow.init(random.key(11), 4)["fixed"]
    assert not np.allclose(flow.log_prob({**params, "fixed": other}, y), theirs.log_prob(y), atol=1e-3)


def test_another_base_or_shape_is_refused():
    def wide(key, dim):
        return coupling_flow(key, base_dist=Normal(jnp.zeros(dim), 2.0), flow_layers=1, nn_width=4)

    with pytest.raises(ValueError, match="StandardNormal"):
        FlowJax(wide).init(random.key(0), 2)
    with pytest.raises(ValueError, match="shape"):
        FlowJax(lambda key, dim: small(key, dim + 1)).init(random.key(0), 2)


def _two_modes(x):
    return jnp.logaddexp(-0.5 * jnp.sum((x - 2) ** 2, -1), -0.5 * jnp.sum((x + 2) ** 2, -1)) - jnp.log(4 * jnp.pi)


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (BoltzmannGenerator, {}),
        (CMT, {"buffer_size": 2048, "grad_steps": 50}),
    ],
)
def test_engines_are_exact_with_a_flow_of_flowjax(engine, options, tmp_path):
    density = LogDensity.from_callable(_two_modes, 2, sample_prior=lambda key, n: 3 * random.normal(key, (n, 2)))
    kernel = engine(log_density=density, flow=FlowJax(small), **options)
    mcmc = MCMC(kernel, num_warmup=10, num_samples=500, num_chains=4, progress_bar=False)
    mcmc.run(random.key(0))
    evidence = log_evidence(mcmc, force=True)
    assert abs(evidence.log_z) < 4 * evidence.standard_error + 0.01
    x = np.asarray(mcmc.get_samples()["x"])
    assert 0.35 < np.mean(x.sum(-1) > 0) < 0.65
    trained = kernel.fit(random.key(1), num_warmup=2, progress=False)
    trained.save(tmp_path / "engine.npz")
    loaded = type(trained).load(tmp_path / "engine.npz", engine(log_density=density, flow=FlowJax(small), **options))
    for ours, theirs in zip(loaded.propose(100, random.key(2)), trained.propose(100, random.key(2))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    with pytest.raises(ValueError, match="flow"):
        type(trained).load(tmp_path / "engine.npz", engine(log_density=density, **options))


def test_guide_takes_a_flow_of_flowjax():
    def model():
        numpyro.sample("x", dist.Normal(1.0, 2.0).expand([2]).to_event(1))

    guide = AutoFlow(model, flow=FlowJax(small))
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(1e-2), numpyro.infer.Trace_ELBO(num_particles=16))
    result = svi.run(random.key(0), 500, progress_bar=False)
    draws = guide.sample_posterior(random.key(1), result.params, sample_shape=(2000,))["x"]
    assert np.allclose(np.mean(draws, 0), 1.0, atol=0.3)
    assert np.allclose(np.std(draws, 0), 2.0, atol=0.4)
