"""Gaussian process regression with a squared-exponential kernel; ``sigma`` is the variance of the noise."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(x, y):
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    squared = (x[:, None] - x[None, :]) ** 2
    cov = alpha**2 * jnp.exp(-0.5 * squared / rho**2) + sigma * jnp.eye(len(x))
    scale_tril = jnp.linalg.cholesky(cov)
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), scale_tril=scale_tril), obs=y)
