"""One run of a user's model at one point of the flat space: the single-point density and its relatives.

The transforms to the unconstrained space are taken from the supports met *during* the run, so a support whose bounds
depend on another latent site (``Uniform(0, a)``) gets its own Jacobian at every point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import _Subsample
from torch.distributions import Distribution, biject_to, constraints
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ppl_samplers.backends.pyro import enumeration

_CHOLESKY = (torch.linalg.cholesky, torch.cholesky, torch.Tensor.cholesky)


class ModelMode(TorchFunctionMode):
    """Two operations done in a way that batches survive.

    Cholesky factors of matrices that are not positive definite become NaN in place of an exception: one bad point must
    not lose the whole batch, and NaN turns into a log density of ``-inf``. And ``x[mask] = number``, which ``vmap``
    refuses and which stands in ``Multinomial.log_prob``, is done by ``masked_fill_``.
    """

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__setitem__:
            target, mask, value = args
            if _is_mask(mask, target) and isinstance(value, (int, float)):
                self.seen = True
                target.masked_fill_(mask, value)
                return None
        if func not in _CHOLESKY or kwargs.get("upper") or len(args) != 1:
            return func(*args, **kwargs)
        self.seen = True
        factor, info = torch.linalg.cholesky_ex(args[0])
        return torch.where((info > 0)[..., None, None], torch.full_like(factor, torch.nan), factor)


class DrawMode(TorchFunctionMode):
    """In-place random numbers as new tensors, so that a fresh buffer gets its own numbers on every row under ``vmap``.

    Samplers write ``buffer.cauchy_()`` and use the result; the buffer itself is dropped.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is torch.Tensor.cauchy_ and len(args) == 1 and not options:
            return torch.tan(torch.pi * (torch.rand_like(args[0]) - 0.5))
        if func is torch.Tensor.exponential_ and len(args) == 1 and not options:
            return -torch.log1p(-torch.rand_like(args[0]))
        if func is torch.Tensor.uniform_ and len(args) == 3:
            return args[1] + (args[2] - args[1]) * torch.rand_like(args[0])
        return func(*args, **options)


def _is_mask(index: Any, target: torch.Tensor) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool and index.shape == target.shape


@contextmanager
def quiet(dtype: torch.dtype, with_mode: bool = False) -> Iterator[ModelMode]:
    """Run a model unseen by the caller's handlers, without validation, in ``dtype``; everything is put back after."""
    validate, default = Distribution._validate_args, torch.get_default_dtype()
    mode = ModelMode()
    try:
        with pyro.validation_enabled(False), poutine.block():
            torch.set_default_dtype(dtype)
            if with_mode:
                with mode:
                    yield mode
            else:
                yield mode
    finally:
        torch.set_default_dtype(default)
        Distribution.set_default_validate_args(validate)


def base_of(fn: Any) -> Any:
    """The distribution under ``to_event``, ``mask`` and ``expand``."""
    while isinstance(fn, (torch.distributions.Independent, dist.MaskedDistribution, dist.ExpandedDistribution)):
        fn = fn.base_dist
    return fn


def transform_of(fn: Any, name: str) -> Any:
    """The bijection from the unconstrained space onto the support of ``fn``.

    ``VonMises`` declares the whole line as its support although its density is that of an angle; it gets ``(-pi, pi)``.

    Raises:
        ValueError: If the support has no bijection (discrete or unknown).
    """
    if isinstance(base_of(fn), dist.VonMises):
        return biject_to(constraints.independent(constraints.interval(-torch.pi, torch.pi), fn.event_dim))
    try:
        return biject_to(fn.support)
    except NotImplementedError as error:
        raise ValueError(
            f"Site '{name}' ({type(base_of(fn)).__name__}) has a support that cannot be mapped onto real numbers: "
            f"{error}. Write it with a distribution whose support is registered with torch.distributions.biject_to."
        ) from error


@dataclass(frozen=True)
class Site:
    """One latent site on the flat space.

    Attributes:
        name: Name of the site in the model.
        slice: Its columns in the flat vector.
        unconstrained_shape: Shape of its unconstrained value.
        constrained_shape: Shape of its value in the model.
    """

    name: str
    slice: slice
    unconstrained_shape: tuple[int, ...]
    constrained_shape: tuple[int, ...]


