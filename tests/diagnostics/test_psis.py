"""Sign, tails and edge cases of the smoothing, the same in both generations of ArviZ."""

from __future__ import annotations

import numpy as np
import pytest

from ppl_samplers.diagnostics import khat, psis
from ppl_samplers.diagnostics.psis import khat_threshold


def narrow(scale, n=8000, seed=0):
    x = scale * np.random.default_rng(seed).standard_normal(n)
    return x, -0.5 * x**2 + 0.5 * (x / scale) ** 2 + np.log(scale)


def test_sign():
    _, log_w = narrow(0.8)
    smoothed, k = psis(log_w - 1e4)
    assert abs(k - 0.36) < 0.12  # exact index 1 - s^2; the wrong sign gives less than -0.5
    assert np.isclose(np.exp(smoothed).sum(), 1.0)
    assert np.argmax(smoothed) == np.argmax(log_w)
    assert khat(-log_w) < 0


def test_smoothed_weights_give_the_moment():
    x, log_w = narrow(0.8)
    smoothed, _ = psis(log_w)
    assert abs(np.exp(smoothed) @ x**2 - 1) < 0.05


def test_edges():
    assert khat(np.zeros(100)) == 0.0
    assert np.isnan(khat(np.zeros(10)))
    assert np.isnan(khat(np.full(100, -np.inf)))
    assert np.isnan(khat(np.array([])))
    few = np.full(100, -np.inf)
    few[:3] = 0.0
    assert np.isnan(khat(few))


@pytest.mark.parametrize("bad", [-np.inf, np.nan, np.inf])
def test_zero_weights_leave_the_tail_alone(bad):
    _, log_w = narrow(0.7)
    spoiled = np.concatenate([log_w, np.full(200, bad)])
    smoothed, k = psis(spoiled)
    assert abs(k - khat(log_w)) < 0.05
    assert np.isclose(np.exp(smoothed).sum(), 1.0) and np.all(np.exp(smoothed[-200:]) == 0)


def test_most_weights_zero():
    log_w = np.full(2000, -np.inf)
    log_w[:60] = np.random.default_rng(0).normal(size=60)
    smoothed, k = psis(log_w)
    assert np.isclose(np.exp(smoothed).sum(), 1.0) and not np.isnan(k)


def test_input_is_left_alone():
    _, log_w = narrow(0.7)
    copy = log_w.copy()
    psis(log_w)
    np.testing.assert_array_equal(copy, log_w)


def test_threshold():
    assert np.isclose(khat_threshold(100), 0.5)
    assert khat_threshold(10**6) == 0.7
    assert khat_threshold(5) == 0.0
