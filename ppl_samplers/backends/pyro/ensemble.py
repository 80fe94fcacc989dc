"""Engines and chains in arrays: training, reseating, blocks of exact transitions. Pyro's contracts: ``kernel.py``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ppl_samplers.backends.settings import IMH, ISIR, Probe
from ppl_samplers.backends.torch.moves import HMC
from ppl_samplers.core import acceptance, evidence, resampling

# HMC transitions that adapt the local step size after reseating, and the number of points they are averaged over.
_ADAPT_STEPS, _ADAPT_POINTS = 50, 64
# A chain whose log weight is so far above all fresh ones stands where the engine has almost no density.
_STUCK = 5.0


def working_dtype(density: Any) -> torch.dtype:
    """Number type of points: torch's default, or float64 where the model computes in float64."""
    default = torch.get_default_dtype()
    single = getattr(density, "single", None)
    return default if single is None else torch.promote_types(default, single.computing_dtype(default))


@dataclass(frozen=True)
class Options:
    """Options of the kernel; see :class:`~ppl_samplers.backends.pyro.kernel.TransportKernel`."""

    num_engines: int = 2
    correction: IMH | ISIR = field(default_factory=IMH)
    local_move: HMC | None = field(default_factory=HMC)
    local_every: int = 5
    block: int = 64
    num_reseat: int = 1024
    probe: Probe | None = field(default_factory=Probe)


