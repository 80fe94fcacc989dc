"""Array programs of a model density: functions ``(data, ...) -> arrays`` built from a structure, for ``jax.jit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import random
from numpyro import distributions as dist
from numpyro.distributions import biject_to
from numpyro.distributions.util import is_identically_one
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import constrain_fn, potential_energy
from numpyro.primitives import Messenger

from ppl_samplers.backends.numpyro.bulk import clean_value_and_grad, clean_values, map_rows, raw_values
from ppl_samplers.backends.numpyro.discovery import Site, Structure, latent_sites

Array = jax.Array


class Arguments:
    """Model arguments, taken apart into arrays (which may change under ``jit``) and everything else.

    With ``traced=False`` all of them are constants of the compiled programs: for models that look at their data with
    Python or NumPy.
    """

    def __init__(self, args: tuple, kwargs: Mapping[str, Any], *, traced: bool):
        self.args, self.kwargs = tuple(args), dict(kwargs)
        self.data: tuple = ()
        self.key: Any = None
        self.rebuild: Callable = lambda data: (self.args, self.kwargs)
        if not traced:
            return
        leaves, treedef = jax.tree.flatten((self.args, self.kwargs))
        moving = [_is_array(leaf) for leaf in leaves]
        static = tuple(None if m else leaf for leaf, m in zip(leaves, moving, strict=True))
        self.data = tuple(jnp.asarray(leaf) for leaf, m in zip(leaves, moving, strict=True) if m)

        def rebuild(data: tuple) -> tuple[tuple, dict]:
            rest = iter(data)
            return jax.tree.unflatten(treedef, [next(rest) if m else s for s, m in zip(static, moving, strict=True)])

        self.rebuild = rebuild
        # Programs are shared between data sets only where everything but the arrays is equal.
        key = (treedef, tuple(moving), static, tuple(type(s) for s in static))
        try:
            hash(key)
        except TypeError:
            return
        self.key = key


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc")


@dataclass(frozen=True)
class Parts:
    """What every program is built from; it holds no data of its own when the arguments are traced."""

    structure: Structure
    rebuild: Callable
    batch_size: int | None

    def single(self, data: Any, v: Array) -> Array:
        """Log joint of one flat point ``(D,)``, Jacobian included."""
        args, kwargs = self.rebuild(data)
        return self.structure.log_joint(unravel(self.structure.space, v), args, kwargs)


def ravel(space: tuple[Site, ...], values: Mapping[str, Any]) -> Array:
    """Unconstrained dict -> ``(..., D)``, in the order of ``space``."""
    missing = [s.name for s in space if s.name not in values]
    if missing:
        raise KeyError(f"no value for site {missing[0]!r}; the latent sites are {[s.name for s in space]}")
    arrays = [jnp.asarray(values[s.name]) for s in space]
    leads = [a.shape[: a.ndim - len(s.unconstrained_shape)] for s, a in zip(space, arrays, strict=True)]
    for s, a, lead in zip(space, arrays, leads, strict=True):
        if a.shape != lead + s.unconstrained_shape:
            raise ValueError(f"site {s.name!r}: shape {a.shape} does not end in {s.unconstrained_shape}")
    lead = jnp.broadcast_shapes(*leads)
    flat = [
        jnp.broadcast_to(a, lead + s.unconstrained_shape).reshape((*lead, -1))
        if a.size
        else jnp.zeros((*lead, 0), a.dtype)
        for s, a in zip(space, arrays, strict=True)
    ]
    return jnp.concatenate(flat, -1)


def unravel(space: tuple[Site, ...], x: Array) -> dict[str, Array]:
    """``(..., D)`` -> dict of unconstrained sites, leading shape kept."""
    return {s.name: x[..., s.slice].reshape(x.shape[:-1] + s.unconstrained_shape) for s in space}


def site_log_probs(structure: Structure, v: Array, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Array]:
    """Log density of every site at one flat point, masks and scales applied; ``_<site>_log_det`` are Jacobians."""
    recorder = trace(structure.base)

    def model(*args: Any, **kwargs: Any) -> None:
        recorder.get_trace(*args, **kwargs)

    # Run through potential_energy, so that Jacobians pass the same masks and scales as in the density itself.
    potential_energy(model, args, kwargs, unravel(structure.space, v))
    out = {}
    for name, site in recorder.trace.items():
        if site["type"] != "sample":
            continue
        fn, inner = site["fn"], site["intermediates"]
        log_prob = fn.log_prob(site["value"], inner) if inner else fn.log_prob(site["value"])
        scale = site["scale"]
        out[name] = log_prob if scale is None or is_identically_one(scale) else scale * log_prob
    return out


class _PriorOnly(Messenger):
    """Leave the observations and factors of the model out of the density; keep the Jacobians."""

    def __init__(self, fn: Callable, keep: frozenset[str]):
        self.keep = keep
        super().__init__(fn)

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and msg["name"] not in self.keep:
            msg["fn"] = msg["fn"].mask(False)


def _jacobians(structure: Structure) -> frozenset[str]:
    return frozenset(f"_{s.name}_log_det" for s in structure.space)


def value(parts: Parts) -> Callable:
    """``(data, (N, D)) -> (N,)``, cleaned, once differentiable."""
    return clean_values(parts.single, None, parts.batch_size)


def raw(parts: Parts) -> Callable:
    """``(data, (N, D)) -> (N,)``, as the model gives it."""
    return raw_values(parts.single, None, parts.batch_size)


def value_and_grad(parts: Parts) -> Callable:
    """``(data, (N, D)) -> (N,), (N, D)``, cleaned."""
    return clean_value_and_grad(parts.single, None, parts.batch_size)


def log_prior(parts: Parts) -> Callable:
    """``(data, (N, D)) -> (N,)``: latent sites and Jacobians only."""
    structure, jacobians = parts.structure, _jacobians(parts.structure)
    latent = jacobians | {s.name for s in structure.space}

    def single(data: Any, v: Array) -> Array:
        args, kwargs = parts.rebuild(data)
        if structure.enum:
            from numpyro.contrib.funsor import config_enumerate, enum

            model = enum(config_enumerate(_PriorOnly(structure.base, jacobians)), structure.first_available_dim)
            return -potential_energy(model, args, kwargs, unravel(structure.space, v), enum=True)
        terms = site_log_probs(structure, v, args, kwargs)
        return sum((jnp.sum(t) for k, t in terms.items() if k in latent), start=jnp.zeros((), v.dtype))

    return lambda data, x: map_rows(lambda v: single(data, v), x, parts.batch_size)


def prior_terms(parts: Parts) -> Callable:
    """``(data, (N, D)) -> dict``: log prior of each latent site without its Jacobian, each ``(N,)``."""
    structure = parts.structure

    def single(data: Any, v: Array) -> dict[str, Array]:
        args, kwargs = parts.rebuild(data)
        terms = site_log_probs(structure, v, args, kwargs)
        return {s.name: jnp.sum(terms[s.name]) for s in structure.space}

    return lambda data, x: map_rows(lambda v: single(data, v), x, parts.batch_size)


def site_terms(parts: Parts) -> Callable:
    """``(data, (N, D)) -> dict``: pointwise log densities of observed sites and factors, each ``(N, ...)``."""
    structure = parts.structure
    wanted = structure.observed + structure.factors

    def single(data: Any, v: Array) -> dict[str, Array]:
        args, kwargs = parts.rebuild(data)
        terms = site_log_probs(structure, v, args, kwargs)
        return {k: terms[k] for k in wanted}

    return lambda data, x: map_rows(lambda v: single(data, v), x, parts.batch_size)


def constrain(parts: Parts, deterministic: bool) -> Callable:
    """``(data, (N, D)) -> dict`` of constrained sites, each ``(N, ...)``; the model is replayed only where needed."""
    structure = parts.structure
    replay = structure.dynamic_support or (deterministic and structure.deterministic)
    wanted = {s.name for s in structure.space} | (set(structure.deterministic) if deterministic else set())

    def single(data: Any, v: Array) -> dict[str, Array]:
        sites = unravel(structure.space, v)
        if not replay:
            return {k: structure.transforms[k](u) for k, u in sites.items()}
        args, kwargs = parts.rebuild(data)
        out = constrain_fn(structure.seeded(), args, kwargs, sites, return_deterministic=deterministic)
        return {k: out[k] for k in wanted}

    return lambda data, x: map_rows(lambda v: single(data, v), x, parts.batch_size)


def unconstrain(parts: Parts) -> Callable:
    """``(data, dict of (N, ...)) -> (N, D)``."""
    structure = parts.structure

    def single(data: Any, values: dict[str, Array]) -> Array:
        transforms = structure.transforms
        if structure.dynamic_support:
            args, kwargs = parts.rebuild(data)
            run = trace(substitute(structure.seeded(), data=values)).get_trace(*args, **kwargs)
            transforms = {s["name"]: biject_to(s["fn"].support) for s in latent_sites(run)}
        return ravel(structure.space, {k: transforms[k].inv(v) for k, v in values.items()})

    return lambda data, values: map_rows(lambda v: single(data, v), values, parts.batch_size)


def prior(parts: Parts) -> Callable:
    """``(data, keys (N,)) -> (N, D)``: ancestral draws, one per key, on the unconstrained space."""
    structure = parts.structure

    def single(data: Any, key: Array) -> Array:
        args, kwargs = parts.rebuild(data)
        run = trace(seed(structure.base, key)).get_trace(*args, **kwargs)
        sites = {s["name"]: biject_to(s["fn"].support).inv(s["value"]) for s in latent_sites(run)}
        return ravel(structure.space, sites)

    return lambda data, keys: map_rows(lambda k: single(data, k), keys, parts.batch_size)


def observed(structure: Structure, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the observed sites, from one run of the model."""
    with jax.ensure_compile_time_eval(), numpyro.validation_enabled(False):
        run = trace(seed(substitute(structure.base, data=structure.prototype), random.key(0))).get_trace(
            *args, **kwargs
        )
    return {
        k: jnp.asarray(s["value"])
        for k, s in run.items()
        if s["type"] == "sample" and s["is_observed"] and not isinstance(s["fn"], dist.Unit)
    }
