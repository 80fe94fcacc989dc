"""The arithmetic of the transport kernel, as pure functions of its state: begin, train a unit, advance an iteration."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from ppl_samplers.backends.jax.moves import HMC, moments
from ppl_samplers.backends.jax.noise import gumbel
from ppl_samplers.backends.jax.training import when
from ppl_samplers.core import acceptance, evidence, resampling, weights
from ppl_samplers.core.logspace import log_mean_exp, logsumexp

Array = jax.Array
ADAPT_STEPS = 50


class Layout:
    """Which chain takes its proposals from which engine: static numbers of a kernel and a number of chains."""

    def __init__(self, kernel: Any, num_chains: int):
        engines = kernel.num_engines
        self.alternates = num_chains < engines
        self.num_groups = num_chains if self.alternates else engines
        chains = np.arange(num_chains)
        self.group = chains if self.alternates else chains * engines // num_chains
        first = np.searchsorted(self.group, np.arange(self.num_groups))
        self.slot = chains - first[self.group]
        self.width = int(self.slot.max()) + 1
        # Row s of group g is chain `members[g, s]`; groups of unequal size repeat their first chain.
        self.members = np.repeat(first[:, None], self.width, 1)
        self.members[self.group, self.slot] = chains
        self.fresh = kernel.correction.num_fresh
        self.batch = kernel.block * self.width * self.fresh
        self.batches = -(-kernel.num_reseat // self.batch)
        self.num_engines = engines

    def engines(self, block: Array) -> Array:
        """Engine of each group in block number ``block``, ``(G,)``."""
        groups = jnp.arange(self.num_groups, dtype=jnp.int32)
        return (groups + block) % self.num_engines if self.alternates else groups


def pick(states: Any, index: Array) -> Any:
    """Engine state(s) ``index`` out of the stacked ones."""
    return jax.tree.map(lambda a: a[index], states)


def init_engines(kernel: Any, density: Any, key: Array, num_units: Array, initial: Array | None) -> Any:
    """Stacked states of independently initialised engines, one after the other."""
    keys = random.split(key, kernel.num_engines)
    return lax.map(lambda k: kernel.transport.init(k, density, num_units, initial), keys)


def begin(
    kernel: Any, density: Any, key: Array, num_warmup: Array, num_chains: int | None, initial: Array | None, states: Any
) -> Any:
    """State before the first iteration. ``num_chains=None`` means one chain without an axis for it."""
    from ppl_samplers.backends.numpyro.kernel import HISTORY, EngineState

    key, engine_key, point_key = random.split(key, 3)
    chains = 1 if num_chains is None else num_chains
    if states is None:
        states = init_engines(kernel, density, engine_key, num_warmup, initial)
    probes = kernel.probe.num_points if kernel.probe is not None else 0
    # One draw serves the chains and, later, the probe: drawing from a prior is slow to compile.
    points = density.initial_points(point_key, chains + probes)
    x = points[:chains] if initial is None else jnp.broadcast_to(initial, (chains, density.dim))
    dtype, layout = x.dtype, Layout(kernel, chains)
    number = jnp.zeros((chains,), dtype)
    # Sums and weights in float64 where JAX has it, else in the default type.
    shape = (kernel.num_engines,)
    nan = jnp.full((*shape, HISTORY), jnp.nan, dtype)
    move = () if kernel.local_move is None else kernel.local_move.init(density, jnp.zeros((3, density.dim), dtype))
    blocks = {
        "x": jnp.zeros((layout.num_groups, layout.batch, density.dim), dtype),
        "log_w": jnp.full((layout.num_groups, layout.batch), -jnp.inf, dtype),
        "log_p": jnp.full((layout.num_groups, layout.batch), -jnp.inf, dtype),
    }
    log_p = density(points)
    starts = jnp.sum(jnp.isfinite(log_p))
    log_p = log_p[:chains] if initial is None else density(x)
    out = EngineState(
        i=jnp.zeros((), jnp.int32), num_warmup=num_warmup, keep_start=(num_warmup <= 0) & (initial is not None), z=x,
        # Finite, because NumPyro fills unused entries with 0 times the first value.
        potential_energy=jnp.where(jnp.isfinite(log_p), -log_p, 0.0), log_weight=number, prop_log_weight=number,
        accept_prob=number, accepted=jnp.zeros((chains,), bool), mean_accept_prob=number,
        engine_id=jnp.asarray(layout.group, jnp.int32), train_loss=number,
        num_evals=jnp.zeros((chains,), jnp.int32) + jnp.sum(states.num_evals).astype(jnp.int32),
        history=dict.fromkeys((*CURVES, *states.metrics), nan),
        evidence_sums=jnp.tile(evidence.empty_sums(number)[None], (*shape, 1)),
        fresh_log_weights=jnp.full((*shape, layout.batches * layout.batch), -jnp.inf, dtype),
        probe_log_weights=jnp.full((*shape, probes), jnp.nan, dtype),
        probe_log_density=jnp.full((probes,), jnp.nan, dtype), probe_start=points[chains:], starts=starts,
        move=move, blocks=blocks, engines=states, work=jnp.zeros((), jnp.int32), rng_key=key,
    )  # fmt: skip
    return leave(density, out, num_chains is not None)


CURVES = ("loss", "num_evals", "num_skipped")
PER_CHAIN = (
    "potential_energy", "log_weight", "prop_log_weight", "accept_prob", "accepted", "mean_accept_prob", "engine_id",
    "train_loss", "num_evals",
)  # fmt: skip


def enter(density: Any, state: Any) -> tuple[Any, bool]:
    """The state with points ``(C, D)`` in ``z`` and a chain axis everywhere; whether it had one."""
    batched = state.accept_prob.ndim == 1
    x = density.ravel(state.z)
    if batched:
        return state._replace(z=x), True
    return state._replace(z=x[None], **{k: getattr(state, k)[None] for k in PER_CHAIN}), False


def leave(density: Any, state: Any, batched: bool) -> Any:
    """The inverse of :func:`enter`."""
    if batched:
        return state._replace(z=density.unravel(state.z))
    return state._replace(z=density.unravel(state.z[0]), **{k: getattr(state, k)[0] for k in PER_CHAIN})


def train(kernel: Any, state: Any, density: Any) -> Any:
    """One training unit of every engine; the chains stay where they are."""
    state, batched = enter(density, state)
    before = jnp.sum(state.engines.num_evals)
    engines = lax.map(lambda s: when(~s.done, lambda t: kernel.transport.train_step(t, density), s), state.engines)
    size = next(iter(state.history.values())).shape[-1]
    column = jnp.where(state.num_warmup > size, state.i * size // jnp.maximum(state.num_warmup, 1), state.i)
    values = {k: getattr(engines, k) for k in CURVES} | dict(engines.metrics)
    history = {k: v.at[:, column].set(values[k].astype(v.dtype)) for k, v in state.history.items()}
    spent = (jnp.sum(engines.num_evals) - before).astype(jnp.int32)
    loss = engines.loss[state.engine_id].astype(state.train_loss.dtype)
    state = state._replace(engines=engines, history=history, train_loss=loss, num_evals=state.num_evals + spent)
    return leave(density, state, batched)


def advance(kernel: Any, state: Any, density: Any, key: Array) -> Any:
    """One iteration of every chain with everything frozen; at the first one the chains are reseated."""
    state, batched = enter(density, state)
    layout = Layout(kernel, state.z.shape[0])
    since = state.i - state.num_warmup
    position, block = since % kernel.block, since // kernel.block
    first = since == 0
    engines = layout.engines(block)
    keys = random.split(key, 5)
    state = when(position == 0, lambda s: _refill(kernel, layout, s, density, keys[0], engines, first), state)
    if kernel.probe is not None:
        state = when(first, lambda s: _probe(kernel, s, density, keys[1]), state)
    stale = first | ((position == 0) & layout.alternates)
    state = _local(kernel, layout, state, density, keys[2], engines, since, stale)
    state = _global(kernel, layout, state, keys[3], position)
    mean = state.mean_accept_prob + (state.accept_prob - state.mean_accept_prob) / (since + 1)
    return leave(density, state._replace(mean_accept_prob=mean.astype(mean.dtype)), batched)


def _refill(kernel: Any, layout: Layout, state: Any, density: Any, key: Array, engines: Array, first: Array) -> Any:
    """Fresh proposals for the next block; at the first one also those that reseat the chains."""
    size, lots = layout.batch, layout.num_engines * layout.batches
    dim = state.z.shape[-1]
    propose_key, choose_key, scale_key = random.split(key, 3)

    def lot(t: Array, carry: tuple) -> tuple:
        sums, fresh, fresh_x, fresh_p, blocks = carry
        stored = t >= lots
        group = jnp.clip(t - lots, 0, layout.num_groups - 1)
        engine = jnp.where(stored, engines[group], jnp.minimum(t // layout.batches, layout.num_engines - 1))
        x, log_w = kernel.transport.propose(pick(state.engines, engine), random.fold_in(propose_key, t), density, size)
        # The same expression as inside `propose`, which the compiler merges.
        log_p = density(x)
        sums = sums.at[engine].set(evidence.add(sums[engine], log_w.astype(sums.dtype)))
        column = (t % layout.batches) * size

        def put(into: Array, value: Array, row: Array, at: Array, wanted: Array) -> Array:
            start = (row, at) + (0,) * (into.ndim - 2)
            old = lax.dynamic_slice(into, start, (1, *value.shape))
            return lax.dynamic_update_slice(into, jnp.where(wanted, value[None], old), start)

        fresh = put(fresh, log_w, engine, column, ~stored)
        fresh_x, fresh_p = put(fresh_x, x, engine, column, ~stored), put(fresh_p, log_p, engine, column, ~stored)
        new = {"x": x, "log_w": log_w, "log_p": log_p}
        zero = jnp.zeros_like(column)
        blocks = {k: put(v, new[k], group, zero, stored) for k, v in blocks.items()}
        return sums, fresh, fresh_x, fresh_p, blocks

    start = jnp.where(first, 0, lots)
    room = (layout.num_engines, layout.batches * size)
    dtype = state.z.dtype
    carry = (
        state.evidence_sums, state.fresh_log_weights, jnp.zeros((*room, dim), dtype), jnp.full(room, -jnp.inf, dtype),
        state.blocks,
    )  # fmt: skip
    sums, fresh, fresh_x, fresh_p, blocks = lax.fori_loop(start, lots + layout.num_groups, lot, carry)
    spent = (lots + layout.num_groups - start) * size
    state = state._replace(
        evidence_sums=sums,
        fresh_log_weights=fresh,
        blocks=blocks,
        num_evals=state.num_evals + spent.astype(jnp.int32),
        engine_id=engines[layout.group],
    )

    def reseat(s: Any) -> Any:
        # Each chain on its own, from the proposals of its engine; where none has weight, the chain stays.
        own = fresh[s.engine_id]
        index = resampling.categorical(own, gumbel(choose_key, own.shape, dtype))
        log_w = jnp.take_along_axis(own, index[:, None], 1)[:, 0]
        good = (log_w > -jnp.inf) & ~s.keep_start
        x = jnp.where(good[:, None], fresh_x[s.engine_id, index], s.z)
        energy = jnp.where(good, -fresh_p[s.engine_id, index], s.potential_energy)
        s = s._replace(z=x, log_weight=jnp.where(good, log_w, -jnp.inf), potential_energy=energy)
        if isinstance(kernel.local_move, HMC):
            flat = fresh.reshape(-1)
            flat = jnp.where(weights.ess(flat) >= 4 * dim, flat, jnp.where(jnp.isfinite(flat), 0.0, -jnp.inf))
            chosen = resampling.systematic(flat, random.uniform(scale_key, (), dtype), n=512)
            s = s._replace(move=kernel.local_move.start(moments(fresh_x.reshape(-1, dim)[chosen])[1]))
        return s

    return when(first, reseat, state)


def _probe(kernel: Any, state: Any, density: Any, key: Array) -> Any:
    step_key, weight_key = random.split(key)
    probe, move, x = kernel.probe, kernel.local_move or HMC(), state.probe_start

    def one(j: Array, carry: tuple) -> tuple:
        return move.step(carry[0], random.fold_in(step_key, j), density, *carry[1:], adapt=True)[:4]

    _, x, log_p, _ = lax.fori_loop(0, probe.num_steps, one, (move.init(density, x), x, *density.value_and_grad(x)))
    log_w = lax.map(lambda s: kernel.transport.log_weight(s, weight_key, density, x), state.engines)
    evals = probe.num_points * (1 + probe.num_steps * getattr(move, "num_leapfrog", 1) + kernel.num_engines)
    return state._replace(probe_log_weights=log_w, probe_log_density=log_p, num_evals=state.num_evals + evals)


def _local(
    kernel: Any, layout: Layout, state: Any, density: Any, key: Array, engines: Array, since: Array, stale: Array
) -> Any:
    """Local steps where they are due, then the chains' log weights anew wherever a point or its engine has changed."""
    steps = jnp.zeros((), jnp.int32)
    if kernel.local_move is not None:
        due = since % kernel.local_every == kernel.local_every - 1
        steps = jnp.where(since == 0, ADAPT_STEPS, jnp.where(due, 1, 0)).astype(jnp.int32)

    def go(s: Any) -> Any:
        move_key, weight_key = random.split(key)
        x, log_p = s.z, -s.potential_energy
        if kernel.local_move is not None:
            log_p, grad = density.value_and_grad(x)

            def one(j: Array, carry: tuple) -> tuple:
                move_state, x, log_p, grad, _ = kernel.local_move.step(
                    carry[0], random.fold_in(move_key, j), density, *carry[1:], adapt=since == 0
                )
                return move_state, x, log_p, grad

            move_state, x, log_p, _ = lax.fori_loop(0, steps, one, (s.move, x, log_p, grad))
            s = s._replace(move=move_state)
        grouped = x[jnp.asarray(layout.members)]
        own = pick(s.engines, engines) if layout.alternates else s.engines
        keys = random.split(weight_key, layout.num_groups)
        log_w = lax.map(lambda a: kernel.transport.log_weight(a[0], a[1], density, a[2]), (own, keys, grouped))
        log_w = log_w[layout.group, layout.slot]
        evals = x.shape[0] * (2 + steps * getattr(kernel.local_move, "num_leapfrog", 0))
        return s._replace(z=x, log_weight=log_w, potential_energy=-log_p, num_evals=s.num_evals + evals)

    return when((steps > 0) | stale, go, state)


