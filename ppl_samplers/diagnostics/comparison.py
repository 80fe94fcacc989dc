"""Several models side by side: by evidence, and by leave-one-out from weighted draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ppl_samplers.core.logspace import logsumexp
from ppl_samplers.diagnostics.evidence import Evidence
from ppl_samplers.diagnostics.psis import khat_threshold, psis


@dataclass(frozen=True)
class EvidenceComparison:
    """Models ordered by evidence, the best first; ``print`` shows a table and a verdict.

    Attributes:
        names: Names of the models.
        log_z: Log evidences, ``(M,)``.
        standard_error: Their errors, ``(M,)``.
        log_bayes_factor: ``log Z - log Z`` of the best model, ``(M,)``: 0, then negative numbers.
        error: Errors of ``log_bayes_factor``, ``(M,)``; 0 for the best model.
        probability: Posterior probabilities of the models with equal prior ones, ``(M,)``.
        reliable: Every evidence can be trusted.
        message: What the table says, in words.
    """

    names: tuple[str, ...]
    log_z: np.ndarray
    standard_error: np.ndarray
    log_bayes_factor: np.ndarray
    error: np.ndarray
    probability: np.ndarray
    reliable: bool
    message: str

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        lines = [f"{'':{width}s} {'log Z':>12s} {'error':>8s} {'log BF':>10s} {'error':>8s} {'probability':>12s}"]
        for i, name in enumerate(self.names):
            lines.append(
                f"{name:{width}s} {self.log_z[i]:12.4f} {self.standard_error[i]:8.4f} "
                f"{self.log_bayes_factor[i]:10.4f} {self.error[i]:8.4f} {self.probability[i]:12.4g}"
            )
        return "\n".join([*lines, self.message])


def compare_evidence(results: Mapping[str, Evidence]) -> EvidenceComparison:
    """Bayes factors of models of the same data.

    Args:
        results: What ``log_evidence`` gave for each model, by name.

    Raises:
        ValueError: Fewer than two models, or evidences that cannot be compared.

    References:
        Robert Kass, Adrian Raftery, Bayes factors, 1995.

    Example:
        >>> from ppl_samplers.diagnostics.evidence import evidence_from_log_weights
        >>> even = lambda log_z: evidence_from_log_weights(np.full((2, 400), log_z))
        >>> found = compare_evidence({"line": even(-12.0), "curve": even(-10.0)})
        >>> found.names, found.log_bayes_factor.tolist()
        (('curve', 'line'), [0.0, -2.0])
    """
    if len(results) < 2:
        raise ValueError("compare_evidence needs two models or more: compare_evidence({'line': ..., 'curve': ...})")
    for name, evidence in results.items():
        if not isinstance(evidence, Evidence):
            raise ValueError(
                f"compare_evidence: hand over log_evidence(mcmc) for {name!r}, not {type(evidence).__name__}"
            )
        if evidence.kind == "undefined":
            raise ValueError(f"the evidence of {name!r} is undefined, there is nothing to compare: give proper priors")
    kinds = {evidence.kind for evidence in results.values()}
    if len(kinds) > 1:
        relative = sorted(name for name, evidence in results.items() if evidence.kind == "relative")
        raise ValueError(
            f"the evidence of {', '.join(map(repr, relative))} is relative: it is known up to a constant that the "
            "other models do not share; leave out factor, scale and mask, or have the same ones in all models"
        )
    names = tuple(sorted(results, key=lambda name: -results[name].log_z))
    log_z = np.array([results[name].log_z for name in names])
    own = np.array([results[name].standard_error for name in names])
    factor = log_z - log_z[0]
    error = np.where(np.arange(len(names)) > 0, np.hypot(own, own[0]), 0.0)
    probability = np.exp(log_z - float(logsumexp(log_z)))
    shaky = [name for name in names if not results[name].reliable]
    # Jeffreys' scale in natural logarithms: 3 is a factor of 20.
    gap, unsure = -factor[1], error[1]
    if gap < 2 * unsure:
        said = f"{names[0]!r} and {names[1]!r} cannot be told apart: their difference is within its error."
    elif gap < 1:
        said = f"{names[0]!r} is ahead of {names[1]!r}, but by less than is worth a mention."
    else:
        said = f"{names[0]!r} is {'strongly ' if gap > 3 else ''}favoured over {names[1]!r}."
    if shaky:
        said += f" Not to be trusted yet: the evidence of {', '.join(repr(name) for name in shaky)}, see its message."
    if kinds == {"relative"}:
        said += " All are relative: this holds only where the models share their extra terms (factor, scale, mask)."
    return EvidenceComparison(names, log_z, own, factor, error, probability, not shaky, said)


@dataclass(frozen=True)
class WeightedLoo:
    """Leave-one-out from weighted draws.

    Attributes:
        elpd: Expected log predictive density of all observations.
        standard_error: Its error over observations.
        pointwise: Terms of ``elpd``, ``(n,)``.
        pareto_k: Tail index of each observation's weights, ``(n,)``.
        reliable: All tail indices are sound.
    """

    elpd: float
    standard_error: float
    pointwise: np.ndarray
    pareto_k: np.ndarray
    reliable: bool

    def __str__(self) -> str:
        bad = int(np.sum(~(self.pareto_k < 0.7)))
        tail = "" if self.reliable else f"; {bad} of {len(self.pareto_k)} observations have a Pareto k above 0.7"
        return f"elpd_loo {self.elpd:.2f} +- {self.standard_error:.2f}{tail}"


def loo_weighted(log_likelihood: np.ndarray, log_w: np.ndarray) -> WeightedLoo:
    """Pareto-smoothed leave-one-out from weighted proposals, without resampling them first.

    Leaving out observation ``i`` multiplies the weight of a draw by ``1 / p(y_i | draw)``.

    Args:
        log_likelihood: Pointwise, ``(S, ...)``, for example ``density.log_likelihood(x)["y"]``.
        log_w: Log weights of the draws, ``(S,)``, any offset.

    Raises:
        ValueError: The shapes do not fit.

    References:
        Aki Vehtari, Andrew Gelman, Jonah Gabry, Practical Bayesian model evaluation using leave-one-out
        cross-validation and WAIC, 2017.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> loo_weighted(rng.normal(size=(500, 3)) * 0.1 - 1.0, np.zeros(500)).pointwise.shape
        (3,)
    """
    terms, weights = np.asarray(log_likelihood, np.float64), np.asarray(log_w, np.float64)
    if weights.ndim != 1 or terms.ndim < 1 or len(terms) != len(weights):
        raise ValueError(
            f"loo_weighted needs log_likelihood (S, ...) and log_w (S,), got shapes {terms.shape} and {weights.shape}"
        )
    terms = terms.reshape(len(weights), -1)
    pointwise, tails = np.empty(terms.shape[1]), np.empty(terms.shape[1])
    for i, term in enumerate(terms.T):
        smoothed, tails[i] = psis(weights - term)
        pointwise[i] = float(logsumexp(smoothed + term))
    spread = float(np.sqrt(len(pointwise) * np.var(pointwise, ddof=1))) if len(pointwise) > 1 else float("nan")
    sound = bool(np.all(tails < khat_threshold(len(weights))))
    return WeightedLoo(float(pointwise.sum()), spread, pointwise, tails, sound)
