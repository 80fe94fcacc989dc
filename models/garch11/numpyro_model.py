"""GARCH(1, 1): the variance of today depends on the square and the variance of yesterday."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints


def model(y, sigma1):
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    alpha0 = numpyro.sample("alpha0", dist.ImproperUniform(constraints.positive, (), ()))
    alpha1 = numpyro.sample("alpha1", dist.Uniform(0.0, 1.0))
    beta1 = numpyro.sample("beta1", dist.Uniform(0.0, 1.0 - alpha1))
    # Uniform(0, 1 - alpha1) has density 1 / (1 - alpha1); the factor makes the joint flat on the triangle.
    numpyro.factor("flat_on_triangle", jnp.log1p(-alpha1))

    def step(variance, y_before):
        variance = alpha0 + alpha1 * (y_before - mu) ** 2 + beta1 * variance
        return variance, variance

    first = jnp.asarray(sigma1) ** 2 + 0.0 * mu
    _, later = lax.scan(step, first, y[:-1])
    scale = jnp.sqrt(jnp.concatenate([first[None], later]))
    with numpyro.plate("time", len(y)):
        numpyro.sample("y", dist.Normal(mu, scale), obs=y)