@dataclass
class Layout:
    """What the first runs of a model tell about it."""

    space: tuple[Site, ...] = ()
    enumerated: tuple[str, ...] = ()
    max_plate_nesting: int = 0
    dynamic: frozenset[str] = frozenset()
    transforms: dict[str, Any] = field(default_factory=dict)
    params: dict[str, torch.Tensor] = field(default_factory=dict)
    fill: frozenset[str] = frozenset()
    observed: dict[str, torch.Tensor] = field(default_factory=dict)
    deterministic: tuple[str, ...] = ()
    needs_mode: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions."""
        return sum(site.slice.stop - site.slice.start for site in self.space)


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


def is_discrete(fn: Any) -> bool:
    """Whether ``fn`` draws from a countable set."""
    if getattr(base_of(fn), "has_enumerate_support", False):
        return True
    try:
        return bool(fn.support.is_discrete)
    except (NotImplementedError, AttributeError):
        return False


def is_enumerable(fn: Any) -> bool:
    """Whether all values of ``fn`` can be listed; a vector of discrete numbers cannot, a plate of them can."""
    return not isinstance(fn, _Subsample) and bool(getattr(fn, "has_enumerate_support", False))


class PinDiscrete(Messenger):
    """Gives every finite discrete latent site one value of its support."""

    def __init__(self, pick: int) -> None:
        super().__init__()
        self.pick = pick

    def _pyro_sample(self, msg: Any) -> None:
        if not (msg["is_observed"] or msg["done"]) and is_enumerable(msg["fn"]):
            msg["value"], msg["done"] = msg["fn"].enumerate_support(expand=True)[self.pick], True


def is_continuous_latent(fn: Any) -> bool:
    """Whether a latent site with this distribution takes part in the flat space."""
    return not (isinstance(fn, _Subsample) or isinstance(base_of(fn), dist.Delta) or is_discrete(fn))


def unvalidated(fn: Any) -> Any:
    """``fn`` without argument checks: made outside the model it still has them, and they would raise, not give -inf."""
    if not isinstance(fn, Distribution) or not (fn._validate_args or hasattr(fn, "base_dist")):
        return fn
    # Pyro's Independent forwards the flag to its base: setting it on a shallow copy would change the user's own object.
    plain = object.__new__(type(fn))
    plain.__dict__.update(fn.__dict__, _validate_args=False)
    if hasattr(fn, "base_dist"):
        plain.base_dist = unvalidated(fn.base_dist)
    return plain


def fill_missing(value: torch.Tensor) -> torch.Tensor:
    """Replace NaN by a value of the same tensor: masked entries count nothing, but NaN would poison their gradient."""
    missing = torch.isnan(value)
    present = value[~missing]
    return torch.where(missing, present.flatten()[0] if present.numel() else torch.zeros_like(value), value)


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


def is_dtype_error(error: Exception) -> bool:
    """Whether an exception of torch complains about mixed number types."""
    text = str(error)
    return any(word in text for word in ("dtype", "same type", "scalar type", "Float and Double", "Double and Float"))


def first_working_dtype(candidates: list[torch.dtype], trial: Callable[[torch.dtype], None]) -> torch.dtype:
    """The first type for which ``trial`` does not complain of mixed number types."""
    for candidate in candidates:
        try:
            with torch.no_grad():
                trial(candidate)
            return candidate
        except Exception as error:
            if not is_dtype_error(error):  # whatever else is wrong at that point is not a matter of types
                return candidate
    return candidates[0]


class PlainSession:
    """Session for a plain function of points, which needs no handlers; finds the number type it can be called with."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor], example_shape: tuple[int, ...]) -> None:
        self.fn, self.example_shape = fn, example_shape
        self._dtypes: dict[torch.dtype, torch.dtype] = {}

    @contextmanager
    def __call__(self, dtype: torch.dtype) -> Iterator[torch.dtype]:
        """Context in which the function may be called; yields the computing type."""
        if dtype not in self._dtypes:
            candidates = list(dict.fromkeys([dtype, torch.get_default_dtype(), torch.float64, torch.float32]))
            self._dtypes[dtype] = first_working_dtype(
                candidates, lambda candidate: self.fn(torch.full(self.example_shape, 0.1, dtype=candidate))
            )
        yield self._dtypes[dtype]


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(
        lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else None, tree
    )
    return found
