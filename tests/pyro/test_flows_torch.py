import math

import pytest
import torch
from zuko.transforms import MonotonicRQSTransform

from ppl_samplers.backends.torch.flows import Affine, Flow, SplineCoupling
from ppl_samplers.backends.torch.spline import Spline
from ppl_samplers.backends.torch.training import Optimiser


def rough_flow(dim, dtype=torch.float64, seed=0):
    """A flow far from the identity, in float64 so that comparisons are sharp."""
    torch.manual_seed(seed)
    flow = Flow(SplineCoupling(width=16), dim, dtype)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    scale = torch.tril(0.3 * torch.randn(dim, dim, dtype=dtype)) + 2 * torch.eye(dim, dtype=dtype)
    flow.standardise(torch.arange(dim, dtype=dtype), scale)
    return flow


def test_spline_equals_the_general_one_of_zuko():
    torch.manual_seed(0)
    parameters = 2 * torch.randn(500, 23, dtype=torch.float64)
    x = 4 * torch.randn(500, dtype=torch.float64)
    widths, heights, slopes = parameters.split([8, 8, 7], dim=-1)
    expected, log_slope = MonotonicRQSTransform(widths, heights, slopes).call_and_ladj(x)
    value, found = Spline(parameters).call_and_ladj(x)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, log_slope, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dim", [1, 2, 3, 7])
def test_untrained_flow_is_the_identity(dim):
    flow = Flow(SplineCoupling(), dim)
    y = 2 * torch.randn(100, dim)
    z, log_det = flow.transform().call_and_ladj(y)
    torch.testing.assert_close(z, y, rtol=0, atol=1e-5)
    torch.testing.assert_close(log_det, torch.zeros(100), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_round_trip_and_density_of_own_draws(dim):
    flow = rough_flow(dim)
    x, log_q = flow.sample(200)
    torch.testing.assert_close(flow.log_prob(x), log_q, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(flow.unwhiten(flow.whiten(x)), x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_log_density_agrees_with_autograd_jacobian(dim):
    flow = rough_flow(dim)
    x = flow.sample(5)[0].detach()
    for row in x:
        to_base = lambda v: flow.transform()(flow.whiten(v[None]))[0]  # noqa: E731
        jacobian = torch.autograd.functional.jacobian(to_base, row)
        z = to_base(row)
        expected = -0.5 * (z @ z) - 0.5 * dim * math.log(2 * math.pi) + torch.linalg.slogdet(jacobian)[1]
        torch.testing.assert_close(flow.log_prob(row[None])[0], expected, rtol=1e-8, atol=1e-8)


def test_one_dimensional_density_integrates_to_one():
    flow = rough_flow(1)
    grid = torch.linspace(-40, 40, 200_001, dtype=torch.float64)[:, None]
    with torch.no_grad():
        total = torch.trapezoid(flow.log_prob(grid).exp(), grid[:, 0])
    assert abs(float(total) - 1) < 1e-5


@pytest.mark.parametrize("dim", [1, 3])
def test_gradients_are_finite_outside_the_interval(dim):
    flow = rough_flow(dim)
    flow.standardise(torch.zeros(dim), torch.eye(dim))
    x = torch.full((2, dim), 7.0, dtype=torch.float64)
    x[1] = -50.0
    x.requires_grad_()
    loss = flow.log_prob(x).sum()
    loss.backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in flow.parameters() if p.grad is not None)


def test_masks_are_part_of_the_state():
    torch.manual_seed(0)
    first, second = rough_flow(6, seed=1), rough_flow(6, seed=2)
    x = torch.randn(10, 6, dtype=torch.float64)
    parameters = dict(first.named_parameters())
    assert any("mask" in name for name in first.state_dict())
    second.load_state_dict(parameters, strict=False)
    second.standardise(first.loc, first.scale_tril)
    assert not torch.allclose(second.log_prob(x), first.log_prob(x))
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.log_prob(x), first.log_prob(x))


def test_affine_is_a_normal_with_given_moments():
    flow = Flow(Affine(), 2, torch.float64)
    scale = torch.tensor([[2.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    flow.standardise(torch.tensor([1.0, -1.0]), scale)
    expected = torch.distributions.MultivariateNormal(flow.loc, scale_tril=scale)
    x, log_q = flow.sample(50)
    torch.testing.assert_close(log_q, expected.log_prob(x))
    assert list(flow.parameters()) == []


def test_maximum_likelihood_learns_two_modes():
    torch.manual_seed(0)
    flow = Flow(SplineCoupling(layers=2), 1)
    optimiser = Optimiser(flow.parameters(), 1e-2, 150)
    data = torch.where(torch.rand(2000, 1) < 0.5, -1.0, 1.0) + 0.2 * torch.randn(2000, 1)
    first = -flow.log_prob(data).mean().item()
    for _ in range(150):
        optimiser.step(-flow.log_prob(data[torch.randint(2000, (256,))]).mean())
    # Entropy of the mixture (well separated): log 2 + log(0.2 sqrt(2 pi e)) = 0.5027.
    last = -flow.log_prob(data).mean().item()
    assert first > 1.3
    assert abs(last - 0.5027) < 0.05


def test_broken_steps_are_skipped_and_counted():
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = Optimiser([weight], 0.1, 10)
    optimiser.step(weight.sum() * float("nan"))
    optimiser.step((weight - 1).abs().sqrt().sum() * 1.0)  # infinite gradient at the value 0
    assert torch.equal(weight.detach(), torch.ones(2))
    assert optimiser.num_skipped == 2
    optimiser.step((weight**2).sum())
    assert not torch.equal(weight.detach(), torch.ones(2))


def test_learning_rate_decays_to_five_percent():
    optimiser = Optimiser([torch.nn.Parameter(torch.ones(1))], 1.0, 100)
    assert optimiser.rate() == pytest.approx(1.0)
    optimiser.count = 100
    assert optimiser.rate() == pytest.approx(0.05)
