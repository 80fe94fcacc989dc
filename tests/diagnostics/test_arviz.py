"""Conversion, summary, leave-one-out and files, the same in both generations of ArviZ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ppl_samplers.diagnostics import arviz as layer
from ppl_samplers.diagnostics.psis import arviz_major
from ppl_samplers.testing import targets


@pytest.fixture
def regression(build):
    """The conjugate regression, sampled by two exact engines, with log likelihood and named dims."""
    target = targets.conjugate_regression()
    x32, y32 = targets.regression_data()
    design, response = x32.astype(float), y32.astype(float)

    def posterior(x):
        return {"beta": x, "size": np.abs(x).sum(-1), "net/w": x[..., :2], "empty": np.zeros((*x.shape[:2], 0))}

    mean, covariance = target.mean, np.linalg.inv(np.eye(4) + 4 * design.T @ design)
    exact = replace(target, log_density=lambda b: stats.multivariate_normal(mean, covariance).logpdf(b))
    record = build(target, [exact, exact], posterior=posterior, observed={"y": response}, draws=400)

    def log_likelihood():
        fitted = record.unconstrained @ design.T
        return {"y": stats.norm.logpdf(response, fitted, 0.5)}

    return replace(
        record, log_likelihood=log_likelihood, dims={"beta": ["feature"], "y": ["row"]}, notes=("one", "two")
    )


def exact_loo():
    x32, y32 = targets.regression_data()
    design, response = x32.astype(float), y32.astype(float)
    total = 0.0
    for i in range(len(response)):
        rest = np.delete(np.arange(len(response)), i)
        covariance = np.linalg.inv(np.eye(4) + 4 * design[rest].T @ design[rest])
        mean = covariance @ design[rest].T @ response[rest] * 4
        variance = 0.25 + design[i] @ covariance @ design[i]
        total += stats.norm.logpdf(response[i], design[i] @ mean, np.sqrt(variance))
    return total


def test_groups_dims_and_attributes(regression):
    data = layer.to_arviz(regression)
    posterior = layer.group(data, "posterior")
    assert posterior["beta"].dims == ("chain", "draw", "feature") and posterior["beta"].shape == (4, 400, 4)
    assert posterior["net.w"].dims == ("chain", "draw", "net.w_dim_0")
    np.testing.assert_array_equal(posterior["beta"].values, regression.posterior["beta"])
    assert layer.group(data, "log_likelihood")["y"].dims == ("chain", "draw", "row")
    assert layer.group(data, "observed_data")["y"].dims == ("row",)
    training = layer.group(data, "sampler_training")
    assert training["loss"].dims == ("engine", "step") and training["loss"].shape == (2, 20)
    proposal = layer.group(data, "proposal")
    assert proposal["log_weight"].shape == (2, 4000)
    np.testing.assert_allclose(np.exp(proposal["log_weight_psis"].values).sum(1), 1.0)
    attrs = layer.group(data, "sample_stats").attrs
    assert abs(attrs["log_evidence"] - targets.conjugate_regression().log_z) < 1e-6
    assert attrs["evidence_verdict"] == "agree" and attrs["evidence_reliable"] == 1
    assert attrs["engine"] == "BoltzmannGenerator" and attrs["num_engines"] == 2 and attrs["notes"] == "one\ntwo"
    assert attrs["num_energy_evaluations"] == 10_000
    for value in attrs.values():
        assert type(value) in (int, float, str)
    assert layer.group(data, "nothing") is None and not layer.has_group(data, "nothing")
    assert layer.ARVIZ_MAJOR == arviz_major()


def test_no_likelihood(regression):
    data = layer.to_arviz(regression, log_likelihood=False)
    assert not layer.has_group(data, "log_likelihood")
    with pytest.raises(ValueError, match="log_likelihood=True"):
        layer.loo(data)
    with pytest.raises(ValueError, match="model 'a'"):
        layer.compare({"a": data, "b": data})


def test_predictive_and_prior(regression):
    rng = np.random.default_rng(0)
    data = layer.to_arviz(
        regression,
        prior={"beta": rng.normal(size=(50, 4)), "y": rng.normal(size=(50, 40))},
        posterior_predictive={"y": rng.normal(size=(1600, 40))},
    )
    assert layer.group(data, "prior")["beta"].shape == (1, 50, 4)
    assert "y" not in layer.group(data, "prior")
    assert layer.group(data, "prior_predictive")["y"].shape == (1, 50, 40)
    assert layer.group(data, "posterior_predictive")["y"].shape == (4, 400, 40)
    with pytest.raises(ValueError, match=r"posterior_predictive\['y'\].*\(4, 400\)"):
        layer.to_arviz(regression, posterior_predictive={"y": np.zeros((7, 40))})


def test_names_of_dims_that_do_not_fit_are_replaced(regression):
    record = replace(regression, dims={"beta": ["a", "b"], "net/w": ["chain"], "size": ["k"]})
    posterior = layer.group(layer.to_arviz(record), "posterior")
    assert posterior["beta"].dims[-1] == "beta_dim_0" and posterior["net.w"].dims[-1] == "net.w_dim_0"
    clash = replace(regression, dims={"beta": ["k"], "net/w": ["k"]})
    posterior = layer.group(layer.to_arviz(clash), "posterior")
    assert posterior["beta"].dims[-1] == "k" and posterior["net.w"].dims[-1] == "net.w_dim_0"


def test_loo_and_compare_are_on_the_log_scale(regression):
    data = layer.to_arviz(regression)
    result = layer.loo(data)
    elpd = result.elpd_loo if arviz_major() < 1 else result.elpd
    # The standard deviation over seeds of such an estimate is 0.08 with 1600 draws.
    assert abs(float(elpd) - exact_loo()) < 4 * 0.08
    worse = replace(regression, log_likelihood=lambda: {"y": regression.log_likelihood()["y"] - 1.0})
    table = layer.compare({"worse": layer.to_arviz(worse), "right": data})
    assert table.index[0] == "right"


@pytest.mark.parametrize("kind", ["hdi", "eti"])
def test_summary_has_the_same_numeric_columns(regression, kind):
    table = layer.summary(layer.to_arviz(regression), var_names=["beta", "size"], ci_kind=kind)
    assert list(table.columns) == [
        "mean", "sd", f"{kind}_lb", f"{kind}_ub", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat",
    ]  # fmt: skip
    assert all(d.kind == "f" for d in table.dtypes) and len(table) == 5
    draws = regression.posterior["beta"].reshape(-1, 4)
    np.testing.assert_allclose(table["mean"][:4], draws.mean(0), atol=1e-8)
    if kind == "eti":
        np.testing.assert_allclose(table["eti_lb"][:4], np.quantile(draws, 0.03, axis=0), atol=1e-6)
    inside = (draws > table[f"{kind}_lb"].values[:4]) & (draws < table[f"{kind}_ub"].values[:4])
    assert np.all(np.abs(inside.mean(0) - 0.94) < 0.02)


def test_file_round_trip(regression, tmp_path):
    data = layer.to_arviz(regression, prior={"beta": np.zeros((5, 4))})
    layer.set_attrs(data, "sample_stats", {"flag": True, "nothing": None, "number": np.float32(1.5)})
    back = layer.load(layer.save(data, tmp_path / "run.nc"))
    names = ("posterior", "sample_stats", "log_likelihood", "observed_data", "sampler_training", "proposal", "prior")
    for name in names:
        before, after = layer.group(data, name), layer.group(back, name)
        assert set(before.data_vars) == set(after.data_vars)
        for variable in before.data_vars:
            assert before[variable].dims == after[variable].dims
            np.testing.assert_array_equal(before[variable].values, after[variable].values)
        assert set(before.attrs) == set(after.attrs)
        for key, value in before.attrs.items():
            assert after.attrs[key] == value
    assert layer.group(back, "sample_stats").attrs["flag"] == 1
    assert type(back) is type(data)


def test_set_group_replaces(regression):
    data = layer.to_arviz(regression)
    layer.set_group(data, "proposal", layer.group(data, "sampler_training"))
    layer.set_group(data, "extra", layer.group(data, "sampler_training"))
    assert "loss" in layer.group(data, "proposal") and layer.has_group(data, "extra")


def test_undefined_evidence_is_left_out(good):
    attrs = layer.group(layer.to_arviz(replace(good, evidence_kind="undefined")), "sample_stats").attrs
    assert "log_evidence" not in attrs and attrs["evidence_kind"] == "undefined" and "pareto_k" in attrs


@pytest.mark.parametrize(("chains", "draws"), [(1, 30), (3, 7)])
def test_odd_shapes(build, proposals, two, chains, draws):
    record = build(two, [proposals["both"]], chains=chains, draws=draws, training={}, fresh=10)
    data = layer.to_arviz(record)
    assert layer.group(data, "posterior")["x"].shape == (chains, draws)
    assert not layer.has_group(data, "sampler_training")
    assert len(layer.summary(data)) == 2


def test_padded_weights(good):
    fresh = good.fresh_log_weights.copy()
    fresh[1, 100:] = np.nan
    proposal = layer.group(layer.to_arviz(replace(good, fresh_log_weights=fresh)), "proposal")
    smoothed = proposal["log_weight_psis"].values
    assert np.isnan(smoothed[1, 100:]).all() and np.isclose(np.exp(smoothed[1, :100]).sum(), 1.0)


def test_attributes_for_arviz_itself(regression):
    """The container is one that ArviZ works with, not only this layer."""
    az = pytest.importorskip("arviz")
    data = layer.to_arviz(regression)
    ess = az.ess(data, var_names=["beta"])
    values = np.asarray((ess["posterior"] if arviz_major() >= 1 and "posterior" in ess else ess)["beta"])
    assert values.shape == (4,) and np.all(values > 400)
