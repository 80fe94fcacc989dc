"""Static graphs of a batched function: ``make_fx``, then ``torch.jit.trace`` or ``torch.compile``.

A graph is fixed to one batch size and number type, and everything but its input is a constant in it.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

logger = logging.getLogger(__name__)
Batched = Callable[[torch.Tensor], Any]


def jit_trace(function: Batched, example: torch.Tensor) -> Batched:
    """``torch.jit.trace`` without its deprecation and tracer warnings (the only place that calls it)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(function, (example,), check_trace=False)


def has_compiler() -> bool:
    """Whether ``torch.compile`` finds a C++ compiler to build with."""
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except Exception:  # the helper is private: whatever it raises, there is no compiler to rely on
        return False
    return True


def build(function: Batched, example: torch.Tensor, compiled: bool = False) -> Batched:
    """Turn ``function`` into a static graph for inputs like ``example``.

    Raises:
        Exception: Whatever torch raises if it cannot trace the function; callers fall back.
    """
    with torch.no_grad():
        # vmap has already refused functions that read a latent value into Python; what is left to read is data, and
        # data are constants of the graph anyway.
        plain = make_fx(lambda z: function(z), _error_on_data_dependent_ops=False)(example)
        if compiled:
            graph = torch.compile(plain, dynamic=False)
            graph(example)
            return graph
        try:
            graph = jit_trace(plain, example)
            for _ in range(3):  # the executor optimises during its first calls
                graph(example)
            return graph
        except Exception as error:
            logger.debug("torch.jit.trace failed, the eager graph is used: %s", error)
            return plain


def close(first: Any, second: Any, tolerance: float) -> bool:
    """Whether two results agree to ``tolerance`` relative to the size of each row, finite entries only."""
    for a, b in zip(_tuple(first), _tuple(second), strict=True):
        if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
            return False
        finite = torch.isfinite(a)
        a, b = torch.where(finite, a, 0), torch.where(finite, b, 0)
        size = 1 + (a.abs() if a.dim() == 1 else a.abs().amax(-1, keepdim=True))
        if ((a - b).abs() > tolerance * size).any():
            return False
    return True


def identical(first: Any, second: Any) -> bool:
    """Whether two results agree in every bit."""
    pairs = zip(_tuple(first), _tuple(second), strict=True)
    return all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in pairs)


def seconds(function: Batched, example: torch.Tensor, repeats: int = 5) -> float:
    """Shortest processor time of a few calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        with torch.no_grad():
            function(example)
        best = min(best, time.process_time() - start)
    return best


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
