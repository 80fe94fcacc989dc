"""The dual of constrained mass transport on a grid, where everything is exact, and from samples."""

import warnings

import numpy as np
import pytest

from ppl_samplers.engines.cmt import dual, maths
from ppl_samplers.engines.cmt.dual import BOTH, ENTROPY, TARGET, TRUST, solve, solve_guarded

GRID = np.linspace(-60, 60, 6001)
WIDTH = GRID[1] - GRID[0]
INF = np.inf


def normal(x, m, s):
    return -0.5 * ((x - m) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)


# Three separated modes on the line, log Z = log 3.7.
PARTS = np.stack([np.log(w) + normal(GRID, m, s) for w, m, s in ((0.2, -8.0, 0.5), (0.5, 0.0, 1.0), (0.3, 9.0, 0.3))])
LOG_P = np.log(3.7) + np.logaddexp.reduce(PARTS)


def walk(mean, scale, eps_tr, eps_ent, steps=60):
    """Exact steps on the grid until the target is reached: rows of figures."""
    log_q = normal(GRID, mean, scale)
    log_q = log_q - np.logaddexp.reduce(log_q + np.log(WIDTH))
    u, v, rows = 1.0, 0.0, []
    log_q0 = log_q
    for _ in range(steps):
        log_base = log_q + np.log(WIDTH)
        log_base -= np.logaddexp.reduce(log_base)
        step = solve(LOG_P, log_q, eps_tr, eps_ent, log_base=log_base, max_draws=len(GRID))
        b, c = step.exponents
        u, v = maths.path_step(u, v, b, c)
        log_q = log_q + b * LOG_P - c * log_q - step.log_z
        # The iterated density is the one that the path's coordinates name.
        named = u * log_q0 + v * LOG_P
        named = named - np.logaddexp.reduce(named + np.log(WIDTH))
        np.testing.assert_allclose(log_q, named, atol=1e-8)
        density = np.exp(log_q) * WIDTH
        masses = [density[GRID <= -4].sum(), density[(GRID > -4) & (GRID <= 5)].sum(), density[GRID > 5].sum()]
        rows.append((step, *maths.path_coordinates(u, v), *masses))
        if step.status == TARGET:
            break
    return rows


def test_path_under_both_constraints_to_the_printed_digits():
    rows = walk(-14, 6, 0.3, 0.1)
    assert len(rows) == 13
    wanted = {
        0: (70.90633, 31.31377, 0.300000, 0.100000, 0.31306, 0.03095, 0.8472, 0.1458, 0.0070, 0.39167, 0.5949),
        1: (23.02486, 16.40852, 0.300000, 0.100000, 0.60882, 0.04968, 0.6463, 0.3143, 0.0394, 0.87195, 0.6018),
        2: (2.92939, 5.02696, 0.300000, 0.100000, 0.87205, 0.13938, 0.3916, 0.4933, 0.1151, 1.44551, 0.5772),
        3: (0, 4.46155, 0.070132, 0.100000, 1, 0.18310, 0.2816, 0.5216, 0.1968, 2.30120, 0.8677),
        7: (0, 1.29285, 0.009344, 0.100000, 1, 0.43614, 0.2461, 0.5353, 0.2186, 1.82153, 0.9833),
        11: (0, 0.10611, 0.008160, 0.100000, 1, 0.90407, 0.2075, 0.5076, 0.2850, 1.37281, 0.9851),
        12: (0, 0, 0.003041, 0.061928, 1, 1, 0.2000, 0.5000, 0.3000, 1.30833, 0.9942),
    }
    for i, row in wanted.items():
        step, beta, alpha, *masses = rows[i]
        found = (
            step.lam, step.eta, step.kl, step.entropy - step.next_entropy, beta, alpha, *masses, step.log_z,
            step.step_ess,
        )  # fmt: skip
        digits = (5, 5, 6, 6, 5, 5, 4, 4, 4, 5, 4)
        for x, y, n in zip(found, row, digits):
            assert abs(x - y) <= 0.51 * 10.0**-n, (i, x, y)


def test_trust_region_alone_teleports_mass():
    rows = walk(-14, 6, 0.3, INF)
    assert [r[0].status for r in rows] == [TRUST] * 5 + [TARGET]
    np.testing.assert_allclose([r[5] for r in rows], [0.0014, 0.0019, 0.0030, 0.0288, 0.1820, 0.3000], atol=5.1e-5)
    np.testing.assert_allclose(
        [r[0].lam for r in rows], [83.76976, 23.46310, 4.41733, 1.21155, 0.34169, 0], atol=5.1e-6
    )
    np.testing.assert_allclose([r[1] for r in rows], [0.01180, 0.05219, 0.22715, 0.57661, 0.89218, 1], atol=5.1e-6)
    assert min(r[0].step_ess for r in rows) == pytest.approx(0.480, abs=5e-4)


