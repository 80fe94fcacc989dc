"""A sinusoid of unknown period, and its rival without a signal."""

import math

import pyro
import pyro.distributions as dist
import torch

PERIODS = (2.0, 12.0)  # days


def model(t, y):
    log_period = pyro.sample("log_period", dist.Uniform(math.log(PERIODS[0]), math.log(PERIODS[1])))
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    offset = pyro.sample("offset", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    phase = 2.0 * math.pi * t * torch.exp(-log_period)
    mean = offset + a * torch.cos(phase) + b * torch.sin(phase)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def constant_model(t, y):
    offset = pyro.sample("offset", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(offset, sigma), obs=y)
