"""A hidden Markov chain of two states with normal emissions, summed by the forward algorithm."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints


def forward(log_transition, log_emission):
    """Log likelihood; ``log_transition`` (K, K) from row to column, ``log_emission`` (T, K), flat first state."""

    def step(log_alpha, emission):
        log_alpha = logsumexp(log_alpha[:, None] + log_transition, axis=0) + emission
        return log_alpha, None

    log_alpha, _ = lax.scan(step, log_emission[0], log_emission[1:])
    return logsumexp(log_alpha)


def model(y):
    theta1 = numpyro.sample("theta1", dist.Dirichlet(jnp.ones(2)))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(jnp.ones(2)))
    # Normal priors on the means, cut to 0 < mu[0] < mu[1]: a flat positive ordered pair times a factor.
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(mu).sum(-1))
    log_emission = dist.Normal(mu, 1.0).log_prob(y[:, None])
    numpyro.factor("y", forward(jnp.log(jnp.stack([theta1, theta2])), log_emission))
