"""Flows of the zuko library in the place of our own coupling flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Before zuko: it takes care that zuko leaves torch's validation of distributions as it is.
from ppl_samplers.backends.torch import flows  # noqa: F401  # isort: skip
from zuko.flows import Flow as ZukoFlow
from zuko.lazy import LazyTransform


@dataclass(frozen=True)
class Zuko:
    """Any flow of zuko, on the whitened space; its transform is used, over a standard normal base.

    Attributes:
        make: ``make(dim)`` gives the flow, a ``zuko.flows.Flow`` (or its lazy transform) without context. A function
            with a name (not a lambda): the name is how a file of a trained engine tells its flow.

    Raises:
        ValueError: ``make`` returns something else.

    References:
        Francois Rozet and others, Zuko: normalizing flows in PyTorch, 2022.

    Example:
        >>> import zuko
        >>> from ppl_samplers.pyro import Zuko
        >>> def splines(dim):
        ...     return zuko.flows.NSF(dim, transforms=2, hidden_features=(32, 32))
        >>> Zuko(splines)
        Zuko(splines)
    """

    make: Callable[[int], Any]

    def __repr__(self) -> str:
        return f"Zuko({getattr(self.make, '__name__', 'make')})"

    def build(self, dim: int) -> LazyTransform:
        """The trainable transform from whitened points to the base space, for ``dim`` dimensions."""
        flow = self.make(dim)
        transform = flow.transform if isinstance(flow, ZukoFlow) else flow
        if not isinstance(transform, LazyTransform):
            raise ValueError(
                f"{self!r}: {getattr(self.make, '__name__', 'make')}({dim}) must return a flow of zuko.flows, "
                f"for example zuko.flows.NSF({dim}), got {type(flow).__name__}"
            )
        return transform
