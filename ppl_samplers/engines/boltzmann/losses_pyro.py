"""The two objectives of a Boltzmann generator as losses for stock ``pyro.infer.SVI``."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO
from pyro.infer.autoguide import AutoContinuous
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor

from ppl_samplers.backends.pyro.guide import AutoFlow
from ppl_samplers.backends.pyro.guide_points import flatten_draws, guide_space
from ppl_samplers.backends.pyro.sessions import model_session
from ppl_samplers.backends.pyro.single import SinglePoint
from ppl_samplers.backends.pyro.sites import Layout
from ppl_samplers.engines.boltzmann import maths
from ppl_samplers.engines.boltzmann.objectives import ByEnergy, ByExample

# Models that vmap cannot take, found out once.
_LOOPED: weakref.WeakSet = weakref.WeakSet()


class _FlatLoss(ELBO):
    """A loss on the guide's flat space: there the Jacobians are part of the density, and no trace is replayed."""

    def differentiable_loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> Tensor:
        raise NotImplementedError

    def loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Value of the loss, without gradients."""
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Value of the loss; gradients are added to the parameters."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward()
        return float(loss.detach())

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} works on the flat space and makes no traces.")


@dataclass(frozen=True)
class ReverseKL(ByEnergy, _FlatLoss):
    """Training by energy: an objective of ``BoltzmannGenerator``, and a loss for ``SVI``.

    Under ``SVI`` the value is the negative ELBO, estimated from ``num_particles`` draws in one batch, except that
    energies more than ``energy_high`` above the lowest one of the batch enter by their logarithm, and that points
    without a finite density are left out (``inf``, and a zero gradient, if there is no other). Parameters of the model,
    plates that subsample the data and new arguments at each step are all allowed. ``weight`` counts only beside another
    objective.

    Attributes:
        num_particles: Draws of the guide in each step under ``SVI``.

    References:
        Frank Noe, Simon Olsson, Jonas Koehler, Hao Wu, Boltzmann generators: sampling equilibrium states of many-body
        systems with deep learning, 2019.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.infer import SVI
        >>> from ppl_samplers.backends.pyro.guide import AutoFlow
        >>> def model(y):
        ...     scale = pyro.sample("scale", dist.HalfNormal(1.0))
        ...     pyro.sample("y", dist.Normal(0.0, scale).expand([3]).to_event(1), obs=y)
        >>> svi = SVI(model, AutoFlow(model), pyro.optim.Adam({"lr": 0.01}), ReverseKL(num_particles=8))
        >>> loss = svi.step(torch.tensor([0.1, -0.4, 0.3]))
    """

    num_particles: int = 16

    def differentiable_loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """The loss as a scalar tensor, for an optimiser of torch."""
        posterior = _posterior(self, guide, args, kwargs)
        z = posterior.rsample((self.num_particles,))
        log_q = posterior.log_prob(z)
        inner = z
        if z.requires_grad:
            inner = z.view_as(z)
            # A finite density may have a NaN derivative (0 * inf in a chain rule): such a draw gets no push.
            inner.register_hook(lambda g: torch.where(torch.isfinite(g).all(-1, keepdim=True), g, 0.0))
        log_p = log_joint(model, guide, inner, args, kwargs)
        sound = torch.isfinite(log_p) & torch.isfinite(log_q)
        if not sound.any():
            return (0.0 * torch.where(sound, log_q, 0.0)).sum() + torch.inf
        reference = torch.where(sound, -log_p, torch.inf).min().detach()
        return maths.reverse_kl(log_q, log_p, reference, self.energy_high, self.energy_max) + reference


@dataclass(frozen=True, eq=False)
class ForwardKL(ByExample, _FlatLoss):
    """Training by example: an objective of ``BoltzmannGenerator``, and a loss for ``SVI``.

    Under ``SVI``, maximum likelihood on ``draws`` of the posterior: the value is the mean of ``-log q`` over a
    minibatch, in nats on the flat space. The model is run only to find its sites. ``weight`` and ``fine_tune`` are for
    ``BoltzmannGenerator``.

    Attributes:
        log_weights: Unnormalised log weights of the draws, ``(n,)``; equal if ``None``.
        batch_size: Draws in each step under ``SVI``; all of them if ``None``.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.infer import SVI
        >>> from ppl_samplers.backends.pyro.guide import AutoFlow
        >>> def model():
        ...     pyro.sample("scale", dist.HalfNormal(1.0))
        >>> loss = ForwardKL(draws={"scale": torch.rand(100)})
        >>> value = SVI(model, AutoFlow(model), pyro.optim.Adam({"lr": 0.01}), loss).step()
    """

    log_weights: Any = None
    batch_size: int | None = 256

    # Draws can be neither hashed nor compared as settings are.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def differentiable_loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """The loss as a scalar tensor, for an optimiser of torch."""
        posterior = _posterior(self, guide, args, kwargs)
        examples, log_w = self._examples(guide)
        if self.batch_size is None or self.batch_size >= len(examples):
            return maths.forward_kl(posterior.log_prob(examples), log_w)
        if log_w is None:
            index = torch.randint(len(examples), (self.batch_size,), device=examples.device)
        else:
            index = torch.multinomial(torch.softmax(log_w, 0), self.batch_size, replacement=True)
        return maths.forward_kl(posterior.log_prob(examples[index]))

    def _examples(self, guide: AutoContinuous) -> tuple[Tensor, Tensor | None]:
        known = guide.__dict__.setdefault("_flat_examples", {})
        if id(self) not in known:
            if self.draws is None:
                raise ValueError(
                    "ForwardKL under SVI learns from draws of the posterior: write "
                    "ForwardKL(draws=mcmc.get_samples()), or an array (n, D) in the guide's flat order. Without draws "
                    "it is an objective of BoltzmannGenerator."
                )
            like = guide._init_loc()
            x = flatten_draws(guide, self.draws).to(like)
            log_w = None if self.log_weights is None else torch.as_tensor(self.log_weights).to(like).reshape(-1)
            if log_w is not None and len(log_w) != len(x):
                raise ValueError(f"log_weights has {len(log_w)} entries for {len(x)} draws: give one each.")
            sound = torch.isfinite(x).all(-1)
            # The loss is kept with them: an id lives only as long as its object.
            known[id(self)] = (self, x[sound], None if log_w is None else log_w[sound])
        return known[id(self)][1:]


def _posterior(loss: Any, guide: Any, args: tuple, kwargs: dict) -> Any:
    """Distribution of the guide's flat vector, with its parameters visible to ``SVI``."""
    if not isinstance(guide, AutoContinuous):
        raise ValueError(
            f"{type(loss).__name__} needs a guide on the flat unconstrained space, AutoFlow(model) or another "
            f"AutoContinuous guide, got {type(guide).__name__}; use Trace_ELBO for other guides."
        )
    if isinstance(guide, AutoFlow):
        return guide.get_posterior(*args, **kwargs)
    # Pyro's own guides register their parameters only while they are called.
    with poutine.block(hide_types=["sample"]):
        trace = poutine.trace(guide).get_trace(*args, **kwargs)
    return trace.nodes[f"_{guide._pyro_name}_latent"]["fn"]


