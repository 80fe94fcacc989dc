"""Linear regression with unknown scatter."""

import numpyro
import numpyro.distributions as dist


def model(X, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)
