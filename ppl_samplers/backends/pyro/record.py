"""A finished run as a plain record for the diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro.infer.mcmc.api import AbstractMCMC
from torch import Tensor

from ppl_samplers.backends.pyro.ensemble import working_dtype
from ppl_samplers.backends.pyro.kernel import TransportKernel
from ppl_samplers.backends.pyro.trained import Trained, sums_of
from ppl_samplers.diagnostics.record import RunRecord

# Columns of the training curves that are kept; longer histories are thinned.
_HISTORY = 256
_POINTS = 4096


def record(x: Any) -> RunRecord:
    """The record of a finished ``MCMC``, of its kernel, or of a :class:`Trained`.

    Raises:
        TypeError: For anything else.
        ValueError: If nothing has been drawn yet, or the chains ran in other processes.
    """
    if isinstance(x, RunRecord):
        return x
    if isinstance(x, Trained):
        return x.record()
    kernel = x.kernel if isinstance(x, AbstractMCMC) else x
    if not isinstance(kernel, TransportKernel):
        raise TypeError(
            f"{type(kernel).__name__} is not from this library: pass the MCMC object that ran one of its "
            "kernels, or what fit(...) gave"
        )
    if not kernel.sample_stats:
        where = " Its chains ran in other processes, which keep their engines: use ppl_samplers.pyro.MCMC."
        ran = isinstance(x, AbstractMCMC) and getattr(x, "_samples", None) is not None
        advice = where if ran else " Call mcmc.run(...) first."
        raise ValueError(f"{kernel.name}: nothing has been drawn yet.{advice}")
    chains = x.num_chains if isinstance(x, AbstractMCMC) else None
    return _record_of_kernel(kernel, chains)


def _record_of_kernel(kernel: TransportKernel, num_chains: int | None) -> RunRecord:
    ensemble, density = kernel.ensemble, kernel.density
    stats = kernel.sample_stats
    if num_chains is not None:
        # A kernel that served several runs keeps the chains of all of them; the last ones are this run's.
        stats = {name: value[-num_chains:] for name, value in stats.items()}
    points = stats["unconstrained"]
    counts = {
        **kernel.seconds,
        "num_skipped": sum(state.num_skipped for state in ensemble.states),
        **_density_counts(density),
    }
    return RunRecord(
        backend="pyro",
        engine=kernel.name,
        posterior=_posterior(density, points),
        unconstrained=_numpy(points),
        sample_stats={
            "lp": -_numpy(stats["potential_energy"]),
            "acceptance_rate": _numpy(stats["accept_prob"]),
            "accepted": _numpy(stats["accepted"]),
            "log_weight": _numpy(stats["log_weight"]),
            "prop_log_weight": _numpy(stats["prop_log_weight"]),
            "engine": _numpy(stats["engine_id"]).astype(np.int64),
            "num_evals": _numpy(stats["num_evals"]),
        },
        evidence_sums=_numpy(ensemble.sums),
        fresh_log_weights=_numpy(ensemble.fresh),
        probe_log_weights=None if ensemble.probe_log_weights is None else _numpy(ensemble.probe_log_weights),
        probe_log_density=None if ensemble.probe_log_density is None else _numpy(ensemble.probe_log_density),
        training=_training(ensemble.history),
        counts=counts,
        notes=tuple(getattr(density, "notes", ())) + ensemble.notes(),
        **_common(density, kernel.transport, ensemble.states, points),
    )


def record_of_trained(trained: Trained, num_proposals: int, num_draws: int) -> RunRecord:
    """The record of engines without chains: importance-resampled draws stand for one chain per engine."""
    points, log_w, fresh = trained.resampled(num_proposals, num_draws)
    engines, draws = log_w.shape
    density = trained.density
    lp = torch.stack([density(row) for row in points])
    engine = np.repeat(np.arange(engines)[:, None], draws, axis=1)
    return RunRecord(
        backend="pyro",
        engine=trained.engine,
        posterior=_posterior(density, points),
        unconstrained=_numpy(points),
        sample_stats={
            "lp": _numpy(lp),
            "acceptance_rate": np.ones((engines, draws)),
            "accepted": np.ones((engines, draws), dtype=bool),
            "log_weight": _numpy(log_w),
            "prop_log_weight": _numpy(log_w),
            "engine": engine,
        },
        evidence_sums=sums_of(fresh),
        fresh_log_weights=_numpy(fresh),
        training=_training(trained.history),
        counts={**trained.counts, **_density_counts(density)},
        notes=(*getattr(density, "notes", ()), "draws are importance-resampled, not a Markov chain"),
        **_common(density, trained.transport, trained.states, points),
    )


def _common(density: Any, transport: Any, states: list[Any], points: Tensor) -> dict[str, Any]:
    def log_weight_at(engine: int, x: np.ndarray) -> np.ndarray:
        given = torch.as_tensor(np.asarray(x), dtype=working_dtype(density))
        return _numpy(transport.log_weight(states[engine], density, given))

    return {
        "evidence_kind": density.evidence_kind,
        "evidence_reason": density.evidence_reason,
        "observed": {name: _numpy(value) for name, value in density.observed.items()},
        "log_likelihood": _at_draws(density.log_likelihood, points) if density.observed else None,
        "log_prior": _at_draws(density.log_prior_terms, points) if density.single is not None else None,
        "log_weight_at": log_weight_at,
    }


def _at_draws(terms: Callable, points: Tensor) -> Callable[[], dict[str, np.ndarray]]:
    """``terms`` at the draws ``(C, S, D)``, when they are asked for, each ``(C, S, ...)``."""

    def compute() -> dict[str, np.ndarray]:
        chains, draws = points.shape[:2]
        flat = points.reshape(chains * draws, -1)
        parts = [terms(flat[i : i + _POINTS]) for i in range(0, len(flat), _POINTS)]
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {name: _numpy(value.reshape(chains, draws, *value.shape[1:])) for name, value in joined.items()}

    return compute


def _posterior(density: Any, points: Tensor) -> dict[str, np.ndarray]:
    return {name: _numpy(value) for name, value in density.constrain(points, deterministic=True).items()}


def _density_counts(density: Any) -> dict[str, int]:
    return {
        "num_energy_evaluations": int(density.num_evals),
        "num_gradient_evaluations": int(density.num_grad_evals),
        "num_invalid": int(density.num_invalid),
    }


def _training(history: list[list[dict[str, float]]]) -> dict[str, np.ndarray]:
    """Curves ``(R, H)`` of the units' metrics; NaN where a unit has none."""
    length = max((len(units) for units in history), default=0)
    if not length:
        return {}
    keep = np.unique(np.linspace(0, length - 1, min(length, _HISTORY)).round().astype(int))
    names = sorted({name for units in history for unit in units for name in unit})
    out = {}
    for name in names:
        rows = [[units[i].get(name, np.nan) if i < len(units) else np.nan for i in keep] for units in history]
        out[name] = np.array(rows, dtype=np.float64)
    return out


def _numpy(value: Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()