def log_joint(model: Callable, guide: AutoContinuous, x: Tensor, args: tuple, kwargs: dict) -> Tensor:
    """Log joint of the model with the Jacobian at flat points, ``(N, D) -> (N,)``, differentiable in parameters too."""
    single = SinglePoint(model, args, kwargs, Layout(space=guide_space(guide)))

    def one(point: Tensor) -> Tensor:
        with poutine.block(hide_types=["sample"]):
            trace, messenger = single.run(single.at(point))
        for name, node in trace.nodes.items():
            latent = node["type"] == "sample" and not node["is_observed"] and name not in messenger.met
            if latent and not isinstance(node["fn"], _Subsample):
                raise ValueError(
                    f"Latent site '{name}' is not in the guide: a discrete site must be summed out of the model by "
                    "hand, or trained with TraceEnum_ELBO and a guide for the other sites."
                )
        return trace.log_prob_sum() + messenger.log_jacobian()

    with model_session():
        if guide not in _LOOPED:
            try:
                return torch.func.vmap(one, randomness="same")(x)
            except Exception as error:  # any part of user code may refuse vmap
                reason = error
            values = torch.stack([one(point) for point in x])
            _LOOPED.add(guide)
            warnings.warn(
                f"torch.func.vmap cannot take this model ({type(reason).__name__}: {str(reason)[:120]}); particles are "
                "evaluated one by one.",
                UserWarning,
                stacklevel=2,
            )
            return values
        return torch.stack([one(point) for point in x])
