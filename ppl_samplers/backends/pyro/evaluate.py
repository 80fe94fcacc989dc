"""Batches of points through a single-point density: vmap, a static graph of it, or a loop."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ppl_samplers.backends.pyro import graphs

HOW = ("auto", "vmap", "graph", "loop", "compile", "black box")
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
_SKIPPABLE = ("constraint", "not positive-definite", "singular", "positive definite", "failed to converge")
_FRESH = "a latent value is assigned into a fresh tensor; build it with torch.cat or torch.stack instead"


def reason_of(error: Exception) -> str:
    """A failure under ``vmap`` in the user's words, with the remedy."""
    text = str(error).replace("\n", " ")
    known = (
        ("data-dependent control flow", "a Python `if` or `while` on a latent value; write torch.where(...) instead"),
        (".item()", "`.item()` or `float(...)` of a latent value; keep it a tensor"),
        ("random", "random numbers are drawn in the body of the model; draw them outside and pass them in"),
        ("because there exists a tensor", _FRESH),
        ("inplace", _FRESH),
        ("numpy", "a latent value is turned into a NumPy array; stay in torch"),
    )
    for key, words in known:
        if key in text.lower().replace("in-place", "inplace"):
            return words
    return f"{type(error).__name__}: {text[:160]}"


class Evaluator:
    """Evaluates a density on batches ``(N, D)``.

    Args:
        single: Density of one point, ``(D,) -> ()``; or ``None`` if ``batched`` is given.
        session: Context manager for a number type, in which ``single`` or ``batched`` may be called; yields the type
            to compute in.
        how: One of ``auto``, ``vmap``, ``graph``, ``loop``, ``compile``.
        batch_size: Largest number of points in one call; ``None`` for no limit.
        batched: Density of a batch, ``(N, D) -> (N,)``, in place of ``vmap`` of ``single``.
        graph_after: Number of calls with the same batch size after which ``auto`` builds a graph. A build costs about
            as much as it saves in a hundred calls.
        max_graphs: Largest number of graphs kept; the one used longest ago goes first.
    """

    def __init__(
        self,
        single: Callable[[torch.Tensor], torch.Tensor] | None,
        session: Callable[[torch.dtype], AbstractContextManager[torch.dtype]],
        *,
        how: str = "auto",
        batch_size: int | None = None,
        batched: Callable[[torch.Tensor], torch.Tensor] | None = None,
        graph_after: int = 30,
        max_graphs: int = 16,
    ) -> None:
        if how not in HOW:
            raise ValueError(f"how={how!r} is unknown; choose one of {', '.join(HOW)}.")
        self.single, self.session, self.how, self.batch_size = single, session, how, batch_size
        self.batched, self.graph_after, self.max_graphs = batched, graph_after, max_graphs
        self._told = False
        self._forget()

    def _forget(self) -> None:
        self.calls: Counter[tuple] = Counter()
        self.graphs: OrderedDict[tuple, Callable[[torch.Tensor], Any] | None] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["calls"], state["graphs"]  # compiled graphs do not pickle
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def name(self) -> str:
        """The way in use: ``vmap``, ``graph``, ``loop`` or ``compile``."""
        if self.how in ("loop", "black box"):
            return self.how
        if any(graph is not None for graph in self.graphs.values()):
            return "compile" if self.how == "compile" else "graph"
        return "vmap"

    def __call__(self, x: torch.Tensor, grad: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Raw values ``(N,)`` and, if asked for, gradients ``(N, D)``; NaN and infinities are left in."""
        x = x.detach()
        size = self.batch_size or len(x)
        if len(x) <= size:
            return self._block(x, grad)
        parts = [self._block(x[i : i + size], grad) for i in range(0, len(x), size)]
        values = torch.cat([v for v, _ in parts])
        return values, torch.cat([g for _, g in parts]) if grad else None

    # -- one block --------------------------------------------------------------------------------------------------
    def _block(self, x: torch.Tensor, grad: bool) -> tuple[torch.Tensor, Any]:
        if len(x) == 0:
            return x.new_zeros(0), x.new_zeros(x.shape) if grad else None
        with self.session(x.dtype) as computing:
            z = x.to(computing)
            if self.how == "black box":
                if grad:
                    raise ValueError("this density was given with gradient=False: write local_move=None, probe=None")
                return self.batched(z).to(x.dtype), None
            values, grads = self.loop(z, grad) if self.how == "loop" else self._batch(z, grad)
        return values.to(x.dtype), grads.to(x.dtype) if grad else None

    def _batch(self, z: torch.Tensor, grad: bool) -> tuple[torch.Tensor, Any]:
        function = self.value_and_grad_fn if grad else self.value_fn
        if self.how != "vmap":
            padded, graph = self._graph(z, grad, function)
            if graph is not None:
                try:
                    with torch.no_grad():
                        result = graph(padded)
                    return (result[0][: len(z)], result[1][: len(z)]) if grad else (result[: len(z)], None)
                except Exception as error:  # a graph may fail where vmap does not: its failure must not stop a run
                    if not _is_numerical(error):
                        self.graphs[_key(padded, grad)] = None
                        warnings.warn(f"The graph of the density failed and is dropped: {error}", stacklevel=5)
        return self._vmap(function, z, grad)

    def _vmap(self, function: Callable[[torch.Tensor], Any], z: torch.Tensor, grad: bool) -> tuple[torch.Tensor, Any]:
        try:
            with torch.no_grad():
                result = function(z)
            return result if grad else (result, None)
        except Exception as error:
            if not _is_numerical(error):
                raise
            if len(z) == 1:
                return z.new_full((1,), -torch.inf), torch.zeros_like(z) if grad else None
        # One point broke a matrix routine for the whole batch: halve until it stands alone.
        half = len(z) // 2
        first, second = self._vmap(function, z[:half], grad), self._vmap(function, z[half:], grad)
        return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]) if grad else None

    def value_fn(self, z: torch.Tensor) -> torch.Tensor:
        """Values of a batch, ``(N, D) -> (N,)``, traceable."""
        return self.batched(z) if self.batched is not None else torch.func.vmap(self.single)(z)

    def value_and_grad_fn(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and gradients of a batch, traceable.

        Rows do not mix, so one pull-back of ones gives every row its own gradient.
        """
        values, pull = torch.func.vjp(self.value_fn, z)
        return values, pull(torch.ones_like(values))[0]

    def loop(self, z: torch.Tensor, grad: bool) -> tuple[torch.Tensor, Any]:
        """Values and gradients point by point."""
        rows = [self.one(point, grad) for point in z]
        return torch.stack([v for v, _ in rows]), torch.stack([g for _, g in rows]) if grad else None

    def one(self, point: torch.Tensor, grad: bool) -> tuple[torch.Tensor, Any]:
        """Value and gradient of one point by a direct call and ordinary autograd."""
        function = self.single if self.single is not None else (lambda z: self.batched(z[None])[0])
        try:
            if not grad:
                with torch.no_grad():
                    return function(point).to(point.dtype), None
            with torch.enable_grad():
                leaf = point.detach().requires_grad_()
                value = function(leaf)
                gradient = None
                if value.requires_grad:
                    (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
            gradient = torch.zeros_like(point) if gradient is None else gradient
            return value.detach().to(point.dtype), gradient
        except Exception as error:
            if not _is_numerical(error):
                raise
            return point.new_tensor(-torch.inf), torch.zeros_like(point)

    # -- graphs -----------------------------------------------------------------------------------------------------
    def _graph(self, z: torch.Tensor, grad: bool, function: Any) -> tuple[torch.Tensor, Any]:
        """The graph for this batch, if there is one, and the batch padded to its size."""
        key = _key(z, grad)
        if key in self.graphs:
            self.graphs.move_to_end(key)
            return z, self.graphs[key]
        larger = [k[0] for k, g in self.graphs.items() if g is not None and k[1:] == key[1:] and k[0] > len(z)]
        self.calls[key] += 1
        wanted = self.how in ("graph", "compile") or self.calls[key] > self.graph_after
        if larger and len(z) * 2 >= min(larger):
            padded = torch.cat([z, z[-1:].expand(min(larger) - len(z), -1)])
            return padded, self.graphs[_key(padded, grad)]
        if not wanted:
            return z, None
        self.graphs[key] = self._build(z, function)
        while len(self.graphs) > self.max_graphs:
            self.graphs.popitem(last=False)
        return z, self.graphs[key]

    def _build(self, z: torch.Tensor, function: Any) -> Any:
        compiled = self.how == "compile" and graphs.has_compiler()
        if self.how == "compile" and not compiled:
            graphs.logger.debug("no C++ compiler: torch.compile is left out")
        try:
            with torch.no_grad():
                expected = function(z)
            graph = graphs.build(function, z, compiled)
            with torch.no_grad():
                result = graph(z)
        except Exception as error:
            if _is_numerical(error):
                return None
            self._report(f"no graph of the density could be built ({type(error).__name__}: {str(error)[:160]})")
            return None
        if not graphs.close(expected, result, _TOLERANCE.get(z.dtype, 1e-4)):
            self._report("the graph of the density differs from the density and is not used")
            return None
        # Where both agree in every bit the faster one may be taken, whichever it is today. Where they do not, the
        # choice must not hang on a clock, or equal seeds would not give equal runs.
        identical = self.how == "auto" and graphs.identical(expected, result)
        slower = identical and graphs.seconds(graph, z) > graphs.seconds(function, z)
        return None if slower else graph

    def _report(self, text: str) -> None:
        if not self._told:  # vmap is right as well, only slower: once is enough
            warnings.warn(f"{text[0].upper()}{text[1:]}; vmap is used instead.", UserWarning, stacklevel=6)
        self._told = True


def _key(z: torch.Tensor, grad: bool) -> tuple[int, torch.dtype, str, bool]:
    return (len(z), z.dtype, str(z.device), grad)


def _is_numerical(error: Exception) -> bool:
    """Whether an exception speaks of the values at a point rather than of the program."""
    if isinstance(error, torch.linalg.LinAlgError):
        return True
    return isinstance(error, (ValueError, RuntimeError)) and any(word in str(error) for word in _SKIPPABLE)
