"""Densities from plain functions, and models with discrete or replaced sites in odd places."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from ppl_samplers.backends.pyro.density import LogDensity

DATA = torch.tensor([0.3, -1.0, 2.0])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def test_from_callable_batched_and_single() -> None:
    batched = LogDensity.from_callable(lambda x: -0.5 * x.square().sum(-1), 3)
    single = LogDensity.from_callable(lambda x: -0.5 * x.square().sum(), 3, batched=False, names=["a", "b", "c"])
    x = torch.randn(6, 3)
    for density in (batched, single):
        values, grads = density.value_and_grad(x)
        torch.testing.assert_close(values, -0.5 * x.square().sum(-1))
        torch.testing.assert_close(grads, -x)
        torch.testing.assert_close(density.unconstrain(density.constrain(x)), x)
        assert density.evidence_kind == "relative" and not density.has_prior and density.log_likelihood(x) == {}
        assert density.initial_points(4).shape == (4, 3)
    assert set(batched.constrain(x)) == {"x"} and set(single.constrain(x)) == {"a", "b", "c"}
    with pytest.raises(ValueError, match="sample_prior="):
        batched.sample_prior(2)


def test_from_callable_refuses_wrong_shapes_and_uses_its_prior() -> None:
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        LogDensity.from_callable(lambda x: -0.5 * x.square(), 2)
    with pytest.raises(ValueError, match="batched=False"):
        LogDensity.from_callable(lambda x: -0.5 * x.square().sum(), 2)
    with pytest.raises(ValueError, match="names"):
        LogDensity.from_callable(lambda x: -0.5 * x.square().sum(-1), 2, names=["a"])
    density = LogDensity.from_callable(lambda x: -x.sum(-1), 2, sample_prior=lambda n: torch.ones(n, 2))
    assert density.has_prior and (density.initial_points(3) == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_from_callable_takes_functions_of_one_number_type(dtype: torch.dtype) -> None:
    matrix = torch.eye(2, dtype=dtype) * 3
    density = LogDensity.from_callable(lambda x: -((x @ matrix) * x).sum(-1), 2)
    for x in (torch.ones(4, 2), torch.ones(4, 2, dtype=torch.float64)):
        values, grads = density.value_and_grad(x)
        assert values.dtype == grads.dtype == x.dtype
        torch.testing.assert_close(values, torch.full_like(values, -6.0))
        torch.testing.assert_close(grads, -6 * x)


def test_a_vector_of_discrete_numbers_is_refused() -> None:
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3).expand([3]).to_event(1))
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(a + z.sum(-1), 1.0), obs=torch.tensor(0.0))

    with pytest.raises(ValueError, match=r"'z'.*to_event"):
        LogDensity(model)


def test_prior_of_a_continuous_site_under_a_discrete_one_is_its_mixture() -> None:
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3))
        a = pyro.sample("a", dist.Normal(4 * z, 1.0))
        pyro.sample("y", dist.Normal(a, 1.0), obs=torch.tensor(1.0))

    density = LogDensity(model)
    x = torch.tensor([[0.5], [3.0]], dtype=torch.float64)
    normal = torch.distributions.Normal
    prior = torch.log(0.7 * normal(0.0, 1.0).log_prob(x).exp() + 0.3 * normal(4.0, 1.0).log_prob(x).exp())[:, 0]
    torch.testing.assert_close(density.log_prior(x), prior, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(density(x), prior + density.log_likelihood(x)["y"], rtol=1e-6, atol=1e-6)


def test_reparametrised_sites_are_deterministic_and_not_data() -> None:
    from pyro.infer.reparam import LocScaleReparam

    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            t = pyro.sample("t", dist.Normal(mu, 2.0))
            pyro.sample("y", dist.Normal(t, 1.0), obs=y)

    density = LogDensity(poutine.reparam(model, config={"t": LocScaleReparam(0.0)}), (DATA,))
    assert set(density.observed) == {"y"}
    values = density.constrain(torch.ones(2, 4))
    assert set(values) == {"mu", "t_decentered", "t"}
    torch.testing.assert_close(values["t"], torch.full((2, 3), 3.0))