class Ensemble:
    """``R`` engines and ``C`` chains on one density.

    Args:
        density: The log density.
        transport: Settings of the engines.
        options: Options of the kernel.
        num_chains: Chains ``C``, held in one tensor.
        num_units: Units of training ahead.
        initial: The user's starting points ``(k, D)`` on the unconstrained space.
        states: States of trained engines; ``None``: to be trained from nothing.

    Attributes:
        states: One state per engine; filled by the first training unit.
        x: Points of the chains, ``(C, D)``.
        sums: Evidence accumulator of every engine, ``(R, 3)`` float64.
        fresh: Log weights of the proposals made for reseating, ``(R, M)``.
        probe_log_weights: ``(R, P)``, or ``None``.
        probe_log_density: ``(P,)``, or ``None``.
        history: One dict of metrics per unit and engine.
    """

    def __init__(
        self,
        density: Any,
        transport: Any,
        options: Options,
        num_chains: int,
        num_units: int,
        initial: Tensor | None = None,
        states: list[Any] | None = None,
    ):
        self.density, self.transport, self.options = density, transport, options
        self.num_chains, self.num_units, self.initial = num_chains, num_units, initial
        self.states: list[Any] | None = None
        if states is not None:
            self.states = [transport.resume(state, num_units) for state in states] if num_units else list(states)
        self.num_engines = len(states) if states is not None else options.num_engines
        self.units = 0
        self.history: list[list[dict[str, float]]] = [[] for _ in range(self.num_engines)]
        self.sums = torch.full((self.num_engines, 3), -math.inf, dtype=torch.float64)
        self.sums[:, 2] = 0.0
        self.fresh: Tensor | None = None
        self.probe_log_weights: Tensor | None = None
        self.probe_log_density: Tensor | None = None
        self.local: Any = None
        self.blocks = self.iterations = self.local_evals = self.other_evals = 0
        self.seated = False
        self.x: Tensor | None = None

    # -- training -----------------------------------------------------------------------------------------------------

    def train_unit(self) -> None:
        """One unit of every engine, one after the other, each from its own stretch of the random stream."""
        if self.states is None:
            self.states = [
                self.transport.init(self.density, self.num_units, self.initial) for _ in range(self.num_engines)
            ]
        for index in range(self.num_engines):
            if self.states[index].done:
                continue
            self.states[index] = self.transport.train_step(self.states[index], self.density)
            self.history[index].append(dict(self.states[index].metrics))
        self.units += 1

    def start(self) -> Tensor:
        """The chains' points before sampling, ``(C, D)``: the user's, or dispersed ones."""
        if self.x is None:
            dtype = working_dtype(self.density)
            if self.initial is not None:
                rows = torch.arange(self.num_chains) % len(self.initial)
                self.x = self.initial[rows].to(dtype)
            else:
                self.x = self.density.initial_points(self.num_chains).to(dtype)
        return self.x

    def engine_of(self, block: int = 0) -> Tensor:
        """Engine of every chain in a block, ``(C,)``: fixed with enough chains, else alternating."""
        chains, engines = torch.arange(self.num_chains), self.num_engines
        return chains * engines // self.num_chains if self.num_chains >= engines else (chains + block) % engines

    # -- the start of sampling ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def reseat(self) -> None:
        """Freeze the engines, take first evidence, place the chains by importance resampling, adapt the local move."""
        if self.states is None:
            raise ValueError("the engines are not trained: ask for warm-up (warmup_steps=40), or pass trained=")
        draws = [self.transport.propose(state, self.density, self.options.num_reseat) for state in self.states]
        points, log_w = torch.stack([x for x, _ in draws]), torch.stack([w for _, w in draws])
        for index in range(self.num_engines):
            self.sums[index] = evidence.add(self.sums[index], log_w[index].cpu())
        if self.fresh is None:
            self.fresh = log_w.cpu()
        keep_users = self.num_units == 0 and self.initial is not None
        self.start()
        if not keep_users:
            engine = self.engine_of(self.blocks).to(log_w.device)
            chosen = log_w[engine]
            index = resampling.categorical(chosen, _gumbel(chosen))
            alive = (chosen > -math.inf).any(-1)
            self.x = torch.where(alive[:, None], points[engine, index], self.x)
        self._seat_local(points, log_w, adapt_chains=not keep_users)
        self._run_probe()
        self.seated = True

    def _seat_local(self, points: Tensor, log_w: Tensor, adapt_chains: bool) -> None:
        move = self.options.local_move
        if move is None:
            return
        # Engines in equal parts, whatever their evidence: the scale stays right where one missed a mode.
        pool = torch.cat([x[resampling.systematic(w, torch.rand_like(w[0]))] for x, w in zip(points, log_w)])
        self.local = move.init(self.density, pool)
        rows = torch.randint(len(pool), (max(_ADAPT_POINTS - self.num_chains, 0),), device=pool.device)
        x = torch.cat([self.x, pool[rows]])
        log_p, grad = self.density.value_and_grad(x)
        for _ in range(_ADAPT_STEPS):
            self.local, x, log_p, grad, _ = move.step(self.local, self.density, x, log_p, grad, adapt=True)
        self.local_evals += len(x)
        if adapt_chains:
            self.x = x[: self.num_chains]

    def _run_probe(self) -> None:
        probe = self.options.probe
        if probe is None or self.probe_log_weights is not None:
            return
        move = self.options.local_move or HMC()
        x = self.density.initial_points(probe.num_points).to(self.x)
        state = move.init(self.density, x)
        log_p, grad = self.density.value_and_grad(x)
        for _ in range(probe.num_steps):
            state, x, log_p, grad, _ = move.step(state, self.density, x, log_p, grad, adapt=True)
        self.other_evals += len(x) + state.num_evals
        rows = [self.transport.log_weight(engine, self.density, x).cpu() for engine in self.states]
        self.probe_log_weights, self.probe_log_density = torch.stack(rows), log_p.double().cpu()

    # -- sampling -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def advance(self, n: int) -> tuple[Tensor, dict[str, Tensor]]:
        """``n`` transitions of every chain, from one block of fresh proposals.

        Returns:
            Points ``(C, n, D)`` and statistics, each ``(C, n)``.
        """
        if not self.seated:
            self.reseat()
        correction, move = self.options.correction, self.options.local_move
        engine = self.engine_of(self.blocks)
        groups = [(r, (engine == r).nonzero()[:, 0]) for r in range(self.num_engines) if bool((engine == r).any())]
        candidates = correction.num_fresh
        x, chains = self.x, self.num_chains
        new_x = x.new_empty(chains, n, candidates, x.shape[-1])
        new_w = torch.empty(chains, n, candidates, dtype=torch.float64, device=x.device)
        for r, rows in groups:
            points, log_w = self.transport.propose(self.states[r], self.density, len(rows) * n * candidates)
            self.sums[r] = evidence.add(self.sums[r], log_w.cpu())
            new_x[rows] = points.reshape(len(rows), n, candidates, -1)
            new_w[rows] = log_w.reshape(len(rows), n, candidates)
        log_w = self._weigh(x, groups)
        isir = isinstance(correction, ISIR)
        noise = _gumbel(new_w.new_empty(chains, n, candidates + 1)) if isir else torch.rand_like(new_w[..., 0]).log()
        kept, kept_w, chance, moved = [], [], [], []
        for i in range(n):
            if isir:
                all_w = torch.cat([log_w[:, None], new_w[:, i]], dim=-1)
                index = acceptance.isir(all_w, noise[:, i])
                taken = index > 0
                total = torch.logsumexp(all_w, -1)
                prob = torch.where(total > -math.inf, -torch.expm1(log_w - total), torch.zeros_like(total))
                pick = (index - 1).clamp(min=0)
            else:
                ratio = acceptance.imh_log_ratio(new_w[:, i, 0], log_w)
                taken = acceptance.metropolis(ratio, noise[:, i])
                prob = ratio.clamp(max=0.0).exp()
                pick = torch.zeros(chains, dtype=torch.long, device=x.device)
            rows = torch.arange(chains, device=x.device)
            x = torch.where(taken[:, None], new_x[rows, i, pick], x)
            log_w = torch.where(taken, new_w[rows, i, pick], log_w)
            self.iterations += 1
            if move is not None and self.iterations % self.options.local_every == 0:
                log_p, grad = self.density.value_and_grad(x)
                self.local, x, _, _, _ = move.step(self.local, self.density, x, log_p, grad)
                self.local_evals += chains
                log_w = self._weigh(x, groups)
            kept.append(x)
            kept_w.append(log_w)
            chance.append(prob)
            moved.append(taken)
        self.x, self.blocks = x, self.blocks + 1
        points = torch.stack(kept, 1)
        log_p = self.density(points.reshape(chains * n, -1)).reshape(chains, n)
        self.other_evals += chains * n
        best = new_w.max(-1).values
        stats = {
            "potential_energy": -log_p.double(),
            "accept_prob": torch.stack(chance, 1),
            "accepted": torch.stack(moved, 1),
            "log_weight": torch.stack(kept_w, 1),
            "prop_log_weight": best,
            "engine_id": engine[:, None].expand(chains, n),
            "num_evals": torch.full((chains, n), self.num_evals, dtype=torch.long),
        }
        return points, {name: value.cpu() for name, value in stats.items()}

    def _weigh(self, x: Tensor, groups: list[tuple[int, Tensor]]) -> Tensor:
        """Log weights of the chains' points, each under its engine of this block, ``(C,)``."""
        out = torch.empty(len(x), dtype=torch.float64, device=x.device)
        for r, rows in groups:
            out[rows] = self.transport.log_weight(self.states[r], self.density, x[rows])
        return out

    # -- figures ------------------------------------------------------------------------------------------------------

    @property
    def num_evals(self) -> int:
        """Evaluations of the density so far."""
        local = 0 if self.local is None else self.local.num_evals
        return sum(state.num_evals for state in self.states or ()) + local + self.local_evals + self.other_evals

    def continue_from(self, other: Ensemble) -> None:
        """Take over the evidence, the probe and the history of an earlier chain with the same engines."""
        self.sums, self.fresh, self.history = other.sums, other.fresh, other.history
        self.probe_log_weights, self.probe_log_density = other.probe_log_weights, other.probe_log_density
        self.blocks = other.blocks
        self.other_evals = other.other_evals + other.local_evals + (0 if other.local is None else other.local.num_evals)

    def notes(self) -> tuple[str, ...]:
        """What a user should read about the chains' places."""
        if self.fresh is None or self.x is None or not self.seated:
            return ()
        groups = [(r, (self.engine_of(self.blocks) == r).nonzero()[:, 0]) for r in range(self.num_engines)]
        log_w = self._weigh(self.x, [(r, rows) for r, rows in groups if len(rows)]).cpu()
        top = self.fresh[self.engine_of(self.blocks)].max(-1).values
        far = [int(c) for c in (log_w > top + _STUCK).nonzero()[:, 0]]
        if not far:
            return ()
        return (
            f"chain(s) {far} stand where their engine has almost no density (log weight more than {_STUCK:g} above all "
            "fresh proposals): the engine misses mass there; train longer, or start from several places",
        )


def _gumbel(like: Tensor) -> Tensor:
    """Standard Gumbel noise of the shape and type of ``like``."""
    return -torch.empty_like(like).exponential_().log()
