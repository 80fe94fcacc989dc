"""First runs of a model: which sites it has, and the refusals that must come before any training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.poutine.subsample_messenger import _Subsample
from pyro.util import get_rng_state, set_rng_state

from ppl_samplers.backends.pyro.enumeration import marginal_log_likelihood
from ppl_samplers.backends.pyro.sessions import is_dtype_error, quiet
from ppl_samplers.backends.pyro.single import PinDiscrete, SinglePoint
from ppl_samplers.backends.pyro.sites import (
    Layout,
    Site,
    base_of,
    fill_missing,
    is_continuous_latent,
    is_discrete,
    is_enumerable,
)
from ppl_samplers.backends.settings import check_observed_shape


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Put the state of Pyro's global generators back at the end."""
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


@contextmanager
def _no_new_params() -> Iterator[None]:
    store = pyro.get_param_store()
    before = set(store.keys())
    try:
        yield
    finally:
        for name in set(store.keys()) - before:
            del store[name]


def discover(model: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]) -> Layout:
    """Run a model a few times and describe it.

    Raises:
        ValueError: If the model cannot be put on a flat space; the message names the site and the remedy.
    """
    probe = SinglePoint(model, args, kwargs, Layout())
    candidates = probe.candidates(torch.get_default_dtype())
    with preserve_rng(), _no_new_params(), torch.no_grad():
        for dtype in candidates:
            try:
                with quiet(dtype, True) as mode:
                    layout = _discover(probe)
                    layout.needs_mode = mode.seen
                return layout
            except (RuntimeError, ValueError) as error:
                if not is_dtype_error(error) or dtype == candidates[-1]:
                    raise
    raise AssertionError("unreachable")


def _discover(probe: SinglePoint) -> Layout:
    layout = probe.layout
    first = _first_run(probe)
    refuse(first)
    for name, node in first[0].nodes.items():
        if node["type"] == "sample" and node["is_observed"] and not isinstance(node["fn"], _Subsample):
            fn, data = node["fn"], torch.as_tensor(node["value"])
            check_observed_shape(name, data.shape, fn.batch_shape, fn.event_shape)
    first[0].log_prob_sum()  # also lets the mode see which operations the distributions use
    layout.params = {
        name: node["value"].detach().clone() for name, node in first[0].nodes.items() if node["type"] == "param"
    }
    layout.space, layout.transforms = _space(first)
    layout.max_plate_nesting = _plate_nesting(first[0])
    layout.enumerated = tuple(n for n, node in first[0].iter_stochastic_nodes() if is_enumerable(node["fn"]))
    second = _first_run(probe)
    space, transforms = _space(second)
    if [(s.name, s.constrained_shape) for s in space] != [(s.name, s.constrained_shape) for s in layout.space]:
        raise ValueError(
            f"The sites of the model change from run to run: {[s.name for s in layout.space]} and then "
            f"{[s.name for s in space]}, or their shapes do. Sample every site always, in a fixed shape, and choose "
            "between them with torch.where."
        )
    layout.dynamic = frozenset(
        s.name for s in space if not _same_map(layout.transforms[s.name], transforms[s.name], s.unconstrained_shape)
    )
    _observations(first[0], layout)
    _evidence(first, layout)
    _deterministic(probe, first[0])
    if layout.enumerated:
        _check_enumeration(probe, first[1])
    return layout


def _first_run(probe: SinglePoint, tries: int = 10) -> tuple[Any, Any]:
    for attempt in range(tries):
        radius = 2.0 * (1 - attempt / (tries - 1))

        def choose(name: str, fn: Any, transform: Any, radius: float = radius) -> tuple[Any, Any]:
            unconstrained = torch.empty(transform.inverse_shape(fn.shape())).uniform_(-radius, radius)
            return transform(unconstrained), unconstrained

        try:
            return probe.run(choose, discrete="draw", check=False)
        except (torch.linalg.LinAlgError, ArithmeticError, AssertionError):
            if attempt == tries - 1:
                raise
    raise AssertionError("unreachable")


