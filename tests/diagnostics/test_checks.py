"""Checks between engines, coverage against exact draws, rejection runs, prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ppl_samplers.diagnostics import acceptance_profile, coverage_against_exact, cross_engine_check, efficiency


def test_good_engines_agree(good):
    check = cross_engine_check(good)
    assert check.verdict == "agree"
    assert check.forward_ess[0, 1] > 0.9 and check.forward_ess[1, 0] > 0.9 and np.isnan(check.forward_ess[0, 0])
    assert abs(check.evidence_z[0, 1]) < 4 and check.rhat[0] < 1.01


@pytest.mark.parametrize("with_weights", [True, False])
def test_missing_modes_are_told_from_wrong_masses(split, build, proposals, two, with_weights):
    def prepare(record):
        return record if with_weights else replace(record, log_weight_at=None)

    check = cross_engine_check(prepare(split))
    assert check.verdict == "modes disagree" and check.rhat[0] > 1.5
    if with_weights:
        assert check.forward_ess[0, 1] < 1e-3 and check.excess_share[0, 1] > 0.9

    def uneven(rng, engine, n):
        return np.where(rng.random((n, 1)) < (0.9 if engine else 0.2), -4.0, 4.0) + rng.standard_normal((n, 1))

    check = cross_engine_check(prepare(build(two, [proposals["both"]] * 2, chain_draws=uneven)))
    assert check.verdict == "weights disagree"


def test_evidence_gap(build, proposals, two):
    record = build(two, [proposals["right"], proposals["both"]], log_weight_at=None,
                   chain_draws=lambda g, r, n: two.sample(g, n))  # fmt: skip
    check = cross_engine_check(record)
    assert check.verdict == "weights disagree" and "evidences" in check.message and abs(check.evidence_z[0, 1]) > 4


def test_one_engine_is_unknown(build, proposals, two):
    check = cross_engine_check(build(two, [proposals["right"]]))
    assert check.verdict == "unknown" and "num_engines" in check.message


@pytest.mark.parametrize(
    ("name", "log_z", "from_p", "reverse", "forward", "lower", "upper", "collapsed"),
    [
        ("right", -0.693, None, 1.0, 0.0, -0.693, 15.31, True),
        ("uneven", 0.0, 0.0, 0.64, 0.64, -0.193, 0.223, False),
        ("wide", 0.0, 0.0, 0.952, 0.952, -0.038, 0.0295, False),
    ],
)
def test_coverage_table(two, proposals, name, log_z, from_p, reverse, forward, lower, upper, collapsed):
    """The printed table of one-mode, 80/20 and 1.2 times too wide proposals; log Z = 0."""
    rng = np.random.default_rng(5)
    n = 20_000
    q = proposals[name]
    x, y = q.sample(rng, n), two.sample(rng, n)
    at_q, at_p = two.log_density(x) - q.log_density(x), two.log_density(y) - q.log_density(y)
    coverage = coverage_against_exact(at_q, at_p, log_z=0.0)
    assert abs(coverage.log_z - log_z) < 0.02
    assert abs(coverage.reverse_ess - reverse) < 0.02 and abs(coverage.forward_ess - forward) < 0.02
    assert abs(coverage.elbo - lower) < 4 * at_q.std() / np.sqrt(n) + 5e-4
    assert abs(coverage.eubo - upper) < 4 * at_p.std() / np.sqrt(n) + 5e-4
    assert from_p is None or abs(coverage.log_z_forward - from_p) < 0.03
    assert coverage.collapsed is collapsed and ("collapsed" in coverage.message) is collapsed
    # The forward figures show it without the exact constant, too.
    assert coverage_against_exact(at_q, at_p).collapsed is collapsed


def test_coverage_with_points_outside_the_support():
    coverage = coverage_against_exact(np.zeros(100), np.r_[np.zeros(99), np.inf])
    assert coverage.forward_ess == 0 and coverage.collapsed and coverage.eubo == np.inf


def test_rejection_runs(good):
    x, weights = good.unconstrained.copy(), good.sample_stats["log_weight"].copy()
    x[2, 100:180] = x[2, 100]
    weights[2, 100:180] = 9.5
    stats = {**good.sample_stats, "log_weight": weights}
    profile = acceptance_profile(replace(good, unconstrained=x, sample_stats=stats))
    assert profile.longest.tolist() == [1, 1, 80, 1] and profile.hung_at[2] == 9.5
    assert profile.stuck.tolist() == [False, False, True, False] and "Chain 2 stood still for 80" in profile.message
    assert not acceptance_profile(good).stuck.any()
    bare = replace(good, unconstrained=x, sample_stats={})
    assert acceptance_profile(bare).mean[0] > 0.99 and np.isnan(acceptance_profile(bare).hung_at).all()


def test_efficiency(good):
    price = efficiency(good)
    assert 1200 < price.min_ess < 2800
    assert np.isclose(price.per_evaluation, price.min_ess / 10_000)
    assert np.isclose(price.per_second, price.min_ess / 3) and np.isclose(price.per_second_sampling, price.min_ess)
    assert np.isnan(efficiency(replace(good, counts={})).per_second)
