"""Gaussian process regression with a squared-exponential kernel; ``sigma`` is the variance of the noise."""

import pyro
import pyro.distributions as dist
import torch


def model(x, y):
    rho = pyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = pyro.sample("alpha", dist.HalfNormal(2.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    squared = (x[:, None] - x[None, :]) ** 2
    cov = alpha**2 * torch.exp(-0.5 * squared / rho**2) + sigma * torch.eye(len(x))
    scale_tril = torch.linalg.cholesky(cov)
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), scale_tril=scale_tril), obs=y)
