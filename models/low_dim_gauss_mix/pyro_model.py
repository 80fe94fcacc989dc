"""A mixture of two normals whose means are ordered."""

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints


def model(y):
    # A Normal prior on each mean, cut to mu[0] < mu[1] (and not rescaled): a flat ordered pair times a factor.
    mu = pyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    pyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum(-1))
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = pyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(probs=torch.stack([theta, 1.0 - theta], -1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)
