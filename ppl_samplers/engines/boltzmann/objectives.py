"""What a Boltzmann generator is trained on: settings only, the same in both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Knots = Sequence[tuple[float, float]]


def as_knots(weight: float | Knots) -> tuple[tuple[float, float], ...]:
    """A constant weight, or ``(progress, weight)`` pairs in rising order of progress, as knots."""
    if isinstance(weight, int | float):
        return ((0.0, float(weight)),)
    knots = tuple((float(at), float(value)) for at, value in weight)
    if not knots or any(b[0] < a[0] for a, b in pairwise(knots)) or any(value < 0 for _, value in knots):
        raise ValueError(
            f"weight={weight!r}: write a number, or (progress, weight) pairs with progress rising from 0 to 1 "
            "and weights >= 0, for example ((0, 0), (0.5, 1))"
        )
    return knots


@dataclass(frozen=True)
class ByEnergy:
    """Training by energy (reverse KL): pulls the flow's own draws towards low energy. Needs gradients of the density.

    Attributes:
        weight: Constant, or ``(progress, weight)`` knots over the training.
        energy_high: Energies above this, relative to the best one seen, enter by their logarithm.
        energy_max: Energies above this are clipped.
    """

    weight: float | Knots = 1.0
    energy_high: float = 1e3
    energy_max: float = 1e9


@dataclass(frozen=True)
class ByExample:
    """Training by example (forward KL) on draws of the target.

    Attributes:
        weight: Constant, or ``(progress, weight)`` knots over the training.
        draws: Draws that the user hands over, for example from NUTS: a dict of constrained sites with a leading
            draw axis, or an array ``(n, D)`` on the unconstrained space. ``None``: the engine makes its own by an
            annealed pilot run, and keeps an ensemble of chains moving while it trains.
        fine_tune: Share of the training, at its end, that learns from the flow's own importance-weighted draws.
    """

    weight: float | Knots = 1.0
    draws: Any = None
    fine_tune: float = 0.4


# By example alone: an energy term in the middle of the training was measured to undo modes that the examples had taught
# (it is mode-seeking), and it doubles the price of a step. It remains for those who ask for it.
DEFAULT = (ByExample(),)


def parse(objective: Any) -> tuple[ByEnergy | None, ByExample | None]:
    """The energy and the example part of ``objective`` (one object, or a pair of them)."""
    parts = objective if isinstance(objective, tuple | list) else (objective,)
    energy = [part for part in parts if isinstance(part, ByEnergy)]
    example = [part for part in parts if isinstance(part, ByExample)]
    if not parts or len(energy) + len(example) != len(parts) or len(energy) > 1 or len(example) > 1:
        raise ValueError(f"objective={objective!r}: write ReverseKL(), ForwardKL(draws=...), or one of each in a tuple")
    return (energy[0] if energy else None), (example[0] if example else None)