def _global(kernel: Any, layout: Layout, state: Any, key: Array, position: Array) -> Any:
    """One step of independence Metropolis-Hastings or i-SIR from the proposals in store."""
    shape = (layout.num_groups, kernel.block, layout.width, layout.fresh)
    rows = {k: v.reshape(shape + v.shape[2:])[:, position][layout.group, layout.slot] for k, v in state.blocks.items()}
    log_w, chains = rows["log_w"], state.z.shape[0]
    if layout.fresh == 1:
        new, index = log_w[:, 0], jnp.zeros((chains,), jnp.int32)
        log_u = jnp.log(random.uniform(key, (chains,), log_w.dtype))
        accepted = acceptance.imh(new, state.log_weight, log_u)
        probability = jnp.exp(jnp.minimum(acceptance.imh_log_ratio(new, state.log_weight), 0.0))
    else:
        candidates = jnp.concatenate([state.log_weight[:, None], log_w], 1)
        choice = acceptance.isir(candidates, gumbel(key, candidates.shape, log_w.dtype))
        accepted, index, new = choice > 0, jnp.maximum(choice - 1, 0), log_mean_exp(log_w, 1)
        total = logsumexp(candidates, 1)
        probability = 1 - jnp.exp(candidates[:, 0] - jnp.where(jnp.isfinite(total), total, 0.0))
    take = lambda a: jnp.take_along_axis(a, index[:, None], 1)[:, 0]  # noqa: E731
    x = rows["x"][jnp.arange(chains), index]
    return state._replace(
        z=jnp.where(accepted[:, None], x, state.z),
        potential_energy=jnp.where(accepted, -take(rows["log_p"]), state.potential_energy),
        log_weight=jnp.where(accepted, take(log_w), state.log_weight),
        prop_log_weight=new, accept_prob=probability, accepted=accepted,
    )  # fmt: skip
