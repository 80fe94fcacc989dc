"""Three plots of a run; each takes a record or a converted ArviZ object. Matplotlib is imported late."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_samplers.diagnostics.agreement import engine_of_draws
from ppl_samplers.diagnostics.arviz import group
from ppl_samplers.diagnostics.psis import khat
from ppl_samplers.diagnostics.record import RunRecord


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def _need(data: Any, name: str) -> Any:
    found = group(data, name)
    if found is None:
        raise ValueError(f"This object has no group '{name}': convert the run with ppl_samplers' to_arviz.")
    return found


def plot_training(data: Any, metric: str = "loss", ax: Any = None) -> Any:
    """Training curve of each engine.

    Args:
        data: A run or its ArviZ conversion.
        metric: Curve to show: ``"loss"``, ``"ess"``, ``"log_evidence"``, ...
        ax: Matplotlib axes; new ones by default.

    Returns:
        The axes.

    Raises:
        ValueError: The curve was not recorded; the message lists those that were.
    """
    curves = data.training if isinstance(data, RunRecord) else _need(data, "sampler_training")
    if metric not in curves:
        known = ", ".join(sorted(str(name) for name in curves)) or "none"
        raise ValueError(f"The training curve '{metric}' was not recorded. Recorded: {known}.")
    values = np.atleast_2d(np.asarray(curves[metric], dtype=float))
    evaluations = np.atleast_2d(np.asarray(curves["num_evals"], dtype=float)) if "num_evals" in curves else None
    ax = _axes(ax)
    for r, row in enumerate(values):
        ax.plot(np.arange(len(row)) if evaluations is None else evaluations[r], row, label=f"engine {r}")
    ax.set_xlabel("step" if evaluations is None else "density evaluations")
    ax.set_ylabel(metric)
    ax.set_title("training")
    ax.legend()
    return ax


def plot_weights(data: Any, ax: Any = None) -> Any:
    """Cumulative share of the sorted fresh weights of each engine: the diagonal is perfect, a late jump is one draw.

    Args:
        data: A run or its ArviZ conversion.
        ax: Matplotlib axes; new ones by default.

    Returns:
        The axes, with k-hat of each engine in the title.
    """
    raw = data.fresh_log_weights if isinstance(data, RunRecord) else _need(data, "proposal")["log_weight"]
    ax = _axes(ax)
    tails = []
    for r, row in enumerate(np.atleast_2d(np.asarray(raw, dtype=float))):
        log_w = np.sort(row[~np.isnan(row)])
        tails.append(f"{khat(log_w):.2f}")
        if log_w.size == 0 or not np.isfinite(log_w[-1]):
            continue
        weights = np.exp(log_w - log_w[-1])
        ax.plot(np.arange(1, len(log_w) + 1) / len(log_w), np.cumsum(weights) / weights.sum(), label=f"engine {r}")
    ax.plot([0, 1], [0, 1], color="grey", linestyle=":")
    ax.set_xlabel("share of the proposals, smallest weight first")
    ax.set_ylabel("share of the total weight")
    ax.set_title(f"Pareto k-hat: {', '.join(tails)}")
    ax.legend()
    return ax


def plot_modes(data: Any, var_name: str | None = None, ax: Any = None, bins: int = 60) -> Any:
    """Histogram of one scalar of each engine's draws: engines that found other modes show it at once.

    Args:
        data: A run or its ArviZ conversion.
        var_name: Site; its first entry is shown. By default the first site.
        ax: Matplotlib axes; new ones by default.
        bins: Number of bins.

    Returns:
        The axes.

    Raises:
        ValueError: There is no such site.
    """
    if isinstance(data, RunRecord):
        posterior, owner = data.posterior, engine_of_draws(data)
    else:
        posterior, stats = _need(data, "posterior"), _need(data, "sample_stats")
        posterior = {str(name): posterior[name].values for name in posterior.data_vars}
        owner = np.asarray(stats["engine"]) if "engine" in stats else np.zeros(next(iter(posterior.values())).shape[:2])
    name = var_name if var_name is not None else next(iter(posterior))
    if name not in posterior:
        raise ValueError(f"There is no site '{name}'. Sites: {', '.join(posterior)}.")
    array = np.asarray(posterior[name], dtype=float)
    values = array.reshape(*array.shape[:2], -1)[..., 0]
    ax = _axes(ax)
    edges = np.histogram_bin_edges(values[np.isfinite(values)], bins)
    for r in np.unique(owner):
        ax.hist(values[owner == r], bins=edges, density=True, histtype="step", label=f"engine {int(r)}")
    ax.set_xlabel(name if array.ndim == 2 else f"{name}, first entry")
    ax.set_title("draws of each engine")
    ax.legend()
    return ax