def refuse(run: tuple[Any, Any]) -> None:
    """Raise ``ValueError`` for sites that no engine on the flat space can take."""
    trace, messenger = run
    for name, node in trace.iter_stochastic_nodes():
        fn = node["fn"]
        if isinstance(fn, _Subsample):
            if fn.subsample_size is not None and fn.subsample_size < fn.size:
                raise ValueError(
                    f"Plate '{name}' takes a random subsample of {fn.subsample_size} of {fn.size}: the density would "
                    f"be random. Write pyro.plate('{name}', {fn.size}) over the whole data, or use SVI."
                )
        elif is_discrete(fn):
            kind = type(base_of(fn)).__name__
            if not is_enumerable(fn):
                raise ValueError(
                    f"Site '{name}' ({kind}) is a discrete latent site that cannot be summed out. Use a continuous "
                    "relaxation, marginalise it by hand, or a distribution with finite support such as Categorical, in "
                    "a plate and not in to_event."
                )
            if node["infer"].get("enumerate", "parallel") != "parallel":
                raise ValueError(
                    f"Site '{name}' asks for {node['infer']['enumerate']!r} enumeration; only infer={{'enumerate': "
                    "'parallel'}} is summed out here: remove the setting."
                )
    if not messenger.met:
        raise ValueError(
            "The model has no continuous latent site: there is nothing to sample. Add a pyro.sample statement "
            "without obs=, or check that the data were not passed to every site."
        )


def _space(run: tuple[Any, Any]) -> tuple[tuple[Site, ...], dict[str, Any]]:
    sites, transforms, start = [], {}, 0
    for name, (transform, unconstrained, value) in run[1].met.items():
        stop = start + math.prod(unconstrained.shape)
        sites.append(Site(name, slice(start, stop), tuple(unconstrained.shape), tuple(value.shape)))
        transforms[name] = transform
        start = stop
    return tuple(sites), transforms


def _same_map(first: Any, second: Any, shape: tuple[int, ...]) -> bool:
    point = torch.linspace(-1.0, 1.0, max(math.prod(shape), 1))[: math.prod(shape)].reshape(shape)
    return torch.equal(first(point), second(point))


def _plate_nesting(trace: Any) -> int:
    dims = [f.dim for node in trace.nodes.values() if node["type"] == "sample" for f in node["cond_indep_stack"]]
    return -min((d for d in dims if d is not None), default=0)


def is_deterministic(node: Any) -> bool:
    """Whether a site only records a value: ``pyro.deterministic``, or a site that a reparametrisation has replaced."""
    known = node["is_observed"] or node["infer"].get("_deterministic")
    return bool(known) and isinstance(base_of(node["fn"]), dist.Delta)


def _observations(trace: Any, layout: Layout) -> None:
    fill = set()
    for name, node in trace.nodes.items():
        if node["type"] != "sample" or not node["is_observed"] or isinstance(node["fn"], _Subsample):
            continue
        if is_deterministic(node) or isinstance(base_of(node["fn"]), dist.Unit):
            continue
        value = torch.as_tensor(node["value"])
        layout.observed[name] = value.detach()
        if not value.is_floating_point() or not torch.isnan(value).any():
            continue
        # A NaN may stand under a mask. Then the density does not change with what stands in its place.
        trial = node["fn"].log_prob(fill_missing(value))
        plain = node["fn"].log_prob(value)
        mask = node["mask"]
        if mask is not None:
            trial, plain = (torch.where(torch.as_tensor(mask), v, torch.zeros_like(v)) for v in (trial, plain))
        if torch.isnan(plain).any():
            raise ValueError(
                f"The data of site '{name}' contain NaN. Drop these entries, or hide them with "
                f"poutine.mask(mask=~torch.isnan(data)) round the site '{name}'."
            )
        fill.add(name)
    layout.fill = frozenset(fill)


