"""Boltzmann generator in Pyro: the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_samplers.backends.pyro.kernel import TransportKernel
from ppl_samplers.backends.settings import check_options
from ppl_samplers.backends.torch.flows import Affine, SplineCoupling
from ppl_samplers.backends.torch.pilot import Pilot
from ppl_samplers.engines.boltzmann import objectives
from ppl_samplers.engines.boltzmann.transport_pyro import FlowTransport


class BoltzmannGenerator(TransportKernel):
    """Boltzmann generator: an exact MCMC kernel that trains a flow in warm-up and proposes from it afterwards.

    Args:
        model: Pyro model, or a :class:`LogDensity`.
        log_density: A :class:`LogDensity`, in place of a model.
        flow: :class:`SplineCoupling` or :class:`Affine`.
        objective: :class:`ReverseKL` (training by energy), :class:`ForwardKL` (by example), or one of each in a tuple.
        train_steps: Optimiser steps of each engine, spread over the warm-up.
        batch_size: Of a step.
        learning_rate: Of Adam, at the start.
        clip: Largest gradient norm.
        pilot: Settings of the pilot run.
        defensive: Share of a heavy-tailed Student-t in the proposals; bounds the weights in light tails.
        ensemble_refreshes: Refreshes of the examples over the training.
        stop_ess: Training ends early once the relative effective sample size of the fine-tuning draws reaches this.
        **options: Options of the kernel: ``num_engines``, ``correction``, ``local_move``, ``local_every``, ``block``,
            ``num_reseat``, ``probe``, ``trained``.

    References:
        Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators: sampling equilibrium states of many-body
        systems with deep learning, 2019.

    Example:
        >>> import pyro, torch
        >>> from ppl_samplers.backends.pyro.chains import MCMC
        >>> from ppl_samplers.backends.pyro.density import LogDensity
        >>> density = LogDensity.from_callable(lambda x: -0.5 * (x * x).sum(-1), dim=2)
        >>> kernel = BoltzmannGenerator(log_density=density, flow=Affine(), num_engines=1)
        >>> mcmc = MCMC(kernel, num_samples=100, warmup_steps=2, num_chains=4, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples(group_by_chain=True)["x"].shape
        torch.Size([4, 100, 2])
    """

    name = "BoltzmannGenerator"

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        *,
        log_density: Any = None,
        flow: SplineCoupling | Affine | None = None,
        objective: Any = objectives.DEFAULT,
        train_steps: int = 1000,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        clip: float = 5.0,
        pilot: Pilot | None = None,
        defensive: float = 0.05,
        ensemble_refreshes: int = 40,
        stop_ess: float = 0.9,
        **options: Any,
    ):
        check_options(type(self), options)
        transport = FlowTransport(
            flow=SplineCoupling() if flow is None else flow,
            objective=objective,
            train_steps=train_steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            clip=clip,
            pilot=Pilot() if pilot is None else pilot,
            defensive=defensive,
            ensemble_refreshes=ensemble_refreshes,
            stop_ess=stop_ess,
        )
        super().__init__(model, log_density=log_density, transport=transport, **options)
