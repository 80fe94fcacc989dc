"""The stored reference of the sinusoid, against plain importance sampling with the marginal normal likelihood."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

sys.path.append(str(Path(__file__).resolve().parents[2]))
from models.load import load
from models.sinusoid.make_data import PERIODS, make_data

NUM_DRAWS = 60_000


@pytest.fixture(scope="module")
def entry():
    return load("sinusoid")


def log_normal_density(y, cov):
    """Log density of a centred normal, ``cov`` (N, n, n)."""
    tril = np.linalg.cholesky(cov)
    z = np.linalg.solve(tril, np.broadcast_to(y[:, None], (*cov.shape[:-1], 1)))[..., 0]
    log_det = 2.0 * np.log(np.diagonal(tril, axis1=-2, axis2=-1)).sum(-1)
    return -0.5 * ((z**2).sum(-1) + log_det + len(y) * np.log(2.0 * np.pi))


@pytest.fixture(scope="module")
def prior_draws(entry):
    """Draws of the period and the noise, and their weight under the posterior: prior times likelihood over evidence."""
    t, y = entry.data["t"], entry.data["y"]
    rng = np.random.default_rng(0)
    log_period = rng.uniform(np.log(PERIODS[0]), np.log(PERIODS[1]), NUM_DRAWS)
    log_sigma = -0.4 + 0.3 * rng.standard_normal(NUM_DRAWS)  # nearer to the posterior than the prior is
    sigma = np.exp(log_sigma)
    ratio = np.empty(NUM_DRAWS)
    for part in np.array_split(np.arange(NUM_DRAWS), 30):
        phase = 2.0 * np.pi * t * np.exp(-log_period[part])[:, None]
        signal = np.cos(phase[:, :, None] - phase[:, None, :])  # cos cos + sin sin
        cov = 4.0 * (signal + 1.0) + sigma[part, None, None] ** 2 * np.eye(len(t))
        ratio[part] = np.exp(log_normal_density(y, cov) - entry.reference["log_evidence"])
    ratio *= np.exp(norm.logpdf(log_sigma) - norm.logpdf(log_sigma, -0.4, 0.3))
    return log_period, sigma, ratio


def test_the_stored_data_are_those_of_the_recipe(entry):
    t, y = make_data()
    np.testing.assert_array_equal(t, entry.data["t"])
    np.testing.assert_array_equal(y, entry.data["y"])


def test_the_evidence(prior_draws):
    ratio = prior_draws[2]
    error = ratio.std() / np.sqrt(NUM_DRAWS)
    assert error < 0.03
    assert abs(ratio.mean() - 1.0) < 4.0 * error


def test_the_weights_of_the_modes(entry, prior_draws):
    log_period, _, ratio = prior_draws
    modes = entry.reference["modes"]
    assert len(modes) == 5
    assert sum(mode["weight"] for mode in modes) > 0.999
    for mode in modes:
        low, high = np.log(mode["interval"])
        inside = ratio * ((log_period >= low) & (log_period <= high))
        assert abs(inside.mean() - mode["weight"]) < 4.0 * inside.std() / np.sqrt(NUM_DRAWS)


@pytest.mark.parametrize("name", ["log_period", "sigma"])
def test_the_moments(entry, prior_draws, name):
    value = prior_draws[0] if name == "log_period" else prior_draws[1]
    ref, ratio = entry.reference["parameters"][name], prior_draws[2]
    for target, terms in ((0.0, value - ref["mean"]), (ref["sd"] ** 2, (value - ref["mean"]) ** 2)):
        terms = ratio * (terms - target)
        assert abs(terms.mean()) < 4.0 * terms.std() / np.sqrt(NUM_DRAWS)


def test_the_evidence_of_the_constant_model(entry):
    y = entry.data["y"]

    def integrand(log_sigma):
        cov = 4.0 + np.exp(2.0 * log_sigma) * np.eye(len(y))
        log_joint = multivariate_normal(np.zeros(len(y)), cov).logpdf(y) + norm.logpdf(log_sigma)
        return np.exp(log_joint - entry.reference["log_evidence_constant_model"])

    assert quad(integrand, -3.0, 3.0, points=[0.0], epsabs=1e-9)[0] == pytest.approx(1.0, abs=1e-6)
