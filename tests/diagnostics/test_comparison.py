"""Comparisons against closed forms."""

import numpy as np
import pytest

from ppl_samplers.diagnostics import compare_evidence, evidence_from_log_weights, loo_weighted


def noisy(log_z, seed, spread=0.3, **options):
    noise = np.random.default_rng(seed).normal(-0.5 * spread**2, spread, (2, 4000))
    return evidence_from_log_weights(log_z + noise, **options)


def test_models_are_ordered_with_factors_errors_and_probabilities():
    found = compare_evidence({"a": noisy(-12.0, 0), "b": noisy(-8.0, 1), "c": noisy(-9.5, 2)})
    assert found.names == ("b", "c", "a")
    # Four standard errors: false alarms 1e-4.
    assert np.all(np.abs(found.log_bayes_factor[1:] - [-1.5, -4.0]) < 4 * found.error[1:])
    assert found.error[0] == 0
    assert found.error[1] == pytest.approx(np.hypot(*found.standard_error[:2]))
    exact = np.exp([0, -1.5, -4.0]) / np.exp([0, -1.5, -4.0]).sum()
    np.testing.assert_allclose(found.probability, exact, atol=0.02)
    assert found.reliable
    assert "'b' is favoured over 'c'" in str(found)


def test_a_difference_within_its_error_is_no_difference():
    same = compare_evidence({"a": noisy(-8.0, 0), "b": noisy(-8.0, 1)})
    assert "cannot be told apart" in same.message


def test_one_engine_is_not_trusted_and_unlike_constants_are_refused():
    shaky = compare_evidence({"a": noisy(-8.0, 0), "one engine": evidence_from_log_weights(np.full(400, -20.0))})
    assert not shaky.reliable
    assert "'one engine'" in shaky.message
    with pytest.raises(ValueError, match="'a' is relative"):
        compare_evidence({"a": noisy(-8.0, 0, kind="relative"), "b": noisy(-8.0, 1)})
    both = compare_evidence({"a": noisy(-8.0, 0, kind="relative"), "b": noisy(-8.0, 1, kind="relative")})
    assert "share their extra terms" in both.message
    nothing = noisy(-8.0, 0, kind="undefined", force=True)
    with pytest.raises(ValueError, match="'a' is undefined"):
        compare_evidence({"a": nothing, "b": noisy(-8.0, 1)})
    with pytest.raises(ValueError, match="two models or more"):
        compare_evidence({"a": noisy(-8.0, 0)})
    with pytest.raises(ValueError, match=r"log_evidence\(mcmc\) for 'b'"):
        compare_evidence({"a": noisy(-8.0, 0), "b": -8.0})


def test_weighted_leave_one_out_is_the_conjugate_predictive():
    # y_i ~ N(mu, 1), mu ~ N(0, 2^2); draws from a proposal that is half again as wide as the posterior.
    rng = np.random.default_rng(0)
    y = rng.normal(0.7, 1.0, 12)
    precision = 0.25 + len(y)
    wide = 1.5 / np.sqrt(precision)
    mu = rng.normal(y.sum() / precision, wide, 20_000)
    likelihood = -0.5 * (y - mu[:, None]) ** 2 - 0.5 * np.log(2 * np.pi)
    log_q = -0.5 * ((mu - y.sum() / precision) / wide) ** 2
    log_w = likelihood.sum(1) - 0.125 * mu**2 - log_q
    rest = precision - 1
    variance = 1 + 1 / rest
    exact = -0.5 * (y - (y.sum() - y) / rest) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)
    found = loo_weighted(likelihood, log_w)
    # The error of each term is below 0.003 at this number of draws.
    np.testing.assert_allclose(found.pointwise, exact, atol=0.012)
    assert found.elpd == pytest.approx(found.pointwise.sum())
    assert found.reliable
    unweighted = loo_weighted(likelihood, np.zeros(len(mu)))
    assert np.abs(unweighted.pointwise - exact).max() > 0.012
    with pytest.raises(ValueError, match=r"\(S, ...\)"):
        loo_weighted(likelihood, log_w[:-1])
