"""Pyro's ``MCMC`` with all chains in one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.mcmc import MCMC as PyroMCMC
from pyro.util import optional
from torch import Tensor

from ppl_samplers.backends.pyro.kernel import TransportKernel
from ppl_samplers.backends.pyro.trained import bar

# Iterations of one call to the kernel: the bar moves between calls, and Ctrl-C is answered there.
_HOOK_STAGES = ("Warmup", "Sample")


class MCMC(PyroMCMC):
    """Many chains of one of this library's kernels, trained once and advanced together.

    ``get_samples``, ``summary`` and ``diagnostics`` are Pyro's own. Every ``run`` trains anew; hand ``trained=`` to the
    kernel to keep engines. Ctrl-C in the warm-up leaves ``kernel.trained``.

    Args:
        kernel: A kernel of this library.
        num_samples: Draws of every chain.
        warmup_steps: Units of training; as many as draws, at most 40, if not given; 0 with a pre-trained kernel.
        num_warmup: Another name for ``warmup_steps``.
        initial_params: Unconstrained start values by site with a leading dimension of ``num_chains`` (none for one
            chain). They start the pilot run; the chains start there only with ``warmup_steps=0``.
        num_chains: Chains.
        hook_fn: Called as in Pyro, with values that have a leading chain dimension.
        disable_progbar: No progress bar.
        disable_validation: As in Pyro.
        save_params: Sites to keep.

    Raises:
        TypeError: For a kernel of another library.
        ValueError: For sizes that contradict each other.

    Example:
        >>> import torch
        >>> from ppl_samplers.pyro import Affine, BoltzmannGenerator, LogDensity
        >>> density = LogDensity.from_callable(lambda x: -0.5 * (x * x).sum(-1), dim=2)
        >>> kernel = BoltzmannGenerator(log_density=density, flow=Affine())
        >>> mcmc = MCMC(kernel, num_samples=50, warmup_steps=2, num_chains=3, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples(group_by_chain=True)["x"].shape
        torch.Size([3, 50, 2])
    """

    def __init__(
        self,
        kernel: TransportKernel,
        num_samples: int,
        warmup_steps: int | None = None,
        initial_params: dict[str, Tensor] | None = None,
        num_chains: int = 4,
        hook_fn: Callable[..., Any] | None = None,
        disable_progbar: bool = False,
        disable_validation: bool | None = True,
        save_params: list[str] | None = None,
        *,
        num_warmup: int | None = None,
    ):
        if not isinstance(kernel, TransportKernel):
            raise TypeError(
                f"{type(kernel).__name__} is not a kernel of this library: run it with pyro.infer.MCMC, or pass for "
                "example BoltzmannGenerator(model)"
            )
        if warmup_steps is not None and num_warmup is not None and warmup_steps != num_warmup:
            raise ValueError(f"warmup_steps={warmup_steps} and num_warmup={num_warmup} mean the same: give one of them")
        if num_chains < 1 or num_samples < 1:
            raise ValueError(f"num_chains={num_chains}, num_samples={num_samples}: write 1 or more")
        warmup = warmup_steps if warmup_steps is not None else num_warmup
        if warmup is None:
            warmup = 0 if kernel.trained is not None else min(num_samples, 40)
        if initial_params and num_chains > 1:
            for name, value in initial_params.items():
                if value.dim() == 0 or len(value) != num_chains:
                    raise ValueError(
                        f"initial_params['{name}'] has shape {tuple(value.shape)}: its first dimension must be "
                        f"num_chains={num_chains}"
                    )
        super().__init__(
            kernel, num_samples, warmup, None, 1, hook_fn, None, disable_progbar, disable_validation, {}, None
        )
        self.num_chains, self.hook_fn, self.disable_progbar = num_chains, hook_fn, disable_progbar
        self.save_params = None if save_params is None else sorted(save_params)
        self._initial_params = initial_params
        self._diagnostics = [None] * num_chains
        self.transforms = None

    @poutine.block
    def run(self, *args: Any, **kwargs: Any) -> None:
        """Train, then draw; arguments are those of the model."""
        self._args, self._kwargs = args, kwargs
        kernel = self.kernel
        kernel.reset()
        kernel.num_chains = self.num_chains
        kernel.initial_params = self._initial_params
        args = tuple(arg.detach() if torch.is_tensor(arg) else arg for arg in args)
        validation = optional(pyro.validation_enabled(not self.disable_validation), self.disable_validation is not None)
        # Pyro's context puts its own flag back, which need not be torch's.
        flag = torch.distributions.Distribution._validate_args
        try:
            with validation, bar(self.warmup_steps + self.num_samples, "Warmup", not self.disable_progbar) as show:
                kernel.setup(self.warmup_steps, *args, **kwargs)
                if self.save_params is not None:
                    self._check_names(kernel)
                self._warm_up(kernel, show)
                points, stats = self._draw(kernel, show)
                kernel.store(points, stats)
                self._finish(kernel, points, stats)
        finally:
            torch.distributions.Distribution.set_default_validate_args(flag)
            kernel.num_chains = 1
        kernel.cleanup()

    def _check_names(self, kernel: TransportKernel) -> None:
        known = [site.name for site in kernel.density.space]
        unknown = sorted(set(self.save_params) - set(known))
        if unknown:
            raise ValueError(f"save_params names {unknown}, which are not latent sites of the model: {known}")

    def _warm_up(self, kernel: TransportKernel, show: Any) -> None:
        for step in range(self.warmup_steps):
            try:
                kernel.train_unit()
            except KeyboardInterrupt:
                kept = "nothing was trained yet" if kernel.ensemble.states is None else "kernel.trained keeps it"
                show.write(f"{kernel.name}: interrupted in training unit {step + 1} of {self.warmup_steps}; {kept}.")
                raise
            show.set_postfix(kernel.training_figures(), refresh=False)
            show.update()
            if self.hook_fn is not None:
                self.hook_fn(kernel, kernel.initial_params, _HOOK_STAGES[0], step)

    def _draw(self, kernel: TransportKernel, show: Any) -> tuple[Tensor, dict[str, Tensor]]:
        show.set_description("Sample", refresh=False)
        blocks, done = [], 0
        while done < self.num_samples:
            n = min(kernel.options.block, self.num_samples - done)
            points, stats = kernel.draw_block(n)
            blocks.append((points, stats))
            if self.hook_fn is not None:
                for i in range(n):
                    values = kernel.density.unravel(points[:, i] if self.num_chains > 1 else points[0, i])
                    self.hook_fn(kernel, values, _HOOK_STAGES[1], done + i)
            done += n
            accept = float(stats["accept_prob"].mean())
            show.set_postfix({"acc. prob": f"{accept:.2f}", "log Z": f"{kernel.log_z():.3f}"}, refresh=False)
            show.update(n)
        points = torch.cat([block for block, _ in blocks], 1)
        return points, {name: torch.cat([stats[name] for _, stats in blocks], 1) for name in blocks[0][1]}

    def _finish(self, kernel: TransportKernel, points: Tensor, stats: dict[str, Tensor]) -> None:
        values = kernel.density.constrain(points, deterministic=False)
        kept = sorted(values) if self.save_params is None else self.save_params
        self._samples = {name: values[name] for name in kept}
        self.transforms = kernel.transforms
        lost = ~torch.isfinite(stats["prop_log_weight"])
        self._diagnostics = [
            {
                "divergences": lost[chain].nonzero()[:, 0].tolist(),
                "acceptance rate": float(stats["accepted"][chain].double().mean()),
            }
            for chain in range(self.num_chains)
        ]

    def log_evidence(self) -> Any:
        """The evidence of this run; see :func:`ppl_samplers.pyro.log_evidence`."""
        from ppl_samplers.backends.pyro.record import record
        from ppl_samplers.diagnostics.evidence import evidence_from_record

        return evidence_from_record(record(self))
