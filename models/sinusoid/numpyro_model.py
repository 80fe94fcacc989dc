"""A sinusoid of unknown period, and its rival without a signal."""

import math

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

PERIODS = (2.0, 12.0)  # days


def model(t, y):
    log_period = numpyro.sample("log_period", dist.Uniform(math.log(PERIODS[0]), math.log(PERIODS[1])))
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    offset = numpyro.sample("offset", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    phase = 2.0 * math.pi * t * jnp.exp(-log_period)
    mean = offset + a * jnp.cos(phase) + b * jnp.sin(phase)
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def constant_model(t, y):
    offset = numpyro.sample("offset", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(offset, sigma), obs=y)
