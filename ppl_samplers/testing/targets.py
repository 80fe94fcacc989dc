"""Exact targets: unnormalised log densities whose normalising constant, draws and modes are known.

The densities take the namespace of their argument (NumPy, torch or JAX); exact draws are NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, lgamma, log
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ppl_samplers.core.logspace import softplus
from ppl_samplers.testing.target import LOG_2PI, Target, gaussian_mixture, like, one_mode

Array = Any


def two_gaussians(dim: int = 1, separation: float = 4.0) -> Target:
    """``0.5 N(-4, 1) + 0.5 N(4, 1)`` in the first coordinate, standard normal in the others; ``log Z = 0``.

    An engine that covers one mode only gets ``log Z = -log 2``, with a perfect effective sample size.
    """
    means = np.zeros((2, dim))
    means[:, 0] = (-separation, separation)
    return gaussian_mixture(means, np.ones(2), np.full(2, 0.5), name="two_gaussians")


def two_modes(dim: int = 20) -> Target:
    """Two modes of unequal mass (0.3, 0.7) and unequal scale (1.0, 0.6) at ``-1`` and ``+1``; ``log Z = 2.5``."""
    means = np.stack([-np.ones(dim), np.ones(dim)])
    return gaussian_mixture(means, np.array([1.0, 0.6]), np.array([0.3, 0.7]), log_z=2.5, name="two_modes")


def gmm40() -> Target:
    """Forty equal Gaussians in the plane, ``log Z = 0``.

    References:
        Laurence Midgley, Vincent Stimper, Gregor Simm, Bernhard Schoelkopf, Jose Miguel Hernandez-Lobato, Flow Annealed
        Importance Sampling Bootstrap, 2023.
    """
    scale = float(softplus(np.asarray(1.0)))
    return gaussian_mixture(_GMM40_MEANS, np.full(40, scale), np.full(40, 1 / 40), name="gmm40")


def many_well(dim: int = 8) -> Target:
    """Pairs ``(x, y)`` with density ``exp(0.5 x + 6 x^2 - x^4 - 0.5 y^2)``: ``2^(dim / 2)`` modes.

    The mode label is the number whose binary digits say, pair by pair, whether ``x > 0`` (first pair: lowest digit).
    Labels and weights are given up to 16 pairs; beyond, ``mode_weights`` is ``None``.

    Args:
        dim: Even number of dimensions.

    Raises:
        ValueError: ``dim`` is odd.

    References:
        Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators, 2019 (the double well); Laurence Midgley
        et al., Flow Annealed Importance Sampling Bootstrap, 2023 (its product).
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"many_well needs an even number of dimensions, got {dim}: it is made of pairs.")
    pairs = dim // 2
    # The density falls like exp(-x^4): on this grid the trapezoid rule is exact to rounding.
    grid = np.linspace(-6.0, 6.0, 40_001)
    density = np.exp(0.5 * grid + 6 * grid**2 - grid**4)
    step = grid[1] - grid[0]
    z_x = density.sum() * step
    cdf = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1])) * step]) / z_x
    left = float(np.interp(0.0, grid, cdf))
    mean_x = float((grid * density).sum() * step / z_x)
    var_x = float((grid**2 * density).sum() * step / z_x) - mean_x**2

    def log_density(x: Array) -> Array:
        xp = array_namespace(x)
        a, b = x[:, 0::2], x[:, 1::2]
        return xp.sum(0.5 * a + 6 * a**2 - a**4 - 0.5 * b**2, axis=-1)

    def sample(rng: np.random.Generator, n: int) -> np.ndarray:
        out = rng.standard_normal((n, dim))
        out[:, 0::2] = np.interp(rng.random((n, pairs)), cdf, grid)
        return out

    weights = None
    if pairs <= 16:
        weights = np.ones(1)
        for _ in range(pairs):
            weights = np.concatenate([weights * left, weights * (1 - left)])
    return Target(
        f"many_well_{dim}",
        dim,
        float(pairs * (np.log(z_x) + 0.5 * LOG_2PI)),
        log_density=log_density,
        sample=sample,
        mode_labels=lambda x: (np.asarray(x)[:, 0::2] > 0) @ (1 << np.arange(pairs)),
        mode_weights=weights,
        mean=np.tile([mean_x, 0.0], pairs),
        sd=np.tile([np.sqrt(var_x), 1.0], pairs),
    )


def funnel(dim: int = 10) -> Target:
    """Neal's funnel: ``v ~ N(0, 9)``, ``x_i | v ~ N(0, exp(v))``; ``log Z = 0``.

    The coordinates ``x_i`` are heavy-tailed: compare quantiles of ``v``, not moments of ``x``.

    References:
        Radford Neal, Slice sampling, 2003.
    """
    rest = dim - 1

    def log_density(x: Array) -> Array:
        xp = array_namespace(x)
        v = x[:, 0]
        square = xp.sum(x[:, 1:] ** 2, axis=-1)
        return -v * v / 18 - 0.5 * rest * v - 0.5 * square * xp.exp(-v) - log(3.0) - 0.5 * dim * LOG_2PI

    def sample(rng: np.random.Generator, n: int) -> np.ndarray:
        out = rng.standard_normal((n, dim))
        out[:, 0] *= 3.0
        out[:, 1:] *= np.exp(0.5 * out[:, :1])
        return out

    sd = np.full(dim, exp(2.25))
    sd[0] = 3.0
    return Target(f"funnel_{dim}", dim, 0.0, log_density, sample, one_mode, np.ones(1), np.zeros(dim), sd)


