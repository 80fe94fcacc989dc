"""The evidence, its verdict and its words."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ppl_samplers.core.evidence import sums_of
from ppl_samplers.diagnostics import evidence_from_log_weights, evidence_from_record
from ppl_samplers.testing import targets


def sentences(text):
    return len(re.findall(r"[.!?](?:\s|$)", text))


def test_good_engines_agree(good):
    evidence = evidence_from_record(good)
    assert evidence.verdict == "agree" and evidence.reliable
    assert abs(evidence.log_z) < 4 * evidence.standard_error
    assert evidence.num_proposals == 8000 and len(evidence.per_engine) == 2
    assert evidence.kind == "absolute"
    assert "trusted" in evidence.message and str(evidence) == evidence.message
    assert 2 <= sentences(evidence.message) <= 5


def test_one_engine_that_covers_one_mode_is_unknown_and_never_reliable(build, proposals, two):
    evidence = evidence_from_record(build(two, [proposals["right"]]))
    assert abs(evidence.log_z + np.log(2)) < 1e-3
    assert evidence.verdict == "unknown" and not evidence.reliable
    assert "unknown" in evidence.message and "num_engines" in evidence.message
    # A right engine alone is no better placed.
    assert evidence_from_record(build(two, [proposals["both"]])).verdict == "unknown"


@pytest.mark.parametrize("with_weights", [True, False])
def test_one_mode_each_is_a_disagreement_although_the_evidences_are_equal(split, with_weights):
    record = split if with_weights else replace(split, log_weight_at=None)
    evidence = evidence_from_record(record)
    assert abs(evidence.per_engine[0].log_z - evidence.per_engine[1].log_z) < 1e-3
    assert evidence.verdict == "disagree" and not evidence.reliable
    assert ("never proposes" in evidence.message) == with_weights
    assert 2 <= sentences(evidence.message) <= 5


def test_evidence_gap_is_a_disagreement(build, proposals, two):
    record = build(two, [proposals["right"], proposals["both"]])
    # The weights alone are enough: no draws, no points of other engines.
    evidence = evidence_from_log_weights(record.fresh_log_weights)
    assert evidence.verdict == "disagree" and "further apart" in evidence.message
    # The mean of Z: (1/2 + 1) / 2, and the error covers the truth of either engine.
    assert abs(evidence.log_z - np.log(0.75)) < 0.01
    assert evidence.standard_error > 0.3


@pytest.mark.parametrize("engines", [1, 2])
def test_probe_finds_the_missed_mode(build, proposals, two, engines):
    record = build(two, [proposals["right"]] * engines, probe=50, log_weight_at=None)
    evidence = evidence_from_record(record)
    assert evidence.verdict == "disagree" and "misses a mode" in evidence.message
    quiet = replace(record, probe_log_weights=None, probe_log_density=None)
    assert evidence_from_record(quiet).verdict == ("unknown" if engines == 1 else "agree")


def test_probe_in_a_far_tail_is_no_missed_mode(build, proposals):
    """A proposal 20 per cent too narrow has a huge weight far out, where the target has nothing."""
    target = targets.gaussian_mixture(np.zeros((1, 1)), np.ones(1), np.ones(1))
    narrow = proposals["normal"](0.0, 0.8)
    far = np.array([[-9.0], [8.0]])
    density = target.log_density(far)
    weights = density - narrow.log_density(far)
    record = build(target, [narrow, narrow], probe_log_density=density, probe_log_weights=np.stack([weights] * 2))
    assert weights.min() > record.fresh_log_weights.max() + 5
    assert evidence_from_record(record).verdict == "agree"
    # The same excess at a point of ordinary density is a missed mode.
    loud = replace(record, probe_log_density=np.zeros(2) - 2.0)
    assert evidence_from_record(loud).verdict == "disagree"


def test_probe_in_the_tail_of_five_dimensions_is_no_missed_mode(build, proposals):
    """Eight below the median log density: an ordinary mode there would hold less than a part in two thousand."""
    target = targets.gaussian_mixture(np.zeros((1, 5)), np.ones(1), np.ones(1))
    record = build(target, [proposals["normal"](0.0, 1.1, dim=5)] * 2)
    typical = np.median(record.sample_stats["lp"])
    excess = np.full((2, 1), record.fresh_log_weights.max() + 6.0)
    tail = replace(record, probe_log_density=np.array([typical - 8.0]), probe_log_weights=excess)
    assert evidence_from_record(tail).verdict == "agree"
    # A mode of five per cent lies three below: its points, low ones included, are seen.
    mode = replace(record, probe_log_density=np.array([typical - 5.0]), probe_log_weights=excess)
    assert evidence_from_record(mode).verdict == "disagree"


@pytest.mark.parametrize(("scale", "verdict"), [(0.6, "agree"), (0.5, "agree"), (0.3, "disagree")])
def test_heavy_tails(build, proposals, scale, verdict):
    """Tail index ``1 - scale^2``. 0.64 and 0.75 are no disagreement; at 0.91 much of the target is never seen."""
    target = targets.gaussian_mixture(np.zeros((1, 1)), np.ones(1), np.ones(1))
    narrow = proposals["normal"](0.0, scale)
    seen, reliable = [], []
    for seed in range(20):
        record = build(target, [narrow, narrow], seed=seed, chain_draws=lambda g, r, n: target.sample(g, n))
        evidence = evidence_from_record(record)
        seen.append(evidence.verdict)
        reliable.append(evidence.reliable)
    assert seen.count(verdict) >= 19
    if scale < 0.6:
        assert sum(reliable) <= 10


def test_stuck_chains_are_no_evidence_that_engines_differ(build, proposals, two):
    record = build(two, [proposals["both"]] * 2, chain_draws=lambda g, r, n: np.full((n, 1), -4.0 if r else 4.0))
    assert evidence_from_record(record).verdict == "agree"


def test_short_runs_raise_no_false_alarm(build, proposals, two):
    alarms = sum(
        evidence_from_record(build(two, [proposals["both"]] * 2, draws=15, fresh=300, seed=s)).verdict == "disagree"
        for s in range(40)
    )
    assert alarms == 0


def test_error_bar_covers():
    """Conjugate model, 200 repetitions: within two standard errors in 90 to 99 per cent."""
    target = targets.conjugate_regression()
    wide = 1.25
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        z = rng.standard_normal((2, 500, 4))
        # Proposal: the posterior stretched by 1.25; its log weight against the posterior, plus log Z.
        log_w = 0.5 * np.sum(z**2, -1) * (1 - wide**2) + 4 * np.log(wide) + target.log_z
        evidence = evidence_from_log_weights(log_w)
        inside += abs(evidence.log_z - target.log_z) < 2 * evidence.standard_error
    assert 180 <= inside <= 198


def test_combination_weights_engines_by_their_counts():
    a, b = np.full(300, np.log(2.0)), np.full(100, np.log(4.0))
    padded = np.full((2, 300), np.nan)
    padded[0], padded[1, :100] = a, b
    evidence = evidence_from_log_weights(padded)
    assert np.isclose(evidence.log_z, np.log(0.75 * 2 + 0.25 * 4))
    assert [e.num_proposals for e in evidence.per_engine] == [300, 100]
    assert np.isclose(evidence.standard_error, np.sqrt(0.75 * (2 / 2.5 - 1) ** 2 + 0.25 * (4 / 2.5 - 1) ** 2))


def test_undefined_evidence_is_refused_with_the_remedy(good):
    record = replace(good, evidence_kind="undefined", evidence_reason="site 'mu' has an improper prior")
    with pytest.raises(ValueError, match=r"site 'mu' has an improper prior.*proper prior.*force=True"):
        evidence_from_record(record)
    forced = evidence_from_record(record, force=True)
    assert forced.kind == "undefined" and "no meaning" in forced.message


def test_relative_evidence_says_so(good):
    evidence = evidence_from_record(replace(good, evidence_kind="relative", evidence_reason="factor 'penalty'"))
    assert evidence.kind == "relative" and "relative" in evidence.message and "penalty" in evidence.message
    assert evidence.reliable


def test_no_proposals_is_an_error(good):
    empty = replace(good, evidence_sums=np.array([[-np.inf, -np.inf, 0.0]] * 2), fresh_log_weights=np.empty((2, 0)))
    with pytest.raises(ValueError, match="num_samples"):
        evidence_from_record(empty)


@pytest.mark.parametrize("bad", [-np.inf, np.inf])
def test_zero_weights_survive(bad):
    log_w = np.zeros((2, 400))
    log_w[:, ::2] = bad
    evidence = evidence_from_log_weights(log_w)
    assert np.isclose(evidence.log_z, np.log(0.5)) and evidence.verdict == "agree"
    nothing = evidence_from_log_weights(np.full((2, 400), -np.inf))
    assert nothing.log_z == -np.inf and not nothing.reliable
    half = evidence_from_log_weights(np.stack([np.zeros(400), np.full(400, -np.inf)]))
    assert not half.reliable


def test_few_draws_are_not_reliable():
    evidence = evidence_from_log_weights(np.random.default_rng(0).normal(size=(2, 10)))
    assert not evidence.reliable and np.isnan(evidence.pareto_k) and "too few" in evidence.message
    small = evidence_from_log_weights(np.random.default_rng(0).uniform(size=(2, 60)))
    assert not small.reliable and "independent draws" in small.message


def test_the_sums_count_more_than_the_stored_weights(good):
    many = np.random.default_rng(9).normal(-3, 0.3, size=(2, 50_000))
    record = replace(good, evidence_sums=np.stack([sums_of(m) for m in many]), fresh_log_weights=many[:, :1000])
    evidence = evidence_from_record(record)
    assert evidence.num_proposals == 100_000
    assert abs(evidence.log_z - (-3 + 0.045)) < 4 * evidence.standard_error


def test_the_tail_of_nearly_constant_weights_is_no_reason_for_doubt():
    """The excess over a constant is Pareto with shape 1: k-hat is about 1, and it holds next to no variance."""
    excess = np.random.default_rng(0).pareto(1.0, (2, 4000)).clip(max=1000)
    evidence = evidence_from_log_weights(np.log1p(1e-4 * excess))
    assert evidence.pareto_k > 0.7
    assert evidence.ess > 0.95 * evidence.num_proposals
    assert evidence.verdict == "agree" and evidence.reliable
