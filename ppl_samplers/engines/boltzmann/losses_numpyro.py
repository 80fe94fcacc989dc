"""The two objectives of a Boltzmann generator as losses for stock ``numpyro.infer.SVI``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.elbo import ELBO
from numpyro.infer.util import compute_log_probs
from numpyro.util import check_model_guide_match

from ppl_samplers.backends.numpyro.guide_points import flatten_draws
from ppl_samplers.engines.boltzmann import maths
from ppl_samplers.engines.boltzmann.objectives import ByEnergy, ByExample

Array = jax.Array


class _FlatLoss(ELBO):
    """An ``ELBO`` whose settings are the fields of a frozen dataclass."""

    vectorize_particles = True

    def loss_with_mutable_state(
        self, rng_key: Array, param_map: dict, model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """The loss, a scalar, under ``"loss"``; models with ``mutable`` sites are refused."""
        return {"loss": self._value(rng_key, param_map, model, guide, args, kwargs), "mutable_state": None}

    def _value(
        self, rng_key: Array, param_map: dict, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class ReverseKL(ByEnergy, _FlatLoss):
    """Training by energy: an objective of ``BoltzmannGenerator``, and a loss for ``SVI``.

    Under ``SVI`` the value is the negative ELBO, estimated from ``num_particles`` draws in one batch, except that
    energies more than ``energy_high`` above the lowest one of the batch enter by their logarithm, and that points
    without a finite density are left out (``inf``, and a zero gradient, if there is no other). Any guide whose draws
    are differentiable will do. Parameters of the model and plates that subsample the data are allowed, ``mutable``
    sites are not. ``weight`` counts only beside another objective.

    Attributes:
        num_particles: Draws of the guide in each step under ``SVI``.

    Raises:
        ValueError: Under ``SVI``, for a latent site without a counterpart in the guide, and for ``mutable`` sites.

    References:
        Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators: sampling equilibrium states of many-body
        systems with deep learning, 2019.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
        >>> from jax import random
        >>> from numpyro.infer import SVI
        >>> from ppl_samplers.backends.numpyro.guide import AutoFlow
        >>> def model(y):
        ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        ...     numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> svi = SVI(model, AutoFlow(model), optax.adam(0.01), ReverseKL(num_particles=8))
        >>> svi.run(random.key(0), 5, jnp.array([0.3, -1.2]), progress_bar=False).losses.shape
        (5,)
    """

    num_particles: int = 16

    def _value(
        self, rng_key: Array, param_map: dict, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> Array:
        def particle(key: Array) -> tuple[Array, Array]:
            model_key, guide_key = random.split(key)
            log_q, guide_trace = compute_log_probs(handlers.seed(guide, guide_key), args, kwargs, param_map)
            sites = {name: site for name, site in guide_trace.items() if site["type"] == "sample"}
            values = _sound_gradient({name: site["value"] for name, site in sites.items()})
            replayed = {**guide_trace, **{name: {**site, "value": values[name]} for name, site in sites.items()}}
            log_p, model_trace = compute_log_probs(
                handlers.replay(handlers.seed(model, model_key), replayed), args, kwargs, param_map
            )
            _check(model_trace, guide_trace)
            # The Delta sites of an automatic guide carry the Jacobians: they belong to the density on the flat space.
            jacobians = [name for name in log_q if isinstance(sites[name]["fn"], dist.Delta)]
            log_jacobian = sum((log_q[name] for name in jacobians), jnp.zeros(()))
            return sum(log_q.values()) - log_jacobian, sum(log_p.values()) - log_jacobian

        log_q, log_p = jax.vmap(particle)(random.split(rng_key, self.num_particles))
        sound = jnp.isfinite(log_p) & jnp.isfinite(log_q)
        reference = jax.lax.stop_gradient(jnp.min(jnp.where(sound, -log_p, jnp.inf)))
        some = jnp.any(sound)
        reference = jnp.where(some, reference, 0.0)
        value = maths.reverse_kl(log_q, log_p, reference, self.energy_high, self.energy_max) + reference
        return jnp.where(some, value, jnp.inf)


@dataclass(frozen=True, eq=False)
class ForwardKL(ByExample, _FlatLoss):
    """Training by example: an objective of ``BoltzmannGenerator``, and a loss for ``SVI``.

    Under ``SVI``, maximum likelihood on ``draws`` of the posterior: the value is the mean of ``-log q`` over a
    minibatch, in nats on the flat space. The guide must have an invertible transform, as ``AutoFlow`` has. The model is
    run only to find its sites. ``weight`` and ``fine_tune`` are for ``BoltzmannGenerator``.

    Attributes:
        log_weights: Unnormalised log weights of the draws, ``(n,)``; equal if ``None``.
        batch_size: Draws in each step under ``SVI``; all of them if ``None``.

    Raises:
        ValueError: Under ``SVI``, without draws, with draws that do not fit the guide, and for other guides.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
        >>> from jax import random
        >>> from numpyro.infer import SVI
        >>> from ppl_samplers.backends.numpyro.guide import AutoFlow
        >>> def model():
        ...     numpyro.sample("scale", dist.HalfNormal(1.0))
        >>> loss = ForwardKL(draws={"scale": jnp.linspace(0.1, 1.0, 100)})
        >>> svi = SVI(model, AutoFlow(model), optax.adam(0.01), loss)
        >>> svi.run(random.key(0), 5, progress_bar=False).losses.shape
        (5,)
    """

    log_weights: Any = None
    batch_size: int | None = 256

    num_particles = 1
    # Draws can be neither hashed nor compared as settings are.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def _value(
        self, rng_key: Array, param_map: dict, model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> Array:
        if not isinstance(guide, AutoContinuous):
            raise ValueError(
                f"ForwardKL needs a guide with a density on the flat space, AutoFlow(model), got {type(guide).__name__}"
            )
        examples, log_w = self._examples(guide)
        posterior = guide.get_posterior(param_map)
        if self.batch_size is None or self.batch_size >= len(examples):
            return maths.forward_kl(posterior.log_prob(examples), None if log_w is None else jnp.asarray(log_w))
        if log_w is None:
            index = random.randint(rng_key, (self.batch_size,), 0, len(examples))
        else:
            index = random.categorical(rng_key, jnp.asarray(log_w), shape=(self.batch_size,))
        return maths.forward_kl(posterior.log_prob(jnp.asarray(examples)[index]))

    def _examples(self, guide: AutoContinuous) -> tuple[np.ndarray, np.ndarray | None]:
        known = guide.__dict__.setdefault("_flat_examples", {})
        if id(self) not in known:
            if self.draws is None:
                raise ValueError(
                    "ForwardKL under SVI learns from draws of the posterior: write "
                    "ForwardKL(draws=mcmc.get_samples()), or an array (n, D) in the guide's flat order. Without draws "
                    "it is an objective of BoltzmannGenerator."
                )
            x = flatten_draws(guide, self.draws)
            log_w = None if self.log_weights is None else np.asarray(self.log_weights, x.dtype).reshape(-1)
            if log_w is not None and len(log_w) != len(x):
                raise ValueError(f"log_weights has {len(log_w)} entries for {len(x)} draws: give one each")
            sound = np.isfinite(x).all(-1)
            # The loss is kept with them: an id lives only as long as its object.
            known[id(self)] = (self, x[sound], None if log_w is None else log_w[sound])
        return known[id(self)][1:]


def _check(model_trace: dict, guide_trace: dict) -> None:
    check_model_guide_match(model_trace, guide_trace)
    for name, site in {**model_trace, **guide_trace}.items():
        if site["type"] == "mutable":
            raise ValueError(f"site {name!r} is mutable: ReverseKL has no state; train with Trace_ELBO")
        if site["type"] == "sample" and not site["is_observed"] and name not in guide_trace:
            raise ValueError(
                f"latent site {name!r} is not in the guide: a discrete site must be summed out of the model by hand, "
                "or trained with TraceEnum_ELBO and a guide for the other sites"
            )


@jax.custom_vjp
def _sound_gradient(values: dict[str, Array]) -> dict[str, Array]:
    """The identity. A finite density may have a NaN derivative (0 * inf in a chain rule): such a draw gets no push."""
    return values


def _forward(values: dict[str, Array]) -> tuple[dict[str, Array], None]:
    return values, None


def _backward(_: None, cotangents: dict[str, Array]) -> tuple[dict[str, Array]]:
    floating = [g for g in jax.tree.leaves(cotangents) if jnp.issubdtype(g.dtype, jnp.floating)]
    sound = jnp.array(True)
    for g in floating:
        sound = sound & jnp.all(jnp.isfinite(g))
    clean = lambda g: jnp.where(sound, g, 0.0) if jnp.issubdtype(g.dtype, jnp.floating) else g  # noqa: E731
    return (jax.tree.map(clean, cotangents),)


_sound_gradient.defvjp(_forward, _backward)
