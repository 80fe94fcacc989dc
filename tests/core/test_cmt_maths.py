"""The equations of constrained mass transport: identities."""

import numpy as np
import pytest

from ppl_samplers.engines.cmt import maths


def test_weights_of_the_three_kinds_of_step():
    rng = np.random.default_rng(0)
    log_p, log_q, log_q0 = rng.normal(size=(3, 8))
    log_p[0], log_p[1] = -np.inf, np.nan
    b, c = maths.exponents(3.0, 0.5)
    assert (b, c) == (pytest.approx(1 / 4.5), pytest.approx(1.5 / 4.5))
    found = [
        maths.log_weights(log_p, log_q, b, c),
        maths.ladder_log_weights(log_p, log_q, log_q0, 0.25),
        maths.tempered_log_weights(log_p, log_q, 4.0),
    ]
    wanted = [b * log_p - c * log_q, 0.75 * log_q0 + 0.25 * log_p - log_q, log_p / 4 - log_q]
    for mine, exact in zip(found, wanted):
        np.testing.assert_allclose(mine[2:], exact[2:])
        assert np.all(mine[:2] == -np.inf)


@pytest.mark.parametrize(
    ("unit", "dim", "entropy", "target", "bound"),
    [(2, 9, 90.0, 18.0, 4.0), (2, 9, 20.0, 18.0, 3.0), (30, 1, 40.0, 10.0, 10.0)],
)
def test_entropy_bound_stops_collapse_and_catches_up(unit, dim, entropy, target, bound):
    numbers = (np.asarray(float(unit)), 40, dim, 1.0, np.asarray(entropy), np.asarray(target))
    assert float(maths.auto_entropy_bound(*numbers)) == pytest.approx(bound)


def test_path_coordinates_after_steps():
    # A step of the trust region alone is geometric; one of the entropy alone forgets the start.
    u, v = maths.path_step(1.0, 0.0, *maths.exponents(3.0, 0.0))
    assert maths.path_coordinates(u, v) == (pytest.approx(0.25), pytest.approx(1.0))
    u, v = maths.path_step(u, v, *maths.exponents(0.0, 1.0))
    assert maths.path_coordinates(u, v) == (pytest.approx(1.0), pytest.approx(0.5))
