"""The traced likelihood is the flow's own, for every flow of a size, and gives way where it cannot be traced."""

import pytest
import torch

from ppl_samplers.backends.torch import likelihood
from ppl_samplers.backends.torch.flows import Flow, SplineCoupling
from ppl_samplers.backends.torch.likelihood import Likelihood
from ppl_samplers.backends.torch.zuko import Zuko


def _flow(settings, dim, seed):
    torch.manual_seed(seed)
    flow = Flow(settings, dim)
    for parameter in flow.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return flow


@pytest.mark.parametrize("dim", [1, 5])
def test_graph_is_shared_and_right_for_flows_with_other_masks(dim):
    settings = SplineCoupling(layers=3, bins=5)
    likelihood._graphs.clear()
    for seed in (0, 1):
        flow = _flow(settings, dim, seed)
        y = torch.randn(32, dim)
        value, gradients = Likelihood(flow, num_steps=10**6)(y)
        loss = -flow.whitened_log_prob(y).mean()
        loss.backward()
        torch.testing.assert_close(value, loss.detach())
        for gradient, parameter in zip(gradients, flow.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad)
    assert len(likelihood._graphs) == 1 and None not in likelihood._graphs.values()


def test_few_steps_are_not_traced():
    likelihood._graphs.clear()
    Likelihood(_flow(SplineCoupling(layers=2), 3, 0), num_steps=10)(torch.randn(8, 3))
    assert not likelihood._graphs


class _Stubborn(torch.nn.Module):
    """A transform that looks at its data, which no graph can follow."""

    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.tensor(0.5))

    def call_and_ladj(self, y):
        z = y + self.shift if float(y.detach().sum()) > 0 else y - self.shift
        return z, torch.zeros_like(y[:, 0])


class _StubbornSettings:
    def build(self, dim):
        module = _Stubborn()
        module.forward = lambda: module
        return module


def test_a_flow_that_cannot_be_traced_is_trained_all_the_same():
    flow = Flow(_StubbornSettings(), 2)
    y = torch.ones(4, 2)
    value, gradients = Likelihood(flow, num_steps=10**6)(y)
    torch.testing.assert_close(value, -flow.whitened_log_prob(y).mean().detach())
    assert len(gradients) == 1


def test_two_flows_of_one_name_do_not_share_a_graph():
    import zuko

    def make(bins):
        def flow(dim):
            return zuko.flows.NSF(dim, bins=bins, transforms=1, hidden_features=(8,), passes=2)

        return flow

    for bins in (4, 5):
        flow = _flow(Zuko(make(bins)), 2, 0)
        y = torch.randn(16, 2)
        value, _ = Likelihood(flow, num_steps=10**6)(y)
        torch.testing.assert_close(value, -flow.whitened_log_prob(y).mean().detach())
