"""What a NumPyro model is made of: one traced run, checked, before anything is sampled or trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import random
from numpyro import distributions as dist
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import helpful_support_errors, potential_energy
from numpyro.primitives import Messenger

from ppl_samplers.backends.numpyro.checks import (
    check_latents,
    check_observed,
    check_plates,
    frozen_sites,
    observed_sites,
)
from ppl_samplers.backends.numpyro.evidence_kind import evidence_kind, prior_reason


class Site(NamedTuple):
    """One latent site and its place in the flat vector.

    Attributes:
        name: Site name as in the model.
        slice: Columns of the flat vector, ``x[..., slice]``.
        unconstrained_shape: Shape of the site on the unconstrained space.
        constrained_shape: Shape of the site's value.
    """

    name: str
    slice: slice
    unconstrained_shape: tuple[int, ...]
    constrained_shape: tuple[int, ...]


class _DefaultKey(Messenger):
    """Answer ``numpyro.prng_key()`` with a fixed key, so that the density is one function and not a random one."""

    used = False

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = random.key(0)
            self.used = True


@dataclass(frozen=True)
class Structure:
    """What stays the same when a model gets other data of the same kind.

    Attributes:
        base: The model with ``param`` and ``mutable`` sites frozen and ``prng_key()`` answered.
        prepared: The same, with discrete latent sites enumerated where there are any.
        enum: Whether discrete sites are summed out.
        first_available_dim: First batch dimension free for that.
        space: Latent sites in trace order.
        transforms: Bijection to the support of each latent site, as seen in the traced run.
        dynamic_support: Whether a support may depend on other sites or on data; bijections are then computed anew.
        order: All sites that :meth:`LogDensity.constrain` returns, in trace order.
        deterministic: Names of the deterministic sites among them.
        observed: Names of the observed sites, factors left out.
        factors: Names of ``numpyro.factor`` sites.
        prototype: One constrained value per latent site.
        evidence_kind, evidence_reason: See :class:`LogDensity`.
        prior_reason: Why the prior cannot be sampled; empty if it can.
        notes: Sentences for the user.
    """

    base: Callable
    prepared: Callable
    enum: bool
    first_available_dim: int
    space: tuple[Site, ...]
    transforms: Mapping[str, Any]
    dynamic_support: bool
    order: tuple[str, ...]
    deterministic: tuple[str, ...]
    observed: tuple[str, ...]
    factors: tuple[str, ...]
    prototype: Mapping[str, Any]
    evidence_kind: str
    evidence_reason: str
    prior_reason: str
    notes: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions, ``D``."""
        return self.space[-1].slice.stop if self.space else 0

    def log_joint(self, params: Mapping[str, Any], args: tuple, kwargs: Mapping[str, Any]) -> jax.Array:
        """Log joint of one unconstrained point, Jacobian included: a scalar."""
        return -potential_energy(self.prepared, args, kwargs, params, enum=self.enum)

    def seeded(self, key: Any = 0) -> Callable:
        """The model with a fixed seed where it still has to draw something (discrete sites)."""
        return seed(self.base, key) if self.enum else self.base


def latent_sites(model_trace: Mapping[str, dict]) -> list[dict]:
    """Continuous latent sites of a trace, in trace order."""
    return [
        s
        for s in model_trace.values()
        if s["type"] == "sample" and not s["is_observed"] and not s["fn"].support.is_discrete
    ]


