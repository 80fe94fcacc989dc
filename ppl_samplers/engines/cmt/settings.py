"""Settings of constrained mass transport, the same in both frameworks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from ppl_samplers.backends.settings import check_training

VARIANTS = ("both", "kl", "entropy", "none")
# Curves of the training, besides the loss.
METRICS = (
    "ess", "log_evidence", "lam", "eta", "status", "kl", "entropy", "entropy_decay_nominal", "entropy_decay_realised",
    "step_ess", "elbo", "eps_tr", "eps_ent", "beta", "alpha", "num_invalid", "held_out",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Settings of the training.

    Attributes:
        variant: Constraints in use: ``"both"``, ``"kl"``, ``"entropy"`` or ``"none"``.
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
        defensive: Share of a heavy-tailed component in the proposal, 0 to leave it out.
    """

    variant: str = "both"
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
    defensive: float = 0.05

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ValueError(f"CMT: variant={self.variant!r}; write one of {', '.join(map(repr, VARIANTS))}")
        for name in ("eps_tr", "eps_ent", "kappa"):
            value = getattr(self, name)
            if value == "auto" and name == "eps_ent":
                continue
            if isinstance(value, str) or not value > 0:
                hint = ' or "auto"' if name == "eps_ent" else ""
                raise ValueError(f"CMT: {name}={value!r}; write a positive number{hint}")
        names = ("buffer_size", "grad_steps", "batch_size", "polish", "pool")
        counts = {name: getattr(self, name) for name in names}
        check_training("CMT", counts, self.learning_rate, self.clip, self.defensive, self.stop_ess)
        if self.buffer_size < 256:
            raise ValueError(f"CMT: buffer_size={self.buffer_size}; write 256 or more (32768 by default)")

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
