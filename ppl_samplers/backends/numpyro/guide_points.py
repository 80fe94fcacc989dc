"""Points of a guide's flat space: its sites, their draws as points and back, and where a flow starts from points."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from numpyro.infer.autoguide import AutoContinuous

from ppl_samplers.backends.numpyro.discovery import Site

Array = jax.Array


def guide_space(guide: AutoContinuous) -> tuple[Site, ...]:
    """Sites of an ``AutoContinuous`` guide that has seen its model, in its own flat order."""
    sites, start = [], 0
    for name, value in guide._init_locs.items():
        stop = start + int(np.prod(jnp.shape(value)))
        constrained = jnp.shape(guide.prototype_trace[name]["value"])
        sites.append(Site(name, slice(start, stop), jnp.shape(value), constrained))
        start = stop
    return tuple(sites)


def constrain_points(guide: AutoContinuous, x: Array) -> dict[str, Array]:
    """Flat points ``(n, D)`` to the values of the guide's sites, ``(n, *site shape)``."""
    return {
        site.name: jax.vmap(biject_to(guide.prototype_trace[site.name]["fn"].support))(
            x[:, site.slice].reshape((-1, *site.unconstrained_shape))
        )
        for site in guide_space(guide)
    }


def flatten_draws(guide: AutoContinuous, draws: Mapping[str, Any] | Array) -> np.ndarray:
    """Draws as flat points ``(n, D)`` in the guide's own order; legal while JAX traces, if the draws are concrete."""
    space = guide_space(guide)
    dim = space[-1].slice.stop
    if not isinstance(draws, Mapping):
        x = np.asarray(draws, jnp.result_type(float))
        if x.ndim != 2 or x.shape[1] != dim:
            raise ValueError(
                f"draws must be a dict of sites, or an array of shape (n, {dim}) in the guide's flat order "
                f"{[site.name for site in space]}; got shape {x.shape}"
            )
        return _check_finite(x)
    parts: list[np.ndarray] = []
    for site in space:
        if site.name not in draws:
            raise ValueError(f"draws has no site {site.name!r}; it has {sorted(draws)}")
        value = np.asarray(draws[site.name], jnp.result_type(float))
        lead = value.ndim - len(site.constrained_shape)
        if lead < 1 or value.shape[lead:] != site.constrained_shape:
            raise ValueError(
                f"draws of site {site.name!r} have shape {value.shape}; (n, *{site.constrained_shape}) is needed"
            )
        value = value.reshape((-1, *site.constrained_shape))
        if parts and len(value) != len(parts[0]):
            raise ValueError(
                f"draws of site {site.name!r} are {len(value)}, those of {space[0].name!r} are {len(parts[0])}"
            )
        with jax.ensure_compile_time_eval():
            transform = biject_to(guide.prototype_trace[site.name]["fn"].support)
            part = np.asarray(jax.vmap(transform.inv)(value)).reshape(len(value), -1)
        if not np.isfinite(part).any():
            raise ValueError(f"draws of site {site.name!r} lie outside its support")
        parts.append(part)
    return _check_finite(np.concatenate(parts, -1))


def _check_finite(x: np.ndarray) -> np.ndarray:
    lost = int((~np.isfinite(x).all(-1)).sum())
    if lost == len(x):
        raise ValueError("draws: no draw is finite on the unconstrained space")
    if lost:
        # Weights belong to draws by position, so that none is dropped here.
        warnings.warn(f"{lost} of {len(x)} draws are not finite on the unconstrained space", UserWarning, stacklevel=3)
    return x


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and Cholesky factor of the covariance, a little shrunk; the diagonal alone for few draws."""
    x = np.asarray(x, np.float64)
    x = x[np.isfinite(x).all(-1)]
    n, dim = x.shape
    loc, variance = x.mean(0), np.maximum(x.var(0), 1e-12)
    if n < 2 * dim + 2:
        return loc, np.diag(np.sqrt(variance))
    centred = x - loc
    return loc, np.linalg.cholesky(0.99 * centred.T @ centred / n + 0.01 * np.diag(variance))


def robust(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Medians and half-widths of the central 68 %, as a location and a diagonal factor."""
    low, middle, high = np.quantile(x, [0.16, 0.5, 0.84], axis=0)
    return middle, np.diag(np.clip((high - low) / 2, 1e-3, 1e3))
