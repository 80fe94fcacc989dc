"""Power scaling on conjugate posteriors, whose sensitivity is known by construction; both generations of ArviZ."""

import numpy as np
import pytest

from ppl_samplers.diagnostics import power_scaling
from ppl_samplers.diagnostics.arviz import container, group
from ppl_samplers.diagnostics.arviz_datasets import dataset
from ppl_samplers.diagnostics.sensitivity import CONFLICT, STRONG_PRIOR


def converted(prior_sd, data_mean, data_sd):
    """Exact draws of a normal mean under a normal prior around 0, with the two terms of their density."""
    precision = 1 / prior_sd**2 + 1 / data_sd**2
    z = np.random.default_rng(3).normal(size=(4, 2000, 2))
    mu = data_mean / data_sd**2 / precision + z / np.sqrt(precision)
    terms = {"log_prior": -0.5 * (mu / prior_sd) ** 2, "log_likelihood": -0.5 * ((mu - data_mean) / data_sd) ** 2}
    terms = {k: v.sum(-1) for k, v in terms.items()}
    groups = {"posterior": {"mu": mu, "first": mu[..., 0]}} | {k: {"term": v} for k, v in terms.items()}
    return container({k: dataset(v, ("chain", "draw")) for k, v in groups.items()})


@pytest.mark.parametrize(
    ("setting", "diagnosis"),
    [((100.0, 1.0, 1.0), ""), ((1.0, 6.0, 1.0), CONFLICT), ((1.0, 1.0, 100.0), STRONG_PRIOR)],
)
def test_diagnoses_of_conjugate_posteriors(setting, diagnosis):
    table = power_scaling(converted(*setting))
    assert list(table.index) == ["mu[0]", "mu[1]", "first"]
    assert table["diagnosis"].tolist() == [diagnosis] * 3
    assert power_scaling(converted(*setting), ["first"]).index.tolist() == ["first"]
    assert np.allclose(
        table.loc["first", ["prior", "likelihood"]].astype(float),
        table.loc["mu[0]", ["prior", "likelihood"]].astype(float),
    )


def test_only_the_chosen_priors_are_scaled():
    data = converted(1.0, 6.0, 1.0)
    groups = {name: group(data, name) for name in ("posterior", "log_likelihood")}
    terms = group(data, "log_prior")
    data = container({**groups, "log_prior": terms.assign(flat=0 * terms["term"])})
    both, chosen = power_scaling(data), power_scaling(data, prior_sites=["term"])
    assert both.equals(chosen)
    assert (power_scaling(data, prior_sites=["flat"])["prior"] < 1e-6).all()
    with pytest.raises(ValueError, match="'gone'"):
        power_scaling(data, prior_sites=["gone"])


def test_what_is_missing_is_named():
    data = container({"posterior": dataset({"mu": np.zeros((2, 5))}, ("chain", "draw"))})
    with pytest.raises(ValueError, match="log_prior=True"):
        power_scaling(data)