def discover(model: Callable, args: tuple, kwargs: Mapping[str, Any], key: jax.Array) -> Structure:
    """Run the model once and find its space; refuse what cannot be sampled, naming the site and the remedy.

    Args:
        model: NumPyro model.
        args: Positional arguments of the model.
        kwargs: Keyword arguments of the model.
        key: One PRNG key for the traced run.

    Returns:
        The structure of the model.

    Raises:
        ValueError: No latent site, a latent ``Delta``, a subsampled plate, NaN in an observed site, or a support
            without a bijection.
        RuntimeError: A discrete latent site that cannot be enumerated.
        ImportError: A discrete latent site without funsor installed.
    """
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model (a function), got {type(model).__name__}")
    # Under an outer jit the traced run must still be concrete, or no bound could be read and no data checked.
    # Validation is off because its messages do not name a site; starting.py does, once no point at all is valid.
    with jax.ensure_compile_time_eval(), numpyro.validation_enabled(False):
        seeded = substitute(seed(model, key), substitute_fn=init_to_uniform())
        model_trace = trace(seeded).get_trace(*args, **kwargs)
        enum = check_latents(model_trace)
        check_plates(model_trace)
        notes = frozen_sites(model_trace)
        check_observed(model_trace)
        space, transforms, prototype = _space(model_trace)
    dynamic = not all(_fixed(model_trace[name]["fn"].support) for name in transforms)
    frozen = {k: s["value"] for k, s in model_trace.items() if s["type"] in ("param", "mutable")}
    base = _DefaultKey(substitute(model, data=frozen))
    first = _first_available_dim(model_trace)
    prepared = _enumerated(base, model_trace, first) if enum else base
    kind, reason = evidence_kind(model_trace)
    deterministic = tuple(k for k, s in model_trace.items() if s["type"] == "deterministic")
    if enum and deterministic:
        deterministic, note = _settled(base, deterministic, model_trace, args, kwargs)
        notes += note
    names = {s.name for s in space}
    return Structure(
        base=base,
        prepared=prepared,
        enum=enum,
        first_available_dim=first,
        space=space,
        transforms=transforms,
        dynamic_support=dynamic,
        order=tuple(k for k in model_trace if k in names or k in deterministic),
        deterministic=deterministic,
        observed=tuple(s["name"] for s in observed_sites(model_trace)),
        factors=tuple(k for k, s in model_trace.items() if s["type"] == "sample" and isinstance(s["fn"], dist.Unit)),
        prototype=prototype,
        evidence_kind=kind,
        evidence_reason=reason,
        prior_reason=prior_reason(model_trace),
        notes=notes,
    )


def _fixed(support: Any) -> bool:
    """Whether every bound of a support is a plain number; an array may come from a latent site or from the data."""
    return all(isinstance(leaf, (int, float)) for leaf in jax.tree.leaves(support))


def _space(model_trace: Mapping[str, dict]) -> tuple[tuple[Site, ...], dict[str, Any], dict[str, Any]]:
    sites, transforms, prototype, start = [], {}, {}, 0
    for site in latent_sites(model_trace):
        name = site["name"]
        with helpful_support_errors(site, raise_warnings=True):
            transforms[name] = biject_to(site["fn"].support)
        prototype[name] = site["value"]
        shape = jnp.shape(transforms[name].inv(site["value"]))
        stop = start + int(np.prod(shape))
        sites.append(Site(name, slice(start, stop), shape, jnp.shape(site["value"])))
        start = stop
    if start == 0:
        seen = [s["name"] for s in model_trace.values() if s["type"] == "sample"]
        where = f"its sample sites {seen} are observed, discrete or empty" if seen else "it has no sample site"
        raise ValueError(
            f"the model has no continuous latent site: {where}; "
            "write numpyro.sample(name, distribution) without obs= for what is to be inferred"
        )
    return tuple(sites), transforms, prototype


def _first_available_dim(model_trace: Mapping[str, dict]) -> int:
    frames = [f for s in model_trace.values() if s["type"] == "sample" for f in s["cond_indep_stack"]]
    return min((f.dim for f in frames if f.dim is not None), default=0) - 1


def _enumerated(base: Callable, model_trace: Mapping[str, dict], first_available_dim: int) -> Callable:
    try:
        from numpyro.contrib.funsor import config_enumerate, enum
    except ImportError as error:
        raise ImportError("discrete latent sites are summed out with funsor: pip install funsor") from error
    from numpyro.util import _validate_model

    # With enumeration a batch dimension without a plate gives a wrong density and no error, so it is refused.
    _validate_model(model_trace, plate_warning="error")
    return enum(config_enumerate(base), first_available_dim)


def _settled(
    base: Callable, names: tuple[str, ...], model_trace: Mapping[str, dict], args: tuple, kwargs: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Deterministic sites that do not depend on a discrete site; the others have no value once it is summed out."""
    latents = {s["name"]: s["value"] for s in latent_sites(model_trace)}
    with numpyro.validation_enabled(False):
        runs = [trace(seed(substitute(base, data=latents), random.key(k))).get_trace(*args, **kwargs) for k in range(4)]
    moving = []
    for name in names:
        values = [r[name]["value"] for r in runs]
        if any(isinstance(v, jax.core.Tracer) for v in values):
            continue
        if any(not np.array_equal(np.asarray(values[0]), np.asarray(v)) for v in values[1:]):
            moving.append(name)
    if not moving:
        return names, ()
    note = (
        f"deterministic sites {moving} depend on discrete sites that are summed out and are not returned; "
        "use numpyro.infer.Predictive(model, samples, infer_discrete=True)"
    )
    return tuple(n for n in names if n not in moving), (note,)