def regression_data() -> tuple[np.ndarray, np.ndarray]:
    """Design matrix ``(40, 4)`` and response ``(40,)`` of :func:`conjugate_regression`, float32."""
    # The legacy generator is the definition of this data set: other streams give other numbers.
    x = np.random.RandomState(0).standard_normal((40, 4))
    noise = np.random.RandomState(1).standard_normal(40)
    y = x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.5 * noise
    return x.astype(np.float32), y.astype(np.float32)


def conjugate_regression() -> Target:
    """Linear regression with prior ``N(0, I)`` and noise of standard deviation 0.5; ``log Z = -39.6948``."""
    x32, y32 = regression_data()
    design, response = x32.astype(np.float64), y32.astype(np.float64)
    count, dim = design.shape
    noise = 0.5
    precision = np.eye(dim) + design.T @ design / noise**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ design.T @ response / noise**2
    marginal = noise**2 * np.eye(count) + design @ design.T
    log_z = -0.5 * (count * LOG_2PI + np.linalg.slogdet(marginal)[1] + response @ np.linalg.solve(marginal, response))
    factor = np.linalg.cholesky(covariance)
    constant = -0.5 * (dim + count) * LOG_2PI - count * log(noise)

    def log_density(beta: Array) -> Array:
        xp = array_namespace(beta)
        residual = (like(response, beta) - beta @ like(design.T, beta)) / noise
        return constant - 0.5 * xp.sum(beta * beta, axis=-1) - 0.5 * xp.sum(residual * residual, axis=-1)

    return Target(
        "conjugate_regression",
        dim,
        float(log_z),
        log_density=log_density,
        sample=lambda rng, n: mean + rng.standard_normal((n, dim)) @ factor.T,
        mode_labels=one_mode,
        mode_weights=np.ones(1),
        mean=mean,
        sd=np.sqrt(np.diag(covariance)),
    )


def beta_binomial(successes: int = 7, trials: int = 10, alpha: float = 2.0, beta: float = 3.0) -> Target:
    """``theta ~ Beta(alpha, beta)``, ``successes ~ Binomial(trials, theta)``, on the flat space ``logit(theta)``.

    The log density holds the Jacobian of the transform, so ``log Z`` is the beta-binomial probability of the data.
    ``mean`` and ``sd`` are of ``logit(theta)``.
    """
    from scipy.special import digamma, polygamma

    failures = trials - successes
    a, b = alpha + successes, beta + failures
    log_choose = lgamma(trials + 1) - lgamma(successes + 1) - lgamma(failures + 1)
    constant = log_choose + lgamma(alpha + beta) - lgamma(alpha) - lgamma(beta)
    log_z = constant + lgamma(a) + lgamma(b) - lgamma(a + b)

    def log_density(x: Array) -> Array:
        t = x[:, 0]
        # log theta = -softplus(-t), log(1 - theta) = -softplus(t); the Jacobian adds one to each power.
        return constant - a * softplus(-t) - b * softplus(t)

    def sample(rng: np.random.Generator, n: int) -> np.ndarray:
        theta = rng.beta(a, b, size=(n, 1))
        return np.log(theta) - np.log1p(-theta)

    mean = np.array([digamma(a) - digamma(b)], dtype=float)
    sd = np.sqrt(np.array([polygamma(1, a) + polygamma(1, b)], dtype=float))
    return Target("beta_binomial", 1, log_z, log_density, sample, one_mode, np.ones(1), mean, sd)


TARGETS: dict[str, Callable[[], Target]] = {
    "conjugate_regression": conjugate_regression,
    "beta_binomial": beta_binomial,
    "two_gaussians": two_gaussians,
    "two_modes": two_modes,
    "gmm40": gmm40,
    "many_well": many_well,
    "funnel": funnel,
}

# 80 (U - 1/2), U the first 40 x 2 float32 uniforms of torch's generator with seed 0.
_GMM40_MEANS = np.array(
    [
        (-0.2994728088, 21.4577446),
        (-32.92180634, -29.43756104),
        (-15.40617466, 10.72629452),
        (-0.7925271988, 31.71557999),
        (-3.549761772, 10.58450222),
        (-12.08852291, -7.862615585),
        (-38.21393967, -26.49128342),
        (-16.48892403, 1.481742859),
        (15.8134079, 24.00091171),
        (-27.11764336, -17.41851425),
        (14.52868462, 33.21551895),
        (-8.232007027, 29.93247032),
        (-6.44733429, 4.232563972),
        (36.21904755, -37.10681534),
        (-25.18151855, -10.1266098),
        (-15.5919981, 34.56003189),
        (-25.92718506, -18.41331482),
        (-27.94561768, -37.46244049),
        (-23.34961891, 34.38392258),
        (17.84873581, 19.38690186),
        (2.103662491, -20.50733948),
        (6.76738739, -37.34778976),
        (-28.90264893, -20.62120056),
        (25.23751831, 23.45285034),
        (-17.73980141, -1.443295479),
        (25.58242798, 39.76532364),
        (15.87528706, 5.40371418),
        (26.81945419, -23.55209351),
        (7.453761101, -31.01222038),
        (-27.72344589, -20.66334152),
        (18.09892273, 16.08641624),
        (-23.69409943, 12.08428383),
        (21.95888138, -5.048694611),
        (1.527261734, 9.268188477),
        (24.81506348, 38.40776443),
        (-30.82494354, -14.65878963),
        (15.72039604, 33.1419754),
        (34.80829239, 35.29426956),
        (7.960581779, -34.78330612),
        (3.679699898, -25.02421379),
    ]
)
