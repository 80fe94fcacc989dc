"""Random arrays that compile quickly."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import random

Array = jax.Array


def normal(key: Array, shape: tuple[int, ...], dtype: Any = None) -> Array:
    """Standard normal noise, the same numbers as ``jax.random.normal``.

    Drawn along one axis: the generator over two takes XLA's CPU compiler six times as long.
    """
    return random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def uniform(key: Array, shape: tuple[int, ...], dtype: Any = None, low: Any = 0.0, high: Any = 1.0) -> Array:
    """Uniform noise on ``[low, high)``, the same numbers as ``jax.random.uniform``; see :func:`normal`."""
    return random.uniform(key, (math.prod(shape),), dtype, low, high).reshape(shape)


def gumbel(key: Array, shape: tuple[int, ...], dtype: Any = None) -> Array:
    """Standard Gumbel noise, the same numbers as ``jax.random.gumbel``; see :func:`normal`."""
    return random.gumbel(key, (math.prod(shape),), dtype).reshape(shape)
