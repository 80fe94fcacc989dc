"""A normalizing-flow guide for stock ``SVI``, ``Predictive`` and ``NeuTraReparam``."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor
from torch.distributions import biject_to

from ppl_samplers.backends.pyro.discovery import preserve_rng
from ppl_samplers.backends.pyro.flow_transform import FlowTransform, GuideFlow
from ppl_samplers.backends.pyro.guide_points import constrain_points, flatten_draws, guide_space, moments, robust
from ppl_samplers.backends.pyro.sessions import model_session
from ppl_samplers.backends.pyro.single import SinglePoint
from ppl_samplers.backends.pyro.sites import Layout, Site, base_of
from ppl_samplers.backends.settings import check_flow
from ppl_samplers.backends.torch.flows import Affine, Flow, SplineCoupling
from ppl_samplers.backends.torch.zuko import Zuko

_NUM_PRIOR_DRAWS = 512
_NUM_QUANTILE_DRAWS = 2000


class AutoFlow(AutoContinuous):
    """Guide over all continuous latent sites: a flow on the flat unconstrained space, the identity before training.

    ``x = loc + L (shift + S y)``: ``y`` from the flow, ``shift`` and ``S`` trained with it, ``loc`` and ``L`` frozen.
    They are taken from ``draws``, else from prior draws (medians and half-widths of the central 68 %), else, where the
    prior is improper or ``init_scale`` is given, from the initial point.

    The guide registers its parameters in Pyro's param store, under a name of its own (``auto``, ``auto_1``, ...); save
    it with ``state_dict()``, which holds the frozen part too. Sites lie in the flat vector in trace order; ``space``
    holds their slices. Stock optimisers train it; ``pyro.optim.ClippedAdam`` with a learning rate of 1e-2 to 1e-1,
    decaying, is a good start, with :class:`~ppl_samplers.pyro.ReverseKL` or ``Trace_ELBO`` as the loss.

    Args:
        model: Pyro model with continuous latent sites of fixed shapes.
        flow: :class:`SplineCoupling`, or :class:`Affine` for a full-rank Gaussian.
        init_loc_fn: Where the guide starts when it does not start from draws.
        init_scale: Scale, in each unconstrained dimension, around the initial point. ``None``: start from prior draws.
        draws: Draws to start from, for example from NUTS: a dict of sites with a leading draw axis, or an array
            ``(n, D)`` in the guide's own flat order.
        prefix: Start of the names of the guide's parameters.

    Raises:
        ValueError: At the first call, for a site in a subsampled plate, for a support that depends on another latent
            site, and for an angle (``VonMises``); Pyro's own, for a discrete latent site.

    References:
        Conor Durkan, Artur Bekasov, Iain Murray, George Papamakarios, Neural spline flows, 2019.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.infer import SVI, Trace_ELBO
        >>> def model(y):
        ...     scale = pyro.sample("scale", dist.HalfNormal(1.0))
        ...     pyro.sample("y", dist.Normal(0.0, scale).expand([3]).to_event(1), obs=y)
        >>> guide = AutoFlow(model, flow=SplineCoupling(layers=2))
        >>> svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        >>> loss = svi.step(torch.tensor([0.1, -0.4, 0.3]))
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        flow: SplineCoupling | Affine | None = None,
        init_loc_fn: Callable[..., Any] = init_to_median,
        init_scale: float | None = None,
        draws: Mapping[str, Any] | Tensor | None = None,
        prefix: str = "auto",
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        self._plain_model = (model,)
        self.settings = flow if flow is not None else SplineCoupling()
        check_flow("AutoFlow", self.settings, (SplineCoupling, Affine, Zuko))
        self.init_scale, self.prefix = init_scale, prefix
        self._draws = (draws,)
        self._pyro_name = prefix
        self.network: GuideFlow | None = None

    # -- set-up -------------------------------------------------------------------------------------------------------
    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        try:
            for name, site in self.prototype_trace.iter_stochastic_nodes():
                for frame in site["cond_indep_stack"]:
                    if frame.full_size is not None and frame.full_size != frame.size:
                        raise ValueError(
                            f"Site '{name}' is local to plate '{frame.name}', which takes a subsample of {frame.size} "
                            f"of {frame.full_size}: a flow over all sites has a fixed number of dimensions. Use the "
                            "full plate, or AutoNormal with Trace_ELBO."
                        )
                if isinstance(base_of(site["fn"]), dist.VonMises):
                    raise ValueError(
                        f"Site '{name}' is an angle (VonMises), which Pyro's guides place on the whole real line, "
                        "where its density does not fall off. Write it as an angle of two normals: with z of "
                        "Normal(0, 1), shape (2,), torch.atan2(z[1], z[0]), and the von Mises density as a pyro.factor."
                    )
            start = self._init_loc()
            draws = self._prior_draws(args, kwargs, start)
            flow = Flow(self.settings, self.latent_dim, dtype=start.dtype, device=start.device)
            given = self._draws[0]
            if given is not None:
                flow.standardise(*moments(self.flatten(given).to(start)))
            elif draws is not None and self.init_scale is None:
                flow.standardise(*robust(draws))
            else:
                scale = 1.0 if self.init_scale is None else float(self.init_scale)
                flow.standardise(start, torch.eye(self.latent_dim).to(start) * scale)
            self.network = GuideFlow(flow)
            self._pyro_name = self._free_name()
        except BaseException:
            self.prototype_trace = None  # a failed set-up must not leave a half-built guide behind
            raise

    def _prior_draws(self, args: tuple, kwargs: Mapping[str, Any], start: Tensor) -> Tensor | None:
        """Prior draws on the flat space, ``None`` where the prior cannot be sampled."""
        single = SinglePoint(self._plain_model[0], args, kwargs, Layout(space=self.space))
        fixed = {name: biject_to(site["fn"].support) for name, site in self.prototype_trace.iter_stochastic_nodes()}

        def draw(_: Any) -> tuple[Tensor, Tensor]:
            def choose(name: str, fn: Any, transform: Any) -> tuple[Any, Any]:
                value = fn.sample()
                return value, (transform.inv(value), fixed[name].inv(value))

            met = single.run(choose)[1].met
            ordered = [met[site.name][1] for site in self.space]
            return tuple(torch.cat([pair[i].reshape(-1) for pair in ordered]) for i in (0, 1))

        with torch.no_grad(), poutine.block(), model_session():
            try:
                found = torch.func.vmap(draw, randomness="different")(torch.zeros(_NUM_PRIOR_DRAWS, 1))
            except Exception:  # vmap may refuse any part of user code
                try:
                    found = tuple(map(torch.stack, zip(*(draw(None) for _ in range(64)), strict=True)))
                except NotImplementedError:  # an improper prior
                    return None
        own, stale = found
        moved = ~torch.isclose(own, stale, rtol=1e-3, atol=1e-3, equal_nan=True)
        if moved.any():
            column = int(moved.any(0).nonzero()[0])
            name = next(site.name for site in self.space if site.slice.start <= column < site.slice.stop)
            raise ValueError(
                f"The support of site '{name}' depends on another latent site: Pyro's guides keep the support of their "
                f"first run. Sample a base variable on (0, 1) and compute '{name}' from it with pyro.deterministic."
            )
        own = own[torch.isfinite(own).all(-1)]
        return own.to(start) if len(own) >= 16 else None

    def _free_name(self) -> str:
        taken = {name.split(".")[0] for name in pyro.get_param_store().keys()}
        if self.prefix not in taken:
            return self.prefix
        name = next(f"{self.prefix}_{i}" for i in itertools.count(1) if f"{self.prefix}_{i}" not in taken)
        warnings.warn(
            f"The param store holds parameters of an earlier guide '{self.prefix}'; this one trains its own, as "
            f"'{name}'. Call pyro.clear_param_store() first, or give prefix=, to choose the name; to load a saved "
            "guide use load_state_dict().",
            UserWarning,
            stacklevel=2,
        )
        return name

    def _need_setup(self) -> GuideFlow:
        if self.prototype_trace is None or self.network is None:
            raise RuntimeError(
                "This AutoFlow guide has not seen its model yet: call guide(*model_args) or svi.step(*model_args) once."
            )
        return self.network

    @property
    def space(self) -> tuple[Site, ...]:
        """Latent sites in the order of the flat vector, with their slices."""
        return guide_space(self)

    def flatten(self, draws: Mapping[str, Any] | Tensor) -> Tensor:
        """Draws of the sites, with any leading axes, to flat points ``(n, D)``; an array ``(n, D)`` is checked only.

        Raises:
            ValueError: If a site is missing or has a wrong shape, or a draw lies outside its support.
        """
        return flatten_draws(self, draws)

    def adopt(self, flow: Flow, args: tuple, kwargs: Mapping[str, Any]) -> None:
        """Take over a trained flow of these settings, for the model's arguments ``args`` and ``kwargs``."""
        with preserve_rng(), poutine.block():
            self._setup_prototype(*args, **kwargs)
        self._need_setup().flow.load_state_dict(flow.state_dict())

    # -- the distribution ---------------------------------------------------------------------------------------------
    def get_base_dist(self) -> dist.TorchDistribution:
        """Standard normal on ``D`` dimensions."""
        loc = self._need_setup().shift
        zeros = torch.zeros(self.latent_dim, dtype=loc.dtype, device=loc.device)
        return dist.Normal(zeros, torch.ones_like(zeros)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> FlowTransform:
        """Transform from the base space to the flat space; its parameters are registered in the param store."""
        network = self._need_setup()
        pyro.module(f"{self._pyro_name}.network", network)
        return FlowTransform(network)

    def get_posterior(self, *args: Any, **kwargs: Any) -> dist.TorchDistribution:
        """The distribution of the flat vector."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        return super().get_posterior(*args, **kwargs)

    @torch.no_grad()
    def sample_posterior(self, n: int) -> dict[str, Tensor]:
        """``n`` draws of every latent site, ``(n, *site shape)``, from torch's global generator."""
        x = self.get_posterior().sample((n,))
        return constrain_points(self, x)

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Medians of the latent sites, elementwise, from 2000 draws with a seed of their own."""
        return {name: value[0] for name, value in self.quantiles([0.5], *args, **kwargs).items()}

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float] | Tensor, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Quantiles of the sites, elementwise, ``(Q, *site shape)``, from 2000 draws with a seed of their own."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            draws = self.sample_posterior(_NUM_QUANTILE_DRAWS)
        return {
            name: torch.quantile(x, torch.as_tensor(quantiles, dtype=x.dtype, device=x.device), dim=0)
            for name, x in draws.items()
        }
