"""Log-space sums: the same numbers in every namespace, and no NaN where everything is -inf."""

import numpy as np
import pytest
from scipy.special import logsumexp as scipy_logsumexp

from ppl_samplers.core.logspace import log_mean_exp, logaddexp, logsumexp, softplus

INF = np.inf


def test_logsumexp_matches_scipy_on_every_axis():
    x = np.random.default_rng(0).normal(size=(4, 5, 6)) * 300
    for axis in (None, 0, 1, 2, -1):
        np.testing.assert_allclose(logsumexp(x, axis), scipy_logsumexp(x, axis=axis), rtol=1e-13)


def test_all_minus_infinity_gives_minus_infinity_without_warnings():
    with np.errstate(all="raise"):
        assert logsumexp(np.full(3, -INF)) == -INF
        assert np.all(logsumexp(np.full((2, 3), -INF), 0) == -INF)
        assert logaddexp(np.array(-INF), np.array(-INF)) == -INF
        assert log_mean_exp(np.full(3, -INF)) == -INF


def test_one_term_among_minus_infinities_is_returned_exactly():
    assert logsumexp(np.array([-INF, 3.25, -INF])) == 3.25
    assert logaddexp(np.array(-INF), np.array(2.5)) == 2.5


@pytest.mark.parametrize("x", [-1000.0, -1.0, 0.0, 1.0, 1000.0])
def test_softplus_is_the_logaddexp_of_zero(x):
    np.testing.assert_allclose(softplus(np.array(x)), np.logaddexp(0, x), rtol=1e-14)


def test_log_mean_exp_of_a_constant_is_the_constant():
    np.testing.assert_allclose(log_mean_exp(np.full((3, 7), 5.0), 1), 5.0, rtol=1e-14)
