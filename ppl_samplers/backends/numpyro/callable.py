"""A plain JAX function in the place of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ppl_samplers.backends.numpyro.bulk import clean_value_and_grad, clean_values, raw_values
from ppl_samplers.backends.numpyro.compiled import one_key
from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.backends.numpyro.discovery import Site
from ppl_samplers.backends.numpyro.programs import Arguments
from ppl_samplers.backends.numpyro.traceable import CONCRETE
from ppl_samplers.backends.settings import NO_ARGUMENTS, NO_GRADIENT, black_box

Array = jax.Array


class CallableDensity(LogDensity):
    """See :meth:`LogDensity.from_callable`."""

    def __init__(
        self,
        fn: Callable,
        dim: int,
        *,
        batched: bool,
        sample_prior: Callable | None,
        names: str | tuple[str, ...] | None,
        batch_size: int | None,
        gradient: bool = True,
    ):
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.model = None
        self.model_args, self.model_kwargs = (), {}
        self.has_gradient = gradient
        if not gradient:
            fn, batched = _callback(black_box(fn, dim)), True
        self._fn, self._batched, self._sample_prior = fn, batched, sample_prior
        self._setup(_space(dim, names), batch_size)
        self.evidence_kind = "relative"
        self.evidence_reason = (
            "it is the integral of exp(fn); a model's evidence only if fn is a log joint with all its constants"
        )
        self.prior_reason = "" if sample_prior is not None else "the density is a function, given without sample_prior="
        self.notes = () if gradient else (NO_GRADIENT,)
        self._traced = False
        self._arguments = Arguments((), {}, traced=False)
        self._check_traceable()

    def bind(self, *args: Any, **kwargs: Any) -> CallableDensity:
        """The density itself; a function takes no model arguments."""
        if args or kwargs:
            raise ValueError(NO_ARGUMENTS)
        return self

    def unconstrain(self, values: Mapping[str, Any]) -> Array:
        """The same as :meth:`ravel`: the space of a function is unconstrained."""
        return self.ravel(values)

    def constrain(self, x: Any, deterministic: bool = True) -> dict[str, Array]:
        """The same as :meth:`unravel`."""
        return self.unravel(x)

    @property
    def observed(self) -> dict[str, Array]:
        """Empty."""
        return {}

    def sample_prior(self, key: Array, n: int) -> Array:
        """``n`` draws of the given ``sample_prior``, ``(n, D)``.

        Raises:
            ValueError: No ``sample_prior`` was given, or it returns a wrong shape.
        """
        if self._sample_prior is None:
            raise ValueError(f"the prior cannot be sampled: {self.prior_reason}")
        x = jnp.asarray(self._sample_prior(one_key(key), n), self.dtype)
        if x.shape != (n, self.dim):
            raise ValueError(f"sample_prior(key, {n}) must return shape {(n, self.dim)}, got {x.shape}")
        return x

    def value_and_grad(self, x: Any) -> tuple[Array, Array]:
        """As of a model.

        Raises:
            ValueError: The function was given with ``gradient=False``.
        """
        if not self.has_gradient:
            raise ValueError("this density was given with gradient=False: write local_move=None, probe=None")
        return super().value_and_grad(x)

    def log_prior(self, x: Any) -> Array:
        """Not known for a function.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a density from a callable does not know which of its terms are the prior")

    def log_prior_terms(self, x: Any) -> dict[str, Array]:
        """Empty: a function has no sites with a prior."""
        return {}

    def log_likelihood(self, x: Any) -> dict[str, Array]:
        """Empty: a function has no observed sites."""
        return {}

    def log_factor(self, x: Any) -> Array:
        """Not known for a function.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("a density from a callable does not know its factors")

    def _program(self, name: str) -> Callable:
        fn, batched = self._fn, None
        if self._batched:

            def batched(data: Any, x: Array) -> Array:
                return fn(x)

        def single(data: Any, v: Array) -> Array:
            return fn(v[None])[0] if self._batched else fn(v)

        make = {"value": clean_values, "raw": raw_values, "value_and_grad": clean_value_and_grad}[name]
        return make(single, batched, self.batch_size)

    def _fresh(self, args: tuple, kwargs: Mapping[str, Any]) -> CallableDensity:
        new = CallableDensity.__new__(CallableDensity)
        new.__dict__.update(self.__dict__, _own={}, _shared={})
        return new

    def _check_traceable(self) -> None:
        # One more point than dimensions, so that the two cannot be taken for each other.
        n = self.dim + 1
        given, wanted = ((n, self.dim), (n,)) if self._batched else ((self.dim,), ())
        try:
            out = jax.eval_shape(self._fn, jax.ShapeDtypeStruct(given, self.dtype))
        except CONCRETE as error:
            raise ValueError(
                "fn cannot be traced by JAX: write it with jax.numpy and jnp.where instead of NumPy and Python `if`"
            ) from error
        shape = getattr(out, "shape", None)
        if shape != wanted:
            raise ValueError(
                f"fn must map shape {given} to {wanted}, but returns {shape}; "
                + (
                    "sum over the last axis only (axis=-1), or pass batched=False if fn takes one point"
                    if self._batched
                    else "return a scalar, or pass batched=True if fn takes many points"
                )
            )
        if not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(f"fn must return floating-point numbers, got {out.dtype}")

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._shared, self._own = {}, {}
        self._arguments = Arguments((), {}, traced=False)


def _callback(fn: Callable) -> Callable:
    """A NumPy function inside compiled programs, called with whole batches."""

    def call(x: Array) -> Array:
        dtype = jnp.result_type(float)
        out = jax.ShapeDtypeStruct(x.shape[:-1], dtype)
        return jax.pure_callback(lambda v: fn(v).astype(dtype), out, x, vmap_method="expand_dims")

    return call


def _space(dim: int, names: str | tuple[str, ...] | None) -> tuple[Site, ...]:
    if names is None or isinstance(names, str):
        return (Site(names or "x", slice(0, dim), (dim,), (dim,)),)
    if len(names) != dim or len(set(names)) != dim:
        raise ValueError(f"names must be one name or {dim} different ones, got {names}")
    return tuple(Site(name, slice(i, i + 1), (), ()) for i, name in enumerate(names))
