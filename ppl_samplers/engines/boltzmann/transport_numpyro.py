"""Boltzmann generator in NumPyro: the flow, trained by energy and by example, and its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random

from ppl_samplers.backends.jax.flowjax import FlowJax
from ppl_samplers.backends.jax.flows import (
    Affine,
    SplineCoupling,
    affine,
    affine_log_det,
    standard_normal_log_prob,
    whiten,
)
from ppl_samplers.backends.jax.moves import HMC, HMCState, moments
from ppl_samplers.backends.jax.noise import normal
from ppl_samplers.backends.jax.pilot import Pilot, run_pilot
from ppl_samplers.backends.jax.training import AdamState, adam_init, adam_step, cosine, when
from ppl_samplers.backends.settings import check_draws, check_flow, check_training
from ppl_samplers.engines.boltzmann import examples_numpyro as examples
from ppl_samplers.engines.boltzmann import maths
from ppl_samplers.engines.boltzmann.objectives import DEFAULT, ByEnergy, ByExample, as_knots, parse
from ppl_samplers.engines.proposal_numpyro import FlowProposal

Array = jax.Array


# Wide-spread step sizes: the pilot run and the ensemble meet modes of different widths.
FLOW, PILOT, MOVE = SplineCoupling(), Pilot(), HMC(spread=3.0)


class FlowState(NamedTuple):
    """All arrays of one engine.

    ``unit`` of ``num_units`` units are done; ``buffer`` ``(B, D)`` holds the examples, ``slot`` the next block to go.
    """

    key: Array
    unit: Array
    num_units: Array
    params: Any
    adam: AdamState
    loc: Array
    scale_tril: Array
    particles: Array
    buffer: Array
    slot: Array
    move: HMCState
    reference: Array
    pilot_log_z: Array
    loss: Array
    num_evals: Array
    num_skipped: Array
    done: Array
    metrics: dict[str, Array]


@dataclass(frozen=True)
class FlowTransport(FlowProposal):
    """A normalizing flow as a transport: settings only, every array is in :class:`FlowState`.

    Attributes:
        flow: :class:`SplineCoupling` or :class:`Affine`.
        objective: :class:`ByEnergy`, :class:`ByExample`, or one of each.
        train_steps: Optimiser steps in all, spread over the units.
        batch_size: Points per optimiser step.
        learning_rate: First learning rate of Adam; it falls to a twentieth along a cosine.
        clip: Bound of the gradient norm.
        pilot: Settings of the pilot run.
        defensive: Share of a heavy-tailed component in the proposal, 0 to leave it out.
        ensemble_refreshes: How often the examples are renewed during the training.
        stop_ess: Training ends early once the relative effective sample size of the fine-tuning draws reaches this.
        move: Local move of the pilot run and of the ensemble.
    """

    flow: Any = FLOW
    objective: Any = DEFAULT
    train_steps: int = 1000
    batch_size: int = 256
    learning_rate: float = 2e-3
    clip: float = 5.0
    pilot: Pilot = PILOT
    defensive: float = 0.05
    ensemble_refreshes: int = 40
    stop_ess: float = 0.9
    move: HMC = MOVE
    # Parsed once; a user's draws are not hashable and stay out of comparisons.
    energy: ByEnergy | None = field(init=False, compare=False)
    example: ByExample | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        check_flow("BoltzmannGenerator", self.flow, (SplineCoupling, Affine, FlowJax))
        counts = {name: getattr(self, name) for name in ("train_steps", "batch_size", "ensemble_refreshes")}
        check_training("BoltzmannGenerator", counts, self.learning_rate, self.clip, self.defensive, self.stop_ess)
        energy, example = parse(self.objective)
        for part in (energy, example):
            if part is not None:
                as_knots(part.weight)
        object.__setattr__(self, "energy", energy)
        object.__setattr__(self, "example", example)

    # --- training ---

    def init(self, key: Array, density: Any, num_units: int, initial: Array | None = None) -> FlowState:
        """Pilot run and an untrained flow. Legal under ``jit``.

        Args:
            key: PRNG key of this engine.
            density: A ``LogDensity``.
            num_units: Units that will follow.
            initial: The user's starting points, ``(n, D)``.
        """
        key, flow_key, pilot_key, draw_key = random.split(key, 4)
        dim, dtype = density.dim, jnp.result_type(float)
        if self.example is not None and self.example.draws is not None:
            draws = examples.given(self.example.draws, density)
            loc, lower = moments(draws)
            size = self.pilot.buffer_size
            buffer = jnp.tile(draws, (-(-size // len(draws)), 1)) if len(draws) < size else draws
            buffer = buffer[random.permutation(draw_key, len(buffer))[:size]]
            particles, move = buffer[: self.pilot.num_particles], self.move.start(lower)
            log_p = density(particles)
            reference = jnp.min(jnp.where(jnp.isfinite(log_p), -log_p, jnp.inf))
            reference = jnp.where(jnp.isfinite(reference), reference, 0.0)
            log_z, evals = jnp.full((), jnp.nan, dtype), jnp.asarray(len(particles), jnp.int32)
        else:
            pilot = run_pilot(self.pilot, self.move, pilot_key, density, initial)
            loc, lower, buffer, particles = pilot.loc, pilot.scale_tril, pilot.buffer, pilot.particles
            move, reference, log_z, evals = pilot.move, pilot.reference, pilot.log_z, pilot.num_evals
        params = self.flow.init(flow_key, dim, dtype)
        nan, zero = jnp.full((), jnp.nan, dtype), jnp.zeros((), jnp.int32)
        return FlowState(
            key=key,
            unit=zero,
            num_units=jnp.asarray(num_units, jnp.int32),
            params=params,
            adam=adam_init(params.get("network"), self.clip),
            loc=loc,
            scale_tril=lower,
            particles=particles,
            buffer=buffer,
            slot=zero,
            move=move,
            reference=reference.astype(dtype),
            pilot_log_z=log_z,
            loss=jnp.zeros((), dtype),
            num_evals=evals.astype(jnp.int32),
            num_skipped=zero,
            done=jnp.asarray(num_units <= 0),
            metrics={"ess": nan, "log_evidence": nan},
        )

    def restart(self, state: FlowState, num_units: int) -> FlowState:
        """The state with ``num_units`` units of importance-weighted fine-tuning in front of it."""
        share = self.example.fine_tune if self.example is not None and self.example.fine_tune > 0 else 1.0
        total = max(int(np.ceil(num_units / share)), 1)
        like = jnp.zeros_like(state.unit)
        return state._replace(
            unit=like + (total - num_units), num_units=like + total, done=jnp.zeros_like(state.done) | (num_units <= 0)
        )

    def check(self, density: Any) -> None:
        """Refuse draws outside the support; not legal under ``jit``."""
        if self.example is not None and self.example.draws is not None:
            check_draws(np.isfinite(np.asarray(examples.given(self.example.draws, density))), density.space)

    def train_step(self, state: FlowState, density: Any) -> FlowState:
        """One unit: renew the examples where it is due, then a block of optimiser steps."""
        key, refresh_key, step_key = random.split(state.key, 3)
        state = state._replace(key=key)
        k, total = state.unit, jnp.maximum(state.num_units, 1)
        progress = k / total
        stop = jnp.zeros((), bool)
        due = (self.ensemble_refreshes * (k + 1)) // total > (self.ensemble_refreshes * k) // total
        if self.example is not None:
            fine = progress >= 1 - self.example.fine_tune
            due = due & (fine | (self.example.draws is None))
            state = when(due, lambda s: examples.refresh(self, s, refresh_key, density, fine), state)
            stop = due & fine & (state.metrics["ess"] >= self.stop_ess)
        else:
            state = when(due, lambda s: examples.measure(self, s, refresh_key, density), state)
        if self.flow.trainable:
            state = self._optimise(state, step_key, density, progress)
        elif self.example is not None:
            loc, lower = moments(state.buffer)
            state = state._replace(loc=loc, scale_tril=lower)
        unit = state.unit + 1
        return state._replace(unit=unit, done=(unit >= state.num_units) | stop, num_skipped=state.adam.skipped)

    def _optimise(self, state: FlowState, key: Array, density: Any, progress: Array) -> FlowState:
        total = jnp.maximum(state.num_units, 1)
        steps = (self.train_steps + total - 1) // total
        dtype = state.buffer.dtype
        log_det = affine_log_det(state.scale_tril)
        none = jnp.zeros((), dtype)
        at = jnp.asarray(progress, dtype)
        w_energy = none if self.energy is None else maths.weight_at(at, as_knots(self.energy.weight))
        w_example = none if self.example is None else maths.weight_at(at, as_knots(self.example.weight))
        whitened = whiten(state.loc, state.scale_tril, state.buffer)

        def by_energy(params: Any, key: Array) -> Array:
            z = normal(key, (self.batch_size, state.buffer.shape[-1]), dtype)
            y, ldj = self.flow.forward(params, z)
            log_q = standard_normal_log_prob(z) - ldj - log_det
            log_p = density(affine(state.loc, state.scale_tril, y))
            return maths.reverse_kl(log_q, log_p, state.reference, self.energy.energy_high, self.energy.energy_max)

        def loss(network: Any, batch: Array, key: Array) -> Array:
            params = {**state.params, "network": network}
            out = none
            if self.example is not None:
                out = out + w_example * (maths.forward_kl(self.flow.log_prob(params, batch)) + log_det)
            if self.energy is not None:
                # A scalar predicate: while the weight is 0, neither the flow's draws nor the model are evaluated.
                out = out + w_energy * lax.cond(w_energy > 0, lambda p: by_energy(p, key), lambda p: none, params)
            return out

        def one(j: Array, carry: tuple) -> tuple:
            network, adam, _ = carry
            batch_key, draw_key = random.split(random.fold_in(key, j))
            batch = whitened[random.randint(batch_key, (self.batch_size,), 0, whitened.shape[0])]
            value, grads = jax.value_and_grad(loss)(network, batch, draw_key)
            rate = cosine((state.unit * steps + j) / (total * steps), self.learning_rate)
            network, adam = adam_step(network, adam, value, grads, rate, self.clip)
            return network, adam, value

        network, adam, value = lax.fori_loop(0, steps, one, (state.params["network"], state.adam, state.loss))
        evals = jnp.where(w_energy > 0, steps * self.batch_size, 0)
        return state._replace(
            params={**state.params, "network": network}, adam=adam, loss=value, num_evals=state.num_evals + evals
        )
