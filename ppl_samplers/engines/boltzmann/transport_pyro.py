"""Boltzmann generator in Pyro: the flow, trained by energy and by example, and its state."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_samplers.backends.pyro.ensemble import working_dtype
from ppl_samplers.backends.settings import check_flow, check_training
from ppl_samplers.backends.torch.flows import Affine, Flow, SplineCoupling
from ppl_samplers.backends.torch.likelihood import Likelihood
from ppl_samplers.backends.torch.moves import HMC, HMCState, scale_tril_of
from ppl_samplers.backends.torch.pilot import Pilot
from ppl_samplers.backends.torch.training import Optimiser
from ppl_samplers.backends.torch.zuko import Zuko
from ppl_samplers.engines.boltzmann import examples_pyro as examples
from ppl_samplers.engines.boltzmann import maths, objectives
from ppl_samplers.engines.proposal_pyro import FlowProposal

# Fine-tuning of a finished flow starts at this share of the learning rate.
_RESUMED_RATE = 0.3


@dataclass
class FlowState:
    """Everything of one engine that depends on data or on random numbers.

    Attributes:
        flow: The network and the affine standardisation.
        optimiser: Adam and its schedule.
        move: State of the HMC moves of the ensemble.
        reference: Lowest energy seen by the pilot run.
        num_units: Units that the training is planned for.
        buffer: Examples, ``(B, D)``, or ``None``.
        particles: Ensemble ``(N, D)`` with ``log_p`` ``(N,)`` and ``grad`` ``(N, D)``, or ``None``.
        cursor: Where the buffer is overwritten next.
        unit: Units done.
        resumed: A finished flow that is trained further: all of its progress is fine-tuning.
        loss: Mean loss of the last unit.
        num_evals: Evaluations of the density.
        done: All units are done.
        metrics: Scalars of the last unit for the training history.
    """

    flow: Flow
    optimiser: Optimiser
    move: HMCState
    reference: float
    num_units: int
    buffer: Tensor | None = None
    particles: Tensor | None = None
    log_p: Tensor | None = None
    grad: Tensor | None = None
    cursor: int = 0
    unit: int = 0
    resumed: bool = False
    loss: float = math.nan
    num_evals: int = 0
    done: bool = False
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def num_skipped(self) -> int:
        """Optimiser steps left out because the loss or its gradient was not finite."""
        return self.optimiser.num_skipped


@dataclass(frozen=True)
class FlowTransport(FlowProposal):
    """A normalizing flow as a transport: settings only; all that is learnt is in :class:`FlowState`.

    Attributes:
        flow: :class:`SplineCoupling` or :class:`Affine`.
        objective: :class:`ByEnergy`, :class:`ByExample`, or one of each.
        train_steps: Optimiser steps, spread evenly over the units.
        batch_size: Of a step.
        learning_rate: At the start; decays to 5 % by a cosine.
        clip: Largest gradient norm.
        pilot: Settings of the pilot run.
        move: HMC moves of the pilot run and of the ensemble.
        defensive: Share of a heavy-tailed Student-t in the proposals.
        ensemble_refreshes: Refreshes of the examples over the training.
        stop_ess: Training ends early once the relative effective sample size of the fine-tuning draws reaches this.

    References:
        Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators: sampling equilibrium states of many-body
        systems with deep learning, 2019.
    """

    flow: SplineCoupling | Affine = field(default_factory=SplineCoupling)
    objective: Any = objectives.DEFAULT
    train_steps: int = 1000
    batch_size: int = 256
    learning_rate: float = 2e-3
    clip: float = 5.0
    pilot: Pilot = field(default_factory=Pilot)
    move: HMC = field(default_factory=lambda: HMC(spread=3.0))
    defensive: float = 0.05
    ensemble_refreshes: int = 40
    stop_ess: float = 0.9

    def __post_init__(self) -> None:
        check_flow("BoltzmannGenerator", self.flow, (SplineCoupling, Affine, Zuko))
        objectives.parse(self.objective)
        counts = {name: getattr(self, name) for name in ("train_steps", "batch_size", "ensemble_refreshes")}
        check_training("BoltzmannGenerator", counts, self.learning_rate, self.clip, self.defensive, self.stop_ess)

    # -- training -----------------------------------------------------------------------------------------------------

    def init(self, density: Any, num_units: int, initial: Tensor | None = None) -> FlowState:
        """Pilot run, standardisation and an untrained flow (the identity on the whitened space).

        Args:
            density: The log density.
            num_units: Units that ``train_step`` will be called for.
            initial: The user's starting points ``(k, D)``, on the unconstrained space.
        """
        dtype = working_dtype(density)
        _, example = objectives.parse(self.objective)
        draws = None if example is None or example.draws is None else examples.given(example.draws, density, dtype)
        if draws is not None:
            log_p = density(draws[: examples.ROUND])
            if not bool(torch.isfinite(log_p).any()):
                raise ValueError("ForwardKL(draws=...): the log density is -inf at all draws; check their order")
            flow = Flow(self.flow, density.dim, dtype, draws.device)
            flow.standardise(draws.mean(0), scale_tril_of(draws))
            move = self.move.init(density, draws, flow.scale_tril.clone())
            state = FlowState(flow, self._optimiser(flow), move, float(-log_p.max()), num_units, draws.clone())
            state.num_evals = len(log_p)
            return state
        pilot = self.pilot.run(density, self.move, initial, dtype)
        flow = Flow(self.flow, density.dim, dtype, pilot.x.device)
        flow.standardise(pilot.loc, pilot.scale_tril)
        state = FlowState(flow, self._optimiser(flow), pilot.move, pilot.reference, num_units)
        state.num_evals = pilot.num_evals
        state.metrics = {"log_evidence": pilot.log_z}
        if example is not None:
            state.buffer, state.particles, state.log_p, state.grad = pilot.examples, pilot.x, pilot.log_p, pilot.grad
        return state

    def resume(self, state: FlowState, num_units: int) -> FlowState:
        """A finished state made ready for ``num_units`` further units of fine-tuning."""
        optimiser = self._optimiser(state.flow, _RESUMED_RATE)
        return replace(state, optimiser=optimiser, num_units=num_units, unit=0, done=False, resumed=True)

    def _optimiser(self, flow: Flow, share: float = 1.0) -> Optimiser:
        return Optimiser(flow.parameters(), share * self.learning_rate, self.train_steps, self.clip)

    def train_step(self, state: FlowState, density: Any) -> FlowState:
        """One unit: refresh the examples where due, then a block of optimiser steps."""
        energy, example = objectives.parse(self.objective)
        unit, units = state.unit, max(state.num_units, 1)
        progress = unit / units
        if state.resumed and example is not None:
            progress = 1 - example.fine_tune * (1 - progress)
        refreshes = self.ensemble_refreshes
        state.metrics, tuned = {}, False
        if example is not None and refreshes * (unit + 1) // units > refreshes * unit // units:
            tuned = progress >= 1 - example.fine_tune and examples.fine_tune(self, state, density)
            if not tuned and state.particles is not None:
                examples.refresh_ensemble(self, state, density)
            if state.flow.transform is None and state.buffer is not None:
                state.flow.standardise(state.buffer.mean(0), scale_tril_of(state.buffer))
        steps = -(-self.train_steps // units)
        if state.flow.transform is not None:
            at = torch.tensor(progress)
            by_example = 0.0 if example is None else float(maths.weight_at(at, objectives.as_knots(example.weight)))
            by_energy = 0.0 if energy is None else float(maths.weight_at(at, objectives.as_knots(energy.weight)))
            self._optimise(state, density, steps, by_example, by_energy, energy)
        state.unit = unit + 1
        state.done = state.unit >= units or (tuned and state.metrics["ess"] >= self.stop_ess)
        state.metrics |= {"loss": state.loss, "num_evals": state.num_evals, "num_skipped": state.num_skipped}
        return state

    def _optimise(
        self, state: FlowState, density: Any, steps: int, by_example: float, by_energy: float, energy: Any
    ) -> None:
        flow, losses = state.flow, []
        volume = flow.log_volume()
        whitened = flow.whiten(state.buffer) if by_example > 0 and state.buffer is not None else None
        likelihood = Likelihood(flow, self.train_steps)
        for _ in range(steps if whitened is not None or by_energy > 0 else 0):
            batch = None
            if whitened is not None:
                batch = whitened[torch.randint(len(whitened), (self.batch_size,), device=whitened.device)]
            if batch is not None and by_energy == 0:
                value, gradients = likelihood(batch)
                value, gradients = by_example * (value + volume), [by_example * g for g in gradients]
                losses.append(state.optimiser.step_along(value, gradients))
                continue
            y, log_q = flow.sample_whitened(self.batch_size)
            log_p = density(flow.unwhiten(y))
            reference = torch.tensor(state.reference, dtype=log_p.dtype, device=log_p.device)
            loss = by_energy * maths.reverse_kl(log_q - volume, log_p, reference, energy.energy_high, energy.energy_max)
            state.num_evals += self.batch_size
            if batch is not None:
                loss = loss + by_example * maths.forward_kl(flow.whitened_log_prob(batch) - volume)
            losses.append(state.optimiser.step(loss))
        finite = [value for value in losses if math.isfinite(value)]
        state.loss = sum(finite) / len(finite) if finite else math.nan

    # -- files --------------------------------------------------------------------------------------------------------

    def to_arrays(self, state: FlowState) -> dict[str, np.ndarray]:
        """All arrays of a state (integer masks included: without them the density is another one)."""
        arrays = {f"flow.{name}": value.cpu().numpy() for name, value in state.flow.state_dict().items()}
        for name in ("buffer", "particles", "log_p", "grad"):
            if getattr(state, name) is not None:
                arrays[name] = getattr(state, name).cpu().numpy()
        arrays["move.scale_tril"] = state.move.scale_tril.cpu().numpy()
        arrays["numbers"] = np.array(
            [state.move.log_step, state.move.count, state.reference, state.num_evals, state.unit], dtype=np.float64
        )
        return arrays

    def from_arrays(self, arrays: dict[str, np.ndarray], density: Any) -> FlowState:
        """The state of :meth:`to_arrays`."""
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        log_step, count, reference, evals, unit = tensors["numbers"].tolist()
        flow = Flow(self.flow, density.dim, tensors["flow.loc"].dtype)
        flow.load_state_dict({name[5:]: value for name, value in tensors.items() if name.startswith("flow.")})
        return FlowState(
            flow,
            self._optimiser(flow),
            HMCState(log_step, tensors["move.scale_tril"], int(count)),
            reference,
            int(unit),
            tensors.get("buffer"),
            tensors.get("particles"),
            tensors.get("log_p"),
            tensors.get("grad"),
            unit=int(unit),
            num_evals=int(evals),
            done=True,
        )
