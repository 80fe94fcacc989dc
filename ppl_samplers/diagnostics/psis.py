"""Pareto-smoothed importance sampling through ArviZ, with one sign convention for its two generations."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ppl_samplers.core.weights import sanitize

# Below 25 draws fewer than five lie in the tail, and a generalised Pareto distribution has no fit.
MIN_DRAWS = 25


# Emptied by the first use.
_first_use = [True]


@contextmanager
def keep_generator() -> Iterator[None]:
    """Put NumPy's global generator back afterwards.

    The parts that ArviZ 1.x loads on first use draw random numbers, and a user's seeded stream must not depend on that.
    """
    state = np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def arviz() -> Any:
    """The ``arviz`` module, imported late, quietly, and without a trace in NumPy's global generator."""
    if _first_use:
        with warnings.catch_warnings(), keep_generator():
            warnings.simplefilter("ignore")
            try:
                import arviz as az
            except ImportError as error:  # pragma: no cover - a base dependency
                raise ImportError("This needs ArviZ: pip install arviz") from error
            if int(az.__version__.split(".")[0]) >= 1:
                from arviz_stats.base import array_stats  # pyright: ignore[reportMissingImports]

                array_stats.psislw(np.linspace(0.0, 1.0, 100))
        _first_use.clear()
    return sys.modules["arviz"]


def arviz_major() -> int:
    """Major version of ArviZ: 0 (``InferenceData``) or 1 (``xarray.DataTree``)."""
    return int(arviz().__version__.split(".")[0])


def psis(log_w: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smoothed, normalised log weights and the tail index k-hat.

    Args:
        log_w: Raw log weights ``log p - log q`` of independent proposals, ``(N,)``, any offset. ``-inf``, NaN and
            ``+inf`` count as weight zero.

    Returns:
        Smoothed log weights ``(N,)`` with ``sum(exp) == 1``, and k-hat. Equal weights have no tail: k-hat is 0. With
        fewer than 25 positive weights nothing is smoothed and k-hat is NaN.

    References:
        Aki Vehtari, Daniel Simpson, Andrew Gelman, Yuling Yao, Jonah Gabry, Pareto Smoothed Importance Sampling, 2024.

    Example:
        >>> x = 0.8 * np.random.default_rng(0).standard_normal(8000)     # proposal N(0, 0.8^2), target N(0, 1)
        >>> log_w = -0.5 * x**2 + 0.5 * (x / 0.8) ** 2
        >>> smoothed, k = psis(log_w)
        >>> bool(0.2 < k < 0.45), round(float(np.exp(smoothed).sum()), 6)
        (True, 1.0)
    """
    lw = sanitize(np.asarray(log_w, dtype=np.float64).ravel())
    positive = np.isfinite(lw)
    if not positive.any():
        return lw, float("nan")
    lw = lw - lw.max()
    normalised = lw - np.log(np.exp(lw).sum())
    if positive.sum() < MIN_DRAWS:
        return normalised, float("nan")
    if np.ptp(lw[positive]) < 1e-6:
        return normalised, 0.0
    # Weights of zero are no part of an upper tail: it is fitted without them.
    fitted = lw[positive]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if arviz_major() >= 1:
            from arviz_stats.base import array_stats  # pyright: ignore[reportMissingImports]

            # Written for leave-one-out log likelihoods: it smooths the negative of its argument.
            smoothed, k = array_stats.psislw(-fitted)
        else:
            smoothed, k = arviz().psislw(fitted.copy())
    out = np.full(lw.shape, -np.inf)
    out[positive] = smoothed
    return out, float(k)


def khat(log_w: np.ndarray) -> float:
    """Tail index k-hat of log weights ``(N,)``; see :func:`psis` for short and constant inputs."""
    return psis(log_w)[1]


def khat_threshold(count: int) -> float:
    """Largest k-hat that ``count`` independent proposals can carry, ``min(1 - 1 / log10(count), 0.7)``.

    References:
        Aki Vehtari, Daniel Simpson, Andrew Gelman, Yuling Yao, Jonah Gabry, Pareto Smoothed Importance Sampling, 2024.
    """
    return min(1 - 1 / np.log10(count), 0.7) if count > 10 else 0.0
