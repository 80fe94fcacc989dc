"""Exact summation over finite discrete sites, in a form that ``torch.func.vmap`` accepts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from opt_einsum import shared_intermediates
from pyro.ops.contract import contract_to_tensor
from pyro.ops.rings import LogRing
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.runtime import _ENUM_ALLOCATOR
from pyro.poutine.subsample_messenger import _Subsample


class VmapEnumMessenger(EnumMessenger):
    """Pyro's ``EnumMessenger`` without ``.data``, which functorch tensors lack.

    It also leaves Pyro's global allocator of dimensions as it was.
    """

    def __enter__(self) -> Any:
        self._allocator = dict(vars(_ENUM_ALLOCATOR))
        return super().__enter__()

    def __exit__(self, *exc: Any) -> Any:
        vars(_ENUM_ALLOCATOR).clear()
        vars(_ENUM_ALLOCATOR).update(self._allocator)
        return super().__exit__(*exc)

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["value"] is None or not hasattr(msg["fn"], "event_dim"):
            return
        value = msg["value"]
        shape = value.shape[: value.dim() - msg["fn"].event_dim]
        dim_to_id = msg["infer"].setdefault("_dim_to_id", {})
        dim_to_id.update(self._param_dims.get(msg["name"], {}))
        self._value_dims[msg["name"]] = {
            dim: id_ for dim, id_ in dim_to_id.items() if len(shape) >= -dim and shape[dim] > 1
        }


class SafeLogRing(LogRing):
    """Sum-product in log space through :mod:`ppl_samplers.backends.pyro.log_einsum`."""

    _backend = "ppl_samplers.backends.pyro.log_einsum"


def _factors(trace: Any) -> list[tuple[str, frozenset[str], torch.Tensor]]:
    trace.compute_log_prob()
    trace.pack_tensors()
    found = []
    for name, node in trace.nodes.items():
        if node["type"] == "sample" and not isinstance(node["fn"], _Subsample):
            ordinal = frozenset(trace.plate_to_symbol[f.name] for f in node["cond_indep_stack"] if f.vectorized)
            found.append((name, ordinal, node["packed"]["log_prob"]))
    return found


def _contract(factors: list[tuple[str, frozenset[str], torch.Tensor]], trace: Any, target: frozenset[str]) -> Any:
    sum_dims = set(trace.symbol_to_dim) - set(trace.plate_to_symbol.values())
    tree: OrderedDict[frozenset[str], list[torch.Tensor]] = OrderedDict()
    sizes: dict[str, int] = {}
    for _, ordinal, term in factors:
        tree.setdefault(ordinal, []).append(term)
        sizes.update(zip(term._pyro_dims, term.shape, strict=True))
    with shared_intermediates() as cache:
        ring = SafeLogRing(cache=cache, dim_to_size=sizes)
        return contract_to_tensor(tree, sum_dims, target_ordinal=target, cache=cache, ring=ring)


def log_joint(trace: Any, latent_only: bool = False) -> torch.Tensor:
    """Log joint of an enumerated trace, or of its latent sites, with every enumerated site summed out, shape ``()``."""
    factors = _factors(trace)
    if latent_only:
        factors = [f for f in factors if not trace.nodes[f[0]]["is_observed"]]
    return _contract(factors, trace, frozenset())


def marginal_log_likelihood(
    trace: Any, names: list[str], enumerated: tuple[str, ...]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Pointwise log likelihood of the sites ``names`` with the discrete sites summed out.

    That is defined only where each enumerated site belongs to one observation: the observed site is the only one that
    depends on it, and both stand in the same plates.

    Returns:
        The log likelihoods, each of the site's batch shape, and the names of the sites that have none.
    """
    factors = _factors(trace)
    sum_dims = set(trace.symbol_to_dim) - set(trace.plate_to_symbol.values())
    values, refused = {}, []
    for name in names:
        _, ordinal, term = next(f for f in factors if f[0] == name)
        if not sum_dims & set(term._pyro_dims):
            values[name] = trace.nodes[name]["log_prob"]
            continue
        component, dims = {name}, set(term._pyro_dims) & sum_dims
        grown = True
        while grown:
            new = {f[0] for f in factors if f[0] not in component and dims & set(f[2]._pyro_dims)}
            grown = bool(new)
            component |= new
            dims |= {d for f in factors if f[0] in new for d in f[2]._pyro_dims} & sum_dims
        members = [f for f in factors if f[0] in component]
        others = [f[0] for f in members if f[0] != name and f[0] not in enumerated]
        shared = [f[0] for f in members if f[1] != ordinal]
        if others or shared:
            refused.append(name)
            continue
        packed = _contract(members, trace, ordinal)
        values[name] = _unpack(packed, trace)
    return values, refused


def _unpack(packed: torch.Tensor, trace: Any) -> torch.Tensor:
    # Packed tensors carry one letter per axis; the model's plates want them back at their own negative positions.
    letters = sorted(packed._pyro_dims, key=lambda s: trace.symbol_to_dim[s])
    value = packed.permute([packed._pyro_dims.index(s) for s in letters])
    if not letters:
        return value
    shape = [1] * -trace.symbol_to_dim[letters[0]]
    for size, letter in zip(value.shape, letters, strict=True):
        shape[trace.symbol_to_dim[letter]] = size
    return value.reshape(shape)
