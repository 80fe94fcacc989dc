"""What a kernel gives back: figures while it runs, statistics of its draws, and its trained engines."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ppl_samplers.backends.pyro.ensemble import Ensemble, Options
from ppl_samplers.backends.pyro.trained import Trained, bar
from ppl_samplers.core import evidence


class KernelResults:
    """The results of :class:`~ppl_samplers.backends.pyro.kernel.TransportKernel`, whose state it reads, and ``fit``."""

    name: str
    density: Any
    transport: Any
    options: Options
    ensemble: Ensemble | None
    seconds: dict[str, float]
    _pretrained: Trained | None
    _start: dict[str, Tensor] | None
    _block: tuple[Tensor, dict[str, Tensor]] | None
    _drawn: dict[str, list[Tensor]]
    _diverging: list[int]
    _finished: list[dict[str, Tensor]]

    def logging(self) -> dict[str, str]:
        """Short strings for the progress bar."""
        if self.ensemble is None:
            return {}
        if self._drawn or self._block is not None:
            drawn = self._drawn.get("accept_prob") or []
            taken = torch.stack(drawn[-100:]) if drawn else torch.zeros(1)
            return {"acc. prob": f"{float(taken.mean()):.2f}", "log Z": f"{self.log_z():.3f}"}
        return self.training_figures()

    def training_figures(self) -> dict[str, str]:
        """Loss, effective sample size and log Z of the last units, averaged over the engines."""
        out = {}
        for key, label, form in (("loss", "loss", ".3f"), ("ess", "ESS", ".2f"), ("log_evidence", "log Z", ".3f")):
            last = [_last(units, key) for units in self.ensemble.history if units]
            found = [value for value in last if value is not None and math.isfinite(value)]
            if found:
                out[label] = format(sum(found) / len(found), form)
        return out

    def log_z(self) -> float:
        """Log evidence of all fresh proposals so far, engines pooled in equal parts of their draws."""
        return float(evidence.finish(evidence.merge(self.ensemble.sums))[0])

    def diagnostics(self) -> dict[str, Any]:
        """Per-chain figures for ``mcmc.diagnostics()``; a divergence is a proposal without a finite weight."""
        accepted = self._drawn.get("accepted") or []
        rate = float(torch.stack(accepted).double().mean()) if accepted else math.nan
        return {"divergences": list(self._diverging), "acceptance rate": rate}

    @property
    def sample_stats(self) -> dict[str, Tensor]:
        """Statistics and unconstrained points of all chains, ``(C, S, ...)``."""
        runs = self._finished + ([stacked(self._drawn)] if self._drawn else [])
        if not runs:
            return {}
        return {name: torch.cat([run[name] for run in runs]) for name in runs[0]}

    def store(self, points: Tensor, stats: dict[str, Tensor]) -> None:
        """Keep the draws of a run that held all chains in one tensor: ``(C, S, D)`` and ``(C, S)``."""
        self._finished = [{**stats, "unconstrained": points}]

    @property
    def trained(self) -> Trained | None:
        """What has been trained so far, also after an interruption; ``None`` before any training."""
        if self.ensemble is None or self.ensemble.states is None:
            return self._pretrained
        return Trained(
            density=self.density,
            transport=self.transport,
            states=list(self.ensemble.states),
            history=[list(units) for units in self.ensemble.history],
            engine=self.name,
            options=self.options,
            counts=dict(self.seconds),
        )

    def fit(
        self, *args: Any, num_warmup: int = 40, progress: bool = True, checkpoint: str | None = None, **kwargs: Any
    ) -> Trained:
        """Train without sampling.

        Args:
            *args: Arguments of the model.
            num_warmup: Units of training.
            progress: Show a bar with loss, ESS and log Z.
            checkpoint: Path of a file that the engines are written to about ten times and at the end.
            **kwargs: Keyword arguments of the model.

        Returns:
            The trained engines. Ctrl-C stops early and keeps what is trained so far.
        """
        if num_warmup < 1:
            raise ValueError(f"fit(num_warmup={num_warmup}): write 1 or more units of training")
        start = self._start
        self.reset()
        self._start = start
        self.setup(num_warmup, *args, **kwargs)
        with bar(num_warmup, self.name, progress) as show:
            for unit in range(num_warmup):
                try:
                    self.train_unit()
                except KeyboardInterrupt:
                    if self.ensemble.states is None:
                        raise
                    done = self.ensemble.units
                    show.write(f"{self.name}: interrupted after {done} of {num_warmup} units; these are kept.")
                    break
                show.set_postfix(self.training_figures(), refresh=False)
                show.update()
                if checkpoint and (unit + 1) % max(num_warmup // 10, 1) == 0:
                    self.trained.save(checkpoint)
        trained = self.trained
        if checkpoint:
            trained.save(checkpoint)
        return trained


def stacked(drawn: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """What stock Pyro drew one at a time, ``(C, S, ...)``."""
    return {name: torch.stack(values, 1) for name, values in drawn.items()}


def _last(units: list[dict[str, float]], key: str) -> float | None:
    return next((unit[key] for unit in reversed(units) if key in unit), None)
