"""Eight schools, non-centred."""

import pyro
import pyro.distributions as dist


def model(y, sigma):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(sigma)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        theta = pyro.deterministic("theta", mu + tau * z)
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)
