"""Autoregression of order K, written as a regression on the lagged series."""

import pyro
import pyro.distributions as dist
import torch


def model(y, K=5):
    alpha = pyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([K]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    lags = torch.stack([y[K - k : len(y) - k] for k in range(1, K + 1)], -1)
    with pyro.plate("time", len(y) - K):
        pyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y[K:])
