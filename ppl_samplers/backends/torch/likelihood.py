"""Training steps by maximum likelihood through a static graph: small batches cost calls, not numbers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from ppl_samplers.backends.torch.flows import Flow

logger = logging.getLogger(__name__)
# Tracing takes as long as some hundred steps gain.
MIN_STEPS = 1000
_graphs: dict[tuple, Callable[..., tuple[Tensor, ...]] | None] = {}


class Likelihood:
    """Negative mean log likelihood of whitened points under a flow, and its gradient.

    The graph takes the parameters and the masks of the flow as inputs, so that all engines of a size share it; it is
    kept only if it gives what the flow itself gives.

    Args:
        flow: The flow to train.
        num_steps: Steps that are planned; with few of them nothing is traced.

    Example:
        >>> from ppl_samplers.backends.torch.flows import SplineCoupling
        >>> flow = Flow(SplineCoupling(layers=2), 3)
        >>> value, gradients = Likelihood(flow, num_steps=10)(torch.randn(16, 3))
        >>> value.shape, len(gradients) == len(list(flow.parameters()))
        (torch.Size([]), True)
    """

    def __init__(self, flow: Flow, num_steps: int):
        self.flow, self.traced = flow, num_steps >= MIN_STEPS
        self.parameters = dict(flow.named_parameters())
        self.buffers = {name: value for name, value in flow.named_buffers() if name not in ("loc", "scale_tril")}

    def __call__(self, y: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Value, a scalar, and gradients in the order of ``flow.parameters()``, at whitened points ``(N, D)``."""
        inputs = (*(p.detach() for p in self.parameters.values()), *self.buffers.values(), y)
        graph = self._graph(inputs) if self.traced else None
        with torch.no_grad():
            value, *gradients = self._eager(*inputs) if graph is None else graph(*inputs)
        return value, tuple(gradients)

    def _eager(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        count = len(self.parameters)
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in inputs[:count]]
            state = dict(zip([*self.parameters, *self.buffers], [*leaves, *inputs[count:-1]]))
            loss = -functional_call(_LogProb(self.flow), {f"flow.{k}": v for k, v in state.items()}, inputs[-1:]).mean()
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        return loss.detach(), *(torch.zeros_like(p) if g is None else g for p, g in zip(leaves, gradients))

    def _graph(self, inputs: tuple[Tensor, ...]) -> Callable[..., tuple[Tensor, ...]] | None:
        y = inputs[-1]
        key = (repr(self.flow.settings), *((tuple(v.shape), v.dtype, v.device) for v in inputs))
        # Flows of a user's making may differ behind one name.
        key = (*key, id(getattr(self.flow.settings, "make", None)))
        if key not in _graphs:
            try:
                plain = make_fx(self._eager)(*inputs)
                with warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("ignore")
                    graph = torch.jit.trace(plain, inputs, check_trace=False)
                    other = (*inputs[:-1], 0.5 * y + 0.1)
                    same = all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(graph(*other), self._eager(*other)))
                _graphs[key] = graph if same else None
            except Exception as error:  # a flow that cannot be traced is trained as it is
                logger.debug("the likelihood cannot be traced, it is trained step by step: %s", error)
                _graphs[key] = None
        return _graphs[key]


class _LogProb(torch.nn.Module):
    def __init__(self, flow: Flow):
        super().__init__()
        self.flow = flow

    def forward(self, y: Tensor) -> Tensor:
        return self.flow.whitened_log_prob(y)
