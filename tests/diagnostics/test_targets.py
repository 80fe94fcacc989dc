"""The exact targets against printed anchors, quadrature and the moments of their own draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from ppl_samplers.core.logspace import logsumexp
from ppl_samplers.testing import targets


@pytest.mark.parametrize("name", sorted(targets.TARGETS))
def test_draws_have_the_stated_moments_and_modes(name):
    target = targets.TARGETS[name]()
    n = 20_000
    x = target.sample(np.random.default_rng(3), n)
    assert x.shape == (n, target.dim)
    values = target.log_density(x)
    assert values.shape == (n,) and np.all(np.isfinite(values))
    # Moments of the funnel's x have no usable standard error: its first coordinate only.
    columns = slice(0, 1) if name == "funnel" else slice(None)
    assert np.all(np.abs(x.mean(0) - target.mean)[columns] < 4 * (target.sd / np.sqrt(n))[columns])
    squares = (x - target.mean) ** 2
    error = squares.std(0) / np.sqrt(n)
    assert np.all(np.abs(squares.mean(0) - target.sd**2)[columns] < 4 * error[columns])
    shares = np.bincount(target.mode_labels(x), minlength=len(target.mode_weights)) / n
    bound = 4 * np.sqrt(target.mode_weights * (1 - target.mode_weights) / n) + 4 / n
    assert np.all(np.abs(shares - target.mode_weights) <= bound)
    assert np.isclose(target.mode_weights.sum(), 1.0)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("conjugate_regression", 0.05),
        ("beta_binomial", 0.4),
        ("two_gaussians", 0.7),
        ("gmm40", 0.9),
        ("many_well", 0.1),
    ],
)
def test_log_z_by_the_harmonic_identity(name, scale):
    """``E_p[r / p~] = 1 / Z`` for every normalised ``r``: here a Gaussian narrower than the mode it sits in."""
    target = targets.many_well(2) if name == "many_well" else targets.TARGETS[name]()
    x = target.sample(np.random.default_rng(4), 200_000)
    centre = x[np.argmax(target.log_density(x))]
    log_r = stats.norm.logpdf(x, centre, scale).sum(1)
    ratio = np.exp(log_r - target.log_density(x) + target.log_z)
    error = ratio.std() / np.sqrt(len(x))
    assert error < 0.05
    assert abs(ratio.mean() - 1) < 4 * error


def test_conjugate_regression_anchor():
    target = targets.conjugate_regression()
    assert round(target.log_z, 4) == -39.6948
    np.testing.assert_allclose(target.mean, [1.0577, -2.0507, 0.5006, 0.0383], atol=5e-5)
    # Bayes: log joint - log posterior is the evidence at every point.
    x = target.sample(np.random.default_rng(0), 5)
    x32, _ = targets.regression_data()
    design = x32.astype(float)
    covariance = np.linalg.inv(np.eye(4) + 4 * design.T @ design)
    log_posterior = stats.multivariate_normal(target.mean, covariance).logpdf(x)
    np.testing.assert_allclose(target.log_density(x) - log_posterior, target.log_z, rtol=0, atol=1e-9)


def test_beta_binomial_is_the_probability_of_the_data():
    target = targets.beta_binomial(7, 10, 2.0, 3.0)
    assert np.isclose(target.log_z, stats.betabinom(10, 2.0, 3.0).logpmf(7), atol=1e-12)
    total, _ = integrate.quad(lambda t: np.exp(target.log_density(np.array([[t]]))[0]), -30, 30)
    assert np.isclose(np.log(total), target.log_z, atol=1e-7)
    # Far out the density keeps its tail instead of overflowing.
    assert np.all(np.isfinite(target.log_density(np.array([[-800.0], [800.0]]))))


def test_gmm40_anchors():
    target = targets.gmm40()
    means = target.mean
    np.testing.assert_allclose(means, [-2.1405, 1.2400], atol=5e-5)
    table = targets._GMM40_MEANS
    np.testing.assert_allclose(table.sum(0), [-85.6205, 49.6015], atol=5e-5)
    np.testing.assert_allclose((table**2).sum(0), [17786.946, 24929.878], atol=5e-4)
    np.testing.assert_allclose(table[[0, -1]], [[-0.2995, 21.4577], [3.6797, -25.0242]], atol=5e-5)
    assert np.isclose((target.sd**2 + target.mean**2).sum(), 1071.370, atol=5e-4)
    points = np.array([[0.0, 0.0], [10.0, 10.0], [-30.0, 20.0]])
    np.testing.assert_allclose(target.log_density(points), [-23.31635, -22.19602, -35.76551], atol=6e-6)
    direct = np.mean(
        [np.exp(stats.norm.logpdf(points, m, np.log1p(np.e)).sum(1)) for m in table],
        axis=0,
    )
    np.testing.assert_allclose(target.log_density(points), np.log(direct), atol=1e-10)
    grid = np.linspace(-50, 50, 801)
    plane = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    assert abs(logsumexp(target.log_density(plane)) + 2 * np.log(grid[1] - grid[0])) < 1e-6


@pytest.mark.parametrize(
    ("dim", "log_z"),
    [(4, 20.5869594), (8, 41.1739188), (16, 82.3478377), (32, 164.6956753), (64, 329.3913506)],
)
def test_many_well_log_z(dim, log_z):
    target = targets.many_well(dim)
    assert abs(target.log_z - log_z) < 6e-8
    assert (target.mode_weights is None) == (dim > 32)


def test_many_well_anchors():
    target = targets.many_well(2)
    assert abs(target.log_z - 10.2934797071) < 6e-11
    assert abs(target.mode_weights[0] - 0.15569290) < 6e-9
    assert abs(target.mean[0] - 1.18796098) < 6e-9
    assert abs(target.sd[0] ** 2 - 1.54855479) < 6e-9
    for point in (-1.710829, -0.041691, 1.752520):
        pair = np.array([[point - 1e-4, 0.0], [point + 1e-4, 0.0]])
        slope = np.diff(target.log_density(pair))[0] / 2e-4
        assert abs(slope) < 5e-5  # the six digits of the point leave about 25 * 5e-7
    with pytest.raises(ValueError, match="even"):
        targets.many_well(3)


def test_many_well_labels_are_binary_digits():
    target = targets.many_well(4)
    x = np.array([[-1.7, 0, -1.7, 0], [1.7, 0, -1.7, 0], [-1.7, 0, 1.7, 0], [1.7, 0, 1.7, 0]])
    assert target.mode_labels(x).tolist() == [0, 1, 2, 3]
    left = 0.15569290
    np.testing.assert_allclose(target.mode_weights, np.kron([left, 1 - left], [left, 1 - left]), atol=1e-8)


def test_funnel_is_normalised_and_has_its_entropy():
    target = targets.funnel(10)
    x = target.sample(np.random.default_rng(1), 40_000)
    v = x[:, 0]
    direct = stats.norm.logpdf(v, 0, 3) + stats.norm.logpdf(x[:, 1:], 0, np.exp(v / 2)[:, None]).sum(1)
    np.testing.assert_allclose(target.log_density(x), direct, atol=1e-9)
    surprise = -target.log_density(x)
    assert abs(surprise.mean() - 15.287998) < 4 * surprise.std() / np.sqrt(len(x))
    assert np.isclose(target.sd[1] ** 2, 90.017, atol=5e-4)


def test_two_modes_formula_and_labels():
    target = targets.two_modes(20)
    x = target.sample(np.random.default_rng(2), 100)
    low = np.log(0.3) + stats.norm.logpdf(x, -1, 1.0).sum(1)
    high = np.log(0.7) + stats.norm.logpdf(x, 1, 0.6).sum(1)
    np.testing.assert_allclose(target.log_density(x), np.logaddexp(low, high) + 2.5, atol=1e-9)
    assert target.mode_labels(np.stack([-np.ones(20), np.ones(20)])).tolist() == [0, 1]
