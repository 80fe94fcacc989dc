"""Weights and evidence against closed forms."""

import numpy as np
import pytest

from ppl_samplers.core import evidence, weights

INF = np.inf


def test_ess_of_equal_and_of_single_weights():
    assert weights.ess(np.zeros(50)) == pytest.approx(50)
    assert weights.ess(np.array([0.0, -INF, -INF])) == pytest.approx(1)
    assert weights.ess(np.full(4, -INF)) == 0


def test_ess_ignores_the_scale_of_the_weights():
    log_w = np.random.default_rng(1).normal(size=100)
    assert weights.ess(log_w + 5e4) == pytest.approx(weights.ess(log_w), rel=1e-6)


def test_normalize_sums_to_one_and_survives_no_weight():
    log_w = np.array([-INF, 1.0, 2.0, 1e4])
    assert weights.normalize(log_w).sum() == pytest.approx(1)
    assert np.all(weights.normalize(np.full(3, -INF)) == 0)


def test_sanitize_keeps_finite_values_only():
    np.testing.assert_array_equal(weights.sanitize(np.array([np.nan, INF, -INF, 1.5])), [-INF, -INF, -INF, 1.5])


def test_forward_and_reverse_ess_of_an_unbalanced_two_mode_proposal():
    """Proposal 80/20 on a 50/50 target, labels only: both ESS are 0.64, ELBO and EUBO +-(0.5 log ratios)."""
    rng = np.random.default_rng(2)
    log_w_of = np.log(np.array([0.5 / 0.8, 0.5 / 0.2]))
    at_q = log_w_of[(rng.random(200_000) < 0.2).astype(int)]
    at_p = log_w_of[(rng.random(200_000) < 0.5).astype(int)]
    assert weights.relative_ess(at_q) == pytest.approx(0.64, abs=0.01)
    assert weights.forward_ess(at_p) == pytest.approx(0.64, abs=0.01)
    assert weights.elbo(at_q) == pytest.approx(0.8 * log_w_of[0] + 0.2 * log_w_of[1], abs=0.01)
    assert weights.eubo(at_p) == pytest.approx(0.5 * log_w_of.sum(), abs=0.01)


def test_forward_ess_is_zero_where_the_proposal_misses_mass():
    assert weights.forward_ess(np.array([0.0, 0.0, INF])) == 0


def test_streamed_evidence_equals_the_evidence_at_once():
    log_w = np.random.default_rng(3).normal(size=1000) * 2 + 700
    sums = evidence.empty_sums(log_w)
    for part in np.split(log_w, 10):
        sums = evidence.add(sums, part)
    log_z, error, ess, count = evidence.finish(sums)
    assert log_z == pytest.approx(np.logaddexp.reduce(log_w) - np.log(1000), rel=1e-12)
    np.testing.assert_allclose((log_z, error), evidence.log_evidence(log_w), rtol=1e-12)
    assert ess == pytest.approx(weights.ess(log_w))
    assert count == 1000


def test_merged_engines_equal_one_engine_with_all_draws():
    log_w = np.random.default_rng(4).normal(size=(3, 40))
    merged = evidence.merge(np.stack([evidence.sums_of(row) for row in log_w]))
    np.testing.assert_allclose(merged, evidence.sums_of(log_w.ravel()), rtol=1e-12)


def test_evidence_without_a_positive_weight_is_minus_infinity_with_infinite_error():
    log_z, error, ess, _ = evidence.finish(evidence.sums_of(np.full(5, -INF)))
    assert log_z == -INF and error == INF and ess == 0
    assert evidence.finish(evidence.empty_sums(np.zeros(1)))[0] == -INF


def test_delta_method_error_matches_the_spread_over_repetitions():
    """4000 repetitions; their spread's own error is 1.1 %, allowed four times that plus 2 % of higher order."""
    log_w = np.random.default_rng(5).normal(size=(4000, 400)) * 0.5
    estimates = np.array([evidence.log_evidence(row) for row in log_w])
    assert estimates[:, 1].mean() == pytest.approx(estimates[:, 0].std(), rel=4 * 0.011 + 0.02)
