"""The flat space of a density: to and from the sites of the model, and methods of one point on every row of a batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from ppl_samplers.backends.pyro.evaluate import Evaluator
from ppl_samplers.backends.pyro.sessions import DrawMode
from ppl_samplers.backends.pyro.single import SinglePoint
from ppl_samplers.backends.pyro.sites import Layout, Site


class FlatSpace:
    """The space under :class:`~ppl_samplers.backends.pyro.density.LogDensity`."""

    layout: Layout
    single: SinglePoint | None
    space: tuple[Site, ...]
    dim: int
    _evaluator: Evaluator
    _loop_maps: set[str]

    def ravel(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Unconstrained values by site, any leading shape, to ``(..., D)``."""
        parts = []
        for site in self.space:
            value = torch.as_tensor(self._need(values, site))
            lead = value.shape[: value.dim() - len(site.unconstrained_shape)]
            parts.append(value.reshape((*lead, site.slice.stop - site.slice.start)))
        return torch.cat(parts, -1)

    def unravel(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """``(..., D)`` to unconstrained values by site."""
        return {s.name: x[..., s.slice].reshape(x.shape[:-1] + torch.Size(s.unconstrained_shape)) for s in self.space}

    def constrain(self, x: torch.Tensor, deterministic: bool = True) -> dict[str, torch.Tensor]:
        """``(..., D)`` to the sites' values in the model, with the deterministic sites if asked for."""
        with torch.no_grad():
            if self.single is None:
                return self.unravel(x)
            deterministic = deterministic and bool(self.layout.deterministic)
            if not deterministic and not self.layout.dynamic:
                return {name: self.layout.transforms[name](u).to(x.dtype) for name, u in self.unravel(x).items()}
            flat = x.reshape(-1, self.dim)
            values = self._map("constrained", flat)
            names = [s.name for s in self.space] + list(self.layout.deterministic if deterministic else ())
            return {name: values[name].reshape(x.shape[:-1] + values[name].shape[1:]) for name in names}

    def unconstrain(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Sites' values in the model, any leading shape, to ``(..., D)``."""
        with torch.no_grad():
            values = {s.name: torch.as_tensor(self._need(values, s)) for s in self.space}
            if self.single is None:
                return self.ravel(values)
            if not self.layout.dynamic:
                return self.ravel({name: self.layout.transforms[name].inv(v) for name, v in values.items()})
            first = self.space[0]
            lead = values[first.name].shape[: values[first.name].dim() - len(first.constrained_shape)]
            flat = {s.name: values[s.name].reshape((-1, *s.constrained_shape)) for s in self.space}
            return self._map("unconstrained", flat).reshape((*lead, self.dim))

    @staticmethod
    def _need(values: Mapping[str, torch.Tensor], site: Site) -> torch.Tensor:
        if site.name not in values:
            raise ValueError(f"No value for site '{site.name}'; the dict has {sorted(values)}.")
        return values[site.name]

    def _map(self, method: str, rows: Any, randomness: str = "error") -> Any:
        """A method of the single point on every row of a tensor or of a dict of tensors, by vmap or in a loop."""
        function = getattr(self.single, method)
        if method == "draw":
            function = lambda _: self.single.draw()  # noqa: E731
        leaves = list(rows.values()) if isinstance(rows, dict) else [rows]
        dtype, count = leaves[0].dtype, len(leaves[0])
        size = self._evaluator.batch_size or max(count, 1)
        parts = []
        with self.single.session(dtype) as computing:
            cast = [leaf.to(computing) if leaf.is_floating_point() else leaf for leaf in leaves]
            for start in range(0, max(count, 1), size):
                block = [leaf[start : start + size] for leaf in cast]
                block = dict(zip(rows, block, strict=True)) if isinstance(rows, dict) else block[0]
                parts.append(self._map_block(function, method, block, randomness))
        if isinstance(parts[0], dict):
            return {key: _back(torch.cat([part[key] for part in parts]), dtype) for key in parts[0]}
        return _back(torch.cat(parts), dtype)

    def _map_block(self, function: Callable[[Any], Any], method: str, block: Any, randomness: str) -> Any:
        if self._evaluator.how != "loop" and method not in self._loop_maps:
            state = torch.get_rng_state()
            try:
                with warnings.catch_warnings(), DrawMode() if randomness == "different" else nullcontext():
                    warnings.filterwarnings("ignore", message="There is a performance drop")
                    return torch.func.vmap(function, randomness=randomness)(block)
            except Exception:  # any part of user code that the density itself does not run may refuse vmap
                self._loop_maps.add(method)
                torch.set_rng_state(state)  # equal seeds must give equal draws, whichever call found this out
        rows = zip(*block.values(), strict=True) if isinstance(block, dict) else block
        if isinstance(block, dict):
            rows = (dict(zip(block, row, strict=True)) for row in rows)
        results = [function(row) for row in rows]
        if not results:
            return torch.zeros(0, self.dim)
        if isinstance(results[0], dict):
            return {key: torch.stack([r[key] for r in results]) for key in results[0]}
        return torch.stack(results)


def _back(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype) if value.is_floating_point() else value
