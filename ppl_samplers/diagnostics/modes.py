"""The modes of a posterior: how much mass each holds, and which chains and engines have seen it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ppl_samplers.diagnostics.agreement import engine_of_draws
from ppl_samplers.diagnostics.mixture import best_fit, merge_hills
from ppl_samplers.diagnostics.psis import arviz
from ppl_samplers.diagnostics.record import RunRecord

# A mass estimated from fewer effective visits has a relative error above a fifth.
MIN_VISITS = 20
FIT_POINTS = 1200
# Beyond this many coordinates mixtures are fitted in the directions that spread the most, not in all.
MAX_DIM = 20


@dataclass(frozen=True)
class ModeTable:
    """Modes, heaviest first; ``print`` shows a table.

    Attributes:
        labels: Mode of each draw, ``(C, S)``.
        mass: Share of the draws in each mode, ``(K,)``.
        standard_error: Monte Carlo error of ``mass``, ``(K,)``; NaN where a chain is too short to tell.
        centres: Mean of the draws of each mode in the unconstrained space, ``(K, D)``.
        per_engine: Share of each mode among the draws of each engine, ``(R, K)``; NaN for an engine without a chain.
        per_chain: Share of each mode in each chain, ``(C, K)``.
        switches: Number of changes of mode in each chain, ``(C,)``.
        rhat: R-hat of the indicator of each mode, ``(K,)``; 1 where there is one mode, NaN with one chain.
        ess: Effective sample size of the indicator, ``(K,)``.
        flags: Sentences on what is wrong; empty if nothing is.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 300, 1))
        >>> x[..., 0] += np.where(np.random.default_rng(1).random((4, 300)) < 0.25, -6.0, 6.0)
        >>> mode_table(x).mass.round(1)
        array([0.8, 0.2])
    """

    labels: np.ndarray
    mass: np.ndarray
    standard_error: np.ndarray
    centres: np.ndarray
    per_engine: np.ndarray
    per_chain: np.ndarray
    switches: np.ndarray
    rhat: np.ndarray
    ess: np.ndarray
    flags: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.mass)

    def __str__(self) -> str:
        return "\n".join([self.table(), *self.flags])

    def table(self) -> str:
        """The numbers as text, without the flags."""
        engines = "".join(f"  engine {r:<2d}" for r in range(len(self.per_engine)))
        lines = [f"{'mode':>4s}  {'mass':>6s}  {'error':>6s}  {'ess':>7s}  {'r_hat':>6s}{engines}"]
        for k in range(len(self)):
            shares = "".join(f"  {v:>9.3f}" for v in self.per_engine[:, k])
            lines.append(
                f"{k:>4d}  {self.mass[k]:>6.3f}  {self.standard_error[k]:>6.3f}  {self.ess[k]:>7.0f}  "
                f"{self.rhat[k]:>6.2f}{shares}"
            )
        lines.append(f"changes of mode per chain: {', '.join(str(int(s)) for s in self.switches)}")
        return "\n".join(lines)


def mode_table(
    draws: RunRecord | np.ndarray,
    *,
    labels: np.ndarray | Callable[[np.ndarray], np.ndarray] | None = None,
    engine: np.ndarray | None = None,
    max_modes: int = 10,
    seed: int = 0,
) -> ModeTable:
    """Find the modes among draws and count the visits of chains and engines.

    Without ``labels``, Gaussian mixtures are fitted to whitened draws, their number chosen by BIC, and components
    without a valley between them are joined. A mode that no chain has visited cannot appear here.

    Args:
        draws: A run, or draws ``(C, S, D)`` in an unconstrained space.
        labels: Your own modes: integers ``(C, S)``, or a function ``(N, D) -> (N,)`` of unconstrained points.
        engine: Engine of each chain, ``(C,)``, where ``draws`` is an array; all the same by default.
        max_modes: Most mixture components.
        seed: Seed of the fit (subsample and starting points).

    Raises:
        ValueError: The shapes do not fit.
    """
    if isinstance(draws, RunRecord):
        x = np.asarray(draws.unconstrained, dtype=np.float64)
        owner, engines = engine_of_draws(draws), draws.num_engines
    else:
        x = np.asarray(draws, dtype=np.float64)
        if x.ndim != 3:
            raise ValueError(f"draws must have shape (chains, draws, dimensions), got {x.shape}.")
        chain_owner = np.zeros(len(x), dtype=int) if engine is None else np.asarray(engine, dtype=int)
        owner, engines = np.broadcast_to(chain_owner[:, None], x.shape[:2]), int(chain_owner.max()) + 1
    chains, length, dim = x.shape
    flat = x.reshape(-1, dim)
    if labels is None:
        found = _cluster(flat, max_modes, np.random.default_rng(seed))
    else:
        found = np.asarray(labels(flat) if callable(labels) else labels).reshape(-1)
        if len(found) != len(flat):
            raise ValueError(f"labels must have shape ({chains}, {length}), one per draw; got {found.shape}.")
    _, index, counts = np.unique(found, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    table = np.empty_like(order)
    table[order] = np.arange(len(order))
    label = table[index].reshape(chains, length)
    return _summarise(x, label, len(order), owner, engines)


def _cluster(flat: np.ndarray, max_modes: int, rng: np.random.Generator) -> np.ndarray:
    """Mode of each point, by mixtures on a whitened subsample."""
    finite = np.all(np.isfinite(flat), axis=1)
    points = flat[finite]
    spread = points.std(0) if len(points) else np.zeros(flat.shape[1])
    moving = spread > 1e-12 * (1 + np.abs(points.mean(0))) if len(points) else spread > 0
    out = np.zeros(len(flat), dtype=int)
    if not moving.any():
        return out
    z = (points[:, moving] - points[:, moving].mean(0)) / spread[moving]
    values, vectors = np.linalg.eigh(z.T @ z / len(z))
    # Directions of no spread left over from exact collinearity would be amplified noise.
    kept = np.flatnonzero(values > 1e-8 * values[-1])[::-1][:MAX_DIM]
    z = z @ (vectors[:, kept] / np.sqrt(values[kept]))
    chosen = z if len(z) <= FIT_POINTS else z[rng.choice(len(z), FIT_POINTS, replace=False)]
    mixture = best_fit(chosen, max_modes, rng)
    out[finite] = merge_hills(mixture)[np.argmax(mixture.log_joint(z), axis=1)]
    return out


def _summarise(x: np.ndarray, label: np.ndarray, modes: int, owner: np.ndarray, engines: int) -> ModeTable:
    dim = x.shape[2]
    indicator = label[None] == np.arange(modes)[:, None, None]
    mass = indicator.mean((1, 2))
    ess = np.full(modes, float(label.size))
    rhat = np.ones(modes)
    for k in range(modes):
        if 0 < mass[k] < 1:
            ess[k], rhat[k] = _indicator_diagnostics(indicator[k].astype(float))
    error = np.sqrt(mass * (1 - mass) / np.maximum(ess, 1e-300))
    per_engine = np.full((engines, modes), np.nan)
    for r in range(engines):
        mine = owner == r
        if mine.any():
            per_engine[r] = indicator[:, mine].mean(1)
    flat, flat_label = x.reshape(-1, dim), label.reshape(-1)
    centres = np.stack([flat[flat_label == k].mean(0) for k in range(modes)])
    return ModeTable(
        labels=label,
        mass=mass,
        standard_error=error,
        centres=centres,
        per_engine=per_engine,
        per_chain=indicator.mean(2).T,
        switches=(label[:, 1:] != label[:, :-1]).sum(1),
        rhat=rhat,
        ess=ess,
        flags=tuple(_flags(mass, ess, rhat, per_engine)),
    )


def _indicator_diagnostics(values: np.ndarray) -> tuple[float, float]:
    """ESS and R-hat of a 0/1 array ``(C, S)``. Chains that never change mode count as one draw each."""
    if values.shape[1] < 4:
        return float("nan"), float("nan")
    if np.all(values == values[:, :1]):
        return float(len(values)), float("inf")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        ess = float(arviz().ess(values, method="mean"))
        rhat = float(arviz().rhat(values)) if len(values) > 1 else float("nan")
    return min(ess, values.size) if np.isfinite(ess) else float(len(values)), rhat


def _flags(mass: np.ndarray, ess: np.ndarray, rhat: np.ndarray, per_engine: np.ndarray) -> list[str]:
    out = []
    used = np.flatnonzero(~np.isnan(per_engine[:, 0]))
    for k in range(len(mass)):
        # A stray draw across the boundary of two modes is no visit.
        absent = [int(r) for r in used if per_engine[r, k] <= 0.01 * mass[k]]
        # Effective draws that lie in the mode, or outside of it if it holds most of the mass.
        visits = ess[k] * min(mass[k], 1 - mass[k]) if mass[k] < 1 else ess[k]
        if absent:
            names = ", ".join(str(r) for r in absent)
            out.append(f"Mode {k} (mass {mass[k]:.3f}) was hardly or never visited by engine {names}.")
        if len(mass) > 1 and (not visits >= MIN_VISITS):
            out.append(f"The mass of mode {k} rests on {visits:.0f} effective visits only: do not trust it.")
        if rhat[k] > 1.05:
            out.append(f"The chains disagree on the mass of mode {k} (R-hat {rhat[k]:.2f}).")
    return out
