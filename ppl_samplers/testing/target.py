"""What an exact target is, and the round Gaussian mixtures that many targets are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of

from ppl_samplers.core.logspace import logsumexp

Array = Any
LOG_2PI = log(2 * pi)


@dataclass(frozen=True)
class Target:
    """A density with known answers.

    Attributes:
        name: Short name.
        dim: Dimensions ``D``.
        log_z: Exact log normalising constant.
        log_density: Unnormalised log density, ``(N, D) -> (N,)``, in the namespace and dtype of its argument.
        sample: ``(numpy Generator, n) -> (n, D)``, exact independent draws, float64.
        mode_labels: ``(N, D) -> (N,)`` integers, which mode a point (NumPy) belongs to; all 0 with one mode.
        mode_weights: Exact share of each label, ``(K,)``; ``None`` where there are too many to list.
        mean: Exact mean, ``(D,)``, or ``None``.
        sd: Exact standard deviations, ``(D,)``, or ``None``.

    Example:
        >>> from ppl_samplers.testing.targets import two_gaussians
        >>> target = two_gaussians()
        >>> draws = target.sample(np.random.default_rng(0), 1000)
        >>> draws.shape, round(float(target.mode_weights[0]), 2)
        ((1000, 1), 0.5)
    """

    name: str
    dim: int
    log_z: float
    log_density: Callable[[Array], Array]
    sample: Callable[[np.random.Generator, int], np.ndarray]
    mode_labels: Callable[[np.ndarray], np.ndarray]
    mode_weights: np.ndarray | None
    mean: np.ndarray | None = None
    sd: np.ndarray | None = None


def one_mode(x: np.ndarray) -> np.ndarray:
    """Labels of a target with one mode: all 0."""
    return np.zeros(len(x), dtype=int)


def like(value: Any, x: Array) -> Array:
    """A constant as an array of the namespace, dtype and device of ``x``."""
    xp = array_namespace(x)
    return xp.asarray(np.asarray(value, dtype=np.float64), dtype=x.dtype, device=device_of(x))


def gaussian_mixture(
    means: np.ndarray, scales: np.ndarray, weights: np.ndarray, *, log_z: float = 0.0, name: str = "mixture"
) -> Target:
    """Mixture of round Gaussians.

    Args:
        means: ``(K, D)``.
        scales: Standard deviation of each component, ``(K,)``.
        weights: Share of each component, ``(K,)``, summing to one.
        log_z: Constant added to the log density.
        name: Name of the target.
    """
    means, scales, weights = (np.asarray(a, dtype=np.float64) for a in (means, scales, weights))
    count, dim = means.shape
    offsets = np.log(weights) - dim * np.log(scales) - 0.5 * dim * LOG_2PI + log_z

    def components(x: Array) -> Array:
        xp = array_namespace(x)
        z = (x[:, None, :] - like(means, x)) / like(scales, x)[:, None]
        return like(offsets, x) - 0.5 * xp.sum(z * z, axis=-1)

    def sample(rng: np.random.Generator, n: int) -> np.ndarray:
        k = rng.choice(count, size=n, p=weights)
        return means[k] + scales[k, None] * rng.standard_normal((n, dim))

    mean = weights @ means
    variance = weights @ (scales[:, None] ** 2 + means**2) - mean**2
    return Target(
        name,
        dim,
        float(log_z),
        log_density=lambda x: logsumexp(components(x), axis=1),
        sample=sample,
        mode_labels=lambda x: np.argmax(components(np.asarray(x, dtype=np.float64)), axis=1),
        mode_weights=weights,
        mean=mean,
        sd=np.sqrt(variance),
    )