def _evidence(run: tuple[Any, Any], layout: Layout) -> None:
    trace, messenger = run
    improper, relative, masked = [], [], []
    for name, node in trace.nodes.items():
        if node["type"] != "sample" or is_deterministic(node) or isinstance(node["fn"], _Subsample):
            continue
        hidden = _hides(node["mask"]) or _hides(_mask_of(node["fn"]))
        if name in messenger.met and (hidden or isinstance(base_of(node["fn"]), dist.ImproperUniform)):
            improper.append(name)
        if isinstance(node["fn"], dist.Unit) or isinstance(base_of(node["fn"]), dist.Unit):
            relative.append(f"pyro.factor '{name}'")
        if torch.as_tensor(node["scale"]).ne(1).any():
            relative.append(f"the scale of site '{name}'")
        if hidden and node["is_observed"]:
            masked.append(name)
    if improper:
        reason = f"the prior of site(s) {improper} is improper; give them a proper prior"
        layout.reasons = {"kind": "undefined", "reason": reason, "prior": reason}
    elif relative:
        layout.reasons = {"kind": "relative", "reason": f"the model is not normalised: {', '.join(relative)}"}
    else:
        text = "every factor of the model is kept"
        text += f"; masked entries of {masked} are not counted as data" if masked else ""
        layout.reasons = {"kind": "absolute", "reason": text}
    if layout.params:
        layout.notes += (f"param sites {sorted(layout.params)} are frozen at their present values",)


def _mask_of(fn: Any) -> Any:
    while isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution, dist.ExpandedDistribution)):
        if isinstance(fn, dist.MaskedDistribution):
            return fn._mask
        fn = fn.base_dist
    return None


def _hides(mask: Any) -> bool:
    return mask is not None and not bool(torch.as_tensor(mask).all())


def _deterministic(probe: SinglePoint, trace: Any) -> None:
    layout = probe.layout
    names = [n for n, node in trace.nodes.items() if node["type"] == "sample" and is_deterministic(node)]
    if names and layout.enumerated:
        # A deterministic site that depends on a summed-out discrete site has no single value: leave it out.
        point = torch.full((layout.dim,), 0.1)
        values = []
        for pick in (0, -1):
            model, probe.model = probe.model, PinDiscrete(pick)(probe.model)
            try:
                run = probe.run(probe.at(point), discrete="draw")[0]
            finally:
                probe.model = model
            values.append({n: torch.as_tensor(run.nodes[n]["value"]) for n in names})
        kept = [n for n in names if torch.equal(values[0][n], values[1][n])]
        dropped = sorted(set(names) - set(kept))
        if dropped:
            layout.notes += (f"deterministic sites {dropped} depend on summed-out discrete sites and are left out",)
        names = kept
    layout.deterministic = tuple(names)


def _check_enumeration(probe: SinglePoint, messenger: Any) -> None:
    layout = probe.layout
    point = torch.cat([messenger.met[site.name][1].reshape(-1) for site in layout.space])
    try:
        trace, _ = probe.run(probe.at(point))
        probe(point)
    except (NotImplementedError, ValueError, RuntimeError, IndexError, AssertionError) as error:
        if isinstance(error, RuntimeError) and is_dtype_error(error):
            raise
        raise ValueError(
            f"The discrete latent site(s) {list(layout.enumerated)} could not be summed out: {error}. Values of these "
            "sites get extra dimensions on the left: index with Vindex, and put sites into plates of their own."
        ) from error
    _, refused = marginal_log_likelihood(trace, list(layout.observed), layout.enumerated)
    if refused:
        layout.notes += (
            f"no pointwise log likelihood for site(s) {list(refused)}: their observations share summed-out discrete "
            "sites",
        )


__all__ = ["discover", "is_continuous_latent", "preserve_rng", "refuse"]