def test_entropy_alone_needs_overlap():
    rows = walk(-14, 6, INF, 0.3)
    assert len(rows) == 5
    assert rows[0][0].kl == pytest.approx(2.862, abs=5e-4)
    assert rows[0][0].step_ess == pytest.approx(0.003, abs=5e-4)
    rows = walk(0, 12, INF, 0.3)
    assert len(rows) == 7
    assert min(r[0].step_ess for r in rows) == pytest.approx(0.834, abs=5e-4)


@pytest.mark.parametrize(
    ("eps_tr", "eps_ent", "count"), [(0.3, INF, 6), (0.3, 0.3, 6), (0.3, 0.1, 16), (0.1, 0.1, 16), (0.05, 0.1, 17)]
)
def test_number_of_steps(eps_tr, eps_ent, count):
    assert len(walk(20, 8, eps_tr, eps_ent)) == count


def gaussian(n, seed=0, mean=3.0, scale=2.0):
    x = np.random.default_rng(seed).normal(mean, scale, n)
    return -0.5 * x**2, normal(x, mean, scale)


def test_gaussian_case_from_samples():
    step = solve(*gaussian(400_000), 0.2, 0.15, max_draws=400_000)
    # The population solution is 6.01138, 0.40523; the bands are four times the spread over twenty seeds.
    assert step.lam == pytest.approx(6.01138, abs=0.12)
    assert step.eta == pytest.approx(0.40523, abs=0.16)
    b, c = step.exponents
    precision = (1 - c) / 4 + b
    m, s = (1 - c) * 3 / 4 / precision, precision**-0.5
    exact_kl = np.log(2 / s) + (s**2 + (m - 3) ** 2) / 8 - 0.5
    assert exact_kl == pytest.approx(0.2, abs=0.004)
    assert np.log(2 / s) == pytest.approx(0.15, abs=0.008)


def test_constants_of_the_density_change_nothing_but_the_normaliser():
    log_p, log_q = gaussian(4000)
    here, there = solve(log_p, log_q, 0.2, 0.15), solve(log_p + 1e3, log_q, 0.2, 0.15)
    b = here.exponents[0]
    np.testing.assert_allclose(
        [there.lam, there.eta, there.kl, there.step_ess], [here.lam, here.eta, here.kl, here.step_ess], rtol=1e-6
    )
    assert there.log_z - here.log_z == pytest.approx(1e3 * b, rel=1e-6)


def test_gradient_of_the_dual_is_what_the_constraints_lack():
    log_p, log_q = gaussian(3000)
    base = np.full(3000, -np.log(3000))
    draws = dual._Draws(log_p, log_q, base)
    for lam, eta in ((0.7, 0.4), (5.0, 0.0), (0.1, 3.0)):
        kl, entropy = draws.at(lam, eta)
        g = lambda a, b: dual.dual(a, b, log_p, log_q, 0.2, 0.15, base)  # noqa: E731
        h = 1e-5
        slope = (g(lam + h, eta) - g(lam - h, eta)) / (2 * h), (g(lam, eta + h) - g(lam, eta - h)) / (2 * h)
        np.testing.assert_allclose(slope, (kl - 0.2, -log_q.mean() - entropy - 0.15), atol=1e-6)


def test_no_other_multipliers_do_better():
    log_p, log_q = gaussian(3000)
    base = np.full(3000, -np.log(3000))
    step = solve(log_p, log_q, 0.2, 0.15)
    best = dual.dual(step.lam, step.eta, log_p, log_q, 0.2, 0.15, base)
    rng = np.random.default_rng(1)
    for lam, eta in np.abs(rng.normal([step.lam, step.eta], [3.0, 0.5], (200, 2))):
        assert dual.dual(lam, eta, log_p, log_q, 0.2, 0.15, base) <= best + 1e-12


def test_every_status_is_reached():
    log_p, log_q = gaussian(4000)
    assert solve(log_p, log_q, 10.0, 10.0).status == TARGET
    assert solve(log_p, log_q, 0.2, 10.0).status == TRUST
    assert solve(log_p, log_q, 0.2, 0.15).status == BOTH
    log_p, log_q = gaussian(4000, mean=0.0)
    assert solve(log_p, log_q, 10.0, 0.15).status == ENTROPY
    free = solve(log_p, log_q, INF, INF)
    assert (free.status, free.lam, free.eta) == (TARGET, 0, 0)


def test_points_outside_the_support_weigh_nothing_and_count():
    x = np.random.default_rng(0).normal(0.0, 1.0, 8000)
    log_p, log_q = np.where(x > -1, -0.5 * x**2, -INF), normal(x, 0, 1)
    step = solve(log_p, log_q, 1.0, INF)
    assert step.num_outside == (x <= -1).sum()
    assert step.num_invalid == 0
    # log Z = log(sqrt(2 pi) P(x > -1)); four standard errors of the share of 8000 draws are 0.0195.
    assert step.status == TARGET
    assert step.log_z == pytest.approx(
        0.5 * np.log(2 * np.pi) + np.log(0.841345), abs=4 * np.sqrt(0.159 / 0.841 / 8000)
    )
    assert step.kl == pytest.approx(-np.log((x > -1).mean()))
    assert step.elbo == -INF


