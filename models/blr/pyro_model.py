"""Linear regression with unknown scatter."""

import pyro
import pyro.distributions as dist


def model(X, y):
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([X.shape[1]]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(10.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)
