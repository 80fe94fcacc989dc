"""Four plots of a run; each takes a record or a converted ArviZ object. Matplotlib is imported late."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_samplers.diagnostics.agreement import engine_of_draws
from ppl_samplers.diagnostics.arviz import group
from ppl_samplers.diagnostics.psis import khat
from ppl_samplers.diagnostics.record import RunRecord

# Panels of the schedule: title, solid curve, dashed curve, scale. The realised decay of a unit is known one unit later.
_PANELS = (
    ("multipliers", "lam", "eta", "symlog"),
    ("path q0^(1 - beta) (p^alpha)^beta", "beta", "alpha", "linear"),
    ("KL of the step", "kl", "eps_tr", "linear"),
    ("entropy lost", "entropy_decay_nominal", "entropy_decay_realised", "linear"),
    ("relative effective sample size", "step_ess", "ess", "log"),
    ("evidence", "log_evidence", "elbo", "linear"),
)
_NAMES = {
    "lam": "lambda",
    "kl": "KL",
    "eps_tr": "trust region",
    "entropy_decay_nominal": "nominal",
    "entropy_decay_realised": "realised",
    "step_ess": "of the step",
    "ess": "at the target",
    "log_evidence": "log evidence",
    "elbo": "ELBO",
}
# Marker of each status of a step; the order is that of ppl_samplers.engines.cmt.dual.STATUSES.
_MARKERS = {"target": "o", "trust": "^", "entropy": "v", "both": "D", "ladder": "s"}


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


def plot_schedule(data: Any, axes: Any = None) -> Any:
    """The path that a CMT run found, unit by unit: a colour an engine, a marker for what held each step back.

    Six panels: the multipliers of the two constraints; the path's coordinates; KL of the step and its trust region;
    the entropy that the step was to lose and what the fitted flow did lose; the relative effective sample size of the
    step and at the target; log evidence and ELBO. The first curve of each is solid, the second dashed. Markers:
    nothing, the trust region, the entropy or both held the step back, or it was a rung of a fixed ladder. The last
    units go for the target whatever the constraints say; their markers say what would have held them back.

    Args:
        data: A run of CMT or its ArviZ conversion.
        axes: Six matplotlib axes, in any shape; a new figure by default.

    Returns:
        The axes, ``(2, 3)`` in a new figure.

    Raises:
        ValueError: The run has no such curves, because another engine made it or nothing was trained.

    References:
        Christopher von Klitzing, Denis Blessing, Henrik Schopmans, Pascal Friederich, Gerhard Neumann, Learning
        Boltzmann generators via constrained mass transport, 2026.
    """
    curves = _schedule_curves(data)
    figure = None
    if axes is None:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained")
    panels = np.asarray(axes).reshape(-1)
    if len(panels) != len(_PANELS):
        raise ValueError(f"The schedule needs {len(_PANELS)} axes and was given {len(panels)}.")
    status = curves["status"]
    for ax, (title, solid, dashed, scale) in zip(panels, _PANELS):
        for r, row in enumerate(curves[solid]):
            color, unit = f"C{r}", np.arange(len(row))
            ax.plot(unit, row, color=color, label=_NAMES.get(solid, solid) if r == 0 else None)
            for code, marker in enumerate(_MARKERS.values()):
                ax.plot(unit[status[r] == code], row[status[r] == code], marker, color=color, markersize=4)
            ax.plot(unit, curves[dashed][r], "--", color=color, label=_NAMES.get(dashed, dashed) if r == 0 else None)
        ax.set_yscale(scale)
        if solid == "log_evidence":
            # An early ELBO may lie thousands below, and would press everything else into one line.
            values = curves[solid][np.isfinite(curves[solid])]
            if values.size:
                size = max(np.ptp(values), 0.1)
                ax.set_ylim(values.min() - size, values.max() + 0.2 * size)
        ax.set_title(title)
        ax.set_xlabel("unit")
        ax.legend()
    handles = _schedule_handles(status)
    if figure is not None:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    else:
        panels[0].legend(handles=[*panels[0].get_legend_handles_labels()[0], *handles])
    return axes


def _schedule_curves(data: Any) -> dict[str, np.ndarray]:
    """Curves of the path, each ``(engines, units)``; the realised decay moved to the unit that planned it."""
    recorded = isinstance(data, RunRecord)
    curves = data.training if recorded else group(data, "sampler_training")
    names = {"status", *(name for _, solid, dashed, _ in _PANELS for name in (solid, dashed))}
    if curves is None or not names <= {str(name) for name in curves}:
        engine = data.engine if recorded else getattr(group(data, "sample_stats"), "attrs", {}).get("engine", "unknown")
        raise ValueError(
            f"This run (engine: {engine}) recorded no path to its target; CMT's trainings do. Train with CMT, or show "
            "this run's own curves with plot_training(data, metric)."
        )
    found = {name: np.atleast_2d(np.asarray(curves[name], dtype=float)) for name in names}
    # An engine that was done early stands still for the rest of the units.
    moves = [np.any(np.diff(np.nan_to_num(curve), axis=1) != 0, axis=0) for curve in found.values()]
    last = int(np.flatnonzero(np.any(moves, axis=0)).max(initial=-1)) + 2
    found = {name: curve[:, :last] for name, curve in found.items()}
    realised = np.full_like(found["status"], np.nan)
    realised[:, :-1] = found["entropy_decay_realised"][:, 1:]
    # Neither an absent constraint (infinite) nor a density that is zero somewhere has a place in a panel.
    found = {name: np.where(np.isfinite(curve), curve, np.nan) for name, curve in found.items()}
    return {**found, "entropy_decay_realised": realised}


def _schedule_handles(status: np.ndarray) -> list[Any]:
    """Entries of a legend: the engines' colours and the markers that occur."""
    from matplotlib.lines import Line2D

    seen = [(name, marker) for code, (name, marker) in enumerate(_MARKERS.items()) if np.any(status == code)]
    engines = [Line2D([], [], color=f"C{r}", label=f"engine {r}") for r in range(len(status))]
    return engines + [Line2D([], [], color="grey", marker=marker, linestyle="", label=name) for name, marker in seen]
