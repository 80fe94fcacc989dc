"""Normalizing flows: a network on whitened coordinates inside a frozen affine standardisation.

Written directly on batches of points with one scan over the layers: the same flow built from a library's per-point
bijections takes two to three times as long to compile, and compilation is most of the waiting time on a small model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
        bins: Spline bins.
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
    bins: int = 8
    interval: float = 5.0
    width: int = 64
    depth: int = 2

    trainable = True

    def init(self, key: Array, dim: int, dtype: Any = None) -> Params:
        """Parameters of the identity, with random hidden layers, for ``dim`` dimensions."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        layers = self.layers if self.layers is not None else (4 if dim <= 8 else 6 if dim <= 32 else 8)
        sizes = [dim // 2] + [self.width] * self.depth + [(dim - dim // 2) * (3 * self.bins - 1)]
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
        dim = y.shape[-1]
        half = dim // 2

        def layer(carry: tuple[Array, Array], xs: tuple[Params, Array]) -> tuple[tuple[Array, Array], None]:
            (y, total), (network, order) = carry, xs
            y = y[:, order]
            kept, moved = y[:, :half], y[:, half:]
            raw = self._condition(network, kept).reshape(y.shape[0], dim - half, 3 * self.bins - 1)
            moved, log_det = spline(raw, moved, self.interval, inverse)
            y = jnp.concatenate([kept, moved], -1)[:, jnp.argsort(order)]
            return (y, total + jnp.sum(log_det, -1)), None

        start = (y, jnp.zeros(y.shape[0], y.dtype))
        # Recomputing a layer in the backward pass compiles and runs faster than storing its many small intermediates.
        body = jax.checkpoint(layer, prevent_cse=False)
        return lax.scan(body, start, (params["network"], params["order"]), reverse=inverse)[0]

    def _condition(self, network: Params, h: Array) -> Array:
        for i in range(self.depth):
            h = jax.nn.silu(h @ network[f"w{i}"] + network[f"b{i}"])
        return h @ network[f"w{self.depth}"] + network[f"b{self.depth}"]


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
        raw: Unconstrained widths, heights and inner slopes, ``(..., 3 K - 1)``; zeros give the identity.
        x: Points, ``(...)``.
        interval: Half width of the interval.
        inverse: Apply the inverse map.

    Returns:
        The mapped points and the log derivative of the applied map, each ``(...)``.

    References:
        Conor Durkan, Artur Bekasov, Iain Murray, George Papamakarios, Neural spline flows, 2019, section 3.1.
    """
    bins = (raw.shape[-1] + 1) // 3
    xs, ys = _knots(raw[..., :bins], interval), _knots(raw[..., bins : 2 * bins], interval)
    slopes = jax.nn.softplus(raw[..., 2 * bins :] + math.log(math.expm1(1 - _MINIMUM))) + _MINIMUM
    end = jnp.ones((*slopes.shape[:-1], 1), slopes.dtype)
    slopes = jnp.concatenate([end, slopes, end], -1)
    inside = (x >= -interval) & (x <= interval)
    # Points outside are clipped before the formula, or their unused branch would send NaN into the gradient.
    at = jnp.clip(x, -interval, interval)
    knots = ys if inverse else xs
    index = jnp.sum(at[..., None] >= knots[..., 1:-1], -1, keepdims=True)
    chosen = (index == jnp.arange(bins)).astype(x.dtype)
    x0, y0, d0 = (jnp.sum(a[..., :-1] * chosen, -1) for a in (xs, ys, slopes))
    x1, y1, d1 = (jnp.sum(a[..., 1:] * chosen, -1) for a in (xs, ys, slopes))
    slope = (y1 - y0) / (x1 - x0)
    bend = d0 + d1 - 2 * slope
    if inverse:
        # Relative to the bin's height: in a low bin the plain discriminant would vanish in float32.
        rise = (at - y0) / (y1 - y0)
        a, b, c = slope - d0 + rise * bend, d0 - rise * bend, -slope * rise
        # This form of the root has no cancellation; the floor keeps the square root differentiable.
        t = 2 * c / (-b - jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 1e-12)))
        t = jnp.clip(t, 0.0, 1.0)
    else:
        t = (at - x0) / (x1 - x0)
    below = slope + bend * t * (1 - t)
    numerator = d1 * t * t + 2 * slope * t * (1 - t) + d0 * (1 - t) ** 2
    log_slope = 2 * jnp.log(slope) + jnp.log(numerator) - 2 * jnp.log(below)
    log_slope = jnp.where(inside, log_slope, 0.0)
    if inverse:
        return jnp.where(inside, x0 + t * (x1 - x0), x), -log_slope
    return jnp.where(inside, y0 + (y1 - y0) * (slope * t * t + d0 * t * (1 - t)) / below, x), log_slope


def _knots(raw: Array, interval: float) -> Array:
    """Rising knots over the interval, no bin narrower than a thousandth: ``(..., K) -> (..., K + 1)``."""
    bins = raw.shape[-1]
    widths = _MINIMUM + (1 - bins * _MINIMUM) * jax.nn.softmax(raw, -1)
    # A product with a triangle of ones compiles faster than a cumulative sum.
    inner = 2 * interval * (widths @ jnp.triu(jnp.ones((bins, bins), raw.dtype)))[..., :-1] - interval
    end = jnp.full((*raw.shape[:-1], 1), interval, raw.dtype)
    return jnp.concatenate([-end, inner, end], -1)
