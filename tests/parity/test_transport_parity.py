"""The same affine transport and points give the same log weights and decisions in both frameworks, in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity needs both frameworks")
jax = pytest.importorskip("jax", reason="parity needs both frameworks")

LOC = np.array([0.3, -1.0, 2.0])
SCALE = np.array([[1.2, 0.0, 0.0], [0.4, 0.7, 0.0], [-0.2, 0.1, 2.0]])
CENTRE = np.array([0.0, -0.5, 1.0])


@pytest.fixture
def double():
    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    jax.config.update("jax_enable_x64", False)


def test_log_weights_and_acceptances_agree(double):
    import jax.numpy as jnp

    import ppl_samplers.numpyro as in_numpyro
    import ppl_samplers.pyro as in_pyro
    from ppl_samplers.backends.torch.flows import Flow
    from ppl_samplers.core import acceptance
    from ppl_samplers.engines.boltzmann.numpyro import FlowTransport as JaxTransport
    from ppl_samplers.engines.boltzmann.pyro import FlowTransport as TorchTransport

    rng = np.random.default_rng(0)
    x = LOC + rng.normal(size=(200, 3)) @ SCALE.T * 2
    log_u = np.log(rng.random(100))

    flow = Flow(in_pyro.Affine(), 3)
    flow.standardise(torch.tensor(LOC), torch.tensor(SCALE))
    density = in_pyro.LogDensity.from_callable(lambda p: -((p - torch.tensor(CENTRE)) ** 4).sum(-1), dim=3)
    transport = TorchTransport(flow=in_pyro.Affine())
    state = type("State", (), {"flow": flow, "num_evals": 0})()
    torch_w = transport.log_weight(state, density, torch.tensor(x))

    density = in_numpyro.LogDensity.from_callable(lambda p: -jnp.sum((p - CENTRE) ** 4, -1), 3)
    transport = JaxTransport(flow=in_numpyro.Affine())
    fresh = transport.flow.init(jax.random.key(0), 3, jnp.float64)
    state = type("State", (), {"loc": jnp.asarray(LOC), "scale_tril": jnp.asarray(SCALE), "params": fresh})()
    jax_w = transport.log_weight(state, jax.random.key(0), density, jnp.asarray(x))

    np.testing.assert_allclose(torch_w, jax_w, rtol=1e-5, atol=1e-5)
    new, old = np.asarray(jax_w)[:100], np.asarray(jax_w)[100:]
    taken = acceptance.imh(jnp.asarray(new), jnp.asarray(old), jnp.asarray(log_u))
    also = acceptance.imh(torch_w[:100], torch_w[100:], torch.tensor(log_u))
    assert np.array_equal(np.asarray(taken), also.numpy())
