"""Words for models that JAX cannot trace, batch or differentiate."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from ppl_samplers.backends.numpyro.discovery import Structure

CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def explain(
    structure: Structure, error: Exception, model: Callable, args: tuple, kwargs: Mapping[str, Any]
) -> NoReturn:
    """Raise the error again, in words that say what to write instead.

    Raises:
        ValueError: The model needs a concrete value of a latent site, or has no reverse-mode derivative.
        Exception: Anything else, as it came.
    """
    if isinstance(error, CONCRETE):
        names = _latents_in_python(structure, args, kwargs)
        which = f"the value of latent site {' or '.join(map(repr, names))}" if names else "the value of a latent site"
        raise ValueError(
            f"the model uses {which} in Python control flow or as a NumPy array{_line(model, error)}. A batched "
            "density has many values at once: write jnp.where(condition, a, b), or numpyro.contrib.control_flow.cond "
            "for a choice between sites, and jnp instead of np"
        ) from error
    if isinstance(error, ValueError) and "Reverse-mode differentiation" in str(error):
        raise ValueError(
            "the model has a lax.while_loop (or a fori_loop with a bound that is not a constant), which has no "
            "gradient: use lax.scan, numpyro.contrib.control_flow.scan, or a fori_loop with constant bounds"
        ) from error
    raise error


def _latents_in_python(structure: Structure, args: tuple, kwargs: Mapping[str, Any]) -> list[str]:
    """Latent sites that break the model when they alone are batched."""
    params = {}
    for name, v in structure.prototype.items():
        params[name] = jnp.asarray(structure.transforms[name].inv(v))
    names = []
    for name in params:
        try:
            jax.vmap(lambda u, name=name: structure.log_joint({**params, name: u}, args, kwargs))(params[name][None])
        except CONCRETE:
            names.append(name)
        except Exception:  # only a search for the name; the first error is what is reported
            pass
    return names


def _line(model: Callable, error: Exception) -> str:
    """The line of the user's model at which it happened."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(model))
    except TypeError:
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path and f.line]
    return f" (line {frames[-1].lineno}: `{frames[-1].line}`)" if frames else ""
