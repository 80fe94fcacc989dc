"""Latent sites on the flat space: their places and transforms, and what the distribution of a site says about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyro.distributions as dist
import torch
from pyro.poutine.subsample_messenger import _Subsample
from torch.distributions import Distribution, biject_to, constraints


@dataclass(frozen=True)
class Site:
    """One latent site on the flat space.

    Attributes:
        name: Name of the site in the model.
        slice: Its columns in the flat vector.
        unconstrained_shape: Shape of its unconstrained value.
        constrained_shape: Shape of its value in the model.
    """

    name: str
    slice: slice
    unconstrained_shape: tuple[int, ...]
    constrained_shape: tuple[int, ...]


@dataclass
class Layout:
    """What the first runs of a model tell about it."""

    space: tuple[Site, ...] = ()
    enumerated: tuple[str, ...] = ()
    max_plate_nesting: int = 0
    dynamic: frozenset[str] = frozenset()
    transforms: dict[str, Any] = field(default_factory=dict)
    params: dict[str, torch.Tensor] = field(default_factory=dict)
    fill: frozenset[str] = frozenset()
    observed: dict[str, torch.Tensor] = field(default_factory=dict)
    deterministic: tuple[str, ...] = ()
    needs_mode: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions."""
        return sum(site.slice.stop - site.slice.start for site in self.space)


def base_of(fn: Any) -> Any:
    """The distribution under ``to_event``, ``mask`` and ``expand``."""
    while isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution, dist.ExpandedDistribution)):
        fn = fn.base_dist
    return fn


def transform_of(fn: Any, name: str) -> Any:
    """The bijection from the unconstrained space onto the support of ``fn``.

    ``VonMises`` declares the whole line as its support although its density is that of an angle; it gets ``(-pi, pi)``.

    Raises:
        ValueError: If the support has no bijection (discrete or unknown).
    """
    if isinstance(base_of(fn), dist.VonMises):
        return biject_to(constraints.independent(constraints.interval(-torch.pi, torch.pi), fn.event_dim))
    try:
        return biject_to(fn.support)
    except NotImplementedError as error:
        raise ValueError(
            f"Site '{name}' ({type(base_of(fn)).__name__}) has a support that cannot be mapped onto real numbers: "
            f"{error}. Write it with a distribution whose support is registered with torch.distributions.biject_to."
        ) from error


def is_discrete(fn: Any) -> bool:
    """Whether ``fn`` draws from a countable set."""
    if getattr(base_of(fn), "has_enumerate_support", False):
        return True
    try:
        return bool(fn.support.is_discrete)
    except (NotImplementedError, AttributeError):
        return False


def is_enumerable(fn: Any) -> bool:
    """Whether all values of ``fn`` can be listed; a vector of discrete numbers cannot, a plate of them can."""
    return not isinstance(fn, _Subsample) and bool(getattr(fn, "has_enumerate_support", False))


def is_continuous_latent(fn: Any) -> bool:
    """Whether a latent site with this distribution takes part in the flat space."""
    return not (isinstance(fn, _Subsample) or isinstance(base_of(fn), dist.Delta) or is_discrete(fn))


def unvalidated(fn: Any) -> Any:
    """``fn`` without argument checks: made outside the model it still has them, and they would raise, not give -inf."""
    if not isinstance(fn, Distribution) or not (fn._validate_args or hasattr(fn, "base_dist")):
        return fn
    # Pyro's Independent forwards the flag to its base: setting it on a shallow copy would change the user's own object.
    plain = object.__new__(type(fn))
    plain.__dict__.update(fn.__dict__, _validate_args=False)
    if hasattr(fn, "base_dist"):
        plain.base_dist = unvalidated(fn.base_dist)
    return plain


def fill_missing(value: torch.Tensor) -> torch.Tensor:
    """Replace NaN by a value of the same tensor: masked entries count nothing, but NaN would poison their gradient."""
    missing = torch.isnan(value)
    present = value[~missing]
    return torch.where(missing, present.flatten()[0] if present.numel() else torch.zeros_like(value), value)
