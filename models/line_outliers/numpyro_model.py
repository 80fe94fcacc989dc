"""A straight line of unknown scatter through points some of which have nothing to do with it."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    log_scatter = numpyro.sample("log_scatter", dist.Normal(-1.0, 1.0))
    outlier_fraction = numpyro.sample("outlier_fraction", dist.Beta(1.0, 3.0))
    outlier_scale = numpyro.sample("outlier_scale", dist.HalfNormal(10.0))
    line = intercept + slope * x
    loc = jnp.stack([line, jnp.zeros_like(line)], -1)
    scale = jnp.stack([jnp.exp(log_scatter), outlier_scale], -1)
    weights = dist.Categorical(probs=jnp.stack([1.0 - outlier_fraction, outlier_fraction], -1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(loc, scale)), obs=y)
