"""Densities of plain JAX functions in the place of a model."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.testing.hostile_numpyro import by_id

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
S = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)
SMALL = by_id("1").args[0]


def points(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def gaussian(x):
    return -0.5 * (x**2).sum(-1)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_from_callable(batched, batch_size):
    density = LogDensity.from_callable(gaussian, 3, batched=batched, batch_size=batch_size)
    x = points(5, 3)
    v, g = density.value_and_grad(x)
    np.testing.assert_allclose(v, gaussian(x), rtol=1e-6)
    np.testing.assert_allclose(g, -x, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda u: density(u).sum())(x), -x, rtol=1e-6)
    np.testing.assert_allclose(jax.hessian(lambda u: density.raw(u[None])[0])(x[0]), -np.eye(3), atol=1e-6)
    assert density.space[0][:2] == ("x", slice(0, 3))
    np.testing.assert_array_equal(density.unconstrain(density.constrain(x)), x)
    assert density.observed == density.log_likelihood(x) == {}
    assert density.initial_points(random.key(0), 4).shape == (4, 3)
    assert density.bind() is density


def test_from_callable_with_prior_and_names():
    density = LogDensity.from_callable(gaussian, 2, names=("a", "b"), sample_prior=lambda key, n: jnp.ones((n, 2)))
    assert density.has_prior
    np.testing.assert_array_equal(density.initial_points(random.key(0), 3), np.ones((3, 2)))
    assert {k: v.shape for k, v in density.constrain(points(4, 2)).items()} == {"a": (4,), "b": (4,)}
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(LogDensity.from_callable(gaussian, 2)))(np.ones((1, 2))), [-1]
    )


@pytest.mark.parametrize(
    ("fn", "batched", "message"),
    [
        (lambda x: (x**2).sum(-1, keepdims=True), True, "axis=-1"),
        (lambda x: (x**2).sum(), True, "batched=False"),
        (lambda x: x**2, False, "scalar"),
        (lambda x: jnp.zeros(x.shape[0], int), True, "floating-point"),
        (lambda x: np.asarray(x).sum(-1), True, r"jax\.numpy"),
        (lambda x: x.sum(-1) if x[0, 0] > 0 else -x.sum(-1), True, r"jnp\.where"),
    ],
)
def test_wrong_callables_are_refused(fn, batched, message):
    with pytest.raises(ValueError, match=message):
        LogDensity.from_callable(fn, 3, batched=batched)


def test_callable_refuses_what_it_cannot_know():
    density = LogDensity.from_callable(gaussian, 2)
    assert density.evidence_kind == "relative"
    with pytest.raises(ValueError, match="sample_prior="):
        density.sample_prior(random.key(0), 2)
    with pytest.raises(NotImplementedError, match="prior"):
        density.log_prior(points(2, 2))
    with pytest.raises(ValueError, match="from_callable"):
        density.bind(1)
    with pytest.raises(ValueError, match="names"):
        LogDensity.from_callable(gaussian, 2, names=("a",))
    with pytest.raises(ValueError, match="not finite at any"):
        LogDensity.from_callable(lambda x: x.sum(-1) * jnp.nan, 2).initial_points(random.key(0), 2)
