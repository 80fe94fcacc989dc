"""The models of :mod:`ppl_samplers.testing.hostile_pyro`: ordinary, and hard on densities."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample


def eight_schools(y: torch.Tensor, sigma: torch.Tensor) -> None:
    """Centred hierarchical model."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("school", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def logistic_matmul(x: torch.Tensor, y: torch.Tensor) -> None:
    """Regression whose ``x @ w`` breaks under an outer plate."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


def enumerated_mixture(y: torch.Tensor) -> None:
    """Mixture with the assignment summed out and plain indexing."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("component", 3):
        m = pyro.sample("m", dist.Normal(0.0, 2.0))
        s = pyro.sample("s", dist.LogNormal(0.0, 0.5))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(m[z], s[z]), obs=y)


def ode_loop(y: torch.Tensor) -> None:
    """Predator and prey by Euler steps in a Python loop."""
    rates = pyro.sample("rates", dist.LogNormal(torch.tensor([-0.5, -3.5, -0.2, -3.7]), 0.3).to_event(1))
    start = pyro.sample("start", dist.LogNormal(torch.tensor([3.0, 2.0]), 0.3).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(0.5))
    prey, predator, path = start[0], start[1], []
    for _ in range(len(y)):
        prey, predator = (
            prey + 0.05 * (rates[0] * prey - rates[1] * prey * predator),
            predator + 0.05 * (rates[3] * prey * predator - rates[2] * predator),
        )
        path.append(torch.stack([prey, predator]))
    pyro.sample("y", dist.Normal(torch.stack(path), 5 * sigma).to_event(2), obs=y)


def python_if() -> None:
    """Branches on a latent value."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Normal(1.0, 1.0))
    m = a if a > 0 else b
    pyro.sample("y", dist.Normal(m, 1.0), obs=torch.tensor(0.5))


def babylonian_while() -> None:
    """A square root iterated until it stops changing."""
    a = pyro.sample("a", dist.LogNormal(0.0, 0.5))
    root, old = a, a + 1
    while (root - old).abs() > 1e-6:
        old, root = root, 0.5 * (root + a / root)
    pyro.sample("y", dist.Normal(root, 1.0), obs=torch.tensor(0.5))


def item_inside() -> None:
    """Takes a latent out of torch."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(2 * a.item() + 1.0, 0.5), obs=torch.tensor(0.5))


def tensor_of_latents() -> None:
    """Builds a new tensor from latents, which cuts their gradient."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(torch.tensor([a, b]), 0.5).to_event(1), obs=torch.tensor([0.5, -3.0]))


def fresh_assignment(y: torch.Tensor) -> None:
    """Assigns a latent into a fresh tensor."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    mu = torch.zeros(20)
    mu[:10] = a
    pyro.sample("y", dist.Normal(mu, 1.0).to_event(1), obs=y)


def derived_assignment(y: torch.Tensor) -> None:
    """In-place change of a tensor that comes from a latent."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    mu = torch.zeros(20) + a
    mu[:10] += 1
    pyro.sample("y", dist.Normal(mu, 1.0).to_event(1), obs=y)


def subsampled(y: torch.Tensor) -> None:
    """A plate over a random part of the data."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y), subsample_size=5) as i:
        pyro.sample("y", dist.Normal(a, 1.0), obs=y[i])


def noise_inside() -> None:
    """Fresh noise in the body."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(a + torch.randn(()), 1.0), obs=torch.tensor(0.5))


def unused_linear() -> None:
    """Builds a layer whose random weights do not matter."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    layer = torch.nn.Linear(1, 1)
    pyro.sample("y", dist.Normal(a * layer.in_features, 1.0), obs=torch.tensor(0.5))


