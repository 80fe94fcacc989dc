"""Holding some sites of a density: the same joint values and gradients, in both frameworks."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyro")
pytest.importorskip("numpyro")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpyro  # noqa: E402
import pyro  # noqa: E402

import ppl_samplers.numpyro as numpyro_door  # noqa: E402
import ppl_samplers.pyro as pyro_door  # noqa: E402

Y = np.array([0.3, 1.2, -0.4])


def _numpyro_model(y):
    scale = numpyro.sample("scale", numpyro.distributions.HalfNormal(2.0))
    shift = numpyro.sample("shift", numpyro.distributions.Normal(0.0, scale).expand([2]).to_event(1))
    numpyro.sample("y", numpyro.distributions.Normal(shift.sum(), 0.7), obs=y)


def _pyro_model(y):
    scale = pyro.sample("scale", pyro.distributions.HalfNormal(torch.tensor(2.0)))
    shift = pyro.sample("shift", pyro.distributions.Normal(0.0, scale).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", pyro.distributions.Normal(shift.sum(), 0.7), obs=y)


def _densities():
    return (
        (numpyro_door.LogDensity(_numpyro_model, (jnp.asarray(Y),)), jnp.asarray),
        (pyro_door.LogDensity(_pyro_model, (torch.as_tensor(Y, dtype=torch.float32),)), torch.as_tensor),
    )


X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_values_and_gradients_are_those_of_the_joint_density():
    for density, array in _densities():
        x = array(X)
        for held, free in (("scale", [1, 2]), (["shift"], [0])):
            block = density.condition(held, x)
            assert block.dim == len(free) and [s.slice.start for s in block.space] == [0]
            np.testing.assert_allclose(block.take(x), X[:, free])
            np.testing.assert_allclose(block.put(block.take(x)), X)
            value, gradient = density.value_and_grad(x)
            at, slope = block.value_and_grad(block.take(x))
            np.testing.assert_allclose(at, value, rtol=1e-6)
            np.testing.assert_allclose(slope, np.asarray(gradient)[:, free], rtol=1e-6)
            # Moved free coordinates beside the held ones.
            moved = X.copy()
            moved[:, free] += 0.5
            np.testing.assert_allclose(block(block.take(x) + 0.5), density(array(moved)), rtol=1e-6)


def test_it_is_the_conditional_density_up_to_a_constant():
    """Against the frameworks' own ``condition`` handlers, at one value of the held site."""
    scale = 1.7
    shift = np.array([[0.1, 0.2], [1.0, -1.0], [0.3, 2.0]], np.float32)
    held = np.array([np.log(scale), 0.0, 0.0], np.float32)
    (density, _), (other, _) = _densities()
    block = density.condition("scale", jnp.asarray(held))
    model = numpyro.handlers.condition(_numpyro_model, {"scale": scale})
    wanted = numpyro_door.LogDensity(model, (jnp.asarray(Y),))
    gap = np.asarray(block(jnp.asarray(shift)) - wanted(jnp.asarray(shift)))
    np.testing.assert_allclose(gap, gap[0], atol=1e-5)
    block = other.condition("scale", torch.as_tensor(held))
    model = pyro.poutine.condition(_pyro_model, {"scale": torch.tensor(scale)})
    wanted = pyro_door.LogDensity(model, (torch.as_tensor(Y, dtype=torch.float32),))
    gap = np.asarray(block(torch.as_tensor(shift)) - wanted(torch.as_tensor(shift)))
    np.testing.assert_allclose(gap, gap[0], atol=1e-5)


def test_values_of_all_sites_come_back():
    for density, array in _densities():
        block = density.condition("scale", array(X))
        values = block.constrain(block.take(array(X)))
        np.testing.assert_allclose(values["scale"], np.exp(X[:, 0]), rtol=1e-5)
        np.testing.assert_allclose(values["shift"], X[:, 1:], rtol=1e-5)


def test_held_values_may_be_traced():
    density, _ = _densities()[0]
    run = jax.jit(lambda x, free: density.condition("scale", x)(free))
    np.testing.assert_allclose(run(jnp.asarray(X), jnp.asarray(X[:, 1:])), density(jnp.asarray(X)), rtol=1e-6)


def test_wrong_names_are_refused():
    for density, array in _densities():
        with pytest.raises(ValueError, match="no latent site 'y'"):
            density.condition("y", array(X))
        with pytest.raises(ValueError, match="leave one free"):
            density.condition(["scale", "shift"], array(X))
