import math

import torch

from ppl_samplers.backends.torch.moves import HMC, scale_tril_of


class Correlated:
    """A normal with known moments, counting its gradients."""

    def __init__(self):
        self.loc = torch.tensor([1.0, -2.0], dtype=torch.float64)
        self.factor = torch.tensor([[1.0, 0.0], [1.5, 0.3]], dtype=torch.float64)
        self.precision = torch.linalg.inv(self.factor @ self.factor.mT)

    def value_and_grad(self, x):
        pull = (x - self.loc) @ self.precision
        return -0.5 * ((x - self.loc) * pull).sum(-1), -pull


class HalfLine:
    """An exponential density on x > 0, -inf elsewhere."""

    def value_and_grad(self, x):
        inside = x[:, 0] > 0
        value = torch.where(inside, -x[:, 0], torch.full_like(x[:, 0], -math.inf))
        return value, torch.where(inside[:, None], -torch.ones_like(x), torch.zeros_like(x))


def run(move, density, x, steps, warmup, scale_tril=None):
    state = move.init(density, x, scale_tril)
    log_p, grad = density.value_and_grad(x)
    accepts = []
    for step in range(steps + warmup):
        state, x, log_p, grad, accept = move.step(state, density, x, log_p, grad, adapt=step < warmup)
        if step >= warmup:
            accepts.append(accept.mean())
    return state, x, log_p, torch.stack(accepts).mean()


def within(values, truth, errors=4.0):
    error = values.std() / math.sqrt(len(values))
    assert abs(float(values.mean()) - truth) < errors * float(error)


def test_hmc_leaves_a_correlated_normal_invariant():
    torch.manual_seed(0)
    density = Correlated()
    x = torch.randn(4000, 2, dtype=torch.float64)
    _, x, log_p, accept = run(HMC(), density, x, 40, 40, density.factor)
    within(x[:, 0], 1.0)
    within(x[:, 1], -2.0)
    within((x[:, 0] - 1.0) ** 2, 1.0)
    within((x[:, 1] + 2.0) ** 2, 1.5**2 + 0.3**2)
    within((x[:, 0] - 1.0) * (x[:, 1] + 2.0), 1.5)
    assert abs(float(accept) - 0.8) < 0.1
    torch.testing.assert_close(log_p, density.value_and_grad(x)[0])


def test_mala_is_the_one_step_case():
    torch.manual_seed(1)
    density = Correlated()
    x = density.loc + torch.randn(4000, 2, dtype=torch.float64) @ density.factor.mT
    _, x, _, accept = run(HMC(num_leapfrog=1, step_size=0.5), density, x, 50, 0, density.factor)
    within(x[:, 0], 1.0)
    within((x[:, 1] + 2.0) ** 2, 1.5**2 + 0.3**2)
    assert float(accept) < 1.0


def test_hmc_with_a_hard_wall():
    torch.manual_seed(2)
    x = -torch.ones(3000, 1, dtype=torch.float64)  # all start outside, and may step in
    _, x, log_p, _ = run(HMC(step_size=0.5), HalfLine(), x, 200, 0, torch.eye(1, dtype=torch.float64))
    assert torch.isfinite(log_p).all()
    within(x[:, 0], 1.0)
    within(x[:, 0] ** 2, 2.0)


def test_frozen_move_does_not_adapt():
    torch.manual_seed(0)
    density = Correlated()
    x = torch.randn(50, 2, dtype=torch.float64)
    state, *_ = run(HMC(), density, x, 5, 0)
    assert state.count == 0
    assert state.log_step == math.log(0.2)
    assert state.num_evals == 5 * 8 * 50


def test_nan_densities_are_never_entered():
    class Broken:
        def value_and_grad(self, x):
            value = torch.where(x[:, 0] > 0, torch.full_like(x[:, 0], math.nan), -0.5 * x[:, 0] ** 2)
            return value, -x * value[:, None] / value[:, None]

    torch.manual_seed(0)
    _, x, log_p, _ = run(HMC(step_size=1.0), Broken(), -torch.ones(200, 1), 20, 0, torch.eye(1))
    assert (x[:, 0] <= 0).all()
    assert torch.isfinite(log_p).all()


def test_scale_tril_of_many_and_of_few_points():
    torch.manual_seed(0)
    factor = Correlated().factor
    x = torch.randn(20000, 2, dtype=torch.float64) @ factor.mT
    torch.testing.assert_close(scale_tril_of(x), factor, rtol=0, atol=0.05)
    few = scale_tril_of(torch.randn(10, 30))
    assert torch.equal(few, torch.diag(torch.diagonal(few)))
    constant = scale_tril_of(torch.ones(100, 2))
    assert (torch.diagonal(constant) > 0).all()
