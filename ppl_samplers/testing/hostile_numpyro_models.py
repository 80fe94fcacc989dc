"""The models of :mod:`ppl_samplers.testing.hostile_numpyro`: ordinary, and hard on samplers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.contrib.control_flow import cond, scan
from numpyro.distributions import constraints
from numpyro.handlers import mask


def dotted_name(y):
    """A site with a dot in its name."""
    loc = numpyro.sample("x.y", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("x.scale", dist.HalfNormal(1.0))
    numpyro.sample("obs", dist.Normal(loc, scale), obs=y)


def unsorted_sites(y):
    """Sites in an order that is not the alphabetical one, with different shapes."""
    b = numpyro.sample("b", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    a = numpyro.sample("a", dist.HalfNormal(jnp.ones((2, 2))).to_event(2))
    numpyro.sample("obs", dist.Normal(b.sum() - a.prod(), 1.0), obs=y)


def lkj(y):
    """LKJ factor of a correlation matrix times half-normal scales."""
    corr = numpyro.sample("corr", dist.LKJCholesky(3, 2.0))
    scale = numpyro.sample("scale", dist.HalfNormal(jnp.ones(3)).to_event(1))
    tril = numpyro.deterministic("tril", scale[:, None] * corr)
    numpyro.sample("obs", dist.MultivariateNormal(jnp.zeros(3), scale_tril=tril), obs=y)


def ordered_logistic(x, y):
    """Ordered cut points with an improper prior."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    cut = numpyro.sample("cut", dist.ImproperUniform(constraints.ordered_vector, (), (3,)))
    numpyro.sample("obs", dist.OrderedLogistic(beta * x, cut), obs=y)


def dirichlet(y):
    """One simplex, categorical data."""
    p = numpyro.sample("p", dist.Dirichlet(jnp.full(4, 1.5)))
    numpyro.sample("obs", dist.Categorical(p), obs=y)


def dirichlet_table(y):
    """A table of two simplexes."""
    p = numpyro.sample("p", dist.Dirichlet(jnp.full((2, 2), 1.5)).to_event(1))
    numpyro.sample("obs", dist.Categorical(p[jnp.arange(len(y)) % 2]), obs=y)


def von_mises(y):
    """A circular location whose posterior lies at +-pi."""
    loc = numpyro.sample("loc", dist.VonMises(0.0, 0.1))
    numpyro.sample("obs", dist.VonMises(loc, 5.0), obs=y)


def flat_real(y):
    """A flat prior on the reals."""
    loc = numpyro.sample("loc", dist.ImproperUniform(constraints.real, (), ()))
    numpyro.sample("obs", dist.Normal(loc, 1.0), obs=y)


