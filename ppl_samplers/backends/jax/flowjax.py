"""Flows of the flowjax library in the place of our own coupling flow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import paramax
from flowjax.bijections import RationalQuadraticSpline
from flowjax.distributions import StandardNormal
from flowjax.flows import coupling_flow
from jax import random

from ppl_samplers.backends.jax.flows import standard_normal_log_prob

Array = jax.Array
Params = dict[str, Any]


def spline_coupling(key: Array, dim: int) -> Any:
    """Rational-quadratic splines, about the size of our own flow up to eight dimensions."""
    spline = RationalQuadraticSpline(knots=8, interval=5)
    return coupling_flow(
        key, base_dist=StandardNormal((dim,)), transformer=spline, flow_layers=4, nn_width=64, nn_depth=2
    )


@dataclass(frozen=True)
class FlowJax:
    """Any flow of flowjax over a standard normal base, on the whitened space.

    Parameters are a dict of arrays: ``"network"`` is trained; ``"fixed"`` (integers: the permutations) is not, and is a
    part of the density.

    Attributes:
        make: ``make(key, dim)`` gives the flow, a flowjax ``Transformed`` of shape ``(dim,)``. A function with a name
            (not a lambda): the name is how a file of a trained engine tells its flow.

    Raises:
        ValueError: ``make`` returns something else, or another base than a standard normal of ``dim`` dimensions.

    References:
        Daniel Ward, FlowJax: distributions and normalizing flows in Jax, 2025.

    Example:
        >>> from flowjax.distributions import StandardNormal
        >>> from flowjax.flows import masked_autoregressive_flow
        >>> from jax import random
        >>> from ppl_samplers.numpyro import FlowJax
        >>> def autoregressive(key, dim):
        ...     return masked_autoregressive_flow(key, base_dist=StandardNormal((dim,)), flow_layers=2, nn_width=16)
        >>> flow = FlowJax(autoregressive)
        >>> params = flow.init(random.key(0), 3)
        >>> y, log_det = flow.forward(params, random.normal(random.key(1), (5, 3)))
        >>> y.shape, log_det.shape
        ((5, 3), (5,))
    """

    make: Callable[[Array, int], Any] = spline_coupling

    trainable = True

    def __repr__(self) -> str:
        return f"FlowJax({getattr(self.make, '__name__', 'make')})"

    def init(self, key: Array, dim: int, dtype: Any = None) -> Params:
        """Parameters as flowjax draws them, for ``dim`` dimensions."""
        flow = self.make(key, dim) if isinstance(key, jax.core.Tracer) else _eagerly(lambda: self.make(key, dim))
        shape = getattr(flow, "shape", None)
        if shape != (dim,) or not isinstance(getattr(flow, "base_dist", None), StandardNormal):
            raise ValueError(
                f"{self!r}: {getattr(self.make, '__name__', 'make')}(key, {dim}) must return a flow with "
                f"base_dist=StandardNormal(({dim},)), got {type(flow).__name__} of shape {shape}"
            )
        dtype = jnp.result_type(float) if dtype is None else dtype
        # Every array is kept, integers too: flowjax holds its permutations as arrays, and without them the density is
        # another one. Trained are the inexact ones.
        network, fixed, _ = _split(flow.bijection)
        return {"network": {k: v.astype(dtype) for k, v in network.items()}, "fixed": fixed}

    def forward(self, params: Params, z: Array) -> tuple[Array, Array]:
        """From the base space to whitened points: ``(N, D) -> y (N, D), log |det dy/dz| (N,)``."""
        return jax.vmap(self._bijection(params, z.shape[-1]).transform_and_log_det)(z)

    def inverse(self, params: Params, y: Array) -> tuple[Array, Array]:
        """From whitened points to the base space: ``(N, D) -> z (N, D), log |det dz/dy| (N,)``."""
        return jax.vmap(self._bijection(params, y.shape[-1]).inverse_and_log_det)(y)

    def log_prob(self, params: Params, y: Array) -> Array:
        """Log density of whitened points, ``(N, D) -> (N,)``."""
        z, log_det = self.inverse(params, y)
        return standard_normal_log_prob(z) + log_det

    def _bijection(self, params: Params, dim: int) -> Any:
        return paramax.unwrap(_static(self.make, dim)(params))


def _split(bijection: Any) -> tuple[dict[str, Array], dict[str, Array], Callable[[Params], Any]]:
    """Inexact arrays, other arrays, and the function that puts them back."""
    arrays, static = eqx.partition(bijection, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    names = [f"p{i}" for i in range(len(leaves))]
    trained = {name for name, leaf in zip(names, leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)}

    def join(params: Params) -> Any:
        found = {**params["network"], **params["fixed"]}
        return eqx.combine(jax.tree.unflatten(structure, [found[name] for name in names]), static)

    named = dict(zip(names, leaves))
    network = {name: leaf for name, leaf in named.items() if name in trained}
    return network, {name: leaf for name, leaf in named.items() if name not in trained}, join


@lru_cache(maxsize=32)
def _static(make: Callable, dim: int) -> Callable[[Params], Any]:
    """What is not an array, from a flow that is really built: flowjax closes over arrays of its transformers."""
    return _split(_eagerly(lambda: make(random.key(0), dim)).bijection)[2]


def _eagerly(build: Callable[[], Any]) -> Any:
    """``build()`` in a thread of its own: what is traced belongs to a thread, so here nothing is."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(build).result()
