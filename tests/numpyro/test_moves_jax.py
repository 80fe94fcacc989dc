import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from ppl_samplers.backends.jax.moves import HMC, moments, robust_scale
from ppl_samplers.backends.jax.training import adam_init, adam_step, when
from ppl_samplers.backends.numpyro.density import LogDensity

COVARIANCE = np.array([[4.0, 1.2], [1.2, 0.5]])
PRECISION = jnp.asarray(np.linalg.inv(COVARIANCE), jnp.float32)


def _run(density, move, x, steps, adapt):
    def one(i, carry):
        state, x, log_p, grad, total = carry
        state, x, log_p, grad, accept = move.step(
            state, random.fold_in(random.key(1), i), density, x, log_p, grad, adapt
        )
        return state, x, log_p, grad, total + jnp.mean(jnp.where(i >= steps // 2, accept, 0.0))

    start = (move.init(density, x), x, *density.value_and_grad(x), 0.0)
    state, x, log_p, _, total = jax.jit(lambda c: lax.fori_loop(0, steps, one, c))(start)
    return state, np.asarray(x), np.asarray(log_p), float(total) / (steps - steps // 2)


def test_moments_of_a_correlated_gaussian_and_adapted_acceptance():
    density = LogDensity.from_callable(lambda x: -0.5 * jnp.einsum("ni,ij,nj->n", x, PRECISION, x), 2)
    n = 2000
    state, x, log_p, accept = _run(density, HMC(), 3 * random.normal(random.key(0), (n, 2)), 60, True)
    np.testing.assert_allclose(x.mean(0), 0, atol=4 * np.sqrt(4.0 / n))
    for i in range(2):
        for j in range(2):
            se = np.sqrt((COVARIANCE[i, i] * COVARIANCE[j, j] + COVARIANCE[i, j] ** 2) / n)
            assert abs(np.cov(x.T)[i, j] - COVARIANCE[i, j]) < 4 * se
    np.testing.assert_allclose(log_p, density(jnp.asarray(x)), rtol=1e-4, atol=1e-4)
    assert abs(accept - 0.8) < 0.05
    assert int(state.count) == 60


def test_half_space_is_respected_and_frozen_state_does_not_move():
    density = LogDensity.from_callable(lambda x: jnp.where(x[:, 0] > 0, -0.5 * x[:, 0] ** 2, -jnp.inf), 1)
    x = jnp.concatenate([jnp.full((1000, 1), -1.0), jnp.full((1000, 1), 1.0)])
    state, x, _, _ = _run(density, HMC(num_leapfrog=3, step_size=0.5), x, 100, False)
    inside = x[1000:, 0]
    assert (inside > 0).all()
    # Points that start at zero density are taken in as soon as they meet any.
    assert (x[:1000, 0] > 0).mean() > 0.95
    assert abs(inside.mean() - np.sqrt(2 / np.pi)) < 4 * np.sqrt((1 - 2 / np.pi) / 1000)
    assert int(state.count) == 0 and float(state.log_step) == np.float32(np.log(0.5))


def test_moments_recover_scales_of_different_size():
    lower = jnp.array([[1e-3, 0.0], [5.0, 50.0]])
    x = random.normal(random.key(0), (4000, 2)) @ lower.T
    _, factor = moments(x)
    np.testing.assert_allclose(factor @ factor.T, lower @ lower.T, rtol=0.1)
    assert np.isfinite(moments(x[:2])[1]).all()
    assert np.isfinite(robust_scale(jnp.zeros((5, 2)))[1]).all()


def test_bad_step_is_skipped_and_counted():
    params = {"w": jnp.ones(3)}
    state = adam_init(params, 1.0)
    for loss, grads in ((jnp.nan, {"w": jnp.ones(3)}), (1.0, {"w": jnp.array([1.0, jnp.nan, 0.0])})):
        after, state = adam_step(params, state, jnp.asarray(loss), grads, jnp.asarray(0.1), 1.0)
        np.testing.assert_array_equal(after["w"], params["w"])
    assert int(state.skipped) == 2
    after, state = adam_step(params, state, jnp.asarray(1.0), {"w": jnp.ones(3)}, jnp.asarray(0.1), 1.0)
    assert (np.asarray(after["w"]) < 1).all() and int(state.skipped) == 2


def test_when_under_vmap():
    out = jax.vmap(lambda p, v: when(p, lambda v: v + 1, v))(jnp.array([True, False]), jnp.array([1, 1]))
    assert out.tolist() == [2, 1]
