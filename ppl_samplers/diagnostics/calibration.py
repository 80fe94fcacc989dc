"""Simulation-based calibration: does an engine's posterior cover the truth as often as it says?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ppl_samplers.diagnostics.record import Arrays, elements

_NULL_SETS = 4000


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws, and whether they are uniform.

    Attributes:
        ranks: For each site, ``(R, *shape)`` integers from 0 to ``num_draws``: how many draws lie below the truth.
        num_draws: Draws that each truth was ranked among, ``L``.
        p_values: For each scalar, the probability that uniform ranks leave the simultaneous band as far (an upper bound
            where it is too small to be simulated).
        alpha: Probability of a false alarm over all scalars together.
    """

    ranks: Arrays
    num_draws: int
    p_values: Mapping[str, float]
    alpha: float

    @property
    def suspects(self) -> dict[str, float]:
        """Scalars whose ranks are not uniform, with their p-values (Bonferroni over all scalars)."""
        return {name: p for name, p in self.p_values.items() if p < self.alpha / len(self.p_values)}

    @property
    def message(self) -> str:
        """The verdict in words."""
        replications = len(next(iter(self.ranks.values())))
        head = f"{replications} replications, {len(self.p_values)} quantities, {self.num_draws} draws each: "
        if not self.suspects:
            return head + f"ranks are uniform as far as {replications} replications can tell"
        worst = ", ".join(f"{name} (p = {p:.2g}, {self._shape(name)})" for name, p in self.suspects.items())
        return head + f"NOT calibrated: {worst}"

    def _shape(self, name: str) -> str:
        u = (dict(elements(self.ranks, 1))[name] + 0.5) / (self.num_draws + 1)
        # Standard errors of mean and variance of uniform numbers: sqrt(1/12 n), sqrt(1/180 n).
        bias = (u.mean() - 0.5) * np.sqrt(12 * len(u))
        spread = (u.var() - 1 / 12) * np.sqrt(180 * len(u))
        if abs(bias) > abs(spread):
            return "posterior too low" if bias > 0 else "posterior too high"
        return "posterior too narrow" if spread > 0 else "posterior too wide"


def simulation_based_calibration(
    simulate: Callable[[int], tuple[Arrays, Any]],
    fit: Callable[[int, Any], Arrays],
    num_replications: int = 200,
    *,
    num_draws: int = 100,
    alpha: float = 1e-3,
    seed: int = 0,
    progress: bool = True,
) -> Calibration:
    """Draw parameters from the prior and data from the model, fit, rank the truth among the draws; repeat.

    If the engine samples the exact posterior, every rank is uniform on 0, ..., L. Keep one ``MCMC`` object for all
    replications and data of one shape, so that nothing is compiled twice.

    Args:
        simulate: ``seed -> (truth, data)``: a prior draw of each site, ``(*shape)``, and data simulated from it.
        fit: ``(seed, data) -> draws``, each ``(S, *shape)`` or ``(C, S, *shape)``, with at least ``num_draws`` draws;
            sites that ``truth`` does not have are ignored.
        num_replications: Simulated data sets, ``R``.
        num_draws: Draws kept of each fit, evenly spaced so that they are nearly independent, ``L``.
        alpha: Probability of a false alarm over all scalars together.
        seed: First seed.
        progress: Show a progress bar.

    Raises:
        ValueError: ``fit`` lacks a site or gives too few draws or other shapes.

    References:
        Sean Talts, Michael Betancourt, Daniel Simpson, Aki Vehtari, Andrew Gelman, Validating Bayesian inference
        algorithms with simulation-based calibration, 2018. Teemu Säilynoja, Paul-Christian Bürkner, Aki Vehtari,
        Graphical test for discrete uniformity and its applications, 2022.

    Example:
        >>> import numpy as np
        >>> def simulate(seed):
        ...     rng = np.random.default_rng(seed)
        ...     mu = rng.normal()
        ...     return {"mu": mu}, mu + rng.normal()
        >>> def fit(seed, y):
        ...     return {"mu": y / 2 + np.sqrt(0.5) * np.random.default_rng(seed + 10**6).normal(size=100)}
        >>> simulation_based_calibration(simulate, fit, 50, progress=False).suspects
        {}
    """
    from tqdm import tqdm

    ranks: dict[str, list[np.ndarray]] = {}
    with tqdm(total=num_replications, disable=not progress, desc="calibration") as bar:
        for replication in range(num_replications):
            truth, data = simulate(seed + replication)
            draws = fit(seed + replication, data)
            for name, value in truth.items():
                ranks.setdefault(name, []).append(_rank(name, value, draws, num_draws))
            bar.update()
    arrays = {name: np.stack(rows) for name, rows in ranks.items()}
    null = _null(num_replications, num_draws)
    p_values = {name: _p_value(r, num_draws, null) for name, r in elements(arrays, 1)}
    return Calibration(arrays, num_draws, p_values, alpha)


