"""What the normalising constant of a model means, and whether its prior can be sampled, read off a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from numpyro import distributions as dist


def layers(fn: Any) -> Iterator[Any]:
    """A distribution and everything it wraps (masked, expanded, independent, transformed)."""
    while fn is not None:
        yield fn
        fn = getattr(fn, "base_dist", None)


def evidence_kind(model_trace: Mapping[str, dict]) -> tuple[str, str]:
    """Classify the evidence as ``"absolute"``, ``"relative"`` or ``"undefined"``, with the reason in words.

    Args:
        model_trace: Trace of the model.
    """
    undefined, relative = [], []
    samples = [s for s in model_trace.values() if s["type"] == "sample"]
    factors = [s["name"] for s in samples if s["is_observed"] and isinstance(s["fn"], dist.Unit)]
    for site in samples:
        name = site["name"]
        latent = not site["is_observed"]
        if latent and is_improper(site):
            undefined.append(f"the prior of '{name}' is improper (it has no finite total)")
        elif latent and is_masked(site):
            # A reparametrisation may mask a prior and put it back as a factor; without factors it is simply flat.
            if factors:
                relative.append(f"the prior of '{name}' is masked and only factor terms replace it")
            else:
                undefined.append(
                    f"the prior of '{name}' is masked, which leaves it flat; for missing data make only the missing "
                    "entries latent"
                )
        elif not latent and is_masked(site):
            relative.append(f"observations of '{name}' are masked, so it is the evidence of the others only")
        if _is_scaled(site):
            relative.append(f"the log density of '{name}' is multiplied by handlers.scale")
        if not latent and _has_log_density(site):
            relative.append(f"'{name}' is a Delta with a log density of its own, whose constant is arbitrary")
    if factors:
        relative.append(f"factor terms ({', '.join(repr(f) for f in factors)}) have arbitrary constants")
    if undefined:
        return "undefined", "; ".join(undefined)
    if relative:
        return "relative", "; ".join(relative)
    return "absolute", "every prior is proper and every likelihood term is kept with its constants"


def prior_reason(model_trace: Mapping[str, dict]) -> str:
    """Why the prior cannot be sampled, in words; empty if it can."""
    reasons = []
    for site in model_trace.values():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if is_improper(site):
            reasons.append(f"the prior of '{site['name']}' is improper")
        elif is_masked(site):
            reasons.append(f"the prior of '{site['name']}' is masked")
    return "; ".join(reasons)


def is_improper(site: Mapping[str, Any]) -> bool:
    """Whether a site has an improper distribution under all its wrappers."""
    return any(isinstance(fn, dist.ImproperUniform) for fn in layers(site["fn"]))


def is_masked(site: Mapping[str, Any]) -> bool:
    """Whether a mask takes away a part of a site's density."""
    for fn in layers(site["fn"]):
        mask = getattr(fn, "_mask", None)
        if mask is None or mask is True:
            continue
        # The value of a traced mask is unknown; a mask is there to be used.
        if mask is False or isinstance(mask, jax.core.Tracer) or not np.all(np.asarray(mask)):
            return True
    return False


def _is_scaled(site: Mapping[str, Any]) -> bool:
    scale = site.get("scale")
    if scale is None:
        return False
    return isinstance(scale, jax.core.Tracer) or bool(np.any(np.asarray(scale) != 1))


def _has_log_density(site: Mapping[str, Any]) -> bool:
    for fn in layers(site["fn"]):
        if isinstance(fn, dist.Delta):
            extra = fn.log_density
            return isinstance(extra, jax.core.Tracer) or bool(np.any(np.asarray(extra) != 0))
    return False
