"""Boltzmann generator for NumPyro: a flow trained by energy and by example, corrected exactly by the kernel."""

from __future__ import annotations

from collections.abc import Callable
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
from ppl_samplers.backends.numpyro.kernel import TransportKernel
from ppl_samplers.backends.settings import check_draws, check_flow, check_options, check_training
from ppl_samplers.core import acceptance, evidence, weights
from ppl_samplers.core.resampling import systematic
from ppl_samplers.engines.boltzmann import maths
from ppl_samplers.engines.boltzmann.objectives import DEFAULT, ByEnergy, ByExample, as_knots, parse
from ppl_samplers.engines.proposal_numpyro import FlowProposal

Array = jax.Array


# Wide-spread step sizes: the pilot run and the ensemble meet modes of different widths.
_FLOW, _PILOT, _MOVE = SplineCoupling(), Pilot(), HMC(spread=3.0)


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

    flow: Any = _FLOW
    objective: Any = DEFAULT
    train_steps: int = 1000
    batch_size: int = 256
    learning_rate: float = 2e-3
    clip: float = 5.0
    pilot: Pilot = _PILOT
    defensive: float = 0.05
    ensemble_refreshes: int = 40
    stop_ess: float = 0.9
    move: HMC = _MOVE
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
            draws = self.draws(density)
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
            check_draws(np.isfinite(np.asarray(self.draws(density))), density.space)

    def draws(self, density: Any) -> Array:
        """The user's draws on the unconstrained space, ``(n, D)``."""
        draws = self.example.draws
        if isinstance(draws, dict):
            missing = [site.name for site in density.space if site.name not in draws]
            if missing:
                raise ValueError(
                    f"ForwardKL(draws=...) lacks site {missing[0]!r}: hand over mcmc.get_samples(), constrained draws "
                    f"of every latent site ({', '.join(site.name for site in density.space)})"
                )
            x = density.unconstrain(draws).reshape(-1, density.dim)
        else:
            x = jnp.asarray(draws, jnp.result_type(float))
        if x.ndim != 2 or x.shape[-1] != density.dim or len(x) < 2:
            raise ValueError(f"ForwardKL(draws=...) must be (n, {density.dim}) with n >= 2, got {tuple(x.shape)}")
        return x

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
            state = when(due, lambda s: self._refresh(s, refresh_key, density, fine), state)
            stop = due & fine & (state.metrics["ess"] >= self.stop_ess)
        else:
            state = when(due, lambda s: self._measure(s, refresh_key, density), state)
        if self.flow.trainable:
            state = self._optimise(state, step_key, density, progress)
        elif self.example is not None:
            loc, lower = moments(state.buffer)
            state = state._replace(loc=loc, scale_tril=lower)
        unit = state.unit + 1
        return state._replace(unit=unit, done=(unit >= state.num_units) | stop, num_skipped=state.adam.skipped)

    def _measure(self, state: FlowState, key: Array, density: Any) -> FlowState:
        n = self.pilot.num_particles
        _, log_w = self.propose(state, key, density, n)
        return self._note(state, log_w, jnp.asarray(n), n)

    def _note(self, state: FlowState, log_w: Array, count: Array, evals: Any) -> FlowState:
        """Record ESS and evidence of ``count`` log weights (the rest of ``log_w`` is ``-inf``)."""
        first, second, _ = evidence.sums_of(log_w)
        log_z, _, ess, _ = evidence.finish(jnp.stack([first, second, count.astype(log_w.dtype)]))
        metrics = {"ess": ess / count, "log_evidence": log_z}
        return state._replace(metrics=metrics, num_evals=state.num_evals + jnp.asarray(evals, jnp.int32))

    def _refresh(self, state: FlowState, key: Array, density: Any, fine: Array) -> FlowState:
        """Renew the examples: by importance resampling in the fine-tuning, else by moving the ensemble."""
        n, blocks = state.particles.shape[0], self.pilot.final_moves
        size, dim = state.buffer.shape
        propose_key, clip_key, ensemble_key = random.split(key, 3)

        # The ensemble needs one block of proposals, the fine-tuning all: one compiled body, run as often as needed.
        def block(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            x, log_w = self.propose(state, random.fold_in(propose_key, j), density, n)
            return lax.dynamic_update_slice(carry[0], x, (j * n, 0)), lax.dynamic_update_slice(
                carry[1], log_w, (j * n,)
            )

        count = jnp.where(fine, blocks, 1)
        empty = (jnp.zeros((size, dim), state.buffer.dtype), jnp.full((size,), -jnp.inf, state.buffer.dtype))
        x, log_w = lax.fori_loop(0, count, block, empty)
        state = self._note(state, log_w, count * n, count * n)
        rich = fine & (weights.ess(log_w) >= max(64.0, 0.02 * size))

        def resample(s: FlowState) -> FlowState:
            # Clipped weights are for training only; every correction uses the exact ones.
            index = systematic(maths.truncate(log_w, 10), random.uniform(clip_key, (), log_w.dtype))
            return s._replace(buffer=x[index])

        state = when(rich, resample, state)
        if self.example.draws is not None:
            return state
        return when(~rich, lambda s: self._ensemble(s, ensemble_key, density, x[:n], log_w[:n]), state)

    def _ensemble(self, state: FlowState, key: Array, density: Any, x_new: Array, log_w_new: Array) -> FlowState:
        weight_key, u_key, move_key = random.split(key, 3)
        x, n = state.particles, state.particles.shape[0]
        log_w = self.log_weight(state, weight_key, density, x)
        accept = acceptance.imh(log_w_new, log_w, jnp.log(random.uniform(u_key, (n,), log_w.dtype)))
        x = jnp.where(accept[:, None], x_new, x)

        def one(i: Array, carry: tuple) -> tuple:
            move, x, log_p, grad, _ = self.move.step(
                carry[0], random.fold_in(move_key, i), density, *carry[1:4], adapt=True
            )
            return move, x, log_p, grad, carry[4]

        begin = state.move._replace(scale_tril=moments(state.buffer)[1])
        move, x, _, _, _ = lax.fori_loop(0, 2, one, (begin, x, *density.value_and_grad(x), 0))
        buffer = lax.dynamic_update_slice(state.buffer, x, (state.slot * n, 0))
        evals = n * (2 + 2 * self.move.num_leapfrog)
        return state._replace(
            particles=x,
            buffer=buffer,
            slot=(state.slot + 1) % self.pilot.final_moves,
            move=move,
            num_evals=state.num_evals + evals,
        )

    def _optimise(self, state: FlowState, key: Array, density: Any, progress: Array) -> FlowState:
        total = jnp.maximum(state.num_units, 1)
        steps = (self.train_steps + total - 1) // total
        dtype = state.buffer.dtype
        log_det = affine_log_det(state.scale_tril)
        none = jnp.zeros((), dtype)
        at = jnp.asarray(progress, dtype)
        w_energy = none if self.energy is None else maths.weight_at(at, as_knots(self.energy.weight))
        w_example = none if self.example is None else maths.weight_at(at, as_knots(self.example.weight))
        examples = whiten(state.loc, state.scale_tril, state.buffer)

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
            batch = examples[random.randint(batch_key, (self.batch_size,), 0, examples.shape[0])]
            value, grads = jax.value_and_grad(loss)(network, batch, draw_key)
            rate = cosine((state.unit * steps + j) / (total * steps), self.learning_rate)
            network, adam = adam_step(network, adam, value, grads, rate, self.clip)
            return network, adam, value

        network, adam, value = lax.fori_loop(0, steps, one, (state.params["network"], state.adam, state.loss))
        evals = jnp.where(w_energy > 0, steps * self.batch_size, 0)
        return state._replace(
            params={**state.params, "network": network}, adam=adam, loss=value, num_evals=state.num_evals + evals
        )


class BoltzmannGenerator(TransportKernel):
    """NumPyro kernel: a flow trained in the warm-up by energy and by example, then exact independence sampling from it.

    Use it with ``numpyro.infer.MCMC(..., chain_method="vectorized")``, or with ``ppl_samplers.numpyro.MCMC``, where
    that is the default; ``num_warmup`` counts training units (40 is enough for most models). Or train it
    with :meth:`fit`.

    Args:
        model: NumPyro model.
        log_density: A ``LogDensity`` in place of a model.
        flow: :class:`SplineCoupling` (default) or :class:`Affine`.
        objective: ``ReverseKL()``, ``ForwardKL(draws=...)``, or one of each in a tuple.
        train_steps: Optimiser steps in all.
        batch_size: Points per optimiser step.
        learning_rate: First learning rate.
        clip: Bound of the gradient norm.
        pilot: Settings of the pilot run.
        defensive: Share of a Student-t component in the proposal.
        ensemble_refreshes: How often the examples are renewed during the training.
        stop_ess: Training ends early once the relative effective sample size of the fine-tuning draws reaches this.
        **options: Options of :class:`~ppl_samplers.backends.numpyro.kernel.TransportKernel`: ``num_engines``,
            ``correction``, ``local_move``, ``local_every``, ``block``, ``num_reseat``, ``probe``, ``trained``.

    References:
        Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators: sampling equilibrium states of many-body
        systems with deep learning, 2019.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from jax import random
        >>> from numpyro.infer import MCMC
        >>> def model(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        >>> kernel = BoltzmannGenerator(model, flow=Affine())
        >>> options = dict(num_chains=4, chain_method="vectorized", progress_bar=False)
        >>> mcmc = MCMC(kernel, num_warmup=10, num_samples=100, **options)
        >>> mcmc.run(random.key(0), jnp.array([0.3, 1.1]))
        >>> mcmc.get_samples(group_by_chain=True)["mu"].shape
        (4, 100)
    """

    def __init__(
        self,
        model: Callable | None = None,
        *,
        log_density: Any = None,
        flow: Any = _FLOW,
        objective: Any = DEFAULT,
        train_steps: int = 1000,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        clip: float = 5.0,
        pilot: Pilot = _PILOT,
        defensive: float = 0.05,
        ensemble_refreshes: int = 40,
        stop_ess: float = 0.9,
        **options: Any,
    ):
        check_options(type(self), options)
        transport = FlowTransport(
            flow=flow,
            objective=objective,
            train_steps=train_steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            clip=clip,
            pilot=pilot,
            defensive=defensive,
            ensemble_refreshes=ensemble_refreshes,
            stop_ess=stop_ess,
        )
        super().__init__(model, log_density=log_density, transport=transport, **options)
