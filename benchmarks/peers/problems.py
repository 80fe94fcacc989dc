"""Targets of the comparison, split into a proper prior to start from and a likelihood, and how a result is judged.

Nested sampling, SMC and preconditioned Monte Carlo need that split; the others get the product. Every method starts
from draws of the same prior and is told nothing about the modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ppl_samplers.testing import targets
from ppl_samplers.testing.target import Target


@dataclass(frozen=True)
class Problem:
    """A target with the standard deviation of the normal prior that methods start from."""

    target: Target
    prior_sd: float

    def start(self, seed: int, n: int) -> np.ndarray:
        """Draws of the prior, ``(n, D)``."""
        return self.prior_sd * np.random.default_rng(seed).standard_normal((n, self.target.dim))

    def log_prior(self, x):
        """Normalised, ``(N, D) -> (N,)``, in the namespace of ``x``."""
        constant = 0.5 * self.target.dim * np.log(2 * np.pi * self.prior_sd**2)
        return -0.5 * (x * x).sum(-1) / self.prior_sd**2 - constant

    def log_likelihood(self, x):
        """The rest of the target, ``(N, D) -> (N,)``."""
        return self.target.log_density(x) - self.log_prior(x)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "gmm40": lambda: Problem(targets.gmm40(), 25.0),
    "many_well_8": lambda: Problem(targets.many_well(8), 2.0),
    "many_well_16": lambda: Problem(targets.many_well(16), 2.0),
    "many_well_32": lambda: Problem(targets.many_well(32), 2.0),
    "two_modes_20": lambda: Problem(targets.two_modes(20), 2.0),
}


def judge(problem: Problem, draws: np.ndarray, log_z: float | None) -> dict[str, float]:
    """Errors of a result against the exact target.

    Returns:
        ``missed``: share of the modes (of the wells' sides for many wells) without a draw; ``mode_error``: largest
        error of a mode's probability; ``tv``: total variation of mode probabilities; ``log_z_error``.
    """
    target, name = problem.target, problem.target.name
    if name.startswith("many_well"):
        # 2^(D/2) modes factorise: each pair's two sides are judged.
        found = (np.asarray(draws)[:, 0::2] > 0).mean(0)
        right = 1 - targets.many_well(2).mode_weights[0]
        errors, missed = np.abs(found - right), np.mean((found == 0) | (found == 1))
        tv = errors.mean()
    else:
        weights = np.asarray(target.mode_weights)
        found = np.bincount(np.asarray(target.mode_labels(draws)), minlength=len(weights)) / len(draws)
        errors, missed, tv = np.abs(found - weights), np.mean(found == 0), 0.5 * np.abs(found - weights).sum()
    return {
        "missed": float(missed),
        "mode_error": float(errors.max()),
        "tv": float(tv),
        "log_z_error": float("nan") if log_z is None else float(log_z - target.log_z),
    }
