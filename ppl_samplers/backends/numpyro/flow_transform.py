"""A flow and its affine layers as a NumPyro transform from the base space to the flat unconstrained space."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from ppl_samplers.backends.jax import flows

Array = jax.Array


def second_affine(params: dict[str, Any]) -> tuple[Array, Array]:
    """The trained affine layer as ``shift`` ``(D,)`` and lower triangular ``S`` ``(D, D)``."""
    return params["shift"], jnp.tril(params["lower"], -1) + jnp.diag(jnp.exp(params["log_diagonal"]))


class FlowTransform(Transform):
    """``x = loc + L (shift + S y)`` with ``y`` from a flow over the base space, on vectors ``(..., D)``.

    Args:
        flow: Settings, :class:`SplineCoupling` or :class:`Affine`.
        params: What is trained: ``network``, ``shift``, ``log_diagonal`` and ``lower``.
        frozen: What is not: the other parameters of the flow, ``loc`` and ``scale_tril``.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, flow: Any, params: dict[str, Any], frozen: dict[str, Any]) -> None:
        self.flow, self.params, self.frozen = flow, params, frozen

    def __call__(self, x: Array) -> Array:
        """Image of base points, ``(..., D)``."""
        return self.call_with_intermediates(x)[0]

    def call_with_intermediates(self, x: Array) -> tuple[Array, Array]:
        """Image and log Jacobian determinant of base points, ``(..., D)`` and ``(...,)``."""
        return _forward(self.flow, self.params, self.frozen, x)

    def inverse_and_log_det(self, y: Array) -> tuple[Array, Array]:
        """Base points of flat points, with the log Jacobian determinant of the *forward* map there."""
        return _backward(self.flow, self.params, self.frozen, y)

    def _inverse(self, y: Array) -> Array:
        return self.inverse_and_log_det(y)[0]

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Array | None = None) -> Array:
        """Log Jacobian determinant at ``x``, ``(...,)``."""
        return self.call_with_intermediates(x)[1] if intermediates is None else intermediates

    def tree_flatten(self) -> tuple[Any, Any]:
        """Arrays are leaves, settings are static."""
        return (self.params, self.frozen), (("params", "frozen"), {"flow": self.flow})


# Compiled as one program each also where NumPyro runs a guide outside of jit: one by one, the operations take seconds.
@partial(jax.jit, static_argnums=0)
def _forward(flow: Any, params: dict[str, Any], frozen: dict[str, Any], x: Array) -> tuple[Array, Array]:
    shift, scale = second_affine(params)
    y, log_det = flow.forward(_flow_params(params, frozen), x.reshape(-1, x.shape[-1]))
    y = flows.affine(frozen["loc"], frozen["scale_tril"], flows.affine(shift, scale, y))
    return y.reshape(x.shape), (log_det + _log_volume(params, frozen)).reshape(x.shape[:-1])


@partial(jax.jit, static_argnums=0)
def _backward(flow: Any, params: dict[str, Any], frozen: dict[str, Any], y: Array) -> tuple[Array, Array]:
    shift, scale = second_affine(params)
    whitened = flows.whiten(frozen["loc"], frozen["scale_tril"], y.reshape(-1, y.shape[-1])) - shift
    whitened = solve_triangular(scale, whitened.T, lower=True).T
    x, log_det = flow.inverse(_flow_params(params, frozen), whitened)
    return x.reshape(y.shape), (_log_volume(params, frozen) - log_det).reshape(y.shape[:-1])


def _flow_params(params: dict[str, Any], frozen: dict[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in frozen.items() if k not in ("loc", "scale_tril")}
    return {**rest, **({"network": params["network"]} if params["network"] else {})}


def _log_volume(params: dict[str, Any], frozen: dict[str, Any]) -> Array:
    return flows.affine_log_det(frozen["scale_tril"]) + jnp.sum(params["log_diagonal"])


class FlowPosterior(dist.TransformedDistribution):
    """A standard normal pushed through a :class:`FlowTransform`; a log density costs one pass, not two."""

    def log_prob(self, value: Array, intermediates: list | None = None) -> Array:
        """Log density of flat points, ``(..., D) -> (...,)``."""
        if intermediates is not None:
            return super().log_prob(value, intermediates)
        x, log_det = self.transforms[0].inverse_and_log_det(value)
        return self.base_dist.log_prob(x) - log_det
