import math

import pytest
import torch

from ppl_samplers.backends.torch.moves import HMC
from ppl_samplers.backends.torch.pilot import Pilot


class Density:
    """A plain density with what the pilot run asks for."""

    def __init__(self, fn, dim):
        self.fn, self.dim, self.points = fn, dim, 0

    def value_and_grad(self, x):
        self.points += len(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = self.fn(x)
            (grad,) = torch.autograd.grad(value.sum(), x)
        value = value.detach()
        return torch.where(torch.isfinite(value), value, torch.full_like(value, -math.inf)), grad

    def initial_points(self, n):
        return 4 * torch.rand(n, self.dim) - 2


def two_modes(x):
    half = 0.5 * x.shape[-1] * math.log(2 * math.pi)
    return torch.logaddexp(-0.5 * ((x - 4) ** 2).sum(-1), -0.5 * ((x + 4) ** 2).sum(-1)) - math.log(2) - half


def narrow(x):
    return -0.5 * ((x - torch.arange(x.shape[-1])) ** 2).sum(-1) / 0.01


def test_both_modes_and_log_z_zero():
    figures, shares = [], []
    for seed in range(6):
        torch.manual_seed(seed)
        result = Pilot().run(Density(two_modes, 2), HMC())
        figures.append(result.log_z)
        shares.append(float((result.x[:, 0] > 0).float().mean()))
    figures, shares = torch.tensor(figures), torch.tensor(shares)
    assert abs(float(figures.mean())) < 4 * float(figures.std()) / math.sqrt(6) + 1e-9
    assert float(figures.std()) < 0.3
    assert abs(float(shares.mean()) - 0.5) < 4 * float(shares.std()) / math.sqrt(6) + 1e-9
    assert 0.3 < float(shares.min()) and float(shares.max()) < 0.7


def test_narrow_target_is_found_and_standardised():
    torch.manual_seed(0)
    density = Density(narrow, 3)
    result = Pilot().run(density, HMC())
    torch.testing.assert_close(result.loc, torch.arange(3.0), rtol=0, atol=0.02)
    torch.testing.assert_close(torch.diagonal(result.scale_tril), torch.full((3,), 0.1), rtol=0.15, atol=0)
    # log Z = 1.5 log(2 pi) + 3 log 0.1.
    assert abs(result.log_z - (1.5 * math.log(2 * math.pi) + 3 * math.log(0.1))) < 0.5
    assert result.examples.shape == (Pilot().num_particles * Pilot().final_moves, 3)
    assert 0 <= result.reference < 1.0
    assert result.stages > 2
    assert result.num_evals == density.points


def test_points_of_the_user_enter():
    torch.manual_seed(0)
    far = lambda x: torch.logaddexp(-0.5 * (x**2).sum(-1), -0.5 * ((x - 60) ** 2).sum(-1))  # noqa: E731
    result = Pilot(num_particles=64).run(Density(far, 1), HMC(), initial=torch.full((5, 1), 60.0))
    assert int((result.x > 50).sum()) == 5


def test_support_of_measure_zero_is_refused_in_words():
    nowhere = lambda x: (x * 0).sum(-1) - math.inf  # noqa: E731
    with pytest.raises(ValueError, match="initial_params"):
        Pilot(num_particles=32).run(Density(nowhere, 2), HMC())


def test_last_stage_reaches_the_target_whatever_the_ess():
    torch.manual_seed(0)
    result = Pilot(max_stages=1, num_particles=64).run(Density(narrow, 2), HMC())
    assert result.stages == 1
    assert torch.isfinite(result.log_p).all()


def test_equal_seeds_give_equal_runs():
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        runs.append(Pilot(num_particles=64).run(Density(two_modes, 1), HMC()))
    assert torch.equal(runs[0].examples, runs[1].examples)
    assert runs[0].log_z == runs[1].log_z
