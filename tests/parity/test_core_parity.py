"""The same arrays give the same numbers in NumPy, torch and JAX, and JAX may compile every function."""

import numpy as np
import pytest

from ppl_samplers.core import acceptance, evidence, logspace, resampling, schedules, weights
from ppl_samplers.engines.boltzmann import maths
from ppl_samplers.engines.cmt import maths as cmt

torch = pytest.importorskip("torch", reason="parity needs both frameworks")
jax = pytest.importorskip("jax", reason="parity needs both frameworks")

RNG = np.random.default_rng(0)
LOG_W = RNG.normal(size=64).astype("float32")
LOG_W[5] = -np.inf
U = RNG.random(64).astype("float32")
GUMBEL = RNG.gumbel(size=(8, 8)).astype("float32")
POINTS = RNG.normal(size=(64, 3)).astype("float32")
KNOTS = ((0.0, 0.0), (0.3, 1.0), (0.8, 0.2))

FUNCTIONS = {
    "logsumexp": lambda w, u, g, x: logspace.logsumexp(w),
    "log_mean_exp": lambda w, u, g, x: logspace.log_mean_exp(x, 1),
    "logaddexp": lambda w, u, g, x: logspace.logaddexp(w, u),
    "softplus": lambda w, u, g, x: logspace.softplus(w),
    "ess": lambda w, u, g, x: weights.ess(w),
    "forward_ess": lambda w, u, g, x: weights.forward_ess(u),
    "finish": lambda w, u, g, x: evidence.finish(evidence.add(evidence.sums_of(w), u))[1],
    "merge": lambda w, u, g, x: evidence.merge(x),
    "systematic": lambda w, u, g, x: resampling.systematic(w, u[0], 40),
    "stratified": lambda w, u, g, x: resampling.stratified(w, u),
    "temperature": lambda w, u, g, x: schedules.next_temperature(w * 20, u[0], 0.5),
    "imh": lambda w, u, g, x: acceptance.imh(w, u, -u),
    "isir": lambda w, u, g, x: acceptance.isir(w.reshape(8, 8), g),
    "reverse_kl": lambda w, u, g, x: maths.reverse_kl(u, w, u[0]),
    "forward_kl": lambda w, u, g, x: maths.forward_kl(u, w),
    "weight_at": lambda w, u, g, x: maths.weight_at(u[0], KNOTS),
    "truncate": lambda w, u, g, x: maths.truncate(w, 3),
    "student_t": lambda w, u, g, x: maths.student_t_log_prob(maths.student_t(x, u)),
    "cmt_weights": lambda w, u, g, x: cmt.log_weights(w, u, *cmt.exponents(3.0, 0.5)),
    "cmt_ladder": lambda w, u, g, x: cmt.ladder_log_weights(w, u, x[:, 0], 0.25),
    "cmt_tempered": lambda w, u, g, x: cmt.tempered_log_weights(w, u, 4.0),
    "cmt_entropy_bound": lambda w, u, g, x: cmt.auto_entropy_bound(u[0], 40, 9, 1.0, 90 * u[1], u[2]),
    "defensive": lambda w, u, g, x: maths.defensive_log_prob(w, u, 0.1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_numbers_in_all_three(name):
    function, arrays = FUNCTIONS[name], (LOG_W, U, GUMBEL, POINTS)
    expected = np.asarray(function(*arrays))
    in_torch = function(*(torch.tensor(a) for a in arrays))
    in_jax = jax.jit(function)(*arrays)
    np.testing.assert_allclose(in_torch, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(in_jax, expected, rtol=2e-6, atol=2e-6)


def test_gradients_with_a_point_of_zero_weight_are_finite_and_equal():
    tensor = torch.tensor(LOG_W, requires_grad=True)
    weights.ess(tensor).backward()
    gradient = jax.grad(weights.ess)(LOG_W)
    assert np.all(np.isfinite(gradient))
    np.testing.assert_allclose(tensor.grad, gradient, atol=1e-4)
