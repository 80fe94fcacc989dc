"""Temperature schedules: the next inverse temperature from an effective sample size."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from ppl_samplers.core.weights import relative_ess

Array = Any

# 30 halvings of an interval of length one: 1e-9, below float32's resolution near one.
_HALVINGS = 30


def next_temperature(log_ratio: Array, beta: Array, target: float = 0.5) -> Array:
    """Largest inverse temperature at which reweighting keeps a relative ESS of at least ``target``.

    Particles distributed as ``base^(1-beta) target^beta`` are reweighted to ``beta'`` by ``(beta' - beta)
    log_ratio``; the
    relative ESS falls with ``beta'``, so a fixed number of halvings finds the crossing (no data-dependent loop).

    Args:
        log_ratio: ``log target - log base`` at the particles, ``(N,)``; ``-inf`` where the target is zero.
        beta: Current inverse temperature, a scalar array in [0, 1].
        target: Relative ESS to keep. Zero-density particles count as lost at any step, so the target is
            taken relative to the particles that are left.

    Returns:
        A scalar array in (beta, 1]; 1 when the last step keeps the target.

    References:
        Ajay Jasra, David Stephens, Arnaud Doucet, Theodoros Tsagaris, Inference for Levy-driven stochastic volatility
        models via adaptive sequential Monte Carlo, 2011.
    """
    xp = array_namespace(log_ratio)
    alive = xp.mean(xp.astype(xp.isfinite(log_ratio), log_ratio.dtype))
    goal = target * alive
    low, high = beta, xp.ones_like(beta)
    enough = relative_ess((high - beta) * log_ratio) >= goal
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        # 0 * -inf is NaN: a step of zero length reweights nothing.
        keeps = relative_ess(xp.where(middle > beta, (middle - beta) * log_ratio, xp.zeros_like(log_ratio))) >= goal
        low, high = xp.where(keeps, middle, low), xp.where(keeps, high, middle)
    return xp.where(enough, xp.ones_like(beta), high)


def geometric_ladder(start: float, steps: int) -> list[float]:
    """``steps`` inverse temperatures rising geometrically from ``start`` to 1."""
    if not 0 < start <= 1 or steps < 1:
        raise ValueError(f"a ladder needs 0 < start <= 1 and steps >= 1, got start={start}, steps={steps}")
    if steps == 1:
        return [1.0]
    return [start ** (1 - k / (steps - 1)) for k in range(steps)]