def flat_positive(y):
    """A flat prior on the positive numbers, under a plate and a mask."""
    with numpyro.plate("groups", 2), mask(mask=jnp.array([True, True])):
        scale = numpyro.sample("scale", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.sample("obs", dist.Normal(0.0, scale.sum()), obs=y)


def latent_bound(y):
    """A support whose bound is another latent site."""
    a = numpyro.sample("a", dist.LogNormal(0.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("obs", dist.Normal(b, 1.0), obs=y)


def empty_plate():
    """A plate of size zero."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    with numpyro.plate("nobody", 0):
        numpyro.sample("z", dist.Normal(loc, 1.0))


def empty_latent(y):
    """A latent site without entries beside an ordinary one."""
    numpyro.sample("empty", dist.Normal(jnp.zeros(0), 1.0).to_event(1))
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    numpyro.sample("obs", dist.Normal(loc, 1.0), obs=y)


def no_latent(y):
    """Nothing to infer."""
    numpyro.sample("obs", dist.Normal(0.0, 1.0), obs=y)


def latent_delta(y):
    """A latent point mass."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    loc = numpyro.sample("fixed", dist.Delta(jnp.float32(1.0)))
    numpyro.sample("obs", dist.Normal(loc, scale), obs=y)


def mixed_observations(counts, flags, values):
    """Integer, boolean and list data."""
    rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    numpyro.sample("flags", dist.Bernoulli(logits=jnp.log(rate)), obs=flags)
    numpyro.sample("values", dist.Normal(rate, 1.0), obs=jnp.asarray(values))


def masked_nan(y):
    """NaN in the data, behind a mask."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    with mask(mask=~jnp.isnan(y)):
        numpyro.sample("obs", dist.Normal(loc, 1.0), obs=y)


def open_nan(y):
    """NaN in the data, and no mask."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    numpyro.sample("obs", dist.Normal(loc, 1.0), obs=y)


def half_space(y):
    """A factor that is -inf on a half of the space."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.factor("wall", jnp.where(x > 0.5, 0.0, -jnp.inf))
    numpyro.sample("obs", dist.Normal(x, 1.0), obs=y)


def nan_gradient(y):
    """A finite value with a NaN gradient on a half of the space."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("obs", dist.Normal(jnp.where(a > 0, jnp.sqrt(a), 0.0), 1.0), obs=y)


def heavy_tails(y):
    """Fifty half-Cauchy scales and a Cauchy location."""
    with numpyro.plate("scales", 50):
        tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    loc = numpyro.sample("loc", dist.StudentT(1.0, 0.0, 1.0))
    numpyro.sample("obs", dist.Normal(loc, 1.0 + tau.mean()), obs=y)


def mixture(y):
    """A two-component mixture with enumerated assignments; the labels may be exchanged."""
    loc = numpyro.sample("loc", dist.Normal(jnp.zeros(2), 3.0).to_event(1))
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(weight), infer={"enumerate": "parallel"})
        numpyro.sample("obs", dist.Normal(loc[z], 1.0), obs=y)


def hidden_markov(y):
    """An enumerated hidden Markov model in a scan."""
    move = numpyro.sample("move", dist.Dirichlet(jnp.ones((2, 2))).to_event(1))
    loc = numpyro.sample("loc", dist.Normal(jnp.array([-1.0, 1.0]), 1.0).to_event(1))

    def step(z, y_t):
        z = numpyro.sample("z", dist.Categorical(move[z]), infer={"enumerate": "parallel"})
        numpyro.sample("obs", dist.Normal(loc[z], 1.0), obs=y_t)
        return z, None

    scan(step, 0, y)


def random_walk(y):
    """A latent random walk in a scan."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))

    def step(x, y_t):
        x = numpyro.sample("x", dist.Normal(x, scale))
        numpyro.sample("obs", dist.Normal(x, 1.0), obs=y_t)
        return x, None

    scan(step, jnp.zeros(()), y)


def subsampled(y):
    """A plate that takes a part of the data."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y), subsample_size=4) as rows:
        numpyro.sample("obs", dist.Normal(loc, 1.0), obs=jnp.asarray(y)[rows])


def param_and_mutable(y):
    """A ``param`` and a ``mutable`` site in the model."""
    width = numpyro.param("width", 2.0, constraint=constraints.positive)
    state = numpyro.primitives.mutable("count", {"seen": jnp.zeros(())})
    loc = numpyro.sample("loc", dist.Normal(state["seen"], width))
    numpyro.sample("obs", dist.Normal(loc, 1.0), obs=y)


def deterministic_table(y):
    """A deterministic site of another shape than any latent."""
    a = numpyro.sample("a", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    numpyro.deterministic("table", a[:, None] * a)
    numpyro.sample("obs", dist.Normal(a.sum(), 1.0), obs=y)


def eight_schools(y, sigma):
    """The hierarchical model, centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def optional_data(x, y=None):
    """The observed value has the default ``None``, as ``Predictive`` wants it."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("obs", dist.Normal(slope * x, 1.0), obs=y)


def many_kwargs(data, *, link="identity", prior=None, columns=()):
    """String, dict and list arguments."""
    loc = numpyro.sample("loc", dist.Normal(prior["loc"], prior["scale"]))
    loc = jnp.exp(loc) if link == "log" else loc
    for column in columns:
        numpyro.sample(f"obs_{column}", dist.Normal(loc, 1.0), obs=np.asarray(data[column]))


def python_if(y):
    """Python control flow on a latent value."""
    other = numpyro.sample("other", dist.Normal(0.0, 1.0))
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    loc = a + other if a > 0 else -a + other
    numpyro.sample("obs", dist.Normal(loc, 1.0), obs=y)


def own_randomness(y):
    """Random features from ``prng_key()``."""
    features = random.normal(numpyro.prng_key(), (len(y), 3))
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    numpyro.sample("obs", dist.Normal(features @ w, 1.0), obs=y)


def branches(y):
    """A ``cond`` with a sample site in each branch."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    loc = cond(
        a > 0,
        lambda _: numpyro.sample("x", dist.Normal(2.0, 1.0)),
        lambda _: numpyro.sample("x", dist.Normal(-2.0, 0.5)),
        None,
    )
    numpyro.sample("obs", dist.Normal(loc, 1.0), obs=y)


def poisson_latent(y):
    """A latent count."""
    n = numpyro.sample("n", dist.Poisson(3.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("obs", dist.Normal(n.astype(float), scale), obs=y)


def projected_normal(y):
    """A latent direction."""
    direction = numpyro.sample("direction", dist.ProjectedNormal(jnp.ones(3)))
    numpyro.sample("obs", dist.Normal(direction.sum(), 1.0), obs=y)


def one_dimension(y):
    """A single scalar."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    numpyro.sample("obs", dist.Normal(loc, 1.0), obs=y)


def large_hierarchy(y):
    """Two hundred dimensions."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 198):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, 1.0), obs=y)


def sharp(y):
    """A hundred thousand rows and a small scale."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("obs", dist.Normal(loc, scale), obs=y)


def regression(x, y):
    """The conjugate regression, noise sd 0.5."""
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
    numpyro.sample("obs", dist.Normal(x @ beta, 0.5), obs=y)
