"""Calibration on posteriors known in closed form, right ones and three kinds of wrong ones; false alarms 1e-3 each."""

import numpy as np
import pytest

from ppl_samplers.diagnostics import plot_calibration, simulation_based_calibration


def simulate(seed):
    rng = np.random.default_rng(seed)
    mu = rng.normal(size=2)
    return {"mu": mu}, mu + rng.normal(size=2)


def calibrate(shift=0.0, scale=1.0, num_replications=200):
    def fit(seed, y):
        noise = np.random.default_rng(seed + 10**6).normal(size=(4, 50, 2))
        return {"mu": y / 2 + shift + scale * np.sqrt(0.5) * noise, "other": noise}

    return simulation_based_calibration(simulate, fit, num_replications, progress=False)


def test_the_exact_posterior_is_calibrated_and_its_p_values_are_uniform():
    found = calibrate()
    assert found.ranks["mu"].shape == (200, 2) and found.suspects == {}
    assert "as far as 200 replications can tell" in found.message
    from ppl_samplers.diagnostics.calibration import _null, _statistic

    # The rejection rate of fresh uniform ranks at 5 %: 1000 sets, 3.9 standard deviations (false alarm 1e-4).
    fresh = np.random.default_rng(1).integers(0, 101, (1000, 200))
    rejected = np.mean(_statistic(fresh, 100) <= np.quantile(_null(200, 100), 0.05))
    assert abs(rejected - 0.05) < 3.9 * np.sqrt(0.05 * 0.95 * (1 / 1000 + 1 / 4000))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"shift": 0.35}, "too high"),
        ({"shift": -0.35}, "too low"),
        ({"scale": 0.7}, "narrow"),
        ({"scale": 1.5}, "wide"),
    ],
)
def test_wrong_posteriors_are_found_and_described(wrong, words):
    found = calibrate(**wrong)
    assert set(found.suspects) == {"mu[0]", "mu[1]"}
    assert "NOT calibrated" in found.message and words in found.message


def test_one_wrong_quantity_among_sixty_is_found():
    """The level of each is then 1.7e-5, far below what any affordable number of simulated null sets resolves."""

    def simulate_many(seed):
        rng = np.random.default_rng(seed)
        mu = rng.normal(size=60)
        return {"mu": mu}, mu + rng.normal(size=60)

    def fit(seed, y):
        scale = np.where(np.arange(60) == 17, 0.4, 1.0) * np.sqrt(0.5)
        return {"mu": y / 2 + scale * np.random.default_rng(seed + 10**6).normal(size=(100, 60))}

    found = simulation_based_calibration(simulate_many, fit, 200, progress=False)
    assert set(found.suspects) == {"mu[17]"} and "narrow" in found.message


def test_a_picture_and_refusals():
    axes = plot_calibration(calibrate(num_replications=20))
    assert len(axes.lines) == 2
    with pytest.raises(ValueError, match="no draws of 'mu'"):
        simulation_based_calibration(simulate, lambda s, y: {"nu": y}, 1, progress=False)
    with pytest.raises(ValueError, match="100 or more"):
        simulation_based_calibration(simulate, lambda s, y: {"mu": np.zeros((9, 2))}, 1, progress=False)
