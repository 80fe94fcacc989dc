"""Constrained mass transport on JAX: the state of an engine and its training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from ppl_samplers.backends.jax.flowjax import FlowJax
from ppl_samplers.backends.jax.flows import (
    SplineCoupling,
    affine_log_det,
    whiten,
)
from ppl_samplers.backends.jax.noise import normal
from ppl_samplers.backends.jax.training import AdamState, adam_init, adam_step, cosine, when
from ppl_samplers.backends.settings import check_flow
from ppl_samplers.core import evidence, weights
from ppl_samplers.core.resampling import systematic
from ppl_samplers.engines.cmt import buffer_numpyro as buffer
from ppl_samplers.engines.cmt import host, maths
from ppl_samplers.engines.cmt.dual import TARGET
from ppl_samplers.engines.cmt.settings import METRICS, Settings
from ppl_samplers.engines.proposal_numpyro import FlowProposal

Array = jax.Array
FLOW = SplineCoupling(layers=6, bins=None)
_FIELD = {name: i for i, name in enumerate(host.FIELDS)}


class CMTState(NamedTuple):
    """All arrays of one engine.

    ``pool_x`` ``(P, N, D)`` with ``pool_log_w`` ``(P, N)`` holds the buffers that the flow learns from, ``slot`` the
    next of them to go; ``anchor`` is an earlier flow that draws a part of each buffer where ``anchored`` is set;
    ``path`` the exponents of the start and of the target; ``polished`` the units since the target was reached.
    """

    key: Array
    unit: Array
    num_units: Array
    params: Any
    adam: AdamState
    loc: Array
    scale_tril: Array
    anchor: Any
    anchored: Array
    pool_x: Array
    pool_log_w: Array
    slot: Array
    path: Array
    reached: Array
    polished: Array
    loss: Array
    num_evals: Array
    num_skipped: Array
    done: Array
    metrics: dict[str, Array]

    @property
    def present(self) -> tuple[Any, Array, Array]:
        """The flow: parameters, location and scale."""
        return self.params, self.loc, self.scale_tril


@dataclass(frozen=True)
class CMTTransport(FlowProposal, Settings):
    """Constrained mass transport as a transport; see :class:`~ppl_samplers.engines.cmt.settings.Settings`."""

    flow: Any = FLOW

    # The dual is solved in float64 by a callback.
    calls_host = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flow("CMT", self.flow, (SplineCoupling, FlowJax))

    # --- training ---

    def init(self, key: Array, density: Any, num_units: int, initial: Array | None = None) -> CMTState:
        """A flow that is the identity over a broad affine map, and a buffer of prior draws to fit it to.

        Args:
            key: PRNG key of this engine.
            density: A ``LogDensity``; its gradient is never asked for.
            num_units: Units that will follow.
            initial: The user's starting points, ``(n, D)``: they take the place of the first draws.
        """
        key, flow_key, draw_key = random.split(key, 3)
        dim, dtype, n = density.dim, jnp.result_type(float), self.buffer_size
        x = density.sample_prior(draw_key, n) if density.has_prior else 2.0 * normal(draw_key, (n, dim), dtype)
        x = x.astype(dtype)
        if initial is not None:
            x = x.at[: min(len(initial), n)].set(initial[:n].astype(dtype))
        low, high = jnp.quantile(x, jnp.asarray([0.001, 0.999], dtype), axis=0)
        x = jnp.clip(x, low, high)
        loc, scale = jnp.mean(x, 0), 1.2 * jnp.maximum(jnp.std(x, 0), 1e-6)
        params = self.flow.init(flow_key, dim, dtype)
        nan, zero = jnp.full((), jnp.nan, dtype), jnp.zeros((), jnp.int32)
        scale_tril = jnp.diag(scale)
        return CMTState(
            key=key, unit=zero, num_units=jnp.asarray(num_units, jnp.int32), params=params,
            adam=adam_init(params["network"], self.clip), loc=loc, scale_tril=scale_tril,
            anchor=(params, loc, scale_tril), anchored=jnp.zeros((), bool),
            pool_x=jnp.zeros((self.pool, n, dim), dtype).at[0].set(x),
            pool_log_w=jnp.full((self.pool, n), -jnp.inf, dtype).at[0].set(-jnp.log(float(n))),
            slot=zero, path=jnp.asarray([1.0, 0.0], dtype), reached=jnp.zeros((), bool), polished=zero,
            loss=jnp.zeros((), dtype), num_evals=zero, num_skipped=zero, done=jnp.asarray(num_units <= 0),
            metrics=dict.fromkeys(METRICS, nan),
        )  # fmt: skip

    def restart(self, state: CMTState, num_units: int) -> CMTState:
        """The state with ``num_units`` more units in front of it: of polish, or of the path if that was cut short."""
        unit = jnp.where(state.reached, 1, state.unit)
        return state._replace(
            unit=unit, num_units=unit + num_units, polished=jnp.where(state.reached, 0, state.polished),
            done=jnp.zeros_like(state.done) | (num_units <= 0),
        )  # fmt: skip

    def train_step(self, state: CMTState, density: Any) -> CMTState:
        """One unit: a buffer, its dual, the moments, a weighted fit. The first one fits the flow to the prior draws."""
        key, draw_key, fit_key = random.split(state.key, 3)
        state = when(state.unit > 0, lambda s: self._transport(s, draw_key, density), state._replace(key=key))
        state = self._fit(state, fit_key)
        unit = state.unit + 1
        stop = state.reached & ((state.polished >= self.polish) | (state.metrics["ess"] >= self.stop_ess))
        return state._replace(unit=unit, done=(unit >= state.num_units) | stop, num_skipped=state.adam.skipped)

    def _transport(self, state: CMTState, key: Array, density: Any) -> CMTState:
        """Draw a buffer, solve the step, move the affine map, put the weighted buffer into the pool."""
        draw_key, guard_key = random.split(key)
        x, log_p, log_q, own_log_w = buffer.draw(self, state, draw_key, density)
        # The last units go for the target whatever the constraints say, but never more than a quarter of them.
        last = jnp.minimum(self.polish, state.num_units // 4)
        polishing = state.reached | (state.unit >= state.num_units - last)
        row = jax.pure_callback(
            partial(self._solve, dim=density.dim),
            jax.ShapeDtypeStruct((len(host.FIELDS),), jnp.float32),
            log_p, log_q, state.unit, state.num_units, polishing,
            vmap_method="sequential",
        )  # fmt: skip
        figure = {name: row[i].astype(x.dtype) for name, i in _FIELD.items()}
        log_w = weights.log_normalize(maths.log_weights(log_p, log_q, figure["b"], figure["c"]))
        reached = state.reached | (figure["status"] == TARGET)
        # Buffers of the path are each other's past and are thrown away; those of the target are all of one density.
        keep = state.reached | (state.polished > 0)
        slot = jnp.where(keep, (state.slot + 1) % self.pool, 0)
        pool_log_w = jnp.where(keep, state.pool_log_w, jnp.full_like(state.pool_log_w, -jnp.inf))
        u, v = maths.path_step(state.path[0], state.path[1], figure["b"], figure["c"])
        beta, alpha = maths.path_coordinates(u, v)
        count, from_anchor = buffer.parts(self)
        drawn = len(x) * jnp.where(state.anchored, 1 - from_anchor / count, 1.0)
        anchors = (from_anchor > 0) & ~state.anchored & (figure["target_ess"] > maths.IN_SIGHT)
        sums = evidence.sums_of(maths.log_weights(log_p, log_q, 1.0, 1.0))
        metrics = {
            "ess": weights.ess(own_log_w) / drawn,
            "log_evidence": evidence.finish(jnp.stack(list(sums)).astype(x.dtype))[0],
            "entropy_decay_nominal": figure["entropy"] - figure["next_entropy"],
            "entropy_decay_realised": state.metrics["entropy"] - figure["entropy"],
            "beta": beta,
            "alpha": alpha,
            "held_out": state.metrics["held_out"],
        }
        metrics |= {name: figure[name] for name in METRICS if name not in metrics}
        loc, scale_tril = self._moments(state, guard_key, x, log_w)
        return state._replace(
            loc=loc,
            scale_tril=scale_tril,
            anchor=jax.tree.map(partial(jnp.where, anchors), state.present, state.anchor),
            anchored=state.anchored | anchors,
            pool_x=state.pool_x.at[slot].set(x),
            # Each buffer counts by its effective size.
            pool_log_w=pool_log_w.at[slot].set(log_w + jnp.log(weights.ess(log_w))),
            slot=slot,
            path=jnp.stack([u, v]),
            reached=reached,
            polished=state.polished + polishing.astype(jnp.int32),
            num_evals=state.num_evals + self.buffer_size,
            metrics=metrics,
        )

    def _solve(self, log_p: Any, log_q: Any, unit: Any, num_units: Any, polishing: Any, *, dim: int) -> np.ndarray:
        arrays = np.asarray(log_p), np.asarray(log_q)
        row = host.unit_step(*arrays, self, int(unit), int(num_units), dim, bool(polishing))
        return row.astype(np.float32)

    def _moments(self, state: CMTState, key: Array, x: Array, log_w: Array) -> tuple[Array, Array]:
        """Move mean and scale of each coordinate to the weighted ones, where held-out points are the better for it.

        Done blindly this loses modes: when the weights of two modes change, it drags both from where the flow had them.
        """
        scale = jnp.diagonal(state.scale_tril)
        w = jnp.exp(log_w)[:, None]
        mean, sd = jnp.mean(x, 0), jnp.maximum(jnp.std(x, 0), 1e-12)
        new_mean = jnp.sum(w * x, 0)
        new_sd = jnp.sqrt(jnp.maximum(jnp.sum(w * (x - new_mean) ** 2, 0), 1e-24))
        ratio = new_sd / sd
        wanted = (jnp.abs(jnp.log(ratio)) > 0.03) | (jnp.abs(new_mean - mean) > 0.03 * sd)
        loc, scales = new_mean + ratio * (state.loc - mean), scale * ratio
        index = systematic(log_w[: self.held], random.uniform(key, (), x.dtype), 1024)
        points = x[: self.held][index]

        def nll(chosen: Array) -> Array:
            m, s = jnp.where(chosen, loc, state.loc), jnp.where(chosen, scales, scale)
            return jnp.sum(jnp.log(s)) - jnp.mean(self.flow.log_prob(state.params, (points - m) / s))

        # Row 0 moves nothing, the others one coordinate each; then all the good ones together.
        rows = jnp.concatenate([jnp.zeros((1, x.shape[1]), bool), jnp.eye(x.shape[1], dtype=bool)])
        values = lax.map(nll, rows)
        good = wanted & (values[1:] < values[0])
        chosen = good & (nll(good) < values[0])
        return jnp.where(chosen, loc, state.loc), jnp.diag(jnp.where(chosen, scales, scale))

    def _fit(self, state: CMTState, key: Array) -> CMTState:
        """Weighted forward KL on the pool; the best of start and five checkpoints by held-out likelihood stays."""
        held, dim = self.held, state.loc.shape[0]
        u_key, order_key = random.split(key)
        dtype, size = state.loc.dtype, self.grad_steps * self.batch_size
        y = whiten(state.loc, state.scale_tril, state.pool_x[:, held:].reshape(-1, dim))
        index = systematic(state.pool_log_w[:, held:].reshape(-1), random.uniform(u_key, (), dtype), size)
        batches = y[random.permutation(order_key, index)].reshape(self.grad_steps, self.batch_size, dim)
        test_y = whiten(state.loc, state.scale_tril, state.pool_x[state.slot, :held])
        test_w = weights.normalize(state.pool_log_w[state.slot, :held])
        top = jnp.where(state.reached, 0.1 + 0.45 * (1 + jnp.cos(jnp.pi * state.polished / max(self.polish, 1))), 1.0)
        frozen = {name: value for name, value in state.params.items() if name != "network"}

        def loss(network: Any, batch: Array) -> Array:
            return -jnp.mean(self.flow.log_prob({**frozen, "network": network}, batch))

        def held_out(network: Any) -> Array:
            log_q = self.flow.log_prob({**frozen, "network": network}, test_y)
            return -jnp.sum(jnp.where(test_w > 0, test_w * log_q, 0.0))

        def one(j: Array, carry: tuple) -> tuple:
            network, adam, _ = carry
            value, grads = jax.value_and_grad(loss)(network, batches[j])
            rate = cosine(j / self.grad_steps, self.learning_rate * top)
            network, adam = adam_step(network, adam, value, grads, rate, self.clip)
            return network, adam, value

        blocks = 5

        def block(k: Array, carry: tuple) -> tuple:
            network, adam, value, best, lowest = carry
            first, last = jnp.maximum(k, 0) * self.grad_steps // blocks, (k + 1) * self.grad_steps // blocks
            network, adam, value = lax.fori_loop(first, last, one, (network, adam, value))
            # Before the first step, `k = -1` measures the start itself.
            now = held_out(network)
            better = now < lowest
            best = jax.tree.map(lambda a, b: jnp.where(better, a, b), network, best)
            return network, adam, value, best, jnp.minimum(now, lowest)

        network = state.params["network"]
        start = (network, state.adam, state.loss, network, jnp.full((), jnp.inf, dtype))
        _, adam, value, best, lowest = lax.fori_loop(-1, blocks, lambda k, c: block(k, c), start)
        return state._replace(
            params={**state.params, "network": best},
            adam=adam,
            loss=value + affine_log_det(state.scale_tril),
            metrics={**state.metrics, "held_out": lowest + affine_log_det(state.scale_tril)},
        )
