"""The table of engines: what there is, for which framework, and what it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

KINDS = ("transport", "move", "distribution", "handler", "function")
GROUP = "ppl_samplers.engines"


@dataclass(frozen=True)
class EngineInfo:
    """One line of the table.

    Attributes:
        name: Public name, the same in both doors.
        kind: ``"transport"``, ``"move"``, ``"distribution"``, ``"handler"`` or ``"function"``.
        backends: Frameworks it is there for: ``"numpyro"``, ``"pyro"``.
        faces: How it is used: ``"MCMC"``, ``"SVI"``, ``"fit"``.
        state_space: ``"continuous"``, ``"discrete"`` or ``"mixed"``.
        correction: ``"exact"`` (draws of the posterior), ``"weighted"`` or ``"approximate"``.
        evidence: Whether it estimates the evidence.
        needs_gradient: Whether the density must be differentiable.
        summary: One sentence.
        reference: Authors, title, year.
        module: Module that holds the engine, with ``{backend}`` in place of the framework's name.
    """

    name: str
    kind: str
    backends: tuple[str, ...]
    faces: tuple[str, ...]
    state_space: str
    correction: str
    evidence: bool
    needs_gradient: bool
    summary: str
    reference: str
    module: str

    def load(self, backend: str) -> Any:
        """Imports the engine's class for ``backend``.

        Raises:
            ValueError: The engine is not there for that framework.
        """
        if backend not in self.backends:
            raise ValueError(f"{self.name} has no {backend!r} version; write one of {', '.join(self.backends)}")
        return getattr(importlib.import_module(self.module.format(backend=backend)), self.name)


_BUILT_IN = (
    EngineInfo(
        name="BoltzmannGenerator",
        kind="transport",
        backends=("numpyro", "pyro"),
        faces=("MCMC", "SVI", "fit"),
        state_space="continuous",
        correction="exact",
        evidence=True,
        needs_gradient=True,
        summary="A normalizing flow trained on energies and examples, corrected by independence Metropolis-Hastings.",
        reference="Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators: sampling equilibrium "
        "states of many-body systems with deep learning, Science 2019",
        module="ppl_samplers.engines.boltzmann.{backend}",
    ),
    EngineInfo(
        name="CMT",
        kind="transport",
        backends=("numpyro", "pyro"),
        faces=("MCMC", "fit"),
        state_space="continuous",
        correction="exact",
        evidence=True,
        needs_gradient=False,
        summary="A flow led from the prior to the posterior in steps of bounded KL and bounded loss of entropy.",
        reference="Christopher von Klitzing, Denis Blessing, Henrik Schopmans, Pascal Friederich, Gerhard Neumann, "
        "Learning Boltzmann generators via constrained mass transport, ICLR 2026",
        module="ppl_samplers.engines.cmt.{backend}",
    ),
)
_registered: dict[str, EngineInfo] = {info.name: info for info in _BUILT_IN}
_plugins_loaded = False


def register(info: EngineInfo) -> EngineInfo:
    """Adds an engine to the table.

    An installed package is found by itself: an entry point of the group ``ppl_samplers.engines`` that is an
    :class:`EngineInfo`.

    Raises:
        ValueError: The name is taken by another engine, or the kind is unknown.
    """
    if info.kind not in KINDS:
        raise ValueError(f"kind={info.kind!r} of engine {info.name}: write one of {', '.join(KINDS)}")
    if _registered.get(info.name, info) != info:
        raise ValueError(f"an engine named {info.name} is registered already: choose another name")
    _registered[info.name] = info
    return info


def list_engines(backend: str | None = None, kind: str | None = None) -> list[EngineInfo]:
    """All registered engines, optionally of one framework or one kind.

    Example:
        >>> [info.name for info in list_engines("pyro", "transport")]
        ['BoltzmannGenerator', 'CMT']
    """
    _load_plugins()
    found = _registered.values()
    return [i for i in found if (backend is None or backend in i.backends) and (kind is None or i.kind == kind)]


def table(infos: list[EngineInfo] | None = None) -> str:
    """The engines as a text table."""
    rows = [("engine", "kind", "frameworks", "use", "space", "result", "evidence", "gradient")]
    for info in list_engines() if infos is None else infos:
        flags = ("yes" if info.evidence else "no", "needed" if info.needs_gradient else "not needed")
        rows.append(
            (
                info.name,
                info.kind,
                ", ".join(info.backends),
                ", ".join(info.faces),
                info.state_space,
                info.correction,
                *flags,
            )
        )
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _load_plugins() -> None:
    """Registers the engines of installed packages, once; a broken one is reported and the others still load."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    for point in entry_points(group=GROUP):
        load: Callable[[], Any] = point.load
        try:
            info = load()
            if not isinstance(info, EngineInfo):
                raise TypeError(f"{info!r} is no EngineInfo")
            register(info)
        except Exception as error:
            import warnings

            warnings.warn(
                f"the engine {point.name!r} of an installed package could not be loaded: {error}", stacklevel=3
            )
