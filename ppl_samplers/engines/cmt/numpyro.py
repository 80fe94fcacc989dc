"""Constrained mass transport in NumPyro: the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_samplers.backends.numpyro.kernel import TransportKernel
from ppl_samplers.backends.settings import check_options
from ppl_samplers.engines.cmt.settings import Settings
from ppl_samplers.engines.cmt.transport_numpyro import FLOW, CMTTransport


class CMT(TransportKernel):
    """NumPyro kernel: constrained mass transport in the warm-up, then exact independence sampling.

    The density is evaluated, never differentiated, in the training; ``num_warmup`` counts units (40 is a good start).

    Args:
        model: NumPyro model.
        log_density: A ``LogDensity`` in place of a model.
        flow: A :class:`SplineCoupling`; by default six layers, with 16 bins up to 4 dimensions and 8 above;
            or :class:`FlowJax` for a flow of flowjax.
        **options: See :class:`~ppl_samplers.engines.cmt.settings.Settings` and
            :class:`~ppl_samplers.backends.numpyro.kernel.TransportKernel`.

    Raises:
        ValueError: A setting that cannot work; the message says what to write.
        TypeError: An option that neither the engine nor the kernel has.

    References:
        Christopher von Klitzing, Denis Blessing, Henrik Schopmans, Pascal Friederich, Gerhard Neumann, Learning
        Boltzmann generators via constrained mass transport, 2026.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax import random
        >>> from ppl_samplers.numpyro import CMT, LogDensity, SplineCoupling
        >>> two = lambda x: jnp.logaddexp(-0.5 * (x[:, 0] - 3) ** 2, -0.5 * (x[:, 0] + 3) ** 2)
        >>> draw = lambda key, n: 5.0 * random.normal(key, (n, 1))
        >>> density = LogDensity.from_callable(two, 1, sample_prior=draw)
        >>> small = dict(flow=SplineCoupling(layers=2), buffer_size=2048, grad_steps=50, num_engines=1)
        >>> trained = CMT(log_density=density, **small).fit(random.key(0), num_warmup=10, progress=False)
        >>> x, log_w = trained.propose(1000)
        >>> x.shape, log_w.shape
        ((1000, 1), (1000,))
    """

    needs_gradient = False

    def __init__(
        self,
        model: Callable | None = None,
        *,
        log_density: Any = None,
        flow: Any = FLOW,
        **options: Any,
    ):
        own, options = Settings.split(options)
        check_options(type(self), options, Settings.names())
        super().__init__(model, log_density=log_density, transport=CMTTransport(flow=flow, **own), **options)
