"""Settings of the kernels, the same objects in both frameworks: corrections and the probe."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Note on a run without gradients.
NO_GRADIENT = "the density has no gradient: there are no local moves and no probe for missed modes"
NO_ARGUMENTS = "a density from a callable takes no model arguments; build a new one with from_callable"


@dataclass(frozen=True)
class IMH:
    """Correction by independence Metropolis-Hastings, one fresh proposal per chain and iteration.

    References:
        Luke Tierney, Markov chains for exploring posterior distributions, 1994.
    """

    num_fresh = 1


@dataclass(frozen=True)
class ISIR:
    """Correction by iterated sampling importance resampling: the chain's point against fresh candidates.

    Attributes:
        num_candidates: Candidates per iteration, the current point among them.

    Raises:
        ValueError: Fewer than two candidates.

    References:
        Christophe Andrieu, Anthony Lee, Matti Vihola, Uniform ergodicity of the iterated conditional SMC and geometric
        ergodicity of particle Gibbs samplers, 2018.
    """

    num_candidates: int = 8

    def __post_init__(self) -> None:
        if self.num_candidates < 2:
            raise ValueError(f"ISIR(num_candidates={self.num_candidates}): write 2 or more (one is the current point)")

    @property
    def num_fresh(self) -> int:
        """Fresh proposals per chain and iteration."""
        return self.num_candidates - 1


@dataclass(frozen=True)
class Probe:
    """Short local chains from over-dispersed points, independent of the engines: they can land in a missed mode.

    Attributes:
        num_points: Chains.
        num_steps: Local steps of each.
    """

    num_points: int = 64
    num_steps: int = 40


def parse_correction(correction: Any) -> IMH | ISIR:
    """``"imh"``, ``"isir"`` or the settings object themselves.

    Raises:
        ValueError: Anything else.
    """
    known = {"imh": IMH, "isir": ISIR}
    if isinstance(correction, str) and correction in known:
        return known[correction]()
    if isinstance(correction, IMH | ISIR):
        return correction
    raise ValueError(f'correction={correction!r}: write "imh", "isir", IMH() or ISIR(num_candidates=8)')


def check_kernel(name: str, framework: str, model: Any, log_density: Any, trained: Any, numbers: Mapping) -> None:
    """Refuse at construction what could only fail later.

    Args:
        name: The engine.
        framework: ``"NumPyro"`` or ``"Pyro"``.
        model: What was given as a model.
        log_density: What was given in its place.
        trained: What was given as trained engines.
        numbers: Options that count something.

    Raises:
        TypeError: For things of the wrong kind.
        ValueError: For both or neither of model and density, and for numbers below 1.
    """
    if (model is None) == (log_density is None):
        raise ValueError(f"{name}: give a {framework} model or log_density=LogDensity.from_callable(...), and not both")
    if model is not None and not callable(model):
        raise TypeError(
            f"{name}({model!r}): the first argument is a {framework} model, a function of the data that calls "
            f"{framework.lower()}.sample(...)"
        )
    if log_density is not None and not hasattr(log_density, "space"):
        raise TypeError(f"{name}(log_density={log_density!r}): write LogDensity.from_callable(function, dim)")
    if trained is not None and not hasattr(trained, "propose"):
        raise TypeError(
            f"{name}(trained={trained!r}): give trained engines, the result of {name}(model).fit(...) or of "
            f"Trained.load(path, {name}(model), ...)"
        )
    check_counts(name, **numbers)


def check_counts(name: str, **numbers: Any) -> None:
    """Refuse numbers that count something and are not integers of at least 1."""
    for option, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: {option}={value!r}; write an integer of 1 or more")


def check_flow(engine: str, flow: Any, kinds: tuple[type, ...]) -> None:
    """Refuse a flow that the engine cannot use.

    Raises:
        ValueError: Always then; the message lists what to write.
    """
    if not isinstance(flow, kinds):
        choices = [f"{kind.__name__}({'make' if 'make' in kind.__annotations__ else ''})" for kind in kinds]
        raise ValueError(f"{engine}: flow={flow!r}; write one of {', '.join(choices)}")


def check_training(
    name: str, counts: Mapping[str, Any], learning_rate: float, clip: float, defensive: float, stop_ess: float
) -> None:
    """Refuse settings with which a flow cannot be trained.

    Raises:
        ValueError: The message says what is allowed.
    """
    check_counts(name, **counts)
    for option, value in (("learning_rate", learning_rate), ("clip", clip)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}: {option}={value!r}; write a positive number")
    if not 0 <= defensive < 1:
        raise ValueError(f"{name}: defensive={defensive!r}; write a share in [0, 1), for example 0.05")
    if not 0 < stop_ess <= 1:
        raise ValueError(f"{name}: stop_ess={stop_ess!r}; write a relative sample size in (0, 1], for example 0.9")


def check_options(engine: type, options: Mapping[str, Any], also: Iterable[str] = ()) -> None:
    """Refuse options that neither an engine nor the kernel beneath it takes.

    Raises:
        TypeError: The message names the engine and the nearest options.
    """
    known: dict[str, None] = dict.fromkeys(also)
    for base in engine.__mro__[:-1]:
        known |= dict.fromkeys(
            p.name for p in inspect.signature(base.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY
        )
    known.pop("transport", None)
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it takes {', '.join(known)}"
            raise TypeError(f"{engine.__name__} has no option {option!r}; {hint}")


def check_draws(finite: Any, space: Any) -> None:
    """Refuse draws that a user handed over and that lie outside the support.

    Args:
        finite: Which entries of the unconstrained draws are finite, a NumPy array ``(n, D)``.
        space: Latent sites with their slices.

    Raises:
        ValueError: The message names the first such site.
    """
    for site in space:
        bad = int((~finite[:, site.slice].all(-1)).sum())
        if bad:
            raise ValueError(
                f"ForwardKL(draws=...): {bad} of {len(finite)} draws of site {site.name!r} lie outside its support or "
                "are not finite; hand over mcmc.get_samples() of this very model"
            )


def check_observed_shape(name: str, value: tuple[int, ...], batch: tuple[int, ...], event: tuple[int, ...]) -> None:
    """Refuse data that do not fit the distribution of their site.

    Args:
        name: The observed site.
        value: Shape of the data.
        batch: Batch shape of the distribution.
        event: Event shape of the distribution.

    Raises:
        ValueError: The two do not broadcast.
    """
    try:
        np.broadcast_shapes(tuple(value), (*batch, *event))
    except ValueError:
        raise ValueError(
            f"observed site '{name}': data of shape {tuple(value)} do not fit a distribution of shape "
            f"{(*batch, *event)}; reshape the data, or the parameters of the distribution, so that they broadcast"
        ) from None


def warn_undefined(density: Any) -> None:
    """Say at set-up that a model has no evidence."""
    if density.evidence_kind == "undefined":
        warnings.warn(
            f"the log evidence of this model is undefined: {density.evidence_reason.rstrip('.')}. The draws are not "
            "affected",
            UserWarning,
            stacklevel=4,
        )


def black_box(fn: Callable[[np.ndarray], np.ndarray], dim: int) -> Callable[[np.ndarray], np.ndarray]:
    """A plain NumPy log density for arrays of any leading shape, ``(..., D) -> (...)``, in float64.

    Args:
        fn: ``(N, D) -> (N,)``.
        dim: Number of dimensions, ``D``.

    Returns:
        The function; it raises ``ValueError`` where ``fn`` returns another shape.
    """

    def call(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        points = x.reshape(-1, dim)
        out = np.asarray(fn(points), np.float64)
        if out.shape != (len(points),):
            raise ValueError(f"fn must map {points.shape} to {(len(points),)}, but returns {out.shape}")
        return out.reshape(x.shape[:-1])

    return call


def without_gradient(name: str, needs_gradient: bool, log_density: Any) -> bool:
    """Whether a kernel has to do without local moves; refuses an engine that cannot.

    Raises:
        ValueError: The engine trains on gradients.
    """
    if log_density is None or log_density.has_gradient:
        return False
    if needs_gradient:
        raise ValueError(f"{name} needs the gradient of the density; for a black box write CMT(log_density=...)")
    return True
