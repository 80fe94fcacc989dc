"""Checks of a traced NumPyro model: what cannot be sampled is refused with the site's name and a remedy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist

from ppl_samplers.backends.numpyro.evidence_kind import layers
from ppl_samplers.backends.settings import check_observed_shape


def observed_sites(model_trace: Mapping[str, dict]) -> list[dict]:
    """Observed sites of a trace, ``numpyro.factor`` terms left out."""
    return [
        s
        for s in model_trace.values()
        if s["type"] == "sample" and s["is_observed"] and not isinstance(s["fn"], dist.Unit)
    ]


def check_latents(model_trace: Mapping[str, dict]) -> bool:
    """Refuse latent sites without a density; return whether discrete sites have to be summed out."""
    enum = False
    for name, site in model_trace.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if any(isinstance(fn, dist.Delta) for fn in layers(site["fn"])):
            raise ValueError(
                f"latent site '{name}' has a Delta distribution, which has no density to sample from; "
                f"write numpyro.deterministic('{name}', value) instead"
            )
        if not site["fn"].support.is_discrete:
            continue
        enum = True
        advice = (
            f" Sum '{name}' out by hand (for example with dist.MixtureSameFamily), truncate it to a Categorical with "
            "infer={'enumerate': 'parallel'}, or sample it in a block of its own (numpyro.infer.DiscreteHMCGibbs)."
        )
        how = site["infer"].get("enumerate")
        if how is not None and how != "parallel":
            raise RuntimeError(
                "This algorithm might only work for discrete sites with enumerate marked 'parallel'. "
                f"But the site {name} is marked as '{how}'." + advice
            )
        if not site["fn"].has_enumerate_support:
            raise RuntimeError(
                "This algorithm might only work for discrete sites with enumerate support. But the "
                f"{type(site['fn']).__name__} distribution at site {name} does not have enumerate support." + advice
            )
        if how is None:
            warnings.warn(
                f"the discrete latent site '{name}' is summed out; mark it with infer={{'enumerate': 'parallel'}}",
                FutureWarning,
                stacklevel=4,
            )
    return enum


def check_plates(model_trace: Mapping[str, dict]) -> None:
    """Refuse plates that take a part of the data."""
    for name, site in model_trace.items():
        if site["type"] != "plate":
            continue
        size, subsample_size = site["args"]
        if subsample_size is not None and subsample_size < size:
            raise ValueError(
                f"plate '{name}' is subsampled ({subsample_size} of {size}): MCMC engines need the full data; "
                f"write numpyro.plate('{name}', {size}) without subsample_size, or use SVI"
            )


def frozen_sites(model_trace: Mapping[str, dict]) -> tuple[str, ...]:
    """Warn of ``param`` and ``mutable`` sites; return the warning as a note."""
    frozen = [f"'{k}' ({s['type']})" for k, s in model_trace.items() if s["type"] in ("param", "mutable")]
    if not frozen:
        return ()
    note = (
        f"frozen at their initial values: {', '.join(frozen)}; to infer one, give it a prior with numpyro.sample, "
        "or fit it with SVI"
    )
    warnings.warn(note, UserWarning, stacklevel=4)
    return (note,)


def check_observed(model_trace: Mapping[str, dict]) -> None:
    """Refuse NaN data that is not masked; warn of data silently broadcast against their distribution."""
    for site in observed_sites(model_trace):
        name, fn, value = site["name"], site["fn"], site["value"]
        if isinstance(value, jax.core.Tracer):
            continue
        check_observed_shape(name, np.shape(value), fn.batch_shape, fn.event_shape)
        batch = np.shape(value)[: np.ndim(value) - fn.event_dim]
        out = np.broadcast_shapes(batch, fn.batch_shape)
        if np.prod(out) > max(np.prod(batch), np.prod(fn.batch_shape)) and np.prod(batch) > 1:
            warnings.warn(
                f"observed site '{name}': data of shape {batch} and distribution of shape {tuple(fn.batch_shape)} "
                f"broadcast to {out}, so that every row is scored against every other; reshape one of them",
                UserWarning,
                stacklevel=4,
            )
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            continue
        missing = np.isnan(np.asarray(value))
        if not missing.any():
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log_prob = fn.log_prob(jnp.asarray(value))
        rows = missing.reshape((*batch, -1)).any(-1)
        # A mask that covers the NaN entries gives a finite log likelihood, and is what the message asks for.
        if not isinstance(log_prob, jax.core.Tracer) and np.any(rows & ~np.isfinite(np.asarray(log_prob))):
            raise ValueError(
                f"observed site '{name}' holds {int(missing.sum())} NaN of {missing.size} values, so its log "
                "likelihood is NaN at every point; drop these rows, or mask them: "
                f"with numpyro.handlers.mask(mask=~jnp.isnan(y)): numpyro.sample('{name}', ..., obs=y)"
            )
