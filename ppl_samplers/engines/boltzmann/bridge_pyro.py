"""A guide trained by ``SVI`` as a trained engine of the MCMC kernel, for the exact correction and the evidence."""

from __future__ import annotations

from typing import Any

import torch

from ppl_samplers.backends.pyro.density import LogDensity
from ppl_samplers.backends.pyro.guide import AutoFlow
from ppl_samplers.backends.pyro.trained import Trained
from ppl_samplers.backends.torch.flows import Flow
from ppl_samplers.core import resampling
from ppl_samplers.engines.boltzmann.pyro import BoltzmannGenerator
from ppl_samplers.engines.boltzmann.transport_pyro import FlowState, FlowTransport

_BUFFER = 4096


def guide_to_trained(
    guides: AutoFlow | list[AutoFlow],
    *args: Any,
    density: LogDensity | None = None,
    defensive: float = 0.05,
    **kwargs: Any,
) -> Trained:
    """One or more ``AutoFlow`` guides as trained engines: ``BoltzmannGenerator(model, trained=guide_to_trained(...))``.

    Give two guides that were trained from different seeds to have a verdict on the evidence: one engine cannot
    contradict itself.

    Args:
        guides: Trained guides of one model.
        *args: Arguments of the model.
        density: The log density, if it is there already; built from the first guide's model and the arguments if not.
        defensive: Share of a heavy-tailed Student-t in the proposals.
        **kwargs: Keyword arguments of the model.

    Returns:
        A ``Trained``, with ``propose``, ``log_evidence`` and ``save``.

    Raises:
        ValueError: If the guides' sites are not those of the density, or their flows have different settings.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.infer import SVI
        >>> from ppl_samplers.engines.boltzmann.losses_pyro import ReverseKL
        >>> def model(y):
        ...     scale = pyro.sample("scale", dist.HalfNormal(1.0))
        ...     pyro.sample("y", dist.Normal(0.0, scale).expand([3]).to_event(1), obs=y)
        >>> y, guide = torch.tensor([0.1, -0.4, 0.3]), AutoFlow(model)
        >>> loss = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), ReverseKL()).step(y)
        >>> x, log_w = guide_to_trained(guide, y).propose(10)
        >>> x.shape, log_w.shape
        (torch.Size([10, 1]), torch.Size([10]))
    """
    guides = [guides] if isinstance(guides, AutoFlow) else list(guides)
    if density is None:
        density = LogDensity(guides[0]._plain_model[0], args, kwargs)
    settings = guides[0].settings
    transport = FlowTransport(flow=settings, defensive=defensive)
    states = []
    for guide in guides:
        if guide.settings != settings:
            raise ValueError(f"the guides have different flows, {settings} and {guide.settings}: give all the same")
        mine, other = (
            [(s.name, s.slice, tuple(s.unconstrained_shape)) for s in space] for space in (guide.space, density.space)
        )
        if mine != other:
            raise ValueError(
                f"the guide's flat space is {mine}, that of the model {other}: train the guide on this model"
            )
        states.append(_state(guide, transport, density))
    options = BoltzmannGenerator(log_density=density, flow=settings, num_engines=len(guides)).options
    return Trained(density, transport, states, [[] for _ in states], BoltzmannGenerator.name, options)


@torch.no_grad()
def _state(guide: AutoFlow, transport: FlowTransport, density: LogDensity) -> FlowState:
    network = guide.network
    like = network.shift
    flow = Flow(transport.flow, density.dim, like.dtype, like.device)
    if flow.transform is not None:
        flow.transform.load_state_dict(network.flow.transform.state_dict())
    flow.standardise(*network.affine())
    move = transport.move.init(density, like[None], flow.scale_tril.clone())
    state = FlowState(flow, transport._optimiser(flow), move, 0.0, 0, done=True)
    # Examples to start from, should the kernel fine-tune.
    x, log_w = transport.propose(state, density, _BUFFER)
    if bool(torch.isfinite(log_w).any()):
        keep = resampling.systematic(log_w, torch.rand_like(log_w[0]), _BUFFER)
        state.buffer = x[keep]
        best = density(state.buffer).max()
        state.reference = float(-best)
    else:
        state.buffer = x
    return state
