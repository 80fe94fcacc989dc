"""Compiled programs of a density: built once per shape of the arguments, shared by densities bound to others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.util import is_prng_key

from ppl_samplers.backends.numpyro import programs
from ppl_samplers.backends.numpyro.discovery import Site, Structure

Array = jax.Array


class CompiledDensity:
    """The machinery under :class:`~ppl_samplers.backends.numpyro.density.LogDensity`."""

    model: Callable | None
    model_args: tuple
    model_kwargs: dict[str, Any]
    dtype: Any
    _structure: Structure
    _arguments: programs.Arguments
    _traced: bool

    def _setup(self, space: tuple[Site, ...], batch_size: int | None) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be positive or None, got {batch_size}")
        self.space, self.batch_size = space, batch_size
        self.dim = space[-1].slice.stop
        self._shared: dict = {}
        self._own: dict = {}

    def _fresh(self, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        # Not copy.copy, which would go through __getstate__ and drop the compiled programs.
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.model_args, new.model_kwargs, new._own = tuple(args), dict(kwargs), {}
        new._arguments = new._take_apart(new.model_args, new.model_kwargs)
        return new

    @property
    def _order(self) -> tuple[str, ...]:
        return self._structure.order

    def _take_apart(self, args: tuple, kwargs: Mapping[str, Any]) -> programs.Arguments:
        return programs.Arguments(args, kwargs, traced=self._traced)

    def _program(self, name: str) -> Callable:
        parts = programs.Parts(self._structure, self._arguments.rebuild, self.batch_size)
        builders = {
            "constrain": partial(programs.constrain, deterministic=False),
            "constrain_all": partial(programs.constrain, deterministic=True),
        }
        return (builders.get(name) or getattr(programs, name))(parts)

    def _call(self, name: str, *inputs: Any) -> Any:
        key = self._arguments.key
        cache = self._own if key is None else self._shared
        if (name, key) not in cache:
            cache[name, key] = jax.jit(self._program(name))
        return cache[name, key](self._arguments.data, *inputs)

    def _points(self, x: Any, *, any_lead: bool = False) -> Array:
        x = jnp.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(self.dtype)
        if x.ndim == 0 or x.shape[-1] != self.dim or (x.ndim != 2 and not any_lead):
            wanted = f"(..., {self.dim})" if any_lead else f"(N, {self.dim})"
            raise ValueError(f"points must have shape {wanted}, got {x.shape}")
        return x

    def _check_traceable(self) -> None:
        """Find out, before any training, whether the density can be traced, batched and differentiated."""
        from ppl_samplers.backends.numpyro.traceable import explain

        point = jax.ShapeDtypeStruct((2, self.dim), self.dtype)
        try:
            jax.eval_shape(self._program("value_and_grad"), self._arguments.data, point)
            return
        except Exception as error:  # any of them may come from looking at traced data
            first = error
        if self._arguments.data:
            self._traced = False
            self._arguments = self._take_apart(self.model_args, self.model_kwargs)
            try:
                jax.eval_shape(self._program("value_and_grad"), (), point)
                return
            except Exception as error:
                first = error
        explain(self._structure, first, self.model, self.model_args, self.model_kwargs)

    def __getstate__(self) -> dict:
        # Compiled programs and their closures do not pickle, and are made again when needed.
        dropped = ("_shared", "_own", "_arguments")
        return {k: v for k, v in self.__dict__.items() if k not in dropped}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._shared, self._own = {}, {}
        self._arguments = self._take_apart(self.model_args, self.model_kwargs)


def one_key(key: Any) -> Array:
    """One PRNG key out of a typed key, a legacy key, or a batch of either."""
    key = jnp.asarray(key) if not isinstance(key, jax.Array) else key
    if is_prng_key(key):
        return key
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key.reshape(-1)[0]
    return key.reshape(-1, key.shape[-1])[0]
