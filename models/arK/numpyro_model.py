"""Autoregression of order K, written as a regression on the lagged series."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(y, K=5):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([K]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    lags = jnp.stack([y[K - k : len(y) - k] for k in range(1, K + 1)], -1)
    with numpyro.plate("time", len(y) - K):
        numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y[K:])
