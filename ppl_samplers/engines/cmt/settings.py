"""Settings of constrained mass transport, the same in both frameworks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from ppl_samplers.backends.settings import check_training
from ppl_samplers.core.schedules import geometric_ladder

# The last two follow a ladder that is fixed beforehand, without constraints.
LADDERS = ("geometric-linear", "tabg")
VARIANTS = ("both", "kl", "entropy", "none", *LADDERS)
# Hottest temperature of the default temperature ladder, that of its authors' example in the plane.
_HOTTEST = 30.0
# Curves of the training, besides the loss.
METRICS = (
    "ess", "log_evidence", "lam", "eta", "status", "kl", "entropy", "entropy_decay_nominal", "entropy_decay_realised",
    "step_ess", "elbo", "eps_tr", "eps_ent", "beta", "alpha", "num_invalid", "held_out",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of the training.

    Attributes:
        variant: Constraints in use: ``"both"``, ``"kl"``, ``"entropy"`` or ``"none"``; or, as a baseline, a fixed
            ladder: ``"geometric-linear"`` or ``"tabg"``.
        ladder: Rungs of a fixed ladder, one a unit and the last of them 1: inverse temperatures that rise, or for
            ``"tabg"`` temperatures that fall. By default as many as the budget holds, evenly spaced up to 1, or
            falling from 30 by a constant ratio.
        eps_tr: Trust region, a KL divergence in nats.
        eps_ent: Largest loss of entropy in a step in nats, or ``"auto"``.
        kappa: Scale of the automatic bound.
        buffer_size: Draws of the flow per unit. Too few of them lose modes, silently.
        grad_steps: Optimiser steps per unit.
        batch_size: Points per optimiser step.
        learning_rate: First learning rate of each unit; it falls along a cosine within the unit.
        clip: Bound of the gradient norm.
        polish: Units after the target was reached.
        stop_ess: Training ends early once the relative effective sample size at the target reaches this.
        pool: Buffers that the polish learns from.
        anchor: Share of each buffer that is drawn from an earlier, broader flow once the target is in sight: what the
            present flow forgets is drawn, and learnt, again. 0 leaves it out.
        defensive: Share of a heavy-tailed component in the proposal, 0 to leave it out.
    """

    variant: str = "both"
    ladder: Sequence[float] | None = None
    eps_tr: float = 1.0
    eps_ent: float | str = "auto"
    kappa: float = 1.0
    buffer_size: int = 32768
    grad_steps: int = 200
    batch_size: int = 256
    learning_rate: float = 2e-3
    clip: float = 1.0
    polish: int = 8
    stop_ess: float = 0.9
    pool: int = 4
    anchor: float = 0.125
    defensive: float = 0.05

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ValueError(f"CMT: variant={self.variant!r}; write one of {', '.join(map(repr, VARIANTS))}")
        self._check_ladder()
        for name in ("eps_tr", "eps_ent", "kappa"):
            value = getattr(self, name)
            if value == "auto" and name == "eps_ent":
                continue
            if isinstance(value, str) or not value > 0:
                hint = ' or "auto"' if name == "eps_ent" else ""
                raise ValueError(f"CMT: {name}={value!r}; write a positive number{hint}")
        names = ("buffer_size", "grad_steps", "batch_size", "polish", "pool")
        if not 0 <= self.anchor < 1:
            raise ValueError(f"CMT: anchor={self.anchor!r}; write a share in [0, 1), 0.125 by default")
        counts = {name: getattr(self, name) for name in names}
        check_training("CMT", counts, self.learning_rate, self.clip, self.defensive, self.stop_ess)
        if self.buffer_size < 256:
            raise ValueError(f"CMT: buffer_size={self.buffer_size}; write 256 or more (32768 by default)")

    def _check_ladder(self) -> None:
        if self.ladder is None:
            return
        if self.variant not in LADDERS:
            raise ValueError(
                f"CMT: variant={self.variant!r} finds its own steps and takes no ladder; write variant="
                f"{' or '.join(map(repr, LADDERS))} with it"
            )
        rungs = tuple(float(rung) for rung in self.ladder)
        # A temperature may be held for several units; a repeated inverse temperature of the other ladder is no step.
        if self.variant == "tabg":
            good, example = all(a >= b for a, b in pairwise(rungs)), "temperatures that fall to 1, as (30, 10, 3, 1)"
        else:
            good = all(a < b for a, b in pairwise((0.0, *rungs)))
            example = "inverse temperatures that rise from above 0 to 1, as (0.1, 0.3, 1)"
        if not (good and rungs and rungs[-1] == 1 and math.isfinite(rungs[0])):
            raise ValueError(f"CMT: ladder={self.ladder!r}; for variant={self.variant!r} write {example}")
        # A tuple, so that the settings can be hashed.
        object.__setattr__(self, "ladder", rungs)

    def rungs(self, num_units: int) -> Sequence[float]:
        """Rungs of the fixed ladder for a training of ``num_units`` units, of which the first climbs none.

        Raises:
            ValueError: The ladder is longer than the units that are not kept for the polish.
        """
        last = min(self.polish, num_units // 4)
        room = max(num_units - 1 - last, 1)
        if self.ladder is not None:
            if len(self.ladder) > room:
                raise ValueError(
                    f"CMT: a ladder of {len(self.ladder)} rungs does not fit into {num_units} units, of which the "
                    f"first fits the prior and the last {last} polish; {len(self.ladder) + 1 + self.polish} units do"
                )
            return self.ladder
        if self.variant == "tabg":
            return tuple(1 / beta for beta in geometric_ladder(1 / _HOTTEST, room))
        return tuple((k + 1) / room for k in range(room))

    @staticmethod
    def names() -> tuple[str, ...]:
        """Names of all settings."""
        return tuple(f.name for f in fields(Settings))

    @staticmethod
    def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options that are settings of the training, and the others."""
        names = Settings.names()
        return {k: v for k, v in options.items() if k in names}, {k: v for k, v in options.items() if k not in names}

    @property
    def held(self) -> int:
        """Points of each buffer that the fit never sees."""
        return self.buffer_size // 8

    @property
    def trust_region(self) -> float:
        """The trust region of the variant: ``inf`` where it has none."""
        return self.eps_tr if self.variant in ("both", "kl") else math.inf

    def top_rate(self, polished: int | None) -> float:
        """Share of the learning rate that a unit starts from, falling over the polish (``None``: before it)."""
        if polished is None:
            return 1.0
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(polished / self.polish, 1.0)))
