"""The fixed ladders of constrained mass transport: exact on a grid, and from draws."""

import numpy as np
import pytest

from ppl_samplers.engines.cmt import host, maths
from ppl_samplers.engines.cmt.dual import LADDER, TARGET, solve
from ppl_samplers.engines.cmt.settings import Settings

GRID = np.linspace(-60, 60, 6001)
LOG_WIDTH = np.log(GRID[1] - GRID[0])


def normal(x, m, s):
    return -0.5 * ((x - m) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)


def normalised(log_q):
    return log_q - np.logaddexp.reduce(log_q + LOG_WIDTH)


# The three modes of test_cmt_dual.py, log Z = log 3.7.
PARTS = np.stack([np.log(w) + normal(GRID, m, s) for w, m, s in ((0.2, -8.0, 0.5), (0.5, 0.0, 1.0), (0.3, 9.0, 0.3))])
LOG_P = np.log(3.7) + np.logaddexp.reduce(PARTS)
START = normalised(normal(GRID, -14, 6))


def climb(variant, rungs):
    """Exact steps on the grid: one step, ``(beta, alpha)`` and log density a rung."""
    log_q, path, before, rows = START, (1.0, 0.0), 0.0, []
    for rung in rungs:
        if variant == "tabg":
            multipliers = maths.tempered_multipliers(rung)
        else:
            multipliers = maths.ladder_multipliers(before, rung)
        step = solve(LOG_P, log_q, np.inf, np.inf, log_base=log_q + LOG_WIDTH, multipliers=multipliers)
        b, c = step.exponents
        log_q, path, before = log_q + b * LOG_P - c * log_q - step.log_z, maths.path_step(*path, b, c), rung
        rows.append((step, maths.path_coordinates(*path), log_q))
    return rows


def test_the_geometric_ladder_is_on_its_rungs_exactly():
    rungs = Settings(variant="geometric-linear").rungs(20)
    np.testing.assert_allclose(rungs, np.arange(1, 15) / 14)  # 20 units less the first and the five of the polish
    rows, log_q = climb("geometric-linear", rungs), START
    for beta, (step, path, now) in zip(rungs, rows):
        assert path == (pytest.approx(beta, abs=1e-12), pytest.approx(1, abs=1e-12))
        assert step.eta == 0
        # The density is the one that the ladder names, and the weights are those with a copy of the start.
        np.testing.assert_allclose(now, normalised((1 - beta) * START + beta * LOG_P), atol=1e-8)
        with_start = maths.ladder_log_weights(LOG_P, log_q, START, beta)
        mine = maths.log_weights(LOG_P, log_q, *step.exponents)
        np.testing.assert_allclose(mine - mine[3000], with_start - with_start[3000], atol=1e-8)
        log_q = now
    assert [step.status for step, *_ in rows] == [LADDER] * 13 + [TARGET]
    assert rows[-1][0].log_z == pytest.approx(np.log(3.7), abs=1e-9)
    # Mass comes late: half-way up, with modes of nearly their final width, the right one has a tenth of its 0.3.
    right = [float(np.exp(now + LOG_WIDTH)[GRID > 5].sum()) for *_, now in rows]
    assert right[6] < 0.03 and right[-1] == pytest.approx(0.3, abs=1e-4)


def test_the_temperature_ladder_is_on_its_rungs_exactly():
    rungs = Settings(variant="tabg").rungs(20)
    assert len(rungs) == 14 and rungs[0] == pytest.approx(30) and rungs[-1] == 1
    np.testing.assert_allclose(np.divide(rungs[1:], rungs[:-1]), 30 ** (-1 / 13))
    rows, log_q = climb("tabg", rungs), START
    for temperature, (step, path, now) in zip(rungs, rows):
        assert path == (1, pytest.approx(1 / temperature, abs=1e-12))
        assert step.lam == 0
        np.testing.assert_allclose(now, normalised(LOG_P / temperature), atol=1e-8)
        mine = maths.log_weights(LOG_P, log_q, *step.exponents)
        np.testing.assert_allclose(mine, maths.tempered_log_weights(LOG_P, log_q, temperature), atol=1e-9)
        log_q = now
    assert [step.status for step, *_ in rows] == [LADDER] * 13 + [TARGET]
    assert rows[-1][0].log_z == pytest.approx(np.log(3.7), abs=1e-9)


@pytest.mark.parametrize("variant", ["geometric-linear", "tabg"])
def test_a_unit_climbs_its_rung_and_the_polish_goes_for_the_target(variant):
    ladder = (0.25, 0.5, 1.0) if variant == "geometric-linear" else (9.0, 3.0, 1.0)
    settings = Settings(variant=variant, ladder=list(ladder), polish=4)
    x = np.random.default_rng(0).normal(3.0, 2.0, 4000)
    log_p, log_q = -0.5 * x**2, normal(x, 3.0, 2.0)
    unit = lambda k, polishing=False: dict(  # noqa: E731
        zip(host.FIELDS, host.unit_step(log_p, log_q, settings, k, 8, 1, polishing))
    )
    wanted = [0.25, 1 / 3, 1.0] if variant == "geometric-linear" else [1 / 9, 1 / 3, 1.0]
    for k, b in enumerate(wanted, start=1):
        row = unit(k)
        assert row["b"] == pytest.approx(b)
        assert row["c"] == (1 if variant == "tabg" else pytest.approx(b))
        assert row["status"] == (TARGET if k == 3 else LADDER)
        assert row["eps_tr"] == row["eps_ent"] == np.inf
        # The figures are those of the same step found by its constraints.
        ratio = maths.log_weights(log_p, log_q, row["b"], row["c"])
        w = np.exp(ratio - np.logaddexp.reduce(ratio))
        assert row["kl"] == pytest.approx(float(w @ (ratio - row["log_z"])))
        assert row["step_ess"] == pytest.approx(1 / (len(w) * float(w @ w)))
    assert unit(1, polishing=True)["b"] == 1
    with pytest.raises(ValueError, match=r"ladder of 3 rungs does not fit into 4 units, .* the last 1 polish; 8 units"):
        host.unit_step(log_p, log_q, settings, 1, 4, 1, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ladder": (0.5, 1.0)}, "variant='both' finds its own steps and takes no ladder"),
        ({"variant": "tabg", "ladder": (3.0, 9.0, 1.0)}, "write temperatures that fall to 1"),
        ({"variant": "tabg", "ladder": (np.inf, 1.0)}, "write temperatures that fall to 1"),
        ({"variant": "tabg", "ladder": ()}, "write temperatures that fall to 1"),
        ({"variant": "tabg", "ladder": (9.0, 3.0)}, "write temperatures that fall to 1"),
        ({"variant": "geometric-linear", "ladder": (0.5, 0.5, 1.0)}, "write inverse temperatures that rise"),
        ({"variant": "geometric-linear", "ladder": (0.0, 1.0)}, "write inverse temperatures that rise"),
    ],
)
def test_ladders_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Settings(**options)


def test_ladders_of_short_budgets_and_held_temperatures():
    assert Settings(variant="geometric-linear").rungs(2) == (1.0,)
    assert Settings(variant="tabg").rungs(1) == (1.0,)
    held = Settings(variant="tabg", ladder=[9, 9, 1])
    assert held.ladder == (9.0, 9.0, 1.0) and hash(held) == hash(Settings(variant="tabg", ladder=(9, 9, 1)))
