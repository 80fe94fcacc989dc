"""Values and gradients of a density: cleaned, counted, and differentiable once."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ppl_samplers.backends.pyro.density import LogDensity

_ONLY_ONCE = (
    "The log density is differentiable once only: its gradient is computed together with its value and stored. Do not "
    "use create_graph=True through LogDensity; write the second derivative with torch.func on your own density."
)


def clean(density: LogDensity, values: torch.Tensor, grads: Any) -> tuple[torch.Tensor, Any]:
    """Count points, values ``(N,)`` that are not finite as ``-inf``, and gradients there, or ``None``, as zero."""
    density.num_evals += len(values)
    if grads is not None:
        density.num_grad_evals += len(values)
    # A finite sum has finite terms: two sums where otherwise ten passes would follow.
    if math.isfinite(float(values.sum()) + (0.0 if grads is None else float(grads.sum()))):
        return values, grads
    finite = torch.isfinite(values)
    invalid = int((~finite).sum())
    density.num_invalid += invalid
    values = torch.where(finite, values, -torch.inf)
    if grads is not None:
        # A value may be finite where its derivative is not (0 * inf in a chain rule): such a row gets no push.
        usable = finite & torch.isfinite(grads).all(-1)
        grads = torch.where(usable[:, None], grads, 0.0)
    if invalid > 0.1 * len(values) and len(values) >= 20 and density.warn_invalid:
        density.warn_invalid = False
        warnings.warn(
            f"The density is not finite at {invalid} of {len(values)} points; they count as log density -inf.",
            UserWarning,
            stacklevel=4,
        )
    return values, grads


class Differentiable(torch.autograd.Function):
    """Value and gradient in one pass; backward only multiplies."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, density: LogDensity) -> torch.Tensor:
        """Values ``(N,)`` of ``density`` at ``x`` ``(N, D)``; the gradients are kept."""
        values, grads = density.value_and_grad(x)
        ctx.save_for_backward(grads, x)
        return values

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The kept gradients times what comes from above."""
        grads, x = ctx.saved_tensors
        return _OnlyOnce.apply(upstream, grads, x), None


class _OnlyOnce(torch.autograd.Function):
    """The product of the first backward, whose own derivative would be silently incomplete."""

    @staticmethod
    def forward(ctx: Any, upstream: torch.Tensor, grads: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        # x is here only to keep the graph: without it a second derivative through x would silently be left out.
        # A loss that ignores a point sends zero; a loss that is -inf at one sends NaN, which zero must still win.
        return torch.where(grads == 0, torch.zeros_like(grads), upstream[:, None] * grads)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        raise RuntimeError(_ONLY_ONCE)
