"""A normalizing-flow guide for stock ``SVI``, ``Predictive`` and ``NeuTraReparam``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform

from ppl_samplers.backends.jax.flowjax import FlowJax
from ppl_samplers.backends.jax.flows import Affine, SplineCoupling
from ppl_samplers.backends.numpyro.discovery import Site
from ppl_samplers.backends.numpyro.flow_transform import FlowPosterior, FlowTransform
from ppl_samplers.backends.numpyro.guide_points import constrain_points, flatten_draws, guide_space, moments, robust
from ppl_samplers.backends.settings import check_flow

Array = jax.Array

_NUM_PRIOR_DRAWS = 512
_NUM_QUANTILE_DRAWS = 2000


class AutoFlow(AutoContinuous):
    """Guide over all continuous latent sites: a flow on the flat unconstrained space, the identity before training.

    ``x = loc + L (shift + S y)``: ``y`` from the flow, ``shift`` and ``S`` trained with it, ``loc`` and ``L`` frozen.
    They are taken from ``draws``, else from prior draws (medians and half-widths of the central 68 %), else, where the
    prior is improper or ``init_scale`` is given, from the initial point. All that is trained is one ``param`` site,
    ``{prefix}_flow``, a dict of arrays. What is frozen depends on the model and its first arguments alone (and, with an
    initial point, on the key): saved parameters fit a new guide of the same model and data.

    Sites lie in the flat vector in trace order; ``space`` holds their slices. Train it with ``SVI`` and any optimiser,
    Adam with 3e-3 to 1e-2 and a clipped gradient for example, by :class:`~ppl_samplers.numpyro.ReverseKL`,
    :class:`~ppl_samplers.numpyro.ForwardKL` or ``Trace_ELBO``.

    Args:
        model: NumPyro model with continuous latent sites of fixed shapes.
        flow: :class:`SplineCoupling`, or :class:`Affine` for a full-rank Gaussian.
        init_loc_fn: Where the guide starts when it does not start from draws.
        init_scale: Scale, in each unconstrained dimension, around the initial point. ``None``: start from prior draws.
        draws: Draws to start from, for example from NUTS: a dict of sites with leading draw axes, or an array
            ``(n, D)`` in the guide's own flat order.
        prefix: Start of the names of the guide's sites.

    Raises:
        ValueError: At the first call, for a support that depends on another latent site; NumPyro's own, for sites
            local to a subsampled plate and for discrete latent sites.

    References:
        Conor Durkan, Artur Bekasov, Iain Murray, George Papamakarios, Neural spline flows, 2019.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
        >>> from jax import random
        >>> from numpyro.infer import SVI, Trace_ELBO
        >>> def model(y):
        ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        ...     numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> guide = AutoFlow(model, flow=SplineCoupling(layers=2))
        >>> svi = SVI(model, guide, optax.adam(0.01), Trace_ELBO())
        >>> result = svi.run(random.key(0), 10, jnp.array([0.3, -1.2]), progress_bar=False)
        >>> guide.sample_posterior(random.key(1), result.params, sample_shape=(5,))["scale"].shape
        (5,)
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        flow: SplineCoupling | Affine | None = None,
        init_loc_fn: Callable[..., Any] = init_to_uniform,
        init_scale: float | None = None,
        draws: Mapping[str, Any] | Array | None = None,
        prefix: str = "auto",
    ) -> None:
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self.flow = flow if flow is not None else SplineCoupling()
        check_flow("AutoFlow", self.flow, (SplineCoupling, Affine, FlowJax))
        self.init_scale, self.draws = init_scale, draws
        self._trained: tuple[dict[str, Any], dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The closures of the first call do not pickle; they are made again at the next one.
        dropped = ("_potential_fn", "_potential_fn_gen", "_postprocess_fn", "_unpack_latent", "plates")
        state = {k: v for k, v in super().__getstate__().items() if k not in dropped}
        return {**state, "prototype_trace": None}

    # -- set-up -------------------------------------------------------------------------------------------------------
    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        try:
            super()._setup_prototype(*args, **kwargs)
            if self._trained is None:
                with jax.ensure_compile_time_eval():
                    self._frozen = self._standardisation(args, kwargs)
            else:
                self._frozen = self._trained[1]
        except BaseException:
            self.prototype_trace = None  # a failed set-up must not leave a half-built guide behind
            raise

    def _standardisation(self, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        start, dim = self._init_latent, self.latent_dim
        draws = None if self.draws is not None else self._prior_draws(args, kwargs)
        if self.draws is not None:
            loc, scale_tril = moments(self.flatten(self.draws))
        elif draws is not None and self.init_scale is None:
            loc, scale_tril = robust(draws)
        else:
            # Under jit the initial point is not known here; it then is where the trained layer can go from the origin.
            loc = np.zeros(dim) if isinstance(start, jax.core.Tracer) else np.asarray(start)
            scale_tril = np.eye(dim) * (1.0 if self.init_scale is None else float(self.init_scale))
        dtype = jnp.result_type(float)
        initial = self.flow.init(random.key(0), dim, dtype)
        rest = {k: jax.tree.map(np.asarray, v) for k, v in initial.items() if k != "network"}
        return {**rest, "loc": np.asarray(loc, dtype), "scale_tril": np.asarray(scale_tril, dtype)}

    def _prior_draws(self, args: tuple, kwargs: Mapping[str, Any]) -> np.ndarray | None:
        """Prior draws on the flat space, ``(n, D)``; ``None`` where the prior cannot be sampled."""
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, dict(kwargs)))):
            return None
        names = [site.name for site in self.space]

        def draw(key: Array) -> tuple[Array, Array]:
            with handlers.block():
                trace = handlers.trace(handlers.seed(self.model, key)).get_trace(*args, **kwargs)
            inverses = (
                [biject_to(t[name]["fn"].support).inv(trace[name]["value"]) for name in names]
                for t in (trace, self.prototype_trace)
            )
            return tuple(jnp.concatenate([jnp.ravel(u) for u in values]) for values in inverses)

        try:
            own, stale = map(np.asarray, jax.jit(jax.vmap(draw))(random.split(random.key(0), _NUM_PRIOR_DRAWS)))
        except NotImplementedError:  # an improper prior
            return None
        moved = ~np.isclose(own, stale, rtol=1e-3, atol=1e-3, equal_nan=True)
        if moved.any():
            column = int(np.nonzero(moved.any(0))[0][0])
            name = next(site.name for site in self.space if site.slice.start <= column < site.slice.stop)
            raise ValueError(
                f"the support of site {name!r} depends on another latent site, but NumPyro's guides keep the support "
                f"of their first run. Sample a base variable on (0, 1) and compute {name!r} from it with "
                "numpyro.deterministic."
            )
        own = own[np.isfinite(own).all(-1)]
        return own if len(own) >= 16 else None

    def _need_setup(self) -> None:
        if self.prototype_trace is None:
            raise RuntimeError(
                "this AutoFlow guide has not seen its model yet: call svi.init(key, *model_args) or svi.run(...) first"
            )

    @property
    def space(self) -> tuple[Site, ...]:
        """Latent sites in the order of the flat vector, with their slices."""
        self._need_setup()
        return guide_space(self)

    def flatten(self, draws: Mapping[str, Any] | Array) -> np.ndarray:
        """Draws of the sites, with any leading axes, to flat points ``(n, D)``; an array ``(n, D)`` is checked only.

        Raises:
            ValueError: If a site is missing or has a wrong shape, or all draws lie outside its support.
        """
        self._need_setup()
        return flatten_draws(self, draws)

    def adopt(
        self, flow_params: dict[str, Any], loc: Array, scale_tril: Array, args: tuple, kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Take over a trained flow ``x = loc + L y``, for the model's arguments ``args`` and ``kwargs``.

        Returns:
            Its parameters as ``SVI`` has them; from now on a training begins there.
        """
        rest = {k: jax.tree.map(np.asarray, v) for k, v in flow_params.items() if k != "network"}
        frozen = {**rest, "loc": np.asarray(loc), "scale_tril": np.asarray(scale_tril)}
        self._trained = flow_params.get("network", {}), frozen
        with handlers.block(), handlers.seed(rng_seed=0):
            self._setup_prototype(*args, **kwargs)
        return {f"{self.prefix}_flow": self._initial_params(random.key(0))}

    # -- the distribution ---------------------------------------------------------------------------------------------
    def _initial_params(self, key: Array) -> dict[str, Any]:
        dim, dtype = self.latent_dim, jnp.result_type(float)
        zeros = jnp.zeros(dim, dtype)
        network = self._trained[0] if self._trained else self.flow.init(key, dim, dtype).get("network", {})
        return {"network": network, "shift": zeros, "log_diagonal": zeros, "lower": jnp.zeros((dim, dim), dtype)}

    def _get_posterior(self) -> FlowPosterior:
        params = numpyro.param(f"{self.prefix}_flow", self._initial_params)
        return self._posterior(params)

    def _posterior(self, params: dict[str, Any]) -> FlowPosterior:
        return FlowPosterior(self.get_base_dist(), FlowTransform(self.flow, params, self._frozen))

    def get_base_dist(self) -> dist.Distribution:
        """Standard normal on ``D`` dimensions."""
        self._need_setup()
        return dist.Normal(jnp.zeros(self.latent_dim, jnp.result_type(float)), 1.0).to_event(1)

    def get_transform(self, params: Mapping[str, Any]) -> FlowTransform:
        """Transform from the base space to the flat space under trained ``params``."""
        self._need_setup()
        return FlowTransform(self.flow, _own(self, params), self._frozen)

    def get_posterior(self, params: Mapping[str, Any]) -> FlowPosterior:
        """Distribution of the flat vector under trained ``params``."""
        self._need_setup()
        return self._posterior(_own(self, params))

    def median(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """Medians of the latent sites, elementwise, from 2000 draws with a key of their own."""
        return {name: value[0] for name, value in self.quantiles(params, jnp.array([0.5])).items()}

    def quantiles(self, params: Mapping[str, Any], quantiles: Any) -> dict[str, Array]:
        """Quantiles of the latent sites, elementwise, ``(Q, *site shape)``, from 2000 draws with a key of their own."""
        x = self.get_posterior(params).sample(random.key(0), (_NUM_QUANTILE_DRAWS,))
        levels = jnp.atleast_1d(jnp.asarray(quantiles))
        return {name: jnp.quantile(value, levels, axis=0) for name, value in constrain_points(self, x).items()}


def _own(guide: AutoFlow, params: Mapping[str, Any]) -> dict[str, Any]:
    name = f"{guide.prefix}_flow"
    if name not in params:
        raise ValueError(f"params has no {name!r}: give svi_result.params of an SVI run with this guide")
    return params[name]
