"""Settings of the kernels, the same objects in both frameworks: corrections and the probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class IMH:
    """Correction by independence Metropolis-Hastings, one fresh proposal per chain and iteration.

    References:
        Luke Tierney, Markov chains for exploring posterior distributions, 1994.
    """

    num_fresh = 1


@dataclass(frozen=True)
class ISIR:
    """Correction by iterated sampling importance resampling: the chain's point against fresh candidates.

    Attributes:
        num_candidates: Candidates per iteration, the current point among them.

    Raises:
        ValueError: Fewer than two candidates.

    References:
        Christophe Andrieu, Anthony Lee, Matti Vihola, Uniform ergodicity of the iterated conditional SMC and geometric
        ergodicity of particle Gibbs samplers, 2018.
    """

    num_candidates: int = 8

    def __post_init__(self) -> None:
        if self.num_candidates < 2:
            raise ValueError(f"ISIR(num_candidates={self.num_candidates}): write 2 or more (one is the current point)")

    @property
    def num_fresh(self) -> int:
        """Fresh proposals per chain and iteration."""
        return self.num_candidates - 1


@dataclass(frozen=True)
class Probe:
    """Short local chains from over-dispersed points, independent of the engines: they can land in a missed mode.

    Attributes:
        num_points: Chains.
        num_steps: Local steps of each.
    """

    num_points: int = 64
    num_steps: int = 40


def parse_correction(correction: Any) -> IMH | ISIR:
    """``"imh"``, ``"isir"`` or the settings object themselves.

    Raises:
        ValueError: Anything else.
    """
    known = {"imh": IMH, "isir": ISIR}
    if isinstance(correction, str) and correction in known:
        return known[correction]()
    if isinstance(correction, IMH | ISIR):
        return correction
    raise ValueError(f'correction={correction!r}: write "imh", "isir", IMH() or ISIR(num_candidates=8)')
