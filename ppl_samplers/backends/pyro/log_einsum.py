"""Einsum in log space for ``opt_einsum``: sums become log-sum-exp, products become sums.

Pyro's own version takes logarithms with an old-style ``autograd.Function``, which ``torch.func`` refuses. This one uses
plain operations only, so that enumerated models can be vmapped. The module is named as the ``backend`` of a contraction
and therefore must export ``transpose``, ``einsum`` and ``tensordot``.
"""

from __future__ import annotations

import torch
from pyro.ops.einsum.util import Tensordot


def transpose(a: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """Permute the axes of ``a``."""
    return a.permute(axes)


def _safe_log(x: torch.Tensor) -> torch.Tensor:
    # Two `where`s: the inner one keeps the gradient of log(0) finite, the outer one restores the value.
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, torch.ones_like(x)).log(), torch.full_like(x, -torch.inf))


def einsum(equation: str, *operands: torch.Tensor) -> torch.Tensor:
    """Contract ``operands`` in log space as ``torch.einsum`` does in linear space."""
    symbols = sorted(set(equation) - set(",->"))
    rename = dict(zip(symbols, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))
    equation = "".join(rename.get(s, s) for s in equation)
    inputs, output = equation.split("->")
    if inputs == output:
        return operands[0].clone()
    exponentials, shifts = [], []
    for dims, operand in zip(inputs.split(","), operands, strict=True):
        shift = operand.detach()
        for axis, dim in enumerate(dims):
            if dim not in output:
                shift = shift.amax(axis, keepdim=True)
        shift = shift.clamp(min=torch.finfo(shift.dtype).min)  # -inf minus -inf would be NaN
        exponentials.append((operand - shift).exp())
        kept = [dim for dim in dims if dim in output]
        shift = shift.reshape([size for size, dim in zip(operand.shape, dims, strict=True) if dim in output])
        if kept:
            shift = shift.reshape((1,) * (len(output) - len(kept)) + tuple(shift.shape))
            order = [dim for dim in output if dim not in kept] + kept
            shift = shift.permute([order.index(dim) for dim in output])
        shifts.append(shift)
    return sum(shifts) + _safe_log(torch.einsum(equation, *exponentials))


tensordot = Tensordot(einsum)
