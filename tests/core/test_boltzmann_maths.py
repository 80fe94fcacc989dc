"""The Boltzmann generator's equations on NumPy arrays."""

import numpy as np
import pytest
from scipy.stats import multivariate_t

from ppl_samplers.engines.boltzmann import maths, objectives

INF = np.inf


def test_lin_log_is_continuous_with_slope_one_then_logarithmic_then_flat():
    u = np.array([5.0, 10.0, 10.0 + 1e-6, 20.0, 1e6, 1e7])
    np.testing.assert_allclose(
        maths.lin_log(u, 10.0, 1e6),
        [5, 10, 10 + 1e-6, 10 + np.log1p(10), 10 + np.log1p(1e6 - 10), 10 + np.log1p(1e6 - 10)],
    )


def test_reverse_kl_of_gaussians_and_dropped_points():
    """KL(N(0,1) || N(1,1)) = 1/2; the mean of log_q - log_p over 2e5 draws has standard error 1/sqrt(2e5)."""
    x = np.random.default_rng(0).normal(size=200_000)
    log_q, log_p = -0.5 * x**2, -0.5 * (x - 1) ** 2
    value = maths.reverse_kl(log_q, log_p, np.asarray(0.0))
    assert value == pytest.approx(0.5, abs=4 / np.sqrt(200_000))
    spoiled = np.concatenate([log_p, [-INF, np.nan]])
    assert maths.reverse_kl(np.concatenate([log_q, [0.0, 0.0]]), spoiled, np.asarray(0.0)) == pytest.approx(value)
    assert maths.reverse_kl(np.zeros(2), np.full(2, -INF), np.asarray(0.0)) == 0


def test_forward_kl_uses_weights():
    log_q = np.array([-1.0, -3.0, -INF])
    assert maths.forward_kl(log_q) == pytest.approx(2.0)
    assert maths.forward_kl(log_q, np.log([3.0, 1.0, 1e-300])) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("t", "expected"), [(0, 0), (0.3, 0), (0.35, 0.15), (0.4, 0.3), (0.55, 0.3), (0.7, 0.0), (1, 0.0)]
)
def test_a_schedule_of_knots(t, expected):
    ramp = objectives.ByEnergy(weight=((0.0, 0.0), (0.3, 0.0), (0.4, 0.3), (0.55, 0.3), (0.6, 0.0)))
    energy, example = objectives.parse((objectives.ByExample(), ramp))
    assert maths.weight_at(np.asarray(float(t)), objectives.as_knots(energy.weight)) == pytest.approx(expected)
    assert maths.weight_at(np.asarray(float(t)), objectives.as_knots(example.weight)) == 1


def test_bad_objectives_are_refused_with_advice():
    with pytest.raises(ValueError, match="ReverseKL"):
        objectives.parse("reverse_kl")
    with pytest.raises(ValueError, match="ReverseKL"):
        objectives.parse((objectives.ByEnergy(), objectives.ByEnergy()))
    with pytest.raises(ValueError, match="progress"):
        objectives.as_knots(((0.5, 1), (0.1, 0)))


def test_truncate_clips_the_largest_only():
    np.testing.assert_array_equal(maths.truncate(np.array([5.0, 1, 3, 4]), 2), [4, 1, 3, 4])


@pytest.mark.parametrize("dim", [1, 4])
def test_student_t_density_matches_scipy(dim):
    y = np.random.default_rng(1).normal(size=(20, dim)) * 5
    expected = multivariate_t(np.zeros(dim), np.eye(dim), df=3).logpdf(y)
    np.testing.assert_allclose(maths.student_t_log_prob(y), np.atleast_1d(expected), rtol=1e-12)


def test_defensive_mixture_bounds():
    log_q, log_t = np.array([0.0, -1000.0]), np.array([-2.0, -8.0])
    out = maths.defensive_log_prob(log_q, log_t, 0.1)
    assert out[0] == pytest.approx(np.log(0.9 + 0.1 * np.exp(-2)))
    assert out[1] == pytest.approx(np.log(0.1) - 8)
    assert maths.defensive_log_prob(log_q, log_t, 0.0) is log_q
