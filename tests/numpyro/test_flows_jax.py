import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from ppl_samplers.backends.jax.flows import Affine, SplineCoupling, affine, spline, whiten

FLOW = SplineCoupling(layers=3, width=16)


def _trained_like(flow, dim):
    """Parameters away from the identity."""
    key = random.key(3)
    params = flow.init(key, dim)
    noise = lambda a: a + 0.1 * random.normal(random.fold_in(key, a.size), a.shape)  # noqa: E731
    return {**params, "network": jax.tree.map(noise, params["network"])}


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_identity_start(dim):
    z = 2 * random.normal(random.key(0), (50, dim))
    y, log_det = FLOW.forward(FLOW.init(random.key(1), dim), z)
    np.testing.assert_allclose(y, z, atol=1e-5)
    np.testing.assert_allclose(log_det, 0, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_round_trip_and_log_det_against_autograd(dim):
    # In float64: these splines have slopes from e^-10 to e^2, which float32 cannot invert to more than three digits.
    with jax.enable_x64(True):
        params = _trained_like(FLOW, dim)
        z = 3 * random.normal(random.key(0), (20, dim))
        y, log_det = FLOW.forward(params, z)
        back, inverse_log_det = FLOW.inverse(params, y)
        assert y.dtype == jnp.float64 and float(jnp.max(jnp.abs(y - z))) > 0.05
        np.testing.assert_allclose(back, z, atol=1e-8)
        np.testing.assert_allclose(inverse_log_det, -log_det, atol=1e-8)
        jacobians = jax.vmap(jax.jacobian(lambda v: FLOW.forward(params, v[None])[0][0]))(z)
        np.testing.assert_allclose(log_det, np.linalg.slogdet(np.asarray(jacobians))[1], atol=1e-8)


def test_density_is_normalised_in_one_dimension():
    params = _trained_like(FLOW, 1)
    grid = jnp.linspace(-12, 12, 20001)[:, None]
    assert float(jnp.trapezoid(jnp.exp(FLOW.log_prob(params, grid)), grid[:, 0])) == pytest.approx(1, abs=1e-4)


def test_density_needs_the_integer_leaves():
    params = _trained_like(FLOW, 5)
    y = random.normal(random.key(0), (20, 5))
    other = {**params, "order": FLOW.init(random.key(9), 5)["order"]}
    assert float(jnp.max(jnp.abs(FLOW.log_prob(params, y) - FLOW.log_prob(other, y)))) > 0.01


def test_gradient_is_finite_outside_the_interval_and_at_its_ends():
    params = _trained_like(FLOW, 3)
    y = jnp.array([[7.0, -7.0, 0.0], [5.0, -5.0, 5.0], [0.0, 0.0, 50.0]])
    gradient = jax.grad(lambda p, y: FLOW.log_prob({**params, "network": p}, y).sum(), (0, 1))(params["network"], y)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))


def test_spline_agrees_with_flowjax():
    bijections = pytest.importorskip("flowjax.bijections")
    import paramax

    raw = random.normal(random.key(0), (23,))
    theirs = bijections.RationalQuadraticSpline(knots=8, interval=5)
    x = jnp.linspace(-6, 6, 41)

    # Knots are set by hand: the two libraries parametrise them differently.
    def knots(raw):
        widths = 1e-3 + (1 - 8e-3) * jax.nn.softmax(raw)
        return jnp.concatenate([jnp.array([-5.0]), 10 * jnp.cumsum(widths)[:-1] - 5, jnp.array([5.0])])

    slopes = jax.nn.softplus(raw[16:] + np.log(np.expm1(1 - 1e-3))) + 1e-3
    theirs = paramax.unwrap(theirs)
    object.__setattr__(theirs, "x_pos", knots(raw[:8]))
    object.__setattr__(theirs, "y_pos", knots(raw[8:16]))
    object.__setattr__(theirs, "derivatives", jnp.concatenate([jnp.ones(1), slopes, jnp.ones(1)]))
    wanted, log_slope = jax.vmap(theirs.transform_and_log_det)(x)
    y, mine = spline(jnp.tile(raw[:, None], (1, 41)), x, 5.0)
    np.testing.assert_allclose(y, wanted, atol=1e-4)
    # At the very ends the derivative is one-sided.
    inner = np.abs(np.abs(x) - 5) > 1e-3
    np.testing.assert_allclose(mine[inner], log_slope[inner], atol=1e-4)


def test_affine_and_whitening_are_inverse():
    lower = jnp.array([[2.0, 0.0], [0.7, 0.1]])
    y = random.normal(random.key(0), (10, 2))
    np.testing.assert_allclose(whiten(jnp.ones(2), lower, affine(jnp.ones(2), lower, y)), y, atol=1e-5)
    assert Affine().init(random.key(0), 2) == {}
