"""One unit's dual on the host: from two arrays to a row of plain numbers, the same for both frameworks."""

from __future__ import annotations

import numpy as np

from ppl_samplers.engines.cmt import maths
from ppl_samplers.engines.cmt.dual import TARGET, Step, solve, solve_guarded
from ppl_samplers.engines.cmt.settings import LADDERS, Settings

# Figures of a unit in the order in which they travel.
FIELDS = (*Step._fields, "eps_ent", "b", "c")


def unit_step(
    log_p: np.ndarray,
    log_q: np.ndarray,
    settings: Settings,
    unit: int,
    num_units: int,
    dim: int,
    polishing: bool,
) -> np.ndarray:
    """Solve the step of a unit.

    Args:
        log_p: Unnormalised log target at the unit's draws, ``(N,)``.
        log_q: Log density that drew them, ``(N,)``.
        settings: Constraints.
        unit: Index of the unit.
        num_units: Units in all.
        dim: Dimension.
        polishing: Take the step to the target whatever the constraints say.

    Returns:
        Values of ``FIELDS``, float64.
    """
    free = solve(log_p, log_q, np.inf, np.inf)
    if settings.variant in LADDERS:
        step = free if polishing else _climb(log_p, log_q, settings, unit, num_units)
        return np.array([*step, np.inf, *step.exponents], np.float64)
    bound = np.inf
    if settings.variant in ("both", "entropy"):
        bound = settings.eps_ent
        if bound == "auto":
            now, goal = np.asarray(free.entropy), np.asarray(free.target_entropy)
            at = np.asarray(float(unit))
            bound = maths.auto_entropy_bound(at, num_units, dim, settings.eps_tr, now, goal, settings.kappa)
    step = solve_guarded(log_p, log_q, settings.trust_region, float(bound))
    if polishing and step.status != TARGET:
        # The path is left for good: the step is the target itself, its status says what a constraint would have done.
        step = free._replace(status=step.status, eps_tr=step.eps_tr)
    return np.array([*step, float(bound), *step.exponents], np.float64)


def _climb(log_p: np.ndarray, log_q: np.ndarray, settings: Settings, unit: int, num_units: int) -> Step:
    """The step to the rung of this unit, whatever it costs; unit 0 fitted the flow to the prior draws."""
    rungs = settings.rungs(num_units)
    k = min(unit, len(rungs)) - 1
    if settings.variant == "tabg":
        multipliers = maths.tempered_multipliers(rungs[k])
    else:
        multipliers = maths.ladder_multipliers(rungs[k - 1] if k else 0.0, rungs[k])
    return solve(log_p, log_q, np.inf, np.inf, multipliers=multipliers)
