"""Optimiser steps that survive a bad batch, and control flow that stays cheap when chains are mapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

Array = jax.Array


def when(predicate: Array, fn: Callable[[Any], Any], value: Any) -> Any:
    """``fn(value)`` where the scalar ``predicate`` holds, else ``value``; ``fn`` keeps structure, shapes and dtypes.

    A loop of at most one round, not ``lax.cond``: under ``vmap`` a batched ``cond`` runs both branches every time,
    a loop runs only while some predicate holds. Not differentiable in reverse mode.
    """
    return lax.while_loop(lambda c: c[0], lambda c: (jnp.zeros_like(c[0]), fn(c[1])), (predicate, value))[1]


class AdamState(NamedTuple):
    """State of the optimiser: moments, and how many steps were skipped."""

    moments: Any
    skipped: Array


def optimiser(clip: float) -> optax.GradientTransformation:
    """Adam's direction after clipping the global gradient norm."""
    return optax.chain(optax.clip_by_global_norm(clip), optax.scale_by_adam())


def adam_init(params: Any, clip: float) -> AdamState:
    """Fresh optimiser state for ``params``."""
    return AdamState(optimiser(clip).init(params), jnp.zeros((), jnp.int32))


def cosine(progress: Array, base: float, floor: float = 0.05) -> Array:
    """Learning rate falling from ``base`` to ``floor * base`` along a cosine of ``progress`` in [0, 1]."""
    return base * (floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(progress, 0.0, 1.0))))


def adam_step(
    params: Any, state: AdamState, loss: Array, grads: Any, rate: Array, clip: float
) -> tuple[Any, AdamState]:
    """One step; where the loss or a gradient is not finite, nothing changes but the count of skipped steps.

    Args:
        params: Tree of trainable arrays.
        state: Optimiser state.
        loss: Scalar.
        grads: Gradients, a tree like ``params``.
        rate: Learning rate, a scalar.
        clip: Bound of the global gradient norm.
    """
    sound = jnp.isfinite(loss) & jnp.isfinite(optax.global_norm(grads))
    grads = jax.tree.map(lambda g: jnp.where(sound, g, 0.0), grads)
    updates, moments = optimiser(clip).update(grads, state.moments)
    keep = lambda new, old: jnp.where(sound, new, old)  # noqa: E731
    params = jax.tree.map(lambda p, u: keep(p - (rate * u).astype(p.dtype), p), params, updates)
    moments = jax.tree.map(keep, moments, state.moments)
    return params, AdamState(moments, state.skipped + jnp.where(sound, 0, 1).astype(jnp.int32))
