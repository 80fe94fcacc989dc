"""One run of a user's model at one point of the flat space: the single-point density and its relatives.

The transforms to the unconstrained space are taken from the supports met *during* the run, so a support whose bounds
depend on another latent site (``Uniform(0, a)``) gets its own Jacobian at every point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.poutine.messenger import Messenger
from torch.utils._pytree import tree_map

from ppl_samplers.backends.pyro import enumeration
from ppl_samplers.backends.pyro.sessions import first_working_dtype, quiet
from ppl_samplers.backends.pyro.sites import (
    Layout,
    fill_missing,
    is_continuous_latent,
    is_enumerable,
    transform_of,
    unvalidated,
)


class LatentMessenger(Messenger):
    """Gives every continuous latent site its value through ``choose``, and frozen values to ``param`` sites."""

    def __init__(self, choose: Callable[[str, Any, Any], Any], layout: Layout) -> None:
        super().__init__()
        self.choose, self.layout = choose, layout

    def __enter__(self) -> Any:
        self.met: dict[str, tuple[Any, Any, Any]] = {}  # name -> transform, unconstrained, constrained value
        return super().__enter__()

    def _pyro_param(self, msg: Any) -> None:
        if msg["name"] in self.layout.params:
            msg["value"], msg["done"] = self.layout.params[msg["name"]], True

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], unvalidated(msg["fn"])
        msg["fn"] = fn
        if msg["is_observed"]:
            if name in self.layout.fill:
                msg["value"] = fill_missing(msg["value"])
            return
        if msg["done"] or not is_continuous_latent(fn):
            return
        transform = transform_of(fn, name)
        value, unconstrained = self.choose(name, fn, transform)
        self.met[name] = (transform, unconstrained, value)
        msg["value"], msg["done"] = value, True

    def log_jacobian(self) -> Any:
        """Sum of the log absolute Jacobian determinants of all sites met, a scalar."""
        return sum(t.log_abs_det_jacobian(u, x).sum() for t, u, x in self.met.values())


class PinDiscrete(Messenger):
    """Gives every finite discrete latent site one value of its support."""

    def __init__(self, pick: int) -> None:
        super().__init__()
        self.pick = pick

    def _pyro_sample(self, msg: Any) -> None:
        if not (msg["is_observed"] or msg["done"]) and is_enumerable(msg["fn"]):
            msg["value"], msg["done"] = msg["fn"].enumerate_support(expand=True)[self.pick], True


class SinglePoint:
    """The model as functions of one flat point ``(D,)``; call inside :meth:`session`.

    Calling the object gives the log joint with the Jacobian, shape ``()``.
    """

    def __init__(self, model: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any], layout: Layout) -> None:
        self.model, self.args, self.kwargs, self.layout = model, tuple(args), dict(kwargs), layout
        self._dtypes: dict[torch.dtype, torch.dtype] = {}
        self._cast: dict[torch.dtype, tuple[tuple, dict]] = {}

    # -- number types ---------------------------------------------------------------------------------------------
    def arguments(self, dtype: torch.dtype) -> tuple[tuple, dict]:
        """The model's arguments with floating tensors *raised* to ``dtype`` (never lowered)."""
        if dtype not in self._cast:

            def raise_precision(leaf: Any) -> Any:
                lower = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != dtype
                return leaf.to(dtype) if lower and torch.promote_types(leaf.dtype, dtype) == dtype else leaf

            self._cast[dtype] = tree_map(raise_precision, (self.args, self.kwargs))
        return self._cast[dtype]

    def candidates(self, dtype: torch.dtype) -> list[torch.dtype]:
        """Number types to try for a point of type ``dtype``, the best first."""
        widest = dtype
        for leaf in _tensors((self.args, self.kwargs)):
            widest = torch.promote_types(widest, leaf.dtype)
        return list(dict.fromkeys([widest, torch.get_default_dtype(), torch.float64, torch.float32]))

    def computing_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The type the model is run in for points of type ``dtype``: the first one that the model can be run in.

        Data in double precision raise the computation to double precision; modules or tensors that the model closes
        over in single precision keep it in single precision.
        """
        if dtype not in self._dtypes:
            self._dtypes[dtype] = self._find_dtype(dtype)
        return self._dtypes[dtype]

    def _find_dtype(self, dtype: torch.dtype) -> torch.dtype:
        def trial(candidate: torch.dtype) -> None:
            with quiet(candidate, True):
                self(torch.full((self.layout.dim,), 0.1, dtype=candidate))

        return first_working_dtype(self.candidates(dtype), trial)

    @contextmanager
    def session(self, dtype: torch.dtype) -> Iterator[torch.dtype]:
        """Context in which the functions of this object may be called; yields the computing type."""
        computing = self.computing_dtype(dtype)
        with quiet(computing, self.layout.needs_mode):
            yield computing

    # -- one run --------------------------------------------------------------------------------------------------
    def run(
        self, choose: Callable[[str, Any, Any], Any], discrete: str = "sum", check: bool = True
    ) -> tuple[Any, LatentMessenger]:
        """Trace the model with latent values from ``choose(name, fn, transform) -> value, unconstrained``.

        ``discrete`` says what becomes of finite discrete sites: ``"sum"`` gives them all their values at once,
        ``"pin"`` the first one (for what does not depend on them), ``"draw"`` a random one.
        """
        layout = self.layout
        args, kwargs = self.arguments(torch.get_default_dtype())
        model, messenger = self.model, LatentMessenger(choose, layout)
        if layout.enumerated and discrete == "pin":
            model = PinDiscrete(0)(model)
        elif layout.enumerated and discrete == "sum":
            model = enumeration.VmapEnumMessenger(-1 - layout.max_plate_nesting)(config_enumerate(model))
        trace = poutine.trace(messenger(model)).get_trace(*args, **kwargs)
        if check and len(messenger.met) != len(layout.space):
            missing = sorted({site.name for site in layout.space} - set(messenger.met))
            raise ValueError(
                f"Site(s) {missing} were not reached in this run. The sites of a model must not depend on the value of "
                "another latent site: sample them always, and choose between them with torch.where."
            )
        return trace, messenger

    def at(self, z: torch.Tensor) -> Callable[[str, Any, Any], Any]:
        """Choose the values that the flat point ``z`` stands for."""
        sites = {site.name: site for site in self.layout.space}

        def choose(name: str, fn: Any, transform: Any) -> tuple[Any, Any]:
            if name not in sites:
                raise ValueError(
                    f"Site '{name}' appeared only in this run. The sites of a model must not depend on the value of "
                    "another latent site: sample them always, and choose between them with torch.where."
                )
            unconstrained = z[sites[name].slice].reshape(sites[name].unconstrained_shape)
            return transform(unconstrained), unconstrained

        return choose

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        """Log joint with Jacobian at ``z``, shape ``()``."""
        trace, messenger = self.run(self.at(z))
        joint = enumeration.log_joint(trace) if self.layout.enumerated else trace.log_prob_sum()
        return joint + messenger.log_jacobian()

    def log_prior(self, z: torch.Tensor) -> torch.Tensor:
        """Log prior of the continuous latent sites with Jacobian at ``z``, shape ``()``."""
        trace, messenger = self.run(self.at(z))
        if self.layout.enumerated:
            return enumeration.log_joint(trace, latent_only=True) + messenger.log_jacobian()
        return trace.log_prob_sum(lambda name, node: name in messenger.met) + messenger.log_jacobian()

    def log_prior_terms(self, z: torch.Tensor) -> dict[str, torch.Tensor]:
        """Log prior of each latent site at ``z`` without its Jacobian, each of shape ``()``."""
        trace, messenger = self.run(self.at(z))
        trace.compute_log_prob(lambda name, node: name in messenger.met)
        return {site.name: trace.nodes[site.name]["log_prob_sum"] for site in self.layout.space}

    def log_likelihood(self, z: torch.Tensor) -> dict[str, torch.Tensor]:
        """Log likelihood of each observed site that has one, each of the site's batch shape."""
        trace, _ = self.run(self.at(z))
        names = list(self.layout.observed)
        if self.layout.enumerated:
            return enumeration.marginal_log_likelihood(trace, names, self.layout.enumerated)[0]
        trace.compute_log_prob(lambda name, node: name in names)
        return {name: trace.nodes[name]["log_prob"] for name in names}

    def constrained(self, z: torch.Tensor) -> dict[str, torch.Tensor]:
        """Values of the latent and the deterministic sites at ``z``."""
        trace, messenger = self.run(self.at(z), discrete="pin")
        values = {site.name: messenger.met[site.name][2] for site in self.layout.space}
        for name in self.layout.deterministic:
            values[name] = torch.as_tensor(trace.nodes[name]["value"])
        return values

    def unconstrained(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Flat point ``(D,)`` of given latent values."""

        def choose(name: str, fn: Any, transform: Any) -> tuple[Any, Any]:
            return values[name], transform.inv(values[name])

        return self._flat(self.run(choose, discrete="pin")[1])

    def draw(self) -> torch.Tensor:
        """A draw from the prior as a flat point ``(D,)``; observed sites do not matter."""

        def choose(name: str, fn: Any, transform: Any) -> tuple[Any, Any]:
            value = fn.sample()
            return value, transform.inv(value)

        return self._flat(self.run(choose, discrete="draw")[1])

    def _flat(self, messenger: LatentMessenger) -> torch.Tensor:
        return torch.cat([messenger.met[site.name][1].reshape(-1) for site in self.layout.space])


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(
        lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else None, tree
    )
    return found
