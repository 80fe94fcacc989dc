"""Temperature schedules: the next inverse temperature from an effective sample size."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

Array = Any

# Each round divides the interval by 16: eight of them reach 2e-10, a first step small enough for any start.
_ROUNDS, _POINTS = 8, 15


def next_temperature(log_ratio: Array, beta: Array, target: float = 0.5) -> Array:
    """Largest inverse temperature at which reweighting keeps a relative ESS of at least ``target``.

    Particles distributed as ``base^(1-beta) target^beta`` are reweighted to ``beta'`` by ``(beta' - beta)
    log_ratio``; the relative ESS falls with ``beta'``, so a fixed number of ever finer grids finds the crossing, each
    evaluated at once (no data-dependent loop, and little for a compiler to unroll).

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
    one = xp.ones_like(beta)
    low, step = beta, (one - beta) / (_POINTS + 1)
    grid = xp.astype(xp.arange(1, _POINTS + 1), log_ratio.dtype)
    for _ in range(_ROUNDS):
        betas = low + step * grid
        rises = (betas - beta)[:, None]
        # 0 * -inf is NaN: a step of zero length reweights nothing.
        keeps = _kept(xp.where(rises > 0, rises * log_ratio, xp.zeros_like(rises))) >= goal
        low, step = low + step * xp.sum(xp.astype(keeps, log_ratio.dtype)), step / (_POINTS + 1)
    # `low` keeps the target still; the end of its last interval is above `beta` even where nothing else is.
    enough = _kept(((one - beta) * log_ratio)[None])[0] >= goal
    return xp.where(enough, one, low + (_POINTS + 1) * step)


def _kept(log_w: Array) -> Array:
    """Relative ESS of each row, ``(K, N) -> (K,)``."""
    xp = array_namespace(log_w)
    top = xp.max(log_w, axis=-1, keepdims=True)
    w = xp.exp(log_w - xp.where(xp.isfinite(top), top, xp.zeros_like(top)))
    squares = xp.sum(w * w, axis=-1)
    total = xp.sum(w, axis=-1)
    return xp.where(squares > 0, total * total / (squares + (squares == 0)), xp.zeros_like(total)) / log_w.shape[-1]


def geometric_ladder(start: float, steps: int) -> list[float]:
    """``steps`` inverse temperatures rising geometrically from ``start`` to 1."""
    if not 0 < start <= 1 or steps < 1:
        raise ValueError(f"a ladder needs 0 < start <= 1 and steps >= 1, got start={start}, steps={steps}")
    if steps == 1:
        return [1.0]
    return [start ** (1 - k / (steps - 1)) for k in range(steps)]