def random_linear() -> None:
    """Builds a layer and uses its random weights."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    layer = torch.nn.Linear(1, 1)
    pyro.sample("y", dist.Normal(layer(a[None])[0], 1.0), obs=torch.tensor(0.5))


def gaussian_process(y: torch.Tensor) -> None:
    """Covariance of a Gaussian process; singular for long length scales."""
    length = pyro.sample("length", dist.LogNormal(0.0, 1.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    t = torch.linspace(0.0, 1.0, 20)
    cov = torch.exp(-0.5 * ((t[:, None] - t) / length) ** 2) + noise**2 * torch.eye(20)
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(20), covariance_matrix=cov), obs=y)


def correlation(y: torch.Tensor) -> None:
    """LKJ prior: nine constrained numbers from three."""
    factor = pyro.sample("factor", dist.LKJCholesky(3, 2.0))
    scale = pyro.sample("scale", dist.HalfCauchy(1.0).expand([3]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(3), scale_tril=scale[:, None] * factor), obs=y)


def dirichlet_weights(counts: torch.Tensor) -> None:
    """Simplex: three constrained numbers from two."""
    p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
    pyro.sample("y", dist.Multinomial(int(counts.sum()), p), obs=counts)


def latent_bounds() -> None:
    """A support whose bound is a latent."""
    a = pyro.sample("a", dist.LogNormal(0.0, 1.0))
    b = pyro.sample("b", dist.Uniform(torch.zeros(()), a))
    pyro.deterministic("gap", a - b)
    pyro.sample("y", dist.Normal(b, 0.5), obs=torch.tensor(0.7))


def factor_ring() -> None:
    """No data, only a factor."""
    x = pyro.sample("x", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    pyro.factor("ring", -50 * (x.norm() - 2.0) ** 2)


def masked_and_scaled(y: torch.Tensor) -> None:
    """Hidden and reweighted observations; the hidden ones are NaN."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)), poutine.mask(mask=~torch.isnan(y)), poutine.scale(scale=0.5):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def enumerated_hmm(y: torch.Tensor) -> None:
    """Hidden Markov model of ten steps."""
    with pyro.plate("state", 2):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2)))
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    z = torch.tensor(0)
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
        pyro.sample(f"y_{t}", dist.Normal(loc[z], 1.0), obs=y[t])


def poisson_latent() -> None:
    """A discrete site with infinite support."""
    n = pyro.sample("n", dist.Poisson(3.0))
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(m + n, 1.0), obs=torch.tensor(4.0))


def circular() -> None:
    """An angle."""
    angle = pyro.sample("angle", dist.VonMises(torch.tensor(1.0), torch.tensor(2.0)))
    pyro.sample("y", dist.Normal(torch.cos(angle), 0.5), obs=torch.tensor(0.2))


def with_param() -> None:
    """A learnable constant, frozen by the density."""
    scale = pyro.param("scale", torch.tensor(2.0), constraint=dist.constraints.positive)
    a = pyro.sample("a", dist.Normal(0.0, scale))
    pyro.sample("y", dist.Normal(a, 1.0), obs=torch.tensor(0.5))


def no_latent(y: torch.Tensor) -> None:
    """Only data."""
    pyro.sample("y", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1), obs=y)


def one_scalar() -> None:
    """One latent number."""
    a = pyro.sample("a", dist.HalfNormal(1.0))
    pyro.sample("y", dist.Normal(0.0, a), obs=torch.tensor(0.5))


def dotted_names(y: torch.Tensor) -> None:
    """Site names with dots."""
    a = pyro.sample("net.a", dist.Normal(0.0, 1.0))
    s = pyro.sample("net.s", dist.HalfNormal(1.0))
    pyro.sample("data.y", dist.Normal(a, s).expand([len(y)]).to_event(1), obs=y)


def keyword_data(*, x: torch.Tensor, y: torch.Tensor) -> None:
    """Data by keyword only."""
    logistic_matmul(x, y)


class BayesianLinear(PyroModule):
    """A module with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = PyroModule[torch.nn.Linear](4, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 4]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 1.0).expand([1]).to_event(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Regression on ``x``."""
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        return mean


def nan_data(y: torch.Tensor) -> None:
    """Data with a hole that nobody masked."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def improper(y: torch.Tensor) -> None:
    """An improper prior; the posterior is proper."""
    a = pyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)
