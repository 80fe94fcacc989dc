"""A hidden Markov chain of two states with normal emissions, summed by the forward algorithm."""

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


def model(y):
    theta1 = pyro.sample("theta1", dist.Dirichlet(torch.ones(2)))
    theta2 = pyro.sample("theta2", dist.Dirichlet(torch.ones(2)))
    # Normal priors on the means, cut to 0 < mu[0] < mu[1]: a flat positive ordered pair times a factor.
    mu = pyro.sample("mu", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    pyro.factor("mu_prior", dist.Normal(torch.tensor([3.0, 10.0]), 1.0).log_prob(mu).sum(-1))
    log_emission = dist.Normal(mu, 1.0).log_prob(y[:, None])
    pyro.factor("y", forward(torch.stack([theta1, theta2]).log(), log_emission))
