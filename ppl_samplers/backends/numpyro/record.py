"""A finished run as a plain record for the diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from numpyro.infer import MCMC

from ppl_samplers.backends.numpyro.kernel import TransportKernel
from ppl_samplers.backends.numpyro.trained import Trained
from ppl_samplers.diagnostics.record import RunRecord

_POINTS = 4096


def record(x: Any) -> RunRecord:
    """The record of a finished ``MCMC`` or of a :class:`Trained`.

    Raises:
        TypeError: For anything else.
        ValueError: If nothing has been drawn yet.
    """
    if isinstance(x, RunRecord):
        return x
    if isinstance(x, Trained):
        return x.record()
    if not isinstance(x, MCMC):
        raise TypeError(f"{type(x).__name__} holds no run: pass the MCMC object, or what fit(...) gave")
    kernel = x.sampler
    if not isinstance(kernel, TransportKernel):
        raise TypeError(
            f"{type(kernel).__name__} is not from this library: it keeps no log weights to make a record of"
        )
    if x.last_state is None or x._states is None:
        raise ValueError(f"{kernel.name}: nothing has been drawn yet. Call mcmc.run(...) first")
    return _record_of_mcmc(x, kernel)


def _record_of_mcmc(mcmc: MCMC, kernel: TransportKernel) -> RunRecord:
    state, density = mcmc.last_state, kernel.bound(mcmc._args or (), mcmc._kwargs)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    missing = [name for name in kernel.default_fields[1:] if name not in fields]
    if missing:
        raise ValueError(f"the run did not collect {missing[0]!r}: leave the fields of {kernel.name} as they are")
    posterior = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    points = unconstrained(density, posterior, mcmc)
    chains = points.shape[0]
    # Without shared engines every chain has its own, stacked in front of everything.
    separate = np.ndim(state.i) == 1
    engines = _flat(state.engines) if separate else state.engines
    engine_id = np.asarray(fields["engine_id"]).astype(np.int64)
    if separate:
        engine_id = engine_id + kernel.num_engines * np.arange(chains)[:, None]
    merged = (lambda a: np.asarray(a).reshape(-1, *a.shape[2:])) if separate else np.asarray
    fresh, probes = merged(state.fresh_log_weights), merged(state.probe_log_weights)
    density_at = np.asarray(state.probe_log_density)
    if separate:
        density_at = np.repeat(density_at, kernel.num_engines, 0)
    probed = probes.size > 0 and not np.all(np.isnan(probes))
    evals = np.asarray(fields["num_evals"])[:, -1]
    return RunRecord(
        backend="numpyro",
        engine=kernel.name,
        posterior=kernel_posterior(density, posterior, points),
        unconstrained=points,
        sample_stats={
            "lp": -np.asarray(fields["potential_energy"]),
            "acceptance_rate": np.asarray(fields["accept_prob"]),
            "accepted": np.asarray(fields["accepted"]),
            "log_weight": np.asarray(fields["log_weight"]),
            "prop_log_weight": np.asarray(fields["prop_log_weight"]),
            "engine": engine_id,
            "num_evals": np.asarray(fields["num_evals"]),
        },
        evidence_sums=merged(state.evidence_sums).astype(np.float64),
        fresh_log_weights=fresh,
        probe_log_weights=probes if probed else None,
        probe_log_density=density_at if probed else None,
        training=_training({k: merged(v) for k, v in state.history.items()}),
        counts={
            "num_energy_evaluations": int(evals.sum() if separate else evals.max()),
            "num_skipped": int(np.sum(np.asarray(engines.num_skipped))),
        },
        notes=tuple(density.notes),
        **_common(kernel, density, engines, points),
    )


def record_of_trained(trained: Trained, num_proposals: int, num_draws: int, key: jax.Array) -> RunRecord:
    """The record of engines without chains: importance-resampled draws stand for one chain per engine."""
    points, log_w, fresh = (np.asarray(a) for a in trained.resampled(num_proposals, num_draws, key=key))
    density, (engines, draws) = trained.density, log_w.shape
    sums = [trained.sums(row) for row in fresh]
    lp = np.asarray(density(jnp.asarray(points.reshape(-1, density.dim)))).reshape(engines, draws)
    return RunRecord(
        backend="numpyro",
        engine=trained.kernel.name,
        posterior={k: np.asarray(v) for k, v in density.constrain(jnp.asarray(points)).items()},
        unconstrained=points,
        sample_stats={
            "lp": lp,
            "acceptance_rate": np.ones((engines, draws)),
            "accepted": np.ones((engines, draws), dtype=bool),
            "log_weight": log_w,
            "prop_log_weight": log_w,
            "engine": np.repeat(np.arange(engines)[:, None], draws, axis=1),
        },
        evidence_sums=np.stack(sums),
        fresh_log_weights=fresh,
        training=_training(trained.history),
        counts=dict(trained.counts),
        notes=(*density.notes, "draws are importance-resampled, not a Markov chain"),
        **_common(trained.kernel, density, trained.states, points),
    )


def unconstrained(density: Any, posterior: dict, mcmc: MCMC) -> np.ndarray:
    """The kept draws on the flat space, ``(C, S, D)``."""
    names = [site.name for site in density.space]
    if mcmc.postprocess_fn is not None:
        shapes = all(posterior[s.name].shape[2:] == s.unconstrained_shape for s in density.space if s.name in posterior)
        if shapes and set(posterior) == set(names):
            # The user asked for raw draws (postprocess_fn=lambda z: z).
            return np.asarray(density.ravel(posterior))
    gone = [name for name in names if name not in posterior]
    if gone:
        raise ValueError(f'the draws of site {gone[0]!r} were not kept: run without excluding it ("~z.{gone[0]}")')
    return np.asarray(density.unconstrain(posterior))


def kernel_posterior(density: Any, posterior: dict, points: np.ndarray) -> dict[str, np.ndarray]:
    """Constrained draws of all sites; computed in bulk where the run kept raw ones."""
    known = all(posterior[s.name].shape[2:] == s.constrained_shape for s in density.space)
    raw = known and np.array_equal(points, np.asarray(density.ravel(posterior))) if _same(density, posterior) else False
    if raw or not known:
        return {k: np.asarray(v) for k, v in density.constrain(jnp.asarray(points)).items()}
    return posterior


def _same(density: Any, posterior: dict) -> bool:
    return all(posterior[s.name].shape[2:] == s.unconstrained_shape for s in density.space)


def _common(kernel: Any, density: Any, engines: Any, points: np.ndarray) -> dict[str, Any]:
    compiled = jax.jit(lambda s, x: kernel.transport.log_weight(s, random.key(0), density, x))

    def log_weight_at(engine: int, x: np.ndarray) -> np.ndarray:
        state = jax.tree.map(lambda a: a[engine], engines)
        return np.asarray(compiled(state, jnp.asarray(x, jnp.result_type(float))))

    observed = {k: np.asarray(v) for k, v in density.observed.items()}
    return {
        "evidence_kind": density.evidence_kind,
        "evidence_reason": density.evidence_reason,
        "observed": observed,
        "log_likelihood": _at_draws(density.log_likelihood, points) if observed else None,
        "log_prior": _at_draws(density.log_prior_terms, points) if density.model is not None else None,
        "log_weight_at": log_weight_at,
    }


def _at_draws(terms: Callable, points: np.ndarray) -> Callable[[], dict[str, np.ndarray]]:
    """``terms`` at the draws ``(C, S, D)``, when they are asked for, each ``(C, S, ...)``."""

    def compute() -> dict[str, np.ndarray]:
        chains, draws = points.shape[:2]
        flat = points.reshape(chains * draws, -1)
        parts = [terms(jnp.asarray(flat[i : i + _POINTS])) for i in range(0, len(flat), _POINTS)]
        joined = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}
        return {name: value.reshape(chains, draws, *value.shape[1:]) for name, value in joined.items()}

    return compute


def _flat(tree: Any) -> Any:
    """Chains and engines in one axis: ``(C, R, ...) -> (C R, ...)``."""
    return jax.tree.map(lambda a: lax.collapse(a, 0, 2), tree)


def _training(history: dict[str, Any]) -> dict[str, np.ndarray]:
    """Curves ``(R, H)`` without the columns that no unit has filled."""
    curves = {k: np.asarray(v) for k, v in history.items()}
    if not curves:
        return {}
    filled = np.any([~np.all(np.isnan(v), 0) for v in curves.values()], 0)
    return {k: v[:, filled] for k, v in curves.items()} if filled.any() else {}
