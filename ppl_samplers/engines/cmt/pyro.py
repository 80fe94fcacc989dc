"""Constrained mass transport in Pyro: the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_samplers.backends.pyro.kernel import TransportKernel
from ppl_samplers.backends.settings import check_options
from ppl_samplers.engines.cmt.settings import Settings
from ppl_samplers.engines.cmt.transport_pyro import FLOW, CMTTransport


class CMT(TransportKernel):
    """Pyro kernel: constrained mass transport in the warm-up, then exact independence sampling.

    The density is evaluated, never differentiated, in the training; ``warmup_steps`` counts units (40 is a good start).

    Args:
        model: Pyro model, or a :class:`LogDensity`.
        log_density: A :class:`LogDensity`, in place of a model.
        flow: A :class:`SplineCoupling`; by default six layers, with 16 bins up to 4 dimensions and 8 above;
            or :class:`Zuko` for a flow of zuko.
        **options: See :class:`~ppl_samplers.engines.cmt.settings.Settings` and
            :class:`~ppl_samplers.backends.pyro.kernel.TransportKernel`.

    Raises:
        ValueError: A setting that cannot work; the message says what to write.
        TypeError: An option that neither the engine nor the kernel has.

    References:
        Christopher von Klitzing, Denis Blessing, Henrik Schopmans, Pascal Friederich, Gerhard Neumann, Learning
        Boltzmann generators via constrained mass transport, 2026.

    Example:
        >>> import torch
        >>> from ppl_samplers.pyro import CMT, LogDensity, SplineCoupling
        >>> two = lambda x: torch.logaddexp(-0.5 * (x[:, 0] - 3) ** 2, -0.5 * (x[:, 0] + 3) ** 2)
        >>> density = LogDensity.from_callable(two, 1, sample_prior=lambda n: 5.0 * torch.randn(n, 1))
        >>> small = dict(flow=SplineCoupling(layers=2), buffer_size=2048, grad_steps=50, num_engines=1)
        >>> trained = CMT(log_density=density, **small).fit(num_warmup=10, progress=False)
        >>> x, log_w = trained.propose(1000)
        >>> x.shape, log_w.shape
        (torch.Size([1000, 1]), torch.Size([1000]))
    """

    name = "CMT"
    needs_gradient = False

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        *,
        log_density: Any = None,
        flow: Any = FLOW,
        **options: Any,
    ):
        own, options = Settings.split(options)
        check_options(type(self), options, Settings.names())
        super().__init__(model, log_density=log_density, transport=CMTTransport(flow=flow, **own), **options)