def test_a_support_smaller_than_the_trust_region_is_stepped_into_all_the_same():
    x = np.random.default_rng(0).normal(0.0, 1.0, 8000)
    log_p, log_q = np.where(x > 1, -0.5 * (x - 3) ** 2, -INF), normal(x, 0, 1)
    # KL >= -log(0.159) = 1.84 for any step of all of q: infeasible for a trust region of 0.3.
    step = solve(log_p, log_q, 0.3, INF)
    assert step.status == TRUST
    assert step.kl == pytest.approx(0.3, abs=1e-8)
    assert 0 < step.exponents[0] < 1
    # With room enough nothing is restricted.
    assert solve(log_p, log_q, 8.0, INF).kl > 1.84


def test_numbers_that_are_none_are_counted_and_refused_when_they_are_many():
    log_p, log_q = gaussian(4000)
    log_p[:100], log_p[100:150], log_q[150:200] = np.nan, INF, np.nan
    step = solve(log_p, log_q, 0.2, 0.15)
    assert step.num_invalid == 200
    assert step.elbo > -INF
    # They weigh as much as points outside the support: nothing.
    outside = np.where(np.arange(4000) < 200, -INF, log_p)
    same = solve(outside, np.where(np.isnan(log_q), -1.0, log_q), 0.2, 0.15)
    assert (same.num_invalid, same.num_outside) == (0, 200)
    np.testing.assert_allclose(step[:10], same[:10], rtol=1e-12)
    log_p[:2100] = np.nan
    with pytest.raises(ValueError, match=r"2100 of 4000 draws .* NaN or"):
        solve(log_p, log_q, 0.2, 0.15)
    with pytest.raises(ValueError, match="-inf at all 10 draws"):
        solve(np.full(10, -INF), np.zeros(10), 0.2, 0.15)


@pytest.mark.parametrize("bad", [(0.0, 1.0), (1.0, -1.0), (np.nan, 1.0)])
def test_bounds_must_be_positive(bad):
    with pytest.raises(ValueError, match="must be positive"):
        solve(*gaussian(100), *bad)


def test_a_bracket_that_fails_raises_and_never_loops():
    with pytest.raises(ValueError, match=r"the log density ranges from .* to .* over the draws"):
        dual._root(lambda _: 1.0, dual._Draws(*gaussian(10), np.full(10, -np.log(10))))


def test_trust_region_path_is_adaptive_tempering_with_kl():
    # From the same draws: the geometric path with KL = eps is a bisection over the inverse temperature.
    log_p, log_q = gaussian(4000)
    step = solve(log_p, log_q, 0.2, INF)
    low, high = 0.0, 1.0
    for _ in range(60):
        beta = 0.5 * (low + high)
        ratio = beta * (log_p - log_q)
        ratio = ratio - np.logaddexp.reduce(ratio) + np.log(len(ratio))
        kl = np.mean(np.exp(ratio) * ratio)
        low, high = (beta, high) if kl < 0.2 else (low, beta)
    assert step.exponents[0] == pytest.approx(low, abs=1e-8)
    assert step.exponents[1] == pytest.approx(low, abs=1e-8)


def test_poor_weights_halve_the_trust_region():
    # Three draws of 4000 hold the target: they would carry a third of a step of KL = 2.
    log_p, log_q = np.where(np.arange(4000) < 3, 0.0, -50.0), np.zeros(4000)
    assert solve(log_p, log_q, 2.0, INF).step_ess < 0.5 * np.exp(-4)
    guarded = solve_guarded(log_p, log_q, 2.0, INF)
    assert guarded.eps_tr < 2.0
    assert guarded.kl <= guarded.eps_tr + 1e-8
    assert solve_guarded(*gaussian(4000), 0.2, 0.15).eps_tr == 0.2


def test_the_root_finding_may_look_at_a_part_of_the_draws():
    log_p, log_q = gaussian(100_000)
    part, whole = solve(log_p, log_q, 0.2, 0.15), solve(log_p, log_q, 0.2, 0.15, max_draws=100_000)
    # Measured on all draws, the constraints that a part attained: four times the table's spread at 8000 draws.
    assert part.kl == pytest.approx(0.2, abs=0.02)
    assert part.entropy - part.next_entropy == pytest.approx(0.15, abs=0.06)
    assert whole.kl == pytest.approx(0.2, abs=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(np.r_[log_p, -INF], np.r_[log_q, -1.0], 0.2, 0.15)
