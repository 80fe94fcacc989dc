"""The plain record of a run: what every backend hands to the diagnostics, and nothing of a framework in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RunRecord:
    """All that a finished run leaves behind, as NumPy arrays.

    ``C`` chains, ``S`` kept draws, ``D`` unconstrained dimensions, ``R`` engines.

    Attributes:
        backend: ``"numpyro"`` or ``"pyro"``.
        engine: Registered name of the engine, for example ``"BoltzmannGenerator"``.
        posterior: Constrained draws of every latent and deterministic site, each ``(C, S, *shape)``.
        unconstrained: The same draws on the flat space, ``(C, S, D)``.
        sample_stats: Per-draw numbers, each ``(C, S)``: ``lp``, ``acceptance_rate``, ``accepted``, ``log_weight`` (of
            the chain's point; never reweight with it), ``prop_log_weight`` (of the fresh proposal), ``engine`` (int).
        evidence_sums: ``(R, 3)`` float64: ``logsumexp(log w)``, ``logsumexp(2 log w)``, count, over all fresh
            proposals.
        fresh_log_weights: ``(R, F)`` log weights of fresh, independent proposals (for k-hat and ESS). NaN-padded.
        probe_log_weights: ``(R, P)`` log weights of independent probe points under each engine, or ``None``.
        probe_log_density: ``(P,)`` or ``(R, P)`` log density of the probe points, or ``None``.
        training: Training curves, each ``(R, H)``, NaN-padded: ``loss``, ``num_evals``, ``ess``, ``log_evidence``, ...
        evidence_kind: ``"absolute"``, ``"relative"`` or ``"undefined"``; ``evidence_reason`` says why in words.
        observed: Observed sites.
        log_likelihood: Function of no argument: pointwise log likelihood, each ``(C, S, *obs shape)``; ``None`` without
            data.
        log_prior: Function of no argument: log prior of each latent site on its constrained space, each ``(C, S)``;
            ``None`` where sites have none of their own.
        log_weight_at: Function ``(engine index, points (N, D)) -> (N,)``, exact log weight of given points; ``None`` if
            unknown.
        dims: Names of event dimensions per site where the model names them.
        counts: Plain numbers: ``num_energy_evaluations``, ``num_gradient_evaluations``, ``train_seconds``,
            ``sample_seconds``, ``num_skipped`` (training steps), ``num_invalid`` (points without a finite density).
        notes: Sentences the backend wants the user to read (frozen ``param`` sites, fall-backs, ...).
    """

    backend: str
    engine: str
    posterior: Arrays
    unconstrained: np.ndarray
    sample_stats: Arrays
    evidence_sums: np.ndarray
    fresh_log_weights: np.ndarray
    probe_log_weights: np.ndarray | None = None
    probe_log_density: np.ndarray | None = None
    training: Arrays = field(default_factory=dict)
    evidence_kind: str = "absolute"
    evidence_reason: str = ""
    observed: Arrays = field(default_factory=dict)
    log_likelihood: Callable[[], Arrays] | None = None
    log_prior: Callable[[], Arrays] | None = None
    log_weight_at: Callable[[int, np.ndarray], np.ndarray] | None = None
    dims: Mapping[str, list[str]] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def num_engines(self) -> int:
        """Number of independently trained engines, ``R``."""
        return len(self.evidence_sums)


def elements(arrays: Arrays, lead: int) -> Iterator[tuple[str, np.ndarray]]:
    """Scalar entries of arrays ``(*lead, *shape)``: ``name[i,j]`` and its values, of ``lead`` dimensions."""
    for name, value in arrays.items():
        array = np.asarray(value)
        for index in np.ndindex(*array.shape[lead:]):
            label = f"{name}[{','.join(map(str, index))}]" if index else name
            yield label, array[(..., *index)]
