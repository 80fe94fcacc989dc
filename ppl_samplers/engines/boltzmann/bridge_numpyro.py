"""A guide trained by ``SVI`` as trained engines of the MCMC kernel, for the exact correction and the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, random

from ppl_samplers.backends.jax import flows
from ppl_samplers.backends.jax.training import adam_init
from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.backends.numpyro.flow_transform import second_affine
from ppl_samplers.backends.numpyro.guide import AutoFlow
from ppl_samplers.backends.numpyro.trained import Trained
from ppl_samplers.core.resampling import systematic
from ppl_samplers.engines.boltzmann.numpyro import BoltzmannGenerator
from ppl_samplers.engines.boltzmann.transport_numpyro import FlowState, FlowTransport


def guide_to_trained(
    guide: AutoFlow,
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    model: Callable[..., Any] | None = None,
    *args: Any,
    density: LogDensity | None = None,
    defensive: float = 0.05,
    **kwargs: Any,
) -> Trained:
    """One or more trainings of an ``AutoFlow`` guide as trained engines, one engine each.

    They go into ``BoltzmannGenerator(model, flow=guide.flow, trained=guide_to_trained(...))`` with ``num_warmup=0``.
    Give ``params`` from two seeds to have a verdict on the evidence: one engine cannot contradict itself.

    Args:
        guide: The guide; it must have seen the model.
        params: ``svi_result.params``, or a sequence of them.
        model: NumPyro model; the guide's own if ``None``.
        *args: Arguments of the model.
        density: The log density, if it is there already; built from the model and the arguments if not.
        defensive: Share of a heavy-tailed Student-t in the proposals.
        **kwargs: Keyword arguments of the model.

    Returns:
        A ``Trained``, with ``propose``, ``log_evidence`` and ``save``.

    Raises:
        ValueError: If the guide's sites are not those of the density, or ``params`` are not of this guide alone.
        RuntimeError: If the guide has not seen its model.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
        >>> from jax import random
        >>> from numpyro.infer import SVI
        >>> from ppl_samplers.engines.boltzmann.losses_numpyro import ReverseKL
        >>> def model(y):
        ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        ...     numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> y, guide = jnp.array([0.1, -0.4, 0.3]), AutoFlow(model)
        >>> svi = SVI(model, guide, optax.adam(0.01), ReverseKL())
        >>> params = svi.run(random.key(0), 5, y, progress_bar=False).params
        >>> x, log_w = guide_to_trained(guide, params, model, y).propose(10)
        >>> x.shape, log_w.shape
        ((10, 1), (10,))
    """
    several = [params] if isinstance(params, Mapping) else list(params)
    own = f"{guide.prefix}_flow"
    for one in several:
        foreign = [name for name in one if name != own]
        if foreign:
            raise ValueError(
                f"params also holds {foreign[0]!r}, a parameter of the model, but a density has one value of it: write "
                f"model = numpyro.handlers.substitute(model, data={{{foreign[0]!r}: params[{foreign[0]!r}]}}), hand "
                f"over that model here and to the kernel, and params={{{own!r}: params[{own!r}]}}"
            )
    options = {"flow": guide.flow, "defensive": defensive, "num_engines": len(several)}
    if density is not None:
        kernel = BoltzmannGenerator(log_density=density, **options)
    else:
        kernel = BoltzmannGenerator(guide.model if model is None else model, **options)
    density = kernel.density(args, kwargs)
    mine, other = (
        [(s.name, s.slice, tuple(s.unconstrained_shape)) for s in space] for space in (guide.space, density.space)
    )
    if mine != other:
        raise ValueError(f"the guide's flat space is {mine}, that of the model {other}: train the guide on this model")
    keys = random.split(random.key(0), len(several))
    states = [_state(guide, one, kernel.transport, density, key) for one, key in zip(several, keys, strict=True)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    return Trained(kernel, density, _with_examples(stacked, kernel.transport, density), {}, {})


def _state(
    guide: AutoFlow, params: Mapping[str, Any], transport: FlowTransport, density: LogDensity, key: jax.Array
) -> FlowState:
    transform = guide.get_transform(params)
    trained, frozen = transform.params, transform.frozen
    dtype = jnp.result_type(float)
    shift, scale = second_affine(trained)
    loc = flows.affine(frozen["loc"], frozen["scale_tril"], shift[None])[0]
    lower = jnp.tril(jnp.asarray(frozen["scale_tril"]) @ scale)
    network = {k: jnp.asarray(v) for k, v in frozen.items() if k not in ("loc", "scale_tril")}
    if trained["network"]:
        network["network"] = trained["network"]
    n, size, dim = transport.pilot.num_particles, transport.pilot.buffer_size, density.dim
    zero, nan = jnp.zeros((), jnp.int32), jnp.full((), jnp.nan, dtype)
    return FlowState(
        key=key, unit=zero, num_units=zero, params=network, adam=adam_init(network.get("network"), transport.clip),
        loc=loc.astype(dtype), scale_tril=lower.astype(dtype), particles=jnp.zeros((n, dim), dtype),
        buffer=jnp.zeros((size, dim), dtype), slot=zero, move=transport.move.start(lower.astype(dtype)),
        reference=jnp.zeros((), dtype), pilot_log_z=nan, loss=jnp.zeros((), dtype), num_evals=zero, num_skipped=zero,
        done=jnp.asarray(True), metrics={"ess": nan, "log_evidence": nan},
    )  # fmt: skip


def _with_examples(states: FlowState, transport: FlowTransport, density: LogDensity) -> FlowState:
    """The stacked states with examples to start from, should the kernel fine-tune."""
    size, n = transport.pilot.buffer_size, transport.pilot.num_particles

    def one(state: FlowState) -> FlowState:
        x, log_w = transport.propose(state, random.fold_in(state.key, 1), density, size)
        usable = jnp.where(jnp.any(jnp.isfinite(log_w)), log_w, 0.0)
        buffer = x[systematic(usable, random.uniform(random.fold_in(state.key, 2), (), x.dtype))]
        log_p = density(buffer)
        reference = jnp.min(jnp.where(jnp.isfinite(log_p), -log_p, jnp.inf))
        reference = jnp.where(jnp.isfinite(reference), reference, 0.0).astype(x.dtype)
        return state._replace(buffer=buffer, particles=buffer[:n], reference=reference)

    # One program for all engines.
    return jax.jit(lambda stacked: lax.map(one, stacked))(states)
