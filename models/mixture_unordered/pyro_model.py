"""A mixture of two normals without an order: the labels can be exchanged, so there are two equal modes."""

import pyro
import pyro.distributions as dist
import torch


def model(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = pyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(probs=torch.stack([theta, 1.0 - theta], -1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)
