"""Points of a guide's flat space: its sites, their draws as points and back, and where a flow starts from points."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from pyro.infer.autoguide import AutoContinuous
from torch import Tensor
from torch.distributions import biject_to

from ppl_samplers.backends.pyro.sites import Site


def guide_space(guide: AutoContinuous) -> tuple[Site, ...]:
    """Sites of an ``AutoContinuous`` guide that has seen its model, in its own flat order."""
    sites, start = [], 0
    for name, node in guide.prototype_trace.iter_stochastic_nodes():
        shape = tuple(guide._unconstrained_shapes[name])
        stop = start + torch.Size(shape).numel()
        sites.append(Site(name, slice(start, stop), shape, tuple(node["value"].shape)))
        start = stop
    return tuple(sites)


def constrain_points(guide: AutoContinuous, x: Tensor) -> dict[str, Tensor]:
    """Flat points ``(n, D)`` to the values of the guide's sites, ``(n, *site shape)``."""
    nodes = guide.prototype_trace.nodes
    return {
        site.name: biject_to(nodes[site.name]["fn"].support)(x[:, site.slice].reshape(-1, *site.unconstrained_shape))
        for site in guide_space(guide)
    }


def flatten_draws(guide: AutoContinuous, draws: Mapping[str, Any] | Tensor) -> Tensor:
    """Draws as flat points ``(n, D)`` in the guide's own order, in torch's default floating type or their own."""
    space = guide_space(guide)
    dim = space[-1].slice.stop
    if not isinstance(draws, Mapping):
        x = torch.as_tensor(draws)
        if x.dim() != 2 or x.shape[1] != dim:
            raise ValueError(
                f"draws must be a dict of sites, or an array of shape (n, {dim}) in the guide's flat order "
                f"{[site.name for site in space]}; got shape {tuple(x.shape)}."
            )
        return _finite(x)
    parts: list[Tensor] = []
    for site in space:
        if site.name not in draws:
            raise ValueError(f"draws has no site '{site.name}'; it has {sorted(draws)}.")
        value = torch.as_tensor(draws[site.name])
        lead = value.dim() - len(site.constrained_shape)
        if lead < 1 or tuple(value.shape[lead:]) != site.constrained_shape:
            raise ValueError(
                f"draws of site '{site.name}' have shape {tuple(value.shape)}, not (n, *{site.constrained_shape})."
            )
        value = value.reshape(-1, *site.constrained_shape)
        if parts and len(value) != len(parts[0]):
            raise ValueError(
                f"draws of site '{site.name}' are {len(value)}, those of '{space[0].name}' are {len(parts[0])}."
            )
        transform = biject_to(guide.prototype_trace.nodes[site.name]["fn"].support)
        part = transform.inv(value).reshape(len(value), -1).detach()
        if not torch.isfinite(part).any():
            raise ValueError(f"draws of site '{site.name}' lie outside its support.")
        parts.append(part)
    return _finite(torch.cat(parts, -1))


def _finite(x: Tensor) -> Tensor:
    sound = torch.isfinite(x).all(-1)
    lost = int((~sound).sum())
    if lost == len(x):
        raise ValueError("draws: no draw is finite on the unconstrained space.")
    if lost:
        # Weights belong to draws by position, so that none is dropped: a NaN draw has no part in any average.
        warnings.warn(f"{lost} of {len(x)} draws are not finite on the unconstrained space.", UserWarning, stacklevel=3)
    return x


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and Cholesky factor of the covariance, a little shrunk; the diagonal alone for few draws."""
    x = x[torch.isfinite(x).all(-1)]
    n, dim = x.shape
    loc = x.mean(0)
    variance = x.var(0, correction=0).clamp(min=1e-12)
    if n < 2 * dim + 2:
        return loc, torch.diag(variance.sqrt())
    centred = x - loc
    covariance = 0.99 * (centred.mT @ centred) / n + 0.01 * torch.diag(variance)
    return loc, torch.linalg.cholesky(covariance)


def robust(x: Tensor) -> tuple[Tensor, Tensor]:
    """Medians and half-widths of the central 68 %, as a location and a diagonal factor."""
    levels = torch.tensor([0.16, 0.5, 0.84], dtype=x.dtype, device=x.device)
    low, middle, high = torch.quantile(x, levels, dim=0)
    return middle, torch.diag(((high - low) / 2).clamp(1e-3, 1e3))
