"""A function of one point, evaluated on many: cleaned values, cleaned gradients, chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


def clean(v: Array) -> Array:
    """Log densities with NaN and ``+inf`` replaced by ``-inf``: such a point has weight zero."""
    return jnp.where(jnp.isnan(v) | (v == jnp.inf), -jnp.inf, v)


def map_rows(single: Callable, x: Any, batch_size: int | None) -> Any:
    """Map ``single`` over the rows of ``x``, all at once or in chunks of ``batch_size``."""
    n = jax.tree.leaves(x)[0].shape[0]
    if batch_size is None or n <= batch_size:
        return jax.vmap(single)(x)
    return jax.lax.map(single, x, batch_size=batch_size)


def raw_values(single: Callable, batched: Callable | None, batch_size: int | None) -> Callable:
    """``(data, x (N, D)) -> (N,)``: the plain density, differentiable any number of times.

    Args:
        single: ``(data, v (D,)) -> ()``.
        batched: ``(data, x (N, D)) -> (N,)`` where one exists, else ``None``.
        batch_size: Points evaluated at once; ``None`` for all.
    """

    def values(data: Any, x: Array) -> Array:
        if batched is not None and (batch_size is None or x.shape[0] <= batch_size):
            return batched(data, x)
        return map_rows(lambda v: single(data, v), x, batch_size)

    return values


def clean_value_and_grad(single: Callable, batched: Callable | None, batch_size: int | None) -> Callable:
    """``(data, x (N, D)) -> (N,), (N, D)``, with gradients zeroed at points without a finite density or gradient."""

    def value_and_grad(data: Any, x: Array) -> tuple[Array, Array]:
        if batched is not None and (batch_size is None or x.shape[0] <= batch_size):
            v, pull = jax.vjp(lambda y: batched(data, y), x)
            (g,) = pull(jnp.ones_like(v))
        else:
            v, g = map_rows(jax.value_and_grad(lambda u: single(data, u)), x, batch_size)
        v = clean(v)
        ok = jnp.isfinite(v)[:, None] & jnp.all(jnp.isfinite(g), -1, keepdims=True)
        return v, jnp.where(ok, g, 0.0)

    return value_and_grad


def clean_values(single: Callable, batched: Callable | None, batch_size: int | None) -> Callable:
    """``(data, x (N, D)) -> (N,)``: cleaned density, differentiable once in reverse mode with respect to ``x``.

    The gradient is computed with the value, so that a point outside the support or a NaN branch of ``where`` never
    reaches a loss. Zeroed gradients bias training only; the values keep their ``-inf``.
    """
    values = raw_values(single, batched, batch_size)
    value_and_grad = clean_value_and_grad(single, batched, batch_size)

    @jax.custom_vjp
    def logp(data: Any, x: Array) -> Array:
        return clean(values(data, x))

    def forward(data: Any, x: Array) -> tuple[Array, Array]:
        return value_and_grad(data, x)

    def backward(g: Array, ct: Array) -> tuple[None, Array]:
        return None, jnp.where(jnp.isfinite(ct), ct, 0.0)[:, None] * g

    logp.defvjp(forward, backward)
    return logp
