"""A guide trained by ``SVI`` as the state of a trained engine of the MCMC kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import random

from ppl_samplers.backends.jax import flows
from ppl_samplers.backends.jax.training import adam_init
from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.backends.numpyro.flow_transform import second_affine
from ppl_samplers.backends.numpyro.guide import AutoFlow
from ppl_samplers.core.resampling import systematic
from ppl_samplers.engines.boltzmann.numpyro import FlowState, FlowTransport


def guide_states(
    guide: AutoFlow,
    params: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    density: LogDensity,
    defensive: float = 0.05,
) -> tuple[FlowTransport, FlowState]:
    """A transport and its states, with a leading engine axis, from one or more trainings of a guide.

    Args:
        guide: The guide.
        params: ``svi_result.params``, or a sequence of them from different seeds: one engine cannot contradict itself,
            so that only two or more give a verdict on the evidence.
        density: The log density of the same model.
        defensive: Share of a heavy-tailed Student-t in the proposals.

    Raises:
        ValueError: If the guide's sites are not those of the density.
    """
    mine, other = (
        [(s.name, s.slice, tuple(s.unconstrained_shape)) for s in space] for space in (guide.space, density.space)
    )
    if mine != other:
        raise ValueError(f"the guide's flat space is {mine}, that of the model {other}: train the guide on this model")
    several = [params] if isinstance(params, Mapping) else list(params)
    transport = FlowTransport(flow=guide.flow, defensive=defensive)
    states = [_state(guide, p, transport, density, random.fold_in(random.key(0), i)) for i, p in enumerate(several)]
    return transport, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


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
    state = FlowState(
        key=key, unit=zero, num_units=zero, params=network, adam=adam_init(network.get("network"), transport.clip),
        loc=loc.astype(dtype), scale_tril=lower.astype(dtype), particles=jnp.zeros((n, dim), dtype),
        buffer=jnp.zeros((size, dim), dtype), slot=zero, move=transport.move.start(lower.astype(dtype)),
        reference=jnp.zeros((), dtype), pilot_log_z=nan, loss=jnp.zeros((), dtype), num_evals=zero, num_skipped=zero,
        done=jnp.asarray(True), metrics={"ess": nan, "log_evidence": nan},
    )  # fmt: skip
    # Examples to start from, should the kernel fine-tune.
    x, log_w = jax.jit(lambda s, k: transport.propose(s, k, density, size))(state, random.fold_in(key, 1))
    usable = jnp.where(jnp.any(jnp.isfinite(log_w)), log_w, 0.0)
    buffer = x[systematic(usable, random.uniform(random.fold_in(key, 2), (), dtype))]
    log_p = density(buffer)
    reference = jnp.min(jnp.where(jnp.isfinite(log_p), -log_p, jnp.inf))
    reference = jnp.where(jnp.isfinite(reference), reference, 0.0).astype(dtype)
    return state._replace(buffer=buffer, particles=buffer[:n], reference=reference)