def plot_calibration(calibration: Calibration, *, axes: Any = None) -> Any:
    """ECDF of the ranks minus the diagonal, with the band that all of it leaves with probability 0.05.

    Args:
        calibration: From :func:`simulation_based_calibration`.
        axes: One matplotlib ``Axes``; a new one by default.
    """
    import matplotlib.pyplot as plt

    axes = plt.subplots()[1] if axes is None else axes
    scalars, draws = dict(elements(calibration.ranks, 1)), calibration.num_draws
    number = len(next(iter(scalars.values())))
    level = np.quantile(_null(number, draws), 0.05)
    z = np.arange(1, draws + 1) / (draws + 1)
    low, high = (stats.binom.ppf(q, number, z) / number - z for q in (level / 2, 1 - level / 2))
    axes.fill_between(z, low, high, color="0.85", step="post", label="95 % band")
    for name, r in scalars.items():
        axes.step(z, _counts(r[None], draws)[0] / number - z, where="post", label=name)
    axes.set(xlabel="rank / (L + 1)", ylabel="ECDF minus diagonal")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    axes.figure.set_layout_engine("constrained")
    return axes


def _rank(name: str, value: Any, draws: Arrays, num_draws: int) -> np.ndarray:
    value = np.asarray(value)
    if name not in draws:
        raise ValueError(f"fit gave no draws of {name!r}; it gave {sorted(draws)}")
    found = np.asarray(draws[name])
    if found.ndim == value.ndim + 2:
        found = found.reshape(-1, *found.shape[2:])
    if found.shape[1:] != value.shape or len(found) < num_draws:
        raise ValueError(
            f"draws of {name!r} have shape {found.shape}: ({num_draws} or more, {str(value.shape)[1:]} is needed"
        )
    kept = found[np.linspace(0, len(found) - 1, num_draws).round().astype(int)]
    return np.sum(kept < value, 0)


def _counts(ranks: np.ndarray, num_draws: int) -> np.ndarray:
    """How many of the ranks ``(M, R)`` lie below 1, ..., L, ``(M, L)``."""
    offset = np.arange(len(ranks))[:, None] * (num_draws + 1)
    counts = np.bincount((ranks + offset).ravel(), minlength=len(ranks) * (num_draws + 1))
    return np.cumsum(counts.reshape(len(ranks), -1), 1)[:, :-1]


def _statistic(ranks: np.ndarray, num_draws: int) -> np.ndarray:
    """Smallest two-sided pointwise tail probability of the ECDF, ``(M, R) -> (M,)`` (Säilynoja et al., section 2)."""
    number, z = ranks.shape[1], np.arange(1, num_draws + 1) / (num_draws + 1)
    table = np.arange(number + 1)[:, None]
    below, above = stats.binom.cdf(table, number, z), stats.binom.sf(table - 1, number, z)
    tails = np.minimum(2 * np.minimum(below, above), 1.0)
    return tails[_counts(ranks, num_draws), np.arange(num_draws)].min(1)


def _p_value(ranks: np.ndarray, num_draws: int, null: np.ndarray) -> float:
    statistic = _statistic(ranks[None], num_draws)[0]
    simulated = (1 + np.sum(null <= statistic)) / (1 + len(null))
    # Simulation resolves nothing below 1 / 4001, which is above the level of one scalar among many: there the union
    # bound over the L points of the ECDF, always an upper bound, takes over.
    return float(min(simulated, num_draws * statistic))


def _null(number: int, num_draws: int) -> np.ndarray:
    """The statistic of uniform ranks; seeded, so that the same ranks always get the same verdict."""
    ranks = np.random.default_rng(0).integers(0, num_draws + 1, (_NULL_SETS, number))
    return _statistic(ranks, num_draws)
