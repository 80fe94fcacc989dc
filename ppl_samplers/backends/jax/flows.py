"""Normalizing flows: a network on whitened coordinates inside a frozen affine standardisation.

Written directly on batches of points with one scan over the layers: the same flow from a library's per-point bijections
takes 1.7 times as long to compile and 2.2 times as long to train (``benchmarks/flow_numpyro.py``), and these two are
what a user waits for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.scipy.linalg import solve_triangular

Array = jax.Array
Params = dict[str, Any]

_LOG_2PI = math.log(2 * math.pi)
_MINIMUM = 1e-3


def standard_normal_log_prob(z: Array) -> Array:
    """Log density of ``N(0, I)``, ``(N, D) -> (N,)``."""
    return -0.5 * (jnp.sum(z * z, -1) + z.shape[-1] * _LOG_2PI)


def affine(loc: Array, scale_tril: Array, y: Array) -> Array:
    """From whitened points ``y`` to ``x = loc + L y``, ``(N, D)``."""
    return loc + y @ scale_tril.T


def whiten(loc: Array, scale_tril: Array, x: Array) -> Array:
    """The inverse of :func:`affine`."""
    return solve_triangular(scale_tril, (x - loc).T, lower=True).T


def affine_log_det(scale_tril: Array) -> Array:
    """``log |det L|``, a scalar."""
    return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(scale_tril))))


@dataclass(frozen=True)
class SplineCoupling:
    """Coupling flow of rational-quadratic splines, the identity before training.

    In one dimension, where nothing can be coupled, a chain of unconditional splines. Parameters are a dict of arrays:
    ``"network"`` is trained, ``"order"`` (integers, ``(layers, D)``) says which coordinates each layer transforms and
    is a part of the density.

    Attributes:
        layers: Coupling layers; ``None``: 4 up to 8 dimensions, 6 up to 32, else 8.
        bins: Spline bins; ``None``: 16 up to 4 dimensions, else 8.
        interval: Splines act on ``[-interval, interval]`` of the whitened space, and are the identity outside.
        width: Width of the conditioners.
        depth: Hidden layers of the conditioners.

    References:
        Conor Durkan, Artur Bekasov, Iain Murray, George Papamakarios, Neural spline flows, 2019.

    Example:
        >>> from jax import random
        >>> flow = SplineCoupling(layers=2)
        >>> params = flow.init(random.key(0), 3)
        >>> y, log_det = flow.forward(params, random.normal(random.key(1), (5, 3)))
        >>> y.shape, log_det.shape, flow.log_prob(params, y).shape
        ((5, 3), (5,), (5,))
    """

    layers: int | None = None
    bins: int | None = 8
    interval: float = 5.0
    width: int = 64
    depth: int = 2

    trainable = True

    @partial(jax.jit, static_argnames=("self", "dim", "dtype"))
    def init(self, key: Array, dim: int, dtype: Any = None) -> Params:
        """Parameters of the identity, with random hidden layers, for ``dim`` dimensions."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        layers = self.layers if self.layers is not None else (4 if dim <= 8 else 6 if dim <= 32 else 8)
        sizes = [dim // 2] + [self.width] * self.depth + [(dim - dim // 2) * (3 * self.num_bins(dim) - 1)]
        noise_key, order_key = random.split(key)
        # One draw for all hidden layers: each random call is compiled on its own.
        counts = [layers * a * b for a, b in pairwise(sizes[:-1])]
        noise = random.normal(noise_key, (sum(counts),), dtype)
        network, start = {}, 0
        for i, (a, b) in enumerate(pairwise(sizes)):
            shape = (layers, a, b)
            if i < self.depth:
                network[f"w{i}"] = noise[start : start + counts[i]].reshape(shape) / math.sqrt(max(a, 1))
                start += counts[i]
            else:
                network[f"w{i}"] = jnp.zeros(shape, dtype)
            network[f"b{i}"] = jnp.zeros((layers, b), dtype)
        # A new random split for every pair of layers, the halves swapped within it: every coordinate is transformed.
        first = jnp.argsort(random.uniform(order_key, ((layers + 1) // 2, dim)), -1)
        order = jnp.stack([first, jnp.roll(first, -(dim // 2), -1)], 1).reshape(-1, dim)[:layers]
        return {"network": network, "order": order.astype(jnp.int32)}

    def num_bins(self, dim: int) -> int:
        """Spline bins in ``dim`` dimensions."""
        return self.bins if self.bins is not None else (16 if dim <= 4 else 8)

    def forward(self, params: Params, z: Array) -> tuple[Array, Array]:
        """From the base space to whitened points: ``(N, D) -> y (N, D), log |det dy/dz| (N,)``."""
        return self._run(params, z, inverse=False)

    def inverse(self, params: Params, y: Array) -> tuple[Array, Array]:
        """From whitened points to the base space: ``(N, D) -> z (N, D), log |det dz/dy| (N,)``."""
        return self._run(params, y, inverse=True)

    def log_prob(self, params: Params, y: Array) -> Array:
        """Log density of whitened points, ``(N, D) -> (N,)``."""
        z, log_det = self.inverse(params, y)
        return standard_normal_log_prob(z) + log_det

    def _run(self, params: Params, y: Array, inverse: bool) -> tuple[Array, Array]:
        dim, n = y.shape[-1], y.shape[0]
        half = dim // 2

        # Points run along the last axis: every loop over the few bins is then a loop over whole rows of points.
        def layer(carry: tuple[Array, Array], xs: tuple[Params, Array]) -> tuple[tuple[Array, Array], None]:
            (y, total), (network, order) = carry, xs
            y = y[order]
            kept, moved = y[:half], y[half:]
            raw = self._condition(network, kept).reshape(dim - half, 3 * self.num_bins(dim) - 1, n)
            moved, log_det = spline(raw, moved, self.interval, inverse)
            y = jnp.concatenate([kept, moved])[jnp.argsort(order)]
            return (y, total + jnp.sum(log_det, 0)), None

        start = (y.T, jnp.zeros(n, y.dtype))
        # Recomputing a layer in the backward pass compiles and runs faster than storing its many small intermediates.
        body = jax.checkpoint(layer, prevent_cse=False)
        y, total = lax.scan(body, start, (params["network"], params["order"]), reverse=inverse)[0]
        return y.T, total

    def _condition(self, network: Params, h: Array) -> Array:
        """Conditioner, ``(kept, N) -> (outputs, N)``."""
        for i in range(self.depth + 1):
            h = network[f"w{i}"].T @ h + network[f"b{i}"][:, None]
            h = jax.nn.silu(h) if i < self.depth else h
        return h


@dataclass(frozen=True)
class Affine:
    """No network: the identity on the whitened space, so that the transport is one Gaussian.

    Enough for posteriors that are nearly Gaussian, and quick to compile.

    Example:
        >>> import jax.numpy as jnp
        >>> Affine().log_prob({}, jnp.zeros((2, 3))).shape
        (2,)
    """

    trainable = False

    def init(self, key: Array, dim: int, dtype: Any = None) -> Params:
        """No parameters."""
        return {}

    def forward(self, params: Params, z: Array) -> tuple[Array, Array]:
        """``z`` and zeros."""
        return z, jnp.zeros(z.shape[0], z.dtype)

    def inverse(self, params: Params, y: Array) -> tuple[Array, Array]:
        """``y`` and zeros."""
        return y, jnp.zeros(y.shape[0], y.dtype)

    def log_prob(self, params: Params, y: Array) -> Array:
        """Standard normal log density, ``(N, D) -> (N,)``."""
        return standard_normal_log_prob(y)


def spline(raw: Array, x: Array, interval: float, inverse: bool = False) -> tuple[Array, Array]:
    """Monotone rational-quadratic spline on ``[-interval, interval]``, the identity outside.

    Args:
        raw: Unconstrained widths, heights and inner slopes, ``(..., 3 K - 1, N)``; zeros give the identity.
        x: Points, ``(..., N)``.
        interval: Half width of the interval.
        inverse: Apply the inverse map.

    Returns:
        The mapped points and the log derivative of the applied map, each ``(..., N)``.

    References:
        Conor Durkan, Artur Bekasov, Iain Murray, George Papamakarios, Neural spline flows, 2019, section 3.1.
    """
    bins = (raw.shape[-2] + 1) // 3
    inside = (x >= -interval) & (x <= interval)
    # Points outside are clipped before the formula, or their unused branch would send NaN into the gradient.
    at = (jnp.clip(x, -interval, interval) + interval) / (2 * interval)
    widths, heights = _masses(raw[..., :bins, :]), _masses(raw[..., bins : 2 * bins, :])
    index = jnp.sum(at[..., None, :] >= _inner_knots(heights if inverse else widths), -2, keepdims=True)
    number = jnp.arange(bins)[:, None]
    chosen, before = (index == number).astype(x.dtype), (index > number).astype(x.dtype)
    # Of all the bins only the one that holds the point is worked out: its corner, its size and its two slopes.
    x0, dx = _bin(widths, index[..., 0, :], chosen, before)
    y0, dy = _bin(heights, index[..., 0, :], chosen, before)
    inner = raw[..., 2 * bins :, :]
    d0, d1 = (_slope(jnp.sum(inner * mask, -2)) for mask in (chosen[..., 1:, :], chosen[..., :-1, :]))
    slope = dy / dx
    bend = d0 + d1 - 2 * slope
    if inverse:
        # Relative to the bin's height: in a low bin the plain discriminant would vanish in float32.
        rise = jnp.clip((at - y0) / dy, 0.0, 1.0)
        a, b, c = slope - d0 + rise * bend, d0 - rise * bend, -slope * rise
        # This form of the root has no cancellation; the floor keeps the square root differentiable.
        t = 2 * c / (-b - jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 1e-12)))
        t = jnp.clip(t, 0.0, 1.0)
        image = x0 + t * dx
    else:
        t = jnp.clip((at - x0) / dx, 0.0, 1.0)
        image = y0 + dy * (slope * t * t + d0 * t * (1 - t)) / (slope + bend * t * (1 - t))
    below = slope + bend * t * (1 - t)
    numerator = d1 * t * t + 2 * slope * t * (1 - t) + d0 * (1 - t) ** 2
    log_slope = jnp.where(inside, jnp.log(slope * slope * numerator / (below * below)), 0.0)
    return jnp.where(inside, 2 * interval * image - interval, x), -log_slope if inverse else log_slope


def _masses(raw: Array) -> Array:
    """Positive masses of the bins, not normalised, ``(..., K, N)``."""
    return jnp.exp(raw - lax.stop_gradient(jnp.max(raw, -2, keepdims=True)))


def _inner_knots(masses: Array) -> Array:
    """Where the inner knots lie in [0, 1], ``(..., K, N) -> (..., K - 1, N)``; constants for the gradient."""
    bins = masses.shape[-2]
    rising = [masses[..., 0, :]]
    # Written out for the few bins: a cumulative sum compiles and runs more slowly.
    for k in range(1, bins):
        rising.append(rising[-1] + masses[..., k, :])
    share = jnp.stack(rising[:-1], -2) / rising[-1][..., None, :]
    return lax.stop_gradient(_MINIMUM * jnp.arange(1, bins)[:, None] + (1 - bins * _MINIMUM) * share)


def _bin(masses: Array, index: Array, chosen: Array, before: Array) -> tuple[Array, Array]:
    """Start and size in [0, 1] of the chosen bin; no bin is smaller than a thousandth."""
    unit = (1 - masses.shape[-2] * _MINIMUM) / jnp.sum(masses, -2)
    return _MINIMUM * index + unit * jnp.sum(masses * before, -2), _MINIMUM + unit * jnp.sum(masses * chosen, -2)


def _slope(raw: Array) -> Array:
    """Slope at a knot: 1 where ``raw`` is zero, which it is at the two ends."""
    return jax.nn.softplus(raw + math.log(math.expm1(1 - _MINIMUM))) + _MINIMUM
