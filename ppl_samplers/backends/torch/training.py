"""One optimiser for every engine: Adam with a cosine decay, a clipped gradient, and no step on a broken loss."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# The learning rate ends at this share of its start.
_FLOOR = 0.05


class Optimiser:
    """Adam, cosine decay to 5 %, clipped gradient norm; steps that are not finite are skipped and counted.

    Args:
        parameters: What to train; may be empty.
        learning_rate: At the start.
        total_steps: Steps over which the rate decays.
        clip: Largest global gradient norm.

    Example:
        >>> weight = nn.Parameter(torch.ones(2))
        >>> optimiser = Optimiser([weight], learning_rate=0.1, total_steps=10)
        >>> optimiser.step((weight**2).sum())
        2.0
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, total_steps: int, clip: float = 5.0):
        self.parameters = list(parameters)
        self.learning_rate, self.total_steps, self.clip = learning_rate, max(total_steps, 1), clip
        self.count, self.num_skipped = 0, 0
        self.adam = torch.optim.Adam(self.parameters, lr=learning_rate, fused=True) if self.parameters else None

    def rate(self) -> float:
        """Learning rate of the next step."""
        progress = min(self.count / self.total_steps, 1.0)
        return self.learning_rate * (_FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))

    def step(self, loss: Tensor) -> float:
        """One step down ``loss``, a scalar.

        Returns:
            The value of the loss; the step is left out, and counted, where the loss or its gradient is not finite.
        """
        value = float(loss.detach())
        if self.adam is None or not loss.requires_grad:
            return value
        self.adam.zero_grad(set_to_none=True)
        if math.isfinite(value):
            loss.backward()
        return self._update(value)

    def step_along(self, loss: Tensor, gradients: Iterable[Tensor]) -> float:
        """:meth:`step` with the gradients of the parameters already at hand."""
        for parameter, gradient in zip(self.parameters, gradients):
            parameter.grad = gradient
        return self._update(float(loss))

    def _update(self, value: float) -> float:
        if self.adam is None:
            return value
        if math.isfinite(value):
            norm = float(nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True))
            if math.isfinite(norm):
                for group in self.adam.param_groups:
                    group["lr"] = self.rate()
                self.adam.step()
                self.count += 1
                return value
        self.adam.zero_grad(set_to_none=True)
        self.count += 1
        self.num_skipped += 1
        return value
