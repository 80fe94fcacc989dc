"""Stored log evidences against one-dimensional quadrature, where all but one parameter can be integrated exactly."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import beta, halfcauchy, halfnorm, norm
from scipy.stats import t as t_dist

sys.path.append(str(Path(__file__).resolve().parents[2]))
from models.load import load, names


def log_integral(log_joint, low, high):
    """Log of the integral over u = log(scale), the Jacobian included, by the trapezoid rule."""
    u = np.linspace(low, high, 4001)
    return logsumexp(log_joint(np.exp(u)) + u) + np.log(u[1] - u[0])


def linear(design, prior_sd, y, log_prior):
    """Normal linear model: coefficients integrated, the noise scale left."""
    eigenvalues, vectors = np.linalg.eigh((design * prior_sd**2) @ design.T)
    square = (vectors.T @ y) ** 2

    def log_joint(sigma):
        var = np.clip(eigenvalues, 0.0, None) + sigma[:, None] ** 2
        return -0.5 * (square / var + np.log(2.0 * np.pi * var)).sum(-1) + log_prior(sigma)

    return log_joint


def blr():
    data = load("blr").data
    return log_integral(linear(data["X"], 10.0, data["y"], halfnorm(scale=10.0).logpdf), -1.5, 1.5)


def ar5():
    y = load("arK").data["y"]
    lags = np.stack([np.ones(len(y) - 5), *(y[5 - k : len(y) - k] for k in range(1, 6))], -1)
    return log_integral(linear(lags, 10.0, y[5:], halfcauchy(scale=2.5).logpdf), -3.0, 0.0)


def eight_schools():
    data = load("eight_schools_noncentered").data

    def log_joint(tau):
        # mu is common to the schools: a rank-one term, by the matrix determinant lemma and Sherman-Morrison.
        precision = 1.0 / (data["sigma"] ** 2 + tau[:, None] ** 2)
        total, moment = precision.sum(-1) + 1.0 / 25.0, (precision * data["y"]).sum(-1)
        quadratic = (precision * data["y"] ** 2).sum(-1) - moment**2 / total
        log_det = -np.log(precision).sum(-1) + np.log(total * 25.0)
        return -0.5 * (quadratic + log_det + 8.0 * np.log(2.0 * np.pi)) + halfcauchy(scale=5.0).logpdf(tau)

    return log_integral(log_joint, -25.0, 15.0)


EXACT = {"blr": blr, "arK": ar5, "eight_schools_noncentered": eight_schools}


@pytest.mark.parametrize("name", EXACT)
def test_the_stored_log_evidence_is_the_integral(name):
    assert load(name).reference["log_evidence"] == pytest.approx(EXACT[name](), abs=1e-5)


def test_the_evidence_of_the_unordered_mixture_is_twice_that_of_one_mode():
    """Importance sampling in NumPy from independent Student t's about one mode; log 2 for its mirror image."""
    entry = load("mixture_unordered")
    assert [mode["weight"] for mode in entry.reference["modes"]] == [0.5, 0.5]
    ref, n = entry.reference["parameters"], 6000
    rng = np.random.default_rng(3)
    value, log_w = {}, 0.0
    for name in ("mu[1]", "mu[2]", "sigma[1]", "sigma[2]", "theta"):
        q = t_dist(df=6, loc=ref[name]["mean"], scale=1.1 * ref[name]["sd"])
        value[name] = q.rvs(n, random_state=rng)
        log_w = log_w - q.logpdf(value[name])
    mu = np.stack([value["mu[1]"], value["mu[2]"]], -1)
    sigma = np.stack([value["sigma[1]"], value["sigma[2]"]], -1)
    parts = norm.logpdf(entry.data["y"][:, None, None], mu, sigma)
    parts += np.log(np.stack([value["theta"], 1.0 - value["theta"]], -1))
    log_w += np.logaddexp(parts[..., 0], parts[..., 1]).sum(0) + beta.logpdf(value["theta"], 5, 5)
    log_w += norm.logpdf(mu, 0.0, 2.0).sum(-1) + halfnorm.logpdf(sigma, scale=2.0).sum(-1)
    w = np.exp(log_w - log_w.max())
    estimate = np.log(w.mean()) + log_w.max() + np.log(2.0)
    error = np.hypot(w.std() / w.mean() / np.sqrt(n), entry.reference["log_evidence_se"])
    assert error < 0.02
    assert abs(estimate - entry.reference["log_evidence"]) < 4.0 * error


def test_models_without_a_proper_prior_store_no_evidence():
    improper = {"garch11", "low_dim_gauss_mix", "hmm_example", "hmm_drive_0"}
    assert {name for name in names() if "log_evidence" not in load(name).reference} == improper
