"""Proposals from a frozen flow with a heavy-tailed component, and their exact weights: what all flow engines share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import random

from ppl_samplers.backends.jax.flows import affine, affine_log_det, whiten
from ppl_samplers.backends.jax.noise import normal
from ppl_samplers.core import weights
from ppl_samplers.engines.boltzmann import maths

Array = jax.Array


class FlowProposal:
    """Base of transports whose state holds a flow: ``params``, ``loc``, ``scale_tril``.

    Attributes:
        flow: Settings of the flow.
        defensive: Share of a Student-t component in the proposal, 0 to leave it out.
    """

    flow: Any
    defensive: float

    def propose(self, state: Any, key: Array, density: Any, n: int) -> tuple[Array, Array]:
        """``n`` independent draws ``(n, D)`` and their exact log weights ``(n,)``."""
        z_key, share_key, chi_key = random.split(key, 3)
        dim, dtype = state.loc.shape[0], state.loc.dtype
        z = normal(z_key, (n, dim), dtype)
        y, _ = self.flow.forward(state.params, z)
        if self.defensive > 0:
            heavy = random.uniform(share_key, (n,), dtype) < self.defensive
            # Chi-square with 3 degrees of freedom is a sum of three squares; it compiles far quicker than a gamma draw.
            chi2 = jnp.sum(normal(chi_key, (n, 3), dtype) ** 2, -1)
            y = jnp.where(heavy[:, None], maths.student_t(z, chi2), y)
        return affine(state.loc, state.scale_tril, y), self._weight(state, density, y)

    def log_weight(self, state: Any, key: Array, density: Any, x: Array) -> Array:
        """Exact log weight ``log p - log q`` of given points, ``(n, D) -> (n,)``; the key is not used."""
        return self._weight(state, density, whiten(state.loc, state.scale_tril, x), x)

    def _weight(self, state: Any, density: Any, y: Array, x: Array | None = None) -> Array:
        log_det = affine_log_det(state.scale_tril)
        x = affine(state.loc, state.scale_tril, y) if x is None else x
        log_q = self.flow.log_prob(state.params, y)
        mixed = maths.defensive_log_prob(log_q, maths.student_t_log_prob(y), self.defensive) - log_det
        return weights.sanitize(density(x) - mixed)
