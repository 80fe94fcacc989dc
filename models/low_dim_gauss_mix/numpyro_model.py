"""A mixture of two normals whose means are ordered."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints


def model(y):
    # A Normal prior on each mean, cut to mu[0] < mu[1] (and not rescaled): a flat ordered pair times a factor.
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum(-1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(probs=jnp.stack([theta, 1.0 - theta], -1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)
