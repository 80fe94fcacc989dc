"""Sampling engines for probabilistic programs.

The engines live behind two doors: ``ppl_samplers.numpyro`` and ``ppl_samplers.pyro``. Importing this package needs
neither framework.
"""

from __future__ import annotations

from typing import Any

from ppl_samplers.registry import EngineInfo, list_engines, register

__version__ = "0.1.0"
__all__ = ["EngineInfo", "__version__", "cite", "list_engines", "register"]


def cite(engine: Any) -> str:
    """References for an engine (its name, its class, an instance or a finished run) as text."""
    from ppl_samplers.diagnostics.citations import cite as text

    return text(engine)
