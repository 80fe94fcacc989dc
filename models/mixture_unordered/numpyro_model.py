"""A mixture of two normals without an order: the labels can be exchanged, so there are two equal modes."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(probs=jnp.stack([theta, 1.0 - theta], -1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)
