"""The log prior of each site: the same in both frameworks, SciPy's numbers, and a group of the ArviZ data."""

import numpy as np
import pytest
from scipy import stats

pyro = pytest.importorskip("pyro")
numpyro = pytest.importorskip("numpyro")
torch = pytest.importorskip("torch")

import jax  # noqa: E402
import numpyro.distributions as np_dist  # noqa: E402
import pyro.distributions as py_dist  # noqa: E402

import ppl_samplers.numpyro as np_door  # noqa: E402
import ppl_samplers.pyro as py_door  # noqa: E402
from ppl_samplers.diagnostics import power_scaling  # noqa: E402
from ppl_samplers.diagnostics.arviz import group  # noqa: E402

DATA = np.array([0.3, -1.0, 2.0, 0.4], np.float32)


def np_model(y):
    scale = numpyro.sample("scale", np_dist.HalfNormal(2.0))
    with numpyro.plate("rates", 3), numpyro.handlers.scale(scale=2.0):
        rate = numpyro.sample("rate", np_dist.Gamma(2.0, 1.0))
    numpyro.sample("y", np_dist.Normal(rate.sum(), scale), obs=y)


def py_model(y):
    scale = pyro.sample("scale", py_dist.HalfNormal(2.0))
    with pyro.plate("rates", 3), pyro.poutine.scale(scale=2.0):
        rate = pyro.sample("rate", py_dist.Gamma(2.0, 1.0))
    with pyro.plate("data", 4):
        pyro.sample("y", py_dist.Normal(rate.sum(), scale), obs=y)


def test_terms_are_those_of_the_sites_without_jacobians():
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    density = np_door.LogDensity(np_model, (DATA,))
    mine, theirs = (
        density.log_prior_terms(x),
        py_door.LogDensity(py_model, (torch.tensor(DATA),)).log_prior_terms(torch.tensor(x)),
    )
    values = {k: np.asarray(v) for k, v in density.constrain(x).items()}
    exact = {
        "scale": stats.halfnorm(scale=2).logpdf(values["scale"]),
        "rate": 2 * stats.gamma(2).logpdf(values["rate"]).sum(-1),
    }
    for name, value in exact.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(theirs[name], value, rtol=1e-4, atol=1e-5)


def test_runs_convert_with_their_log_prior():
    options = {"num_warmup": 1, "progress": False}
    runs = [
        np_door.to_arviz(
            np_door.BoltzmannGenerator(np_model, flow=np_door.Affine()).fit(jax.random.key(0), DATA, **options),
            log_prior=True,
        ),
        py_door.to_arviz(
            py_door.BoltzmannGenerator(py_model, flow=py_door.Affine()).fit(torch.tensor(DATA), **options),
            log_prior=True,
        ),
    ]
    for data in runs:
        terms = group(data, "log_prior")
        assert set(terms.data_vars) == {"scale", "rate"} and terms["rate"].dims == ("chain", "draw")
        exact = stats.halfnorm(scale=2).logpdf(group(data, "posterior")["scale"])
        np.testing.assert_allclose(terms["scale"], exact, rtol=1e-3, atol=1e-4)
        assert list(power_scaling(data).columns) == ["prior", "likelihood", "diagnosis"]


def test_summed_out_sites_have_no_terms_and_the_group_is_left_out():
    def np_mixture(y):
        mu = numpyro.sample("mu", np_dist.Normal(0.0, 5.0))
        z = numpyro.sample("z", np_dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("y", np_dist.Normal(mu + z, 1.0), obs=y[0])

    def py_mixture(y):
        mu = pyro.sample("mu", py_dist.Normal(0.0, 5.0))
        z = pyro.sample("z", py_dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        pyro.sample("y", py_dist.Normal(mu + z, 1.0), obs=y[0])

    with pytest.raises(NotImplementedError, match="summed out"):
        np_door.LogDensity(np_mixture, (DATA,)).log_prior_terms(np.zeros((2, 1), np.float32))
    with pytest.raises(NotImplementedError, match="summed out"):
        py_door.LogDensity(py_mixture, (torch.tensor(DATA),)).log_prior_terms(torch.zeros(2, 1))
    trained = np_door.BoltzmannGenerator(np_mixture, flow=np_door.Affine()).fit(
        jax.random.key(0), DATA, num_warmup=1, progress=False
    )
    with pytest.warns(UserWarning, match="log_likelihood is left out"):
        data = np_door.to_arviz(trained)
    assert group(data, "posterior") is not None and group(data, "log_likelihood") is None
