"""Proposals from a frozen flow with a heavy-tailed component, and their exact weights: what all flow engines share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ppl_samplers.backends.torch.flows import Flow
from ppl_samplers.core import weights
from ppl_samplers.engines.boltzmann import maths

_DF = 3.0


class FlowProposal:
    """Base of transports whose state holds a ``flow`` and counts its evaluations in ``num_evals``.

    Attributes:
        flow: Settings of the flow.
        defensive: Share of a heavy-tailed Student-t in the proposals.
    """

    flow: Any
    defensive: float

    @torch.no_grad()
    def propose(self, state: Any, density: Any, n: int) -> tuple[Tensor, Tensor]:
        """``n`` independent draws ``(n, D)`` with their exact log weights ``(n,)`` in float64."""
        x, log_q = self._draw(state, n)
        state.num_evals += n
        return x, weights.sanitize(density(x).double() - log_q)

    @torch.no_grad()
    def log_weight(self, state: Any, density: Any, x: Tensor) -> Tensor:
        """Exact log weights of given points, ``(N, D) -> (N,)`` in float64."""
        state.num_evals += len(x)
        return weights.sanitize(density(x).double() - self._log_q(state, x))

    def _draw(self, state: Any, n: int) -> tuple[Tensor, Tensor]:
        """Draws of the defensive mixture with their log densities."""
        flow = state.flow
        y, log_q = flow.sample_whitened(n)
        if self.defensive > 0:
            chi2 = 2 * torch._standard_gamma(torch.full((n,), 0.5 * _DF, dtype=y.dtype, device=y.device))
            heavy = maths.student_t(torch.randn_like(y), chi2, _DF)
            broad = torch.rand(n, device=y.device) < self.defensive
            y = torch.where(broad[:, None], heavy, y)
            # The log density of the heavy-tailed draws under the flow is another pass, on those rows only.
            if bool(broad.any()):
                log_q = log_q.index_copy(0, broad.nonzero()[:, 0], flow.whitened_log_prob(y[broad]))
        lost = ~torch.isfinite(y).all(-1) | ~torch.isfinite(log_q)
        y = torch.where(lost[:, None], torch.zeros_like(y), y)
        log_q = self._mix(flow, y, log_q)
        # A draw without a density has weight zero: log weight -inf.
        return flow.unwhiten(y), torch.where(lost, torch.full_like(log_q, math.inf), log_q)

    def _log_q(self, state: Any, x: Tensor) -> Tensor:
        y = state.flow.whiten(x)
        return self._mix(state.flow, y, state.flow.whitened_log_prob(y))

    def _mix(self, flow: Flow, y: Tensor, log_q: Tensor) -> Tensor:
        heavy = maths.student_t_log_prob(y.double(), _DF)
        return maths.defensive_log_prob(log_q.double(), heavy, self.defensive) - flow.log_volume().double()

    # -- files --------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """What the density of the proposals depends on besides the flow, which a file names in its header."""
        return {"defensive": self.defensive}

    def with_settings(self, settings: dict[str, Any]) -> Any:
        """This transport with the proposals of a file."""
        settled: Any = self
        return replace(settled, defensive=float(settings["defensive"]))
