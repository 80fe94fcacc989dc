"""The report says what the numbers say, the plots draw them, and citations are complete."""

from __future__ import annotations

import io
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

from ppl_samplers.diagnostics import arviz as layer
from ppl_samplers.diagnostics import cite, mcmc_report, plot_modes, plot_training, plot_weights
from ppl_samplers.diagnostics.citations import CITATIONS, REFERENCES


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    return Figure().subplots()


def test_report_of_a_good_run(good):
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = mcmc_report(replace(good, notes=("Site 'p' is frozen.",)), stream)
    assert stream.getvalue() == text
    head, *rows = text.split("\n\n")[1].splitlines()
    assert head.split() == ["mean", "sd", "5.0%", "95.0%", "ess", "r_hat"]
    x = good.posterior["x"]
    cells = rows[0].split()
    assert cells[0] == "x"
    shown = [float(c) for c in cells[1:5]]
    np.testing.assert_allclose(shown, [x.mean(), x.std(), *np.quantile(x, [0.05, 0.95])], rtol=2e-3)
    assert rows[1].startswith("vector[0]")
    for piece in ("BoltzmannGenerator", "k-hat", "Modes", "Site 'p' is frozen.", "train seconds: 2", "trusted"):
        assert piece in text


def test_report_warns_when_engines_disagree(split):
    with pytest.warns(UserWarning, match="engines disagree"):
        text = mcmc_report(split)
    assert "Do not trust it" in text and "visited by engine" in text


def test_report_of_an_improper_prior_and_of_few_rows(build, proposals, two, good):
    text = mcmc_report(replace(good, evidence_kind="undefined", evidence_reason="site 'm' is flat"), modes=False)
    assert "undefined: site 'm' is flat" in text and "engines agree" in text and "Modes" not in text
    text = mcmc_report(build(two, [proposals["both"]], chains=1, draws=3), max_rows=1)
    assert "... and 1 more rows" in text and "unknown" in text
    nothing = replace(good, evidence_sums=np.array([[-np.inf, -np.inf, 0.0]] * 2), fresh_log_weights=np.empty((2, 0)))
    assert "no evidence" in mcmc_report(nothing, modes=False)


@pytest.mark.parametrize("converted", [False, True])
def test_plots(good, axes, converted):
    data = layer.to_arviz(good) if converted else good
    assert plot_training(data, ax=axes) is axes
    x, y = axes.lines[1].get_data()
    np.testing.assert_array_equal(x, good.training["num_evals"][1])
    np.testing.assert_array_equal(y, good.training["loss"][1])
    with pytest.raises(ValueError, match="Recorded: loss, num_evals"):
        plot_training(data, "other", ax=axes)
    axes.clear()
    plot_weights(data, ax=axes)
    assert len(axes.lines) == 3 and "k-hat" in axes.get_title() and "," in axes.get_title()
    share = axes.lines[0].get_ydata()
    assert np.isclose(share[-1], 1) and np.all(np.diff(share) >= 0) and share[2000] < 0.5
    axes.clear()
    plot_modes(data, "x", ax=axes)
    assert len(axes.patches) == 2 and axes.get_legend() is not None
    with pytest.raises(ValueError, match="Sites: x, vector"):
        plot_modes(data, "y", ax=axes)


def test_plots_need_their_groups(good, axes):
    data = layer.to_arviz(replace(good, training={}))
    with pytest.raises(ValueError, match="sampler_training"):
        plot_training(data, ax=axes)


def test_citations():
    text = cite("BoltzmannGenerator")
    for piece in ("Noé", "Boltzmann generators", "2019", "Durkan", "Samsonov", "Tierney", "Pareto Smoothed"):
        assert piece in text
    assert all(key in REFERENCES for keys in CITATIONS.values() for key in keys)
    assert all(1900 < r.year <= 2026 and r.authors and r.title and r.venue for r in REFERENCES.values())
    with pytest.raises(ValueError, match=r"'nothing'.*BoltzmannGenerator"):
        cite("nothing")


def test_frameworks_are_not_imported():
    import subprocess

    code = (
        "import sys, ppl_samplers.diagnostics, ppl_samplers.testing.targets; "
        "print([m for m in ('jax', 'torch', 'numpyro', 'pyro', 'arviz', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_root())
    assert out.stdout.strip() == "[]"


def _root():
    from pathlib import Path

    return Path(__file__).resolve().parents[2]
