"""Trained engines outside of a kernel: draws, evidence, files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ppl_samplers.backends import files
from ppl_samplers.core import evidence, resampling


@contextmanager
def bar(total: int, description: str, progress: bool = True) -> Iterator[tqdm]:
    """A progress bar that is off in continuous integration, as Pyro's own."""
    show = tqdm(total=total, desc=description, disable=not progress or "CI" in os.environ, dynamic_ncols=True)
    try:
        yield show
    finally:
        show.close()


@dataclass(repr=False)
class Trained:
    """Engines trained on one density; frozen.

    Attributes:
        density: The log density.
        transport: Settings of the engines.
        states: One state per engine.
        history: Metrics of every unit, per engine.
        engine: Registered name of the engine.
        options: Options of the kernel that trained it.
        counts: Plain numbers such as ``train_seconds``.

    Example:
        >>> import torch
        >>> from ppl_samplers.pyro import Affine, BoltzmannGenerator, LogDensity
        >>> density = LogDensity.from_callable(lambda x: -0.5 * (x * x).sum(-1), dim=2)
        >>> kernel = BoltzmannGenerator(log_density=density, flow=Affine(), num_engines=1)
        >>> x, log_w = kernel.fit(num_warmup=2, progress=False).propose(10)
        >>> x.shape, log_w.shape
        (torch.Size([10, 2]), torch.Size([10]))
    """

    density: Any
    transport: Any
    states: list[Any]
    history: list[list[dict[str, float]]] = field(default_factory=list)
    engine: str = "TransportKernel"
    options: Any = None
    counts: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Trained({self.engine} in Pyro, {len(self.states)} engines, {self.density.dim} dimensions)"

    def propose(self, n: int) -> tuple[Tensor, Tensor]:
        """``n`` draws ``(n, D)``, the engines taking equal parts, with their log weights ``(n,)``."""
        parts = np.array_split(np.arange(n), len(self.states))
        draws = [self.transport.propose(s, self.density, len(p)) for s, p in zip(self.states, parts) if len(p)]
        return torch.cat([x for x, _ in draws]), torch.cat([w for _, w in draws])

    def resampled(self, n: int, num_draws: int = 1000) -> tuple[Tensor, Tensor, Tensor]:
        """``n`` proposals of every engine, resampled.

        Returns:
            Points ``(R, num_draws, D)``, their log weights ``(R, num_draws)``, and the log weights of all
            proposals, ``(R, n)``.
        """
        points, log_w, everything = [], [], []
        for state in self.states:
            x, weight = self.transport.propose(state, self.density, n)
            keep = resampling.systematic(weight, torch.rand_like(weight[0]), num_draws)
            # Systematic resampling returns sorted copies; in random order they can stand for a chain.
            keep = keep[torch.randperm(len(keep), device=keep.device)]
            points.append(x[keep])
            log_w.append(weight[keep])
            everything.append(weight)
        return torch.stack(points), torch.stack(log_w), torch.stack(everything)

    def record(self, num_proposals: int = 4096, num_draws: int = 1000) -> Any:
        """A :class:`RunRecord` of importance-resampled draws, one "chain" per engine."""
        from ppl_samplers.backends.pyro.record import record_of_trained

        return record_of_trained(self, num_proposals, num_draws)

    def log_evidence(self, num_proposals: int = 4096) -> Any:
        """The evidence with its error and verdict, from fresh proposals."""
        from ppl_samplers.diagnostics.evidence import evidence_from_record

        return evidence_from_record(self.record(num_proposals, num_draws=4))

    def check(self, density: Any) -> None:
        """Refuse to serve a density with other sites.

        Raises:
            ValueError: If sites or shapes differ.
        """
        own, other = _sites(self.density), _sites(density)
        if own != other:
            raise ValueError(f"trained= was trained on sites {own}, but this model has {other}: train again, fit(...)")

    def guide(self, engine: int = 0, *, prefix: str = "auto") -> Any:
        """One engine's flow as a guide.

        For ``guide.sample_posterior(n)``, ``Predictive(model, guide=guide, ...)``, ``NeuTraReparam(guide)``, or
        ``SVI``, which goes on from there. The draws are the flow's own, without correction.

        Args:
            engine: Which of the engines.
            prefix: Of the guide's parameters in the param store.

        Raises:
            ValueError: There is no model or no flow to make a guide of.
        """
        from ppl_samplers.backends.pyro.guide import AutoFlow

        single = self.density.single
        files.check_guide(single and single.model, self.transport, engine, len(self.states))
        guide = AutoFlow(single.model, flow=self.transport.flow, prefix=prefix)
        guide.adopt(self.states[engine].flow, single.args, single.kwargs)
        files.check_space(guide, self.density)
        return guide

    def save(self, path: str | os.PathLike) -> None:
        """Write all arrays and settings to ``path`` (``.npz``; no code, no pickle), replacing the file in one step."""
        arrays = {}
        for index, state in enumerate(self.states):
            arrays |= {f"{index}:{name}": value for name, value in self.transport.to_arrays(state).items()}
        header = {
            "framework": "pyro",
            "engine": self.engine,
            "flow": repr(getattr(self.transport, "flow", None)),
            "num_engines": len(self.states),
            "sites": _sites(self.density),
            "settings": self.transport.settings(),
            "history": self.history,
            "counts": self.counts,
        }
        files.write(path, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike, engine: Any, *args: Any, **kwargs: Any) -> Trained:
        """Read what :meth:`save` wrote.

        Args:
            path: The file.
            engine: A kernel on the same model, for example ``BoltzmannGenerator(model)``.
            *args: Arguments of the model.
            **kwargs: Keyword arguments of the model.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: If the file is of another engine, of another flow, or of a model with other sites.
        """
        header, arrays = files.read(path, engine, "pyro")
        engine.setup(0, *args, **kwargs)
        if _sites(engine.density) != header["sites"]:
            raise ValueError(f"{path} was trained on sites {header['sites']}, this model has {_sites(engine.density)}")
        transport = engine.transport.with_settings(header["settings"])
        states = []
        for index in range(header["num_engines"]):
            mine = {name.split(":", 1)[1]: v for name, v in arrays.items() if name.split(":", 1)[0] == str(index)}
            states.append(transport.from_arrays(mine, engine.density))
        history, counts = header["history"], header["counts"]
        return cls(engine.density, transport, states, history, header["engine"], engine.options, counts)


def _sites(density: Any) -> list[list[Any]]:
    return [[site.name, list(site.unconstrained_shape)] for site in density.space]


def sums_of(log_w: Tensor) -> np.ndarray:
    """Evidence accumulators ``(R, 3)`` of log weights ``(R, n)``."""
    return np.stack([evidence.sums_of(row.double().cpu()).numpy() for row in log_w])
