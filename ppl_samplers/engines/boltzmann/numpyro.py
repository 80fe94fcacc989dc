"""Boltzmann generator in NumPyro: the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ppl_samplers.backends.jax.pilot import Pilot
from ppl_samplers.backends.numpyro.kernel import TransportKernel
from ppl_samplers.backends.settings import check_options
from ppl_samplers.engines.boltzmann.objectives import DEFAULT
from ppl_samplers.engines.boltzmann.transport_numpyro import FLOW, PILOT, FlowTransport


class BoltzmannGenerator(TransportKernel):
    """NumPyro kernel: a flow trained in the warm-up by energy and by example, then exact independence sampling from it.

    Use it with ``numpyro.infer.MCMC(..., chain_method="vectorized")``, or with ``ppl_samplers.numpyro.MCMC``, where
    that is the default; ``num_warmup`` counts training units (40 is enough for most models). Or train it
    with :meth:`fit`.

    Args:
        model: NumPyro model.
        log_density: A ``LogDensity`` in place of a model.
        flow: :class:`SplineCoupling` (default) or :class:`Affine`.
        objective: ``ReverseKL()``, ``ForwardKL(draws=...)``, or one of each in a tuple.
        train_steps: Optimiser steps in all.
        batch_size: Points per optimiser step.
        learning_rate: First learning rate.
        clip: Bound of the gradient norm.
        pilot: Settings of the pilot run.
        defensive: Share of a Student-t component in the proposal.
        ensemble_refreshes: How often the examples are renewed during the training.
        stop_ess: Training ends early once the relative effective sample size of the fine-tuning draws reaches this.
        **options: Options of :class:`~ppl_samplers.backends.numpyro.kernel.TransportKernel`: ``num_engines``,
            ``correction``, ``local_move``, ``local_every``, ``block``, ``num_reseat``, ``probe``, ``trained``.

    References:
        Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators: sampling equilibrium states of many-body
        systems with deep learning, 2019.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from jax import random
        >>> from numpyro.infer import MCMC
        >>> from ppl_samplers.numpyro import Affine
        >>> def model(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        >>> kernel = BoltzmannGenerator(model, flow=Affine())
        >>> options = dict(num_chains=4, chain_method="vectorized", progress_bar=False)
        >>> mcmc = MCMC(kernel, num_warmup=10, num_samples=100, **options)
        >>> mcmc.run(random.key(0), jnp.array([0.3, 1.1]))
        >>> mcmc.get_samples(group_by_chain=True)["mu"].shape
        (4, 100)
    """

    def __init__(
        self,
        model: Callable | None = None,
        *,
        log_density: Any = None,
        flow: Any = FLOW,
        objective: Any = DEFAULT,
        train_steps: int = 1000,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        clip: float = 5.0,
        pilot: Pilot = PILOT,
        defensive: float = 0.05,
        ensemble_refreshes: int = 40,
        stop_ess: float = 0.9,
        **options: Any,
    ):
        check_options(type(self), options)
        transport = FlowTransport(
            flow=flow,
            objective=objective,
            train_steps=train_steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            clip=clip,
            pilot=pilot,
            defensive=defensive,
            ensemble_refreshes=ensemble_refreshes,
            stop_ess=stop_ess,
        )
        super().__init__(model, log_density=log_density, transport=transport, **options)
