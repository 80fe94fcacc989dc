"""The picture of a CMT run's path, from records made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ppl_samplers.diagnostics import plot_schedule, to_arviz
from ppl_samplers.diagnostics.plots import _MARKERS
from ppl_samplers.engines.cmt.dual import STATUSES
from ppl_samplers.engines.cmt.settings import METRICS

UNITS = 8
TITLES = {0: "multipliers", 2: "KL of the step", 3: "entropy lost", 4: "relative effective sample size", 5: "evidence"}


@pytest.fixture
def run(good):
    """Two engines of a CMT run: the second ends two units early."""
    rng = np.random.default_rng(0)
    curves = {name: rng.random((2, UNITS)) for name in METRICS}
    curves["status"] = np.array([[3, 3, 1, 2, 2, 0, 0, 0], [3, 1, 1, 2, 0, 0, 0, 0]], float)
    curves["elbo"][0, 2], curves["eps_tr"][1] = -np.inf, np.inf
    for curve in curves.values():
        curve[:, 0] = np.nan
        curve[1, 6:] = np.nan
    return replace(good, engine="CMT", training={**curves, "num_evals": np.ones((2, UNITS))})


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    return Figure().subplots(3, 2)


def lines(ax, style):
    return [line.get_ydata() for line in ax.lines if line.get_linestyle() == style]


@pytest.mark.parametrize("converted", [False, True])
def test_each_panel_shows_its_curves(run, axes, converted):
    assert plot_schedule(to_arviz(run) if converted else run, axes=axes) is axes
    panels, curves = axes.reshape(-1), run.training
    for k, title in TITLES.items():
        assert panels[k].get_title() == title
    for k, name in enumerate(("lam", "beta", "kl", "entropy_decay_nominal", "step_ess", "log_evidence")):
        np.testing.assert_array_equal(lines(panels[k], "-"), curves[name])
    for k, name in ((0, "eta"), (1, "alpha"), (4, "ess")):
        np.testing.assert_array_equal(lines(panels[k], "--"), curves[name])
    # What is infinite has no place in a picture; the realised decay stands beside the plan of its own unit.
    assert np.isnan(lines(panels[5], "--")[0][2]) and np.isnan(lines(panels[2], "--")[1]).all()
    np.testing.assert_array_equal(lines(panels[3], "--")[0][:-1], curves["entropy_decay_realised"][0, 1:])
    assert np.isnan(lines(panels[3], "--")[0][-1])


def test_units_after_the_end_of_all_engines_are_left_out(run, axes):
    """NumPyro goes on counting units when the training is over; nothing moves in them."""
    still = {name: np.concatenate([c, np.repeat(c[:, -1:], 5, 1)], 1) for name, c in run.training.items()}
    plot_schedule(replace(run, training=still), axes=axes)
    assert {len(line) for line in lines(axes.reshape(-1)[1], "-")} == {UNITS}


def test_an_early_elbo_does_not_press_the_evidence_flat(run, axes):
    run.training["elbo"][:, 1] = -1e6
    plot_schedule(run, axes=axes)
    low, high = axes.reshape(-1)[5].get_ylim()
    assert high - low < 5


def test_markers_and_colours_tell_status_and_engine(run, axes):
    plot_schedule(run, axes=axes)
    marked = {(line.get_color(), line.get_marker()): line.get_xdata() for line in axes[1, 0].lines if line.get_marker()}
    np.testing.assert_array_equal(marked["C0", _MARKERS["both"]], [1])
    np.testing.assert_array_equal(marked["C0", _MARKERS["entropy"]], [3, 4])
    np.testing.assert_array_equal(marked["C1", _MARKERS["trust"]], [1, 2])
    entries = [text.get_text() for text in axes[0, 0].get_legend().get_texts()]
    assert entries == ["lambda", "eta", "engine 0", "engine 1", "target", "trust", "entropy", "both"]
    assert tuple(_MARKERS) == STATUSES


def test_a_new_figure_has_one_legend_of_the_engines(run):
    import matplotlib.pyplot as plt

    axes = plot_schedule(run)
    assert axes.shape == (2, 3)
    legend = axes[0, 0].figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()][:2] == ["engine 0", "engine 1"]
    axes[0, 0].figure.canvas.draw()
    plt.close(axes[0, 0].figure)


@pytest.mark.parametrize("converted", [False, True])
def test_runs_without_a_path_are_told_what_to_do(good, run, converted):
    for other, name in ((good, "BoltzmannGenerator"), (replace(run, training={}), "CMT")):
        data = to_arviz(other) if converted else other
        with pytest.raises(ValueError, match=rf"engine: {name}\) recorded no path .* plot_training\(data, metric\)"):
            plot_schedule(data)
    with pytest.raises(ValueError, match="needs 6 axes and was given 2"):
        plot_schedule(run, axes=[None, None])
