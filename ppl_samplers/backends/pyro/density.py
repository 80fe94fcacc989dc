"""The log density of a Pyro model on the flat unconstrained space, in batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ppl_samplers.backends.conditional import ConditionalDensity
from ppl_samplers.backends.pyro import checks
from ppl_samplers.backends.pyro.discovery import discover, preserve_rng
from ppl_samplers.backends.pyro.evaluate import Evaluator
from ppl_samplers.backends.pyro.flat_space import FlatSpace
from ppl_samplers.backends.pyro.sessions import PlainSession, host_function
from ppl_samplers.backends.pyro.single import SinglePoint
from ppl_samplers.backends.pyro.sites import Layout, Site
from ppl_samplers.backends.pyro.values import Differentiable, clean
from ppl_samplers.backends.settings import NO_ARGUMENTS, NO_GRADIENT, black_box


class LogDensity(FlatSpace):
    """Log joint of a Pyro model, Jacobians included, as a function of a flat vector: ``(N, D) -> (N,)``.

    The model may be any Pyro model with a fixed set of sites. Finite discrete sites are summed out; supports may depend
    on other latent sites. Models that ``torch.func.vmap`` cannot take fall back to a Python loop with one warning.
    Values of ``pyro.param`` sites, of modules and of data are read once: make a new object when they change.

    Args:
        model: Pyro model.
        model_args: Its positional arguments.
        model_kwargs: Its keyword arguments.
        batch_size: Largest number of points evaluated at once; ``None`` for no limit.
        compile: Build each batch size with ``torch.compile`` (needs a C++ compiler; 20 to 50 seconds a build).
        how: ``"auto"`` (vmap, and a static graph once a batch size has come back a few times), ``"vmap"``, ``"graph"``
            or ``"loop"``.

    Attributes:
        num_evals: Number of points evaluated so far.
        num_grad_evals: Number of points whose gradient was computed.
        num_invalid: Number of points without a finite density.
        notes: Sentences about the model that a user should read.

    Raises:
        ValueError: For a model that no engine can take; the message names the site and says what to write instead.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from ppl_samplers.backends.pyro.density import LogDensity
        >>> def model(y):
        ...     scale = pyro.sample("scale", dist.HalfNormal(1.0))
        ...     pyro.sample("y", dist.Normal(0.0, scale).expand([3]).to_event(1), obs=y)
        >>> density = LogDensity(model, (torch.tensor([0.1, -0.4, 0.3]),))
        >>> density(torch.zeros(5, 1)).shape
        torch.Size([5])
    """

    # A black box has none.
    has_gradient = True

    def __init__(
        self,
        model: Callable[..., Any],
        model_args: Sequence[Any] = (),
        model_kwargs: Mapping[str, Any] | None = None,
        *,
        batch_size: int | None = None,
        compile: bool = False,
        how: str = "auto",
    ) -> None:
        layout = discover(model, tuple(model_args), model_kwargs or {})
        self.layout: Layout = layout
        self.single: SinglePoint | None = SinglePoint(model, tuple(model_args), model_kwargs or {}, layout)
        self.space: tuple[Site, ...] = layout.space
        self.dim: int = layout.dim
        self.evidence_kind: str = layout.reasons["kind"]
        self.evidence_reason: str = layout.reasons["reason"]
        self.has_prior: bool = "prior" not in layout.reasons
        self.observed: dict[str, torch.Tensor] = layout.observed
        self.notes: tuple[str, ...] = layout.notes
        self._sampler: Callable[[int], torch.Tensor] | None = None
        how = "compile" if compile and how == "auto" else how
        self._model, self._options = model, {"batch_size": batch_size, "how": how}
        self._start(Evaluator(self.single, self.single.session, how=how, batch_size=batch_size))

    def bind(self, *args: Any, **kwargs: Any) -> LogDensity:
        """The density of the same model, with the same options, at other arguments.

        Raises:
            ValueError: If the density is a function, which has no arguments.
        """
        if self._model is None:
            raise ValueError(NO_ARGUMENTS)
        return type(self)(self._model, args, kwargs, **self._options)

    @classmethod
    def from_callable(
        cls,
        fn: Callable[[torch.Tensor], torch.Tensor],
        dim: int,
        *,
        batched: bool = True,
        sample_prior: Callable[[int], torch.Tensor] | None = None,
        names: Sequence[str] | None = None,
        batch_size: int | None = None,
        how: str = "auto",
        gradient: bool = True,
    ) -> LogDensity:
        """Wrap a function of points on the real space.

        Args:
            fn: ``(N, D) -> (N,)``, or ``(D,) -> ()`` with ``batched=False``.
            dim: Number of dimensions ``D``.
            batched: Whether ``fn`` takes a batch.
            sample_prior: ``n -> (n, D)``, draws to start from.
            names: One name for each dimension; by default one site ``"x"`` of shape ``(D,)``.
            batch_size: As in the class.
            how: As in the class.
            gradient: ``False`` for a black box: ``fn`` is called with NumPy arrays ``(N, D)`` of float64 and returns
                ``(N,)``; only engines that need no gradient take it.

        Raises:
            ValueError: If ``fn`` returns another shape, or ``names`` has not ``dim`` entries.
        """
        if names is not None and len(names) != dim:
            raise ValueError(f"names has {len(names)} entries, but the density has {dim} dimensions: give one each.")
        if not gradient:
            fn, batched, how = host_function(black_box(fn, dim)), True, "black box"
        if names is None:
            space: tuple[Site, ...] = (Site("x", slice(0, dim), (dim,), (dim,)),)
        else:
            space = tuple(Site(name, slice(i, i + 1), (), ()) for i, name in enumerate(names))
        with preserve_rng(), torch.no_grad(), PlainSession(fn, (3, dim) if batched else (dim,))(torch.float32) as dtype:
            trial = fn(torch.rand(3, dim, dtype=dtype) if batched else torch.rand(dim, dtype=dtype))
        expected = (3,) if batched else ()
        if not isinstance(trial, torch.Tensor) or tuple(trial.shape) != expected:
            shape = tuple(trial.shape) if isinstance(trial, torch.Tensor) else type(trial).__name__
            raise ValueError(
                f"The density returned {shape} for {'3 points (3, ' + str(dim) + ')' if batched else 'one point'}, but "
                f"{expected} is needed. Sum over the event dimension, or pass batched={not batched}."
            )
        self = cls.__new__(cls)
        self.layout = Layout(space=space)
        self.single, self.space, self.dim, self._model = None, space, dim, None
        self.evidence_kind = "relative"
        self.evidence_reason = "the density is a plain function, whose constant only its author knows"
        self.has_prior, self._sampler = sample_prior is not None, sample_prior
        self.has_gradient = gradient
        self.observed, self.notes = {}, () if gradient else (NO_GRADIENT,)
        self._start(
            Evaluator(
                None if batched else fn,
                PlainSession(fn, (3, dim) if batched else (dim,)),
                how=how,
                batch_size=batch_size,
                batched=fn if batched else None,
            )
        )
        return self

    def _start(self, evaluator: Evaluator) -> None:
        self.num_evals = self.num_grad_evals = self.num_invalid = 0
        # Trial points of an engine fall outside the support all the time: it counts them and switches the warning off.
        self.warn_invalid = True
        self._loop_maps: set[str] = set()
        self._evaluator = evaluator
        with preserve_rng():
            points = checks.check_points(self.dim)
            checks.refuse_random(evaluator, points)
            checks.choose(evaluator, points)
            if evaluator.how == "loop":
                lost = checks.lost_gradients(evaluator, points, self.space)
                if lost:
                    checks.warn_lost(lost)
                    self.notes += (f"the gradient through site(s) {lost} is lost",)

    @property
    def how(self) -> str:
        """The way of evaluation in use: ``vmap``, ``graph``, ``loop`` or ``compile``."""
        return self._evaluator.name

    # -- values -------------------------------------------------------------------------------------------------------
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Log density of points ``(N, D) -> (N,)``; differentiable once. NaN and ``+inf`` become ``-inf``."""
        self._check(x)
        if torch.is_grad_enabled() and x.requires_grad:
            return Differentiable.apply(x, self)
        return clean(self, *self._evaluator(x, grad=False))[0]

    def value_and_grad(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log density ``(N,)`` and its gradient ``(N, D)``, both detached; zero gradient where there is no density."""
        self._check(x)
        return clean(self, *self._evaluator(x, grad=True))

    def _check(self, x: torch.Tensor) -> None:
        if x.dim() != 2 or x.shape[1] != self.dim:
            raise ValueError(f"Points of shape (N, {self.dim}) are needed, got {tuple(x.shape)}.")
        if not x.is_floating_point():
            raise ValueError(f"Points must be floating, got {x.dtype}: call x.to(torch.get_default_dtype()).")

    def sample_prior(self, n: int) -> torch.Tensor:
        """``n`` draws from the prior on the flat space, ``(n, D)``, from Pyro's global generator.

        Raises:
            ValueError: If the prior is improper, or the density is a function without ``sample_prior``.
        """
        if not self.has_prior:
            reason = self.layout.reasons.get("prior", "a plain function has no prior; pass sample_prior=")
            raise ValueError(f"The prior cannot be sampled: {reason}.")
        if self._sampler is not None:
            return self._sampler(n)
        dummy = torch.zeros(n, 1, dtype=torch.get_default_dtype())
        with torch.no_grad():
            return self._map("draw", dummy, randomness="different")

    def initial_points(self, n: int) -> torch.Tensor:
        """``n`` over-dispersed points ``(n, D)`` of finite density: prior draws, else uniform on (-2, 2).

        Raises:
            ValueError: If no point of finite density is found.
        """
        found = torch.empty(0, self.dim, dtype=torch.get_default_dtype())
        tries = max(n, 20)
        for attempt in range(20):
            # Ten rounds from the prior; a prior that never meets the data is then left for a small box.
            if self.has_prior and attempt < 10:
                points = self.sample_prior(tries)
            else:
                points = torch.empty(tries, self.dim, dtype=found.dtype).uniform_(-2, 2) * 0.8 ** max(attempt - 10, 0)
            points = points[torch.isfinite(points).all(-1)]
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore", UserWarning)
                finite = torch.isfinite(self(points))
            found = torch.cat([found, points[finite].to(found.dtype)])
            if len(found) >= n:
                return found[:n]
        if len(found) == 0:
            where = (
                f"the data against the supports of the observed sites {sorted(self.observed)}"
                if self.observed
                else "where it is finite: no data are observed, so a prior, a factor or the function itself is at fault"
            )
            raise ValueError(
                f"The log density is -inf or NaN at all {20 * tries} starting points tried. Check {where}, or pass "
                "starting points of your own."
            )
        return found[torch.arange(n) % len(found)]

    def log_prior(self, x: torch.Tensor) -> torch.Tensor:
        """Log prior of the continuous sites on the flat space, Jacobian included, ``(N, D) -> (N,)``.

        ``pyro.factor`` terms and summed-out discrete sites belong to the likelihood.
        """
        self._check(x)
        if self.single is None:
            raise ValueError("A density from a plain function has no prior: build LogDensity from a model.")
        with torch.no_grad():
            values = self._map("log_prior", x)
        return torch.where(torch.isfinite(values), values, -torch.inf)

    def log_prior_terms(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Log prior of each latent site on its constrained space, without the Jacobian, each ``(N,)``.

        Raises:
            NotImplementedError: Discrete sites are summed out, so that sites have no term of their own.
        """
        self._check(x)
        if self.single is None:
            return {}
        if self.layout.enumerated:
            raise NotImplementedError("discrete sites are summed out, so a site has no log prior of its own")
        with torch.no_grad():
            return self._map("log_prior_terms", x)

    def condition(self, sites: str | Sequence[str], x: torch.Tensor) -> ConditionalDensity:
        """The density of the other sites while ``sites`` are held at their values in ``x``.

        Args:
            sites: Names of the latent sites to hold.
            x: Points on the flat unconstrained space, ``(D,)`` or one per row, ``(N, D)``.

        Raises:
            ValueError: A name that is no latent site, or nothing left to move.
        """
        return ConditionalDensity(self, sites, x)

    def log_likelihood(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Pointwise log likelihood of each observed site, ``(N, *batch shape of the site)``, masks and scales applied.

        Sites whose observations share a summed-out discrete site have none and are left out (see ``notes``).
        """
        self._check(x)
        if self.single is None or not self.observed:
            return {}
        with torch.no_grad():
            return self._map("log_likelihood", x)


__all__ = ["LogDensity", "Site"]
