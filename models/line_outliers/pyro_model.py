"""A straight line of unknown scatter through points some of which have nothing to do with it."""

import pyro
import pyro.distributions as dist
import torch


def model(x, y):
    slope = pyro.sample("slope", dist.Normal(0.0, 3.0))
    intercept = pyro.sample("intercept", dist.Normal(0.0, 5.0))
    log_scatter = pyro.sample("log_scatter", dist.Normal(-1.0, 1.0))
    outlier_fraction = pyro.sample("outlier_fraction", dist.Beta(1.0, 3.0))
    outlier_scale = pyro.sample("outlier_scale", dist.HalfNormal(10.0))
    line = intercept + slope * x
    loc = torch.stack([line, torch.zeros_like(line)], -1)
    scale = torch.stack([log_scatter.exp(), outlier_scale], -1)
    weights = dist.Categorical(probs=torch.stack([1.0 - outlier_fraction, outlier_fraction], -1).expand([len(y), 2]))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(loc, scale)), obs=y)
