"""A hidden Markov chain of two states with two exponential emissions, summed by the forward algorithm."""

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints


def forward(log_transition, log_emission):
    """Log likelihood; ``log_transition`` (K, K) from row to column, ``log_emission`` (T, K), flat first state."""
    emissions = log_emission.unbind(-2)
    log_alpha = emissions[0]
    for emission in emissions[1:]:
        log_alpha = torch.logsumexp(log_alpha[:, None] + log_transition, -2) + emission
    return torch.logsumexp(log_alpha, -1)


def model(u, v, alpha):
    theta1 = pyro.sample("theta1", dist.Dirichlet(alpha[0]))
    theta2 = pyro.sample("theta2", dist.Dirichlet(alpha[1]))
    # Normal priors on the rates themselves, cut to 0 < first < second: a flat positive ordered pair times a factor.
    phi = pyro.sample("phi", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    rate = pyro.sample("lambda", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    prior = dist.Normal(torch.tensor([0.0, 3.0]), 1.0)
    pyro.factor("rates_prior", (prior.log_prob(phi) + prior.log_prob(rate)).sum(-1))
    log_emission = dist.Exponential(phi).log_prob(u[:, None]) + dist.Exponential(rate).log_prob(v[:, None])
    pyro.factor("uv", forward(torch.stack([theta1, theta2]).log(), log_emission))
