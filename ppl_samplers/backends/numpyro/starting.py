"""Starting points with a finite density, and words for when there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ppl_samplers.backends.jax.noise import uniform

if TYPE_CHECKING:
    from ppl_samplers.backends.numpyro.density import LogDensity

Array = jax.Array

TRIES = 10


def initial_points(density: LogDensity, key: Array, n: int) -> Array:
    """See :meth:`LogDensity.initial_points`."""
    key, sub = random.split(key)
    x = density.sample_prior(sub, n) if density.has_prior else _uniform(density, sub, n, 2.0)
    good = _good(density, x)

    def again(state: tuple) -> tuple:
        tries, key, x, good = state
        key, sub = random.split(key)
        # Narrower boxes at the end: far out, steep models overflow.
        radius = jnp.where(tries < TRIES // 2, 2.0, 0.5).astype(density.dtype)
        fresh = jnp.where(good[:, None], x, _uniform(density, sub, n, radius))
        return tries + 1, key, fresh, _good(density, fresh)

    _, _, x, good = jax.lax.while_loop(lambda s: (s[0] < TRIES) & ~jnp.all(s[3]), again, (0, key, x, good))
    if not isinstance(good, jax.core.Tracer) and n > 0 and not np.any(np.asarray(good)):
        raise ValueError(_blame(density, x))
    order = jnp.argsort(~good, stable=True)
    source = order[jnp.arange(n) % jnp.maximum(jnp.sum(good), 1)]
    return jnp.where(good[:, None], x, x[source])


def _uniform(density: LogDensity, key: Array, n: int, radius: Array | float) -> Array:
    return radius * uniform(key, (n, density.dim), density.dtype, -1.0, 1.0)


def _good(density: LogDensity, x: Array) -> Array:
    return jnp.all(jnp.isfinite(x), -1) & jnp.isfinite(density(x))


def _blame(density: LogDensity, x: Array) -> str:
    """Name the terms of the model that are not finite at any point."""
    culprits = ""
    try:
        terms = dict(density.log_likelihood(x))
        if density.has_prior:
            terms["the prior"] = density.log_prior(x)
        terms["the factor terms"] = density.log_factor(x)
    except NotImplementedError:
        terms = {}
    for name, term in terms.items():
        rows = np.asarray(term).reshape(len(x), -1).sum(-1)
        if not np.isfinite(rows).any():
            what = "NaN" if np.isnan(rows).all() else "-inf or NaN"
            culprits += (
                f" '{name}' is {what} at every one of them." if name in density.observed else f" {name}: {what}."
            )
    return (
        f"the log density is not finite at any of {len(x)} starting points after {TRIES} tries.{culprits} "
        "Look for NaN in the data or the covariates and for data outside a distribution's support, or start from "
        "points of your own (init_params)."
    )
