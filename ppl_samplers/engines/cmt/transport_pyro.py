"""Constrained mass transport on torch: the state of an engine and its training."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_samplers.backends.pyro.ensemble import working_dtype
from ppl_samplers.backends.settings import check_flow
from ppl_samplers.backends.torch.flows import Flow, SplineCoupling
from ppl_samplers.backends.torch.likelihood import Likelihood
from ppl_samplers.backends.torch.training import Optimiser
from ppl_samplers.backends.torch.zuko import Zuko
from ppl_samplers.core import evidence, weights
from ppl_samplers.core.resampling import systematic
from ppl_samplers.engines.boltzmann.maths import defensive_log_prob
from ppl_samplers.engines.cmt import host, maths
from ppl_samplers.engines.cmt.dual import TARGET
from ppl_samplers.engines.cmt.settings import METRICS, Settings
from ppl_samplers.engines.proposal_pyro import FlowProposal

# Points that are pushed through the flow at once when a buffer is drawn.
_CHUNK = 4096
FLOW = SplineCoupling(layers=6, bins=None)


@dataclass
class CMTState:
    """Everything of one engine that depends on data or on random numbers.

    Attributes:
        flow: The network and the affine standardisation.
        optimiser: Adam over the network.
        num_units: Units that the training is planned for.
        pool: Buffers that the flow learns from, each ``x (N, D)`` with log weights ``(N,)``.
        path: Exponents of the start and of the target.
        anchor: The flow that the rest of the buffers' draws come from, once there is one.
        unit: Units done.
        reached: The target was reached.
        polished: Units since then.
        loss: Loss of the last step.
        num_evals: Evaluations of the density.
        done: Nothing is left to train.
        metrics: Scalars of the last unit for the training history.
    """

    flow: Flow
    optimiser: Optimiser
    num_units: int
    pool: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    path: tuple[float, float] = (1.0, 0.0)
    anchor: Flow | None = None
    unit: int = 0
    reached: bool = False
    polished: int = 0
    loss: float = math.nan
    num_evals: int = 0
    done: bool = False
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def num_skipped(self) -> int:
        """Optimiser steps left out because the loss or its gradient was not finite."""
        return self.optimiser.num_skipped


@dataclass(frozen=True)
class CMTTransport(FlowProposal, Settings):
    """Constrained mass transport as a transport; see :class:`~ppl_samplers.engines.cmt.settings.Settings`."""

    flow: Any = FLOW

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flow("CMT", self.flow, (SplineCoupling, Zuko))

    # -- training -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def init(self, density: Any, num_units: int, initial: Tensor | None = None) -> CMTState:
        """A flow that is the identity over a broad affine map, and a buffer of prior draws to fit it to.

        Args:
            density: The log density; its gradient is never asked for.
            num_units: Units that will follow.
            initial: The user's starting points ``(k, D)``: they take the place of the first draws.
        """
        dtype, n = working_dtype(density), self.buffer_size
        x = density.sample_prior(n) if density.has_prior else 2.0 * torch.randn(n, density.dim)
        x = x.to(dtype)
        if initial is not None:
            x[: min(len(initial), n)] = initial[:n].to(dtype)
        levels = torch.tensor([0.001, 0.999], dtype=dtype, device=x.device)
        low, high = torch.quantile(x, levels, dim=0)
        x = x.clamp(low, high)
        flow = Flow(self.flow, density.dim, dtype, x.device)
        flow.standardise(x.mean(0), torch.diag(1.2 * x.std(0, correction=0).clamp(min=1e-6)))
        optimiser = Optimiser(flow.parameters(), self.learning_rate, self.grad_steps, self.clip)
        pool = [(x, torch.full((n,), -math.log(n), dtype=dtype, device=x.device))]
        return CMTState(flow, optimiser, num_units, pool, metrics=dict.fromkeys(METRICS, math.nan))

    def resume(self, state: CMTState, num_units: int) -> CMTState:
        """A state made ready for ``num_units`` more units: of polish, or of the path if that was cut short."""
        unit, polished = (1, 0) if state.reached else (state.unit, state.polished)
        return replace(state, num_units=num_units + unit, unit=unit, polished=polished, done=False)

    def train_step(self, state: CMTState, density: Any) -> CMTState:
        """One unit: a buffer, its dual, the moments, a weighted fit. The first one fits the flow to the prior draws."""
        if state.unit > 0:
            self._transport(state, density)
        self._fit(state)
        state.unit += 1
        polished = state.polished >= self.polish or state.metrics["ess"] >= self.stop_ess
        state.done = state.unit >= state.num_units or (state.reached and polished)
        state.metrics |= {"loss": state.loss, "num_evals": state.num_evals, "num_skipped": state.num_skipped}
        return state

    @torch.no_grad()
    def draw(self, state: CMTState, density: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A buffer: ``x (N, D)``, ``log p (N,)``, ``log q (N,)``, and the flow's own log weights ``(N,)``.

        ``q`` is the flow, or its mixture with the anchor. The last are ``-inf`` where the anchor drew the point.
        """
        parts, n = [], self.buffer_size
        count = 0 if state.anchor is None else int(self.anchor * n)
        for flow, other, size in ((state.flow, state.anchor, n - count), (state.anchor, state.flow, count)):
            for start in range(0, size, _CHUNK):
                x, own = flow.sample(min(_CHUNK, size - start))
                log_p, log_q = density(x), own
                if other is not None:
                    log_q = defensive_log_prob(own, other.log_prob(x), 1 - size / n)
                log_w = log_p - own if flow is state.flow else torch.full_like(own, -math.inf)
                parts.append((x, log_p, log_q, weights.sanitize(log_w)))
        state.num_evals += n
        # Shuffled, so that the points that are held out are of both kinds.
        order = torch.randperm(n, device=state.flow.loc.device)
        x, log_p, log_q, log_w = (torch.cat(list(part))[order] for part in zip(*parts))
        return x, log_p, log_q, log_w

    @torch.no_grad()
    def _transport(self, state: CMTState, density: Any) -> None:
        """Draw a buffer, solve the step, move the affine map, put the weighted buffer into the pool."""
        x, log_p, log_q, own_log_w = self.draw(state, density)
        share = 1.0 if state.anchor is None else 1 - int(self.anchor * len(x)) / len(x)
        # The last units go for the target whatever the constraints say, but never more than a quarter of them.
        keep = state.reached or state.polished > 0
        polishing = state.reached or state.unit >= state.num_units - min(self.polish, state.num_units // 4)
        row = host.unit_step(
            log_p.cpu().double().numpy(), log_q.cpu().double().numpy(), self, state.unit, state.num_units,
            density.dim, polishing,
        )  # fmt: skip
        figure = dict(zip(host.FIELDS, row.tolist()))
        log_w = weights.log_normalize(maths.log_weights(log_p, log_q, figure["b"], figure["c"]))
        state.reached = state.reached or figure["status"] == TARGET
        state.path = maths.path_step(*state.path, figure["b"], figure["c"])
        beta, alpha = maths.path_coordinates(*state.path)
        target = maths.log_weights(log_p.double(), log_q.double(), 1.0, 1.0)
        before = state.metrics["entropy"]
        state.metrics |= {name: figure[name] for name in METRICS if name in figure}
        state.metrics |= {
            "ess": float(weights.ess(own_log_w)) / (share * len(x)),
            "log_evidence": float(evidence.log_evidence(target)[0]),
            "entropy_decay_nominal": figure["entropy"] - figure["next_entropy"],
            "entropy_decay_realised": before - figure["entropy"],
            "beta": beta,
            "alpha": alpha,
        }
        if self.anchor > 0 and state.anchor is None and figure["target_ess"] > maths.IN_SIGHT:
            state.anchor = deepcopy(state.flow)
        self._moments(state, x, log_w)
        # Buffers of the path are each other's past and are thrown away; those of the target are all of one density.
        kept = state.pool[-(self.pool - 1) :] if keep and self.pool > 1 else []
        # Each buffer counts by its effective size.
        state.pool = [*kept, (x, log_w + torch.log(weights.ess(log_w)))]
        state.polished += polishing

    def _moments(self, state: CMTState, x: Tensor, log_w: Tensor) -> None:
        """Move mean and scale of each coordinate to the weighted ones, where held-out points are the better for it.

        Done blindly this loses modes: when the weights of two modes change, it drags both from where the flow had them.
        """
        flow = state.flow
        scale, w = torch.diagonal(flow.scale_tril).clone(), log_w.exp()[:, None]
        mean, sd = x.mean(0), x.std(0, correction=0).clamp(min=1e-12)
        new_mean = (w * x).sum(0)
        ratio = (w * (x - new_mean) ** 2).sum(0).clamp(min=1e-24).sqrt() / sd
        wanted = (ratio.log().abs() > 0.03) | ((new_mean - mean).abs() > 0.03 * sd)
        old, loc, scales = flow.loc.clone(), new_mean + ratio * (flow.loc - mean), scale * ratio
        index = systematic(log_w[: self.held], torch.rand_like(log_w[0]), 1024)
        points = x[: self.held][index]

        def nll(chosen: Tensor) -> Tensor:
            m, s = torch.where(chosen, loc, old), torch.where(chosen, scales, scale)
            return s.log().sum() - flow.whitened_log_prob((points - m) / s).mean()

        rows = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        still = nll(torch.zeros_like(wanted))
        good = wanted & torch.stack([nll(row) < still if bool(w) else w for row, w in zip(rows, wanted)])
        if bool(nll(good) < still):
            flow.standardise(torch.where(good, loc, old), torch.diag(torch.where(good, scales, scale)))

    def _fit(self, state: CMTState) -> None:
        """Weighted forward KL on the pool; the best of start and five checkpoints by held-out likelihood stays."""
        flow, held, optimiser = state.flow, self.held, state.optimiser
        y = torch.cat([flow.whiten(x[held:]) for x, _ in state.pool])
        log_w = torch.cat([w[held:] for _, w in state.pool])
        index = systematic(log_w, torch.rand_like(log_w[0]), self.grad_steps * self.batch_size)
        batches = y[index[torch.randperm(len(index), device=index.device)]].split(self.batch_size)
        x, test_w = state.pool[-1]
        test_y, test_w = flow.whiten(x[:held]), weights.normalize(test_w[:held])
        volume = float(flow.log_volume())

        @torch.no_grad()
        def held_out() -> float:
            log_q = flow.whitened_log_prob(test_y)
            return -float(torch.where(test_w > 0, test_w * log_q, torch.zeros_like(log_q)).sum())

        # The rate falls within each unit; the moments of Adam stay.
        optimiser.count, optimiser.total_steps = 0, self.grad_steps
        optimiser.learning_rate = self.learning_rate * self.top_rate(state.polished if state.reached else None)
        network = flow.transform
        best, lowest = deepcopy(network.state_dict()), held_out()
        likelihood = Likelihood(flow, self.grad_steps * state.num_units)
        for k in range(self.grad_steps):
            value = optimiser.step_along(*likelihood(batches[k]))
            if (k + 1) * 5 // self.grad_steps > k * 5 // self.grad_steps:
                now = held_out()
                if now < lowest:
                    best, lowest = deepcopy(network.state_dict()), now
                state.loss = value + volume
        network.load_state_dict(best)
        state.metrics["held_out"] = lowest + volume

    # -- files --------------------------------------------------------------------------------------------------------

    def to_arrays(self, state: CMTState) -> dict[str, np.ndarray]:
        """All arrays of a state (integer masks included: without them the density is another one)."""
        arrays = {}
        for kind, flow in (("flow", state.flow), ("anchor", state.anchor)):
            if flow is not None:
                arrays |= {f"{kind}.{name}": value.cpu().numpy() for name, value in flow.state_dict().items()}
        for k, (x, log_w) in enumerate(state.pool):
            arrays[f"pool.{k}.x"], arrays[f"pool.{k}.log_w"] = x.cpu().numpy(), log_w.cpu().numpy()
        numbers = [len(state.pool), *state.path, state.unit, state.num_evals, state.reached, state.polished]
        arrays["numbers"] = np.array(numbers, dtype=np.float64)
        return arrays

    def from_arrays(self, arrays: dict[str, np.ndarray], density: Any) -> CMTState:
        """The state of :meth:`to_arrays`."""
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        count, u, v, unit, evals, reached, polished = tensors["numbers"].tolist()
        flow, anchor = (self._read_flow(tensors, kind, density.dim) for kind in ("flow", "anchor"))
        pool = [(tensors[f"pool.{k}.x"], tensors[f"pool.{k}.log_w"]) for k in range(int(count))]
        optimiser = Optimiser(flow.parameters(), self.learning_rate, self.grad_steps, self.clip)
        return CMTState(
            flow, optimiser, int(unit), pool, (u, v), anchor, unit=int(unit), reached=bool(reached),
            polished=int(polished), num_evals=int(evals), done=True, metrics=dict.fromkeys(METRICS, math.nan),
        )  # fmt: skip

    def _read_flow(self, tensors: dict[str, Tensor], kind: str, dim: int) -> Any:
        named = {name[len(kind) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{kind}.")}
        if not named:
            return None
        flow = Flow(self.flow, dim, named["loc"].dtype)
        flow.load_state_dict(named)
        return flow
