"""The picture of mass teleportation in docs/images: three modes on the line, four paths, every step exact on a grid.

Run from the repository's root: ``python docs/pictures/teleportation.py``.

References:
    Christopher von Klitzing, Denis Blessing, Henrik Schopmans, Pascal Friederich, Gerhard Neumann, Learning Boltzmann
    generators via constrained mass transport, 2026.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ppl_samplers.engines.cmt import maths
from ppl_samplers.engines.cmt.dual import TARGET, solve
from ppl_samplers.engines.cmt.settings import Settings

IMAGE = Path(__file__).resolve().parent.parent / "images" / "teleportation.png"
GRID = np.linspace(-60, 60, 6001)
LOG_WIDTH = np.log(GRID[1] - GRID[0])
WEIGHTS, MEANS, SCALES = (0.2, 0.5, 0.3), (-8.0, 0.0, 9.0), (0.5, 1.0, 0.3)
NAMES = ("left", "middle", "right")
# Where one mode's ground ends and the next begins.
BORDERS = (-4.0, 5.0)
INF = float("inf")
# Title, bounds of the two constraints; without them a ladder of the same length as CMT's path.
PATHS = {
    "geometric ladder, fixed": "geometric-linear",
    "trust region alone": (0.3, INF),
    "CMT: both constraints": (0.3, 0.1),
    "temperature ladder, fixed": "tabg",
}


class Row(NamedTuple):
    """One density of a path.

    Attributes:
        log_q: Log density on the grid, ``(G,)``.
        masses: Mass of each mode, ``(3,)``.
        width: Standard deviation within the right mode.
        ess: Relative effective sample size of the weights from the density before.
    """

    log_q: np.ndarray
    masses: np.ndarray
    width: float
    ess: float


def normal(x: np.ndarray, mean: float, scale: float) -> np.ndarray:
    """Log density of a Gaussian."""
    return -0.5 * ((x - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)


LOG_P = np.log(3.7) + np.logaddexp.reduce([np.log(w) + normal(GRID, m, s) for w, m, s in zip(WEIGHTS, MEANS, SCALES)])


def describe(log_q: np.ndarray, ess: float = 1.0) -> Row:
    """The row of a density, normalised."""
    log_q = log_q - np.logaddexp.reduce(log_q + LOG_WIDTH)
    q = np.exp(log_q + LOG_WIDTH)
    owner = np.searchsorted(BORDERS, GRID)
    masses = np.bincount(owner, weights=q)
    right = q[owner == 2] / masses[2]
    x = GRID[owner == 2]
    return Row(log_q, masses, float(np.sqrt(right @ (x - right @ x) ** 2)), ess)


def path(kind: str | tuple[float, float], rungs: int = 13) -> list[Row]:
    """All densities of a path, the start first, the target last.

    Args:
        kind: Variant with a fixed ladder, or the bounds ``(eps_tr, eps_ent)``.
        rungs: Length of the ladder.
    """
    rows, before = [describe(normal(GRID, -14.0, 6.0))], 0.0
    ladder = Settings(variant=kind, polish=1).rungs(rungs + 2) if isinstance(kind, str) else range(100)
    for rung in ladder:
        log_q = rows[-1].log_q
        if isinstance(kind, str):
            multipliers = maths.tempered_multipliers(rung) if kind == "tabg" else maths.ladder_multipliers(before, rung)
            bounds, before = (INF, INF), rung
        else:
            multipliers, bounds = None, kind
        step = solve(LOG_P, log_q, *bounds, log_base=log_q + LOG_WIDTH, max_draws=len(GRID), multipliers=multipliers)
        b, c = step.exponents
        rows.append(describe(log_q + b * LOG_P - c * log_q, step.step_ess))
        if step.status == TARGET:
            break
    return rows


def ridges(ax: Axes, rows: list[Row]) -> None:
    """One curve a density, the start on top, each as high as its own peak allows."""
    seen = (GRID > -30) & (GRID < 14)
    for k, row in enumerate(rows):
        height, foot = np.exp(row.log_q[seen] - row.log_q[seen].max()), 1 - k / (len(rows) - 1)
        # A lower line lies before the one above it; all paths fill the same height.
        ax.fill_between(GRID[seen], foot, foot + 0.18 * height, color="white", zorder=k)
        ax.plot(GRID[seen], foot + 0.18 * height, color="black", lw=0.8, zorder=k + 0.5)
    ax.set(yticks=[], xticks=MEANS, xlabel="x", xlim=(-30, 14), ylim=(-0.03, 1.22))


def shares(ax: Axes, rows: list[Row]) -> None:
    """Mass of each mode along the path, beside its exact weight."""
    for j, name in enumerate(NAMES):
        ax.plot([row.masses[j] for row in rows], "o-", ms=3, color=f"C{j}", label=name)
        ax.axhline(WEIGHTS[j], color=f"C{j}", ls=":")
    ax.set(xlabel="step", ylim=(0, 1))


def draw() -> Figure:
    """The whole picture."""
    figure = Figure(figsize=(15, 6), layout="constrained")
    axes = figure.subplot_mosaic(
        [[*(f"ridge {k}" for k in range(4)), "width"], [*(f"share {k}" for k in range(4)), "width"]],
        width_ratios=(1, 1, 1, 1, 1.6),
    )
    wide = axes["width"]
    for k, (title, kind) in enumerate(PATHS.items()):
        rows = path(kind)
        ridges(axes[f"ridge {k}"], rows)
        shares(axes[f"share {k}"], rows)
        axes[f"ridge {k}"].set_title(f"{title}\n{len(rows) - 1} steps, least ESS {min(r.ess for r in rows):.2g}")
        wide.plot([r.width for r in rows], [r.masses[2] for r in rows], "o-", ms=4, color=f"C{k + 4}", label=title)
    axes["ridge 0"].set_ylabel("densities: start at the top")
    axes["share 0"].set_ylabel("mass of each mode")
    axes["share 0"].legend(loc="upper right", title="mode")
    wide.axhline(WEIGHTS[2], color="C2", ls=":")
    wide.set_xscale("log")
    wide.set_xticks([2, 1, 0.5, 0.3], labels=["2", "1", "0.5", "0.3"])
    wide.set_xticks([], minor=True)
    wide.invert_xaxis()
    wide.set(xlabel="width of the right mode (falling)", ylabel="mass of the right mode")
    wide.set_title("what the right mode holds as it narrows")
    wide.legend(loc="center", bbox_to_anchor=(0.63, 0.36), frameon=False, fontsize=9, handlelength=1)
    return figure


if __name__ == "__main__":
    draw().savefig(IMAGE, dpi=80)
