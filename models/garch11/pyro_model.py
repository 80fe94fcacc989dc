"""GARCH(1, 1): the variance of today depends on the square and the variance of yesterday."""

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints


def model(y, sigma1):
    mu = pyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    alpha0 = pyro.sample("alpha0", dist.ImproperUniform(constraints.positive, (), ()))
    alpha1 = pyro.sample("alpha1", dist.Uniform(0.0, 1.0))
    beta1 = pyro.sample("beta1", dist.Uniform(0.0, 1.0 - alpha1))
    # Uniform(0, 1 - alpha1) has density 1 / (1 - alpha1); the factor makes the joint flat on the triangle.
    pyro.factor("flat_on_triangle", torch.log1p(-alpha1))

    shock = (alpha0 + alpha1 * (y[:-1] - mu) ** 2).unbind(-1)
    variances = [sigma1**2 + 0.0 * mu]
    for t in range(len(y) - 1):
        variances.append(shock[t] + beta1 * variances[-1])
    scale = torch.stack(variances, -1).sqrt()
    with pyro.plate("time", len(y)):
        pyro.sample("y", dist.Normal(mu, scale), obs=y)
