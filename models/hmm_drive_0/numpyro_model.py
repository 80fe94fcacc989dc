"""A hidden Markov chain of two states with two exponential emissions, summed by the forward algorithm."""

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


def model(u, v, alpha):
    theta1 = numpyro.sample("theta1", dist.Dirichlet(jnp.asarray(alpha[0])))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(jnp.asarray(alpha[1])))
    # Normal priors on the rates themselves, cut to 0 < first < second: a flat positive ordered pair times a factor.
    phi = numpyro.sample("phi", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    rate = numpyro.sample("lambda", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,)))
    prior = dist.Normal(jnp.array([0.0, 3.0]), 1.0)
    numpyro.factor("rates_prior", (prior.log_prob(phi) + prior.log_prob(rate)).sum(-1))
    log_emission = dist.Exponential(phi).log_prob(u[:, None]) + dist.Exponential(rate).log_prob(v[:, None])
    numpyro.factor("uv", forward(jnp.log(jnp.stack([theta1, theta2])), log_emission))
