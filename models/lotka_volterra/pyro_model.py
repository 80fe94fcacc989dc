"""Lynx and hare: the predator-prey equations with multiplicative noise."""

import math

import pyro
import pyro.distributions as dist
import torch
from torch.distributions import constraints

STEPS_PER_YEAR = 16  # fixed steps: a relative error below 1e-6 at posterior draws


class PositiveNormal(dist.Normal):
    """Normal(loc, scale) cut at zero and normalised: Pyro has no truncated normal of its own."""

    support = constraints.positive

    def expand(self, batch_shape, _instance=None):
        return super().expand(batch_shape, _instance=self._get_checked_instance(PositiveNormal, _instance))

    def log_prob(self, value):
        return super().log_prob(value) - torch.special.log_ndtr(self.loc / self.scale)

    def rsample(self, sample_shape=()):
        shape = self._extended_shape(sample_shape)
        # Survival probabilities, so that the draws stay exact where the cut is far in either tail.
        above = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device).clamp_min(1e-7)
        above = above * torch.special.ndtr(self.loc / self.scale)
        return (self.loc - self.scale * torch.special.ndtri(above)).clamp_min(1e-12)

    def sample(self, sample_shape=()):
        with torch.no_grad():
            return self.rsample(sample_shape)


def solve(theta, z_init, num_years):
    """Fourth-order Runge-Kutta from year 0; returns the populations at years 1..num_years, shape (num_years, 2)."""
    dt = 1.0 / STEPS_PER_YEAR
    th1, th2, th3, th4 = theta.unbind(-1)
    growth = torch.stack([th1, -th3], -1)
    contact = torch.stack([-th2, th4], -1)

    def slope(z):
        return (growth + contact * z.flip(-1)) * z

    z, path = z_init, []
    for i in range(1, num_years * STEPS_PER_YEAR + 1):
        k1 = slope(z)
        k2 = slope(z + 0.5 * dt * k1)
        k3 = slope(z + 0.5 * dt * k2)
        k4 = slope(z + dt * k3)
        z = z + dt / 6.0 * (k1 + 2.0 * (k2 + k3) + k4)
        if i % STEPS_PER_YEAR == 0:
            path.append(z)
    return torch.stack(path, -2)


def model(ts, y_init, y):
    """The observation times ``ts`` are the years 1, 2, ..., len(ts)."""
    loc, scale = torch.tensor([1.0, 0.05, 1.0, 0.05]), torch.tensor([0.5, 0.05, 0.5, 0.05])
    theta = pyro.sample("theta", PositiveNormal(loc, scale).to_event(1))
    sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    z_init = pyro.sample("z_init", dist.LogNormal(math.log(10.0), 1.0).expand([2]).to_event(1))
    z = solve(theta, z_init, len(ts))
    # Far from the posterior an explicit solver can leave the positive quadrant or overflow; keep the logarithm finite.
    log_z = torch.log(z.clamp(1e-10, 1e10))
    pyro.sample("y_init", dist.LogNormal(torch.log(z_init), sigma).to_event(1), obs=y_init)
    with pyro.plate("years", len(ts)):
        pyro.sample("y", dist.LogNormal(log_z, sigma).to_event(1), obs=y)
