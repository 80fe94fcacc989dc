"""Resampling, temperatures and acceptance: exact small cases, and invariance of the target."""

import numpy as np
import pytest

from ppl_samplers.core import acceptance, resampling, schedules, weights

INF = np.inf


def test_systematic_counts_are_within_one_of_their_expectation():
    log_w = np.log(np.array([0.1, 0.25, 0.05, 0.6]))
    for u in np.linspace(0, 0.999, 11):
        counts = np.bincount(resampling.systematic(log_w, np.asarray(u), 40), minlength=4)
        assert np.all(np.abs(counts - 40 * np.exp(log_w)) < 1 + 1e-9)


def test_zero_weight_is_never_resampled():
    log_w = np.array([-INF, 0.0, -INF, 0.0, -INF])
    for u in (0.0, 0.5, np.nextafter(1, 0)):
        assert set(resampling.systematic(log_w, np.asarray(u)).tolist()) <= {1, 3}
    assert set(resampling.stratified(log_w, np.random.default_rng(0).random(100)).tolist()) <= {1, 3}


def test_resampling_is_unbiased():
    """Frequencies over 20000 uniforms, four standard errors (an upper bound on the stratified variance)."""
    probability = np.array([0.15, 0.05, 0.5, 0.3])
    u = np.random.default_rng(1).random((20_000, 4))
    counts = np.mean([np.bincount(resampling.stratified(np.log(probability), row), minlength=4) for row in u], axis=0)
    np.testing.assert_allclose(counts / 4, probability, atol=4 * np.sqrt(0.25 / 80_000))


def test_next_temperature_meets_the_ess_target():
    log_ratio = np.random.default_rng(2).normal(size=500) * 30
    beta = np.asarray(0.0)
    for _ in range(60):
        new = schedules.next_temperature(log_ratio, beta, 0.5)
        assert new > beta
        reached = weights.relative_ess((new - beta) * log_ratio)
        assert reached == pytest.approx(0.5, abs=1e-4) or new == 1
        beta = new
        if beta == 1:
            break
    assert beta == 1


def test_next_temperature_jumps_to_one_when_it_can_and_ignores_dead_particles():
    assert schedules.next_temperature(np.zeros(10), np.asarray(0.2)) == 1
    log_ratio = np.where(np.arange(100) < 80, -INF, 0.0)
    assert schedules.next_temperature(log_ratio, np.asarray(0.0), 0.5) == 1


def test_geometric_ladder():
    np.testing.assert_allclose(schedules.geometric_ladder(0.25, 3), [0.25, 0.5, 1.0])
    assert schedules.geometric_ladder(0.5, 1) == [1.0]
    with pytest.raises(ValueError, match="0 < start"):
        schedules.geometric_ladder(0.0, 3)


def test_imh_leaves_zero_weight_points_and_never_takes_one():
    new, old = np.array([0.0, -INF, -INF, 1.0]), np.array([-INF, 0.0, -INF, 0.0])
    assert acceptance.imh(new, old, np.full(4, -1e-9)).tolist() == [True, False, False, True]


def test_isir_keeps_the_point_when_no_candidate_has_weight():
    assert acceptance.isir(np.full((3, 4), -INF), np.zeros((3, 4))).tolist() == [0, 0, 0]


@pytest.mark.parametrize("rule", ["imh", "isir"])
def test_rules_leave_the_target_invariant_under_a_bad_proposal(rule):
    """Exact one-step invariance on a three-point space: 400000 chains start in the target, four standard errors."""
    rng = np.random.default_rng(3)
    target, proposal = np.array([0.7, 0.2, 0.1]), np.array([0.05, 0.15, 0.8])
    log_w, n = np.log(target / proposal), 400_000
    now = rng.choice(3, n, p=target)
    if rule == "imh":
        new = rng.choice(3, n, p=proposal)
        then = np.where(acceptance.imh(log_w[new], log_w[now], np.log(rng.random(n))), new, now)
    else:
        candidates = np.concatenate([now[:, None], rng.choice(3, (n, 3), p=proposal)], 1)
        pick = acceptance.isir(log_w[candidates], rng.gumbel(size=(n, 4)))
        then = candidates[np.arange(n), pick]
    shares = np.bincount(then, minlength=3) / n
    np.testing.assert_allclose(shares, target, atol=4 * np.sqrt(0.25 / n))
