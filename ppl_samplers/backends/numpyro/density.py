"""The log joint density of a NumPyro model on its flat unconstrained space, batched and safe to train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ppl_samplers.backends.conditional import ConditionalDensity
from ppl_samplers.backends.numpyro import programs
from ppl_samplers.backends.numpyro.compiled import CompiledDensity, one_key
from ppl_samplers.backends.numpyro.discovery import discover
from ppl_samplers.backends.numpyro.starting import initial_points

Array = jax.Array


class LogDensity(CompiledDensity):
    """Log joint density of a NumPyro model on the flat unconstrained space, ``(N, D) -> (N,)``, Jacobian included.

    The model is run once to find its space and to refuse, with the site's name and a remedy, what an engine cannot
    sample. Latent sites lie in the flat vector in trace order, as in NumPyro's ``AutoContinuous`` guides and not in the
    alphabetical order of ``ravel_pytree``; ``space`` holds the slices. Discrete latent sites are summed out (funsor);
    ``param`` and ``mutable`` sites are frozen at their initial values with a warning. Numbers are float32, or float64
    under ``jax_enable_x64``.

    A circular site (``VonMises``) is sampled through a logit of the interval (-pi, pi), so that one mode near +-pi
    becomes two with nothing between them. ``CircularReparam`` (``numpyro.handlers.reparam``) joins them, on a line
    where the density repeats without end: its evidence is undefined.

    Args:
        model: NumPyro model.
        model_args: Positional arguments of the model.
        model_kwargs: Keyword arguments of the model.
        batch_size: Points evaluated at once, for models with a large likelihood; ``None`` for all.
        key: PRNG key of the run that finds the space; it matters only where ``param`` sites have random initial values.

    Attributes:
        dim: Number of unconstrained dimensions, ``D``.
        space: Latent sites in trace order.
        evidence_kind: ``"absolute"`` (the normaliser is the marginal likelihood), ``"relative"`` (up to a constant, or
            of a part of the data) or ``"undefined"`` (improper prior).
        evidence_reason: The same in words.
        has_prior: Whether the prior can be sampled.
        prior_reason: Why it cannot, in words; empty if it can.
        notes: Sentences for the user.

    Raises:
        ValueError: The model cannot be sampled; the message names the site and says what to write instead.
        RuntimeError: A discrete latent site has no enumeration support.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from jax import random
        >>> def model(y):
        ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        ...     numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> density = LogDensity(model, (jnp.array([0.3, -1.2]),))
        >>> density(density.initial_points(random.key(0), 5)).shape
        (5,)
    """

    # A black box has none.
    has_gradient = True

    def __init__(
        self,
        model: Callable,
        model_args: tuple = (),
        model_kwargs: Mapping[str, Any] | None = None,
        *,
        batch_size: int | None = None,
        key: Array | None = None,
    ):
        args, kwargs = tuple(model_args), dict(model_kwargs or {})
        self.model = model
        structure = discover(model, args, kwargs, random.key(0) if key is None else one_key(key))
        self._structure = structure
        self._setup(structure.space, batch_size)
        self.evidence_kind, self.evidence_reason = structure.evidence_kind, structure.evidence_reason
        self.prior_reason, self.notes = structure.prior_reason, structure.notes
        self.model_args, self.model_kwargs = args, kwargs
        self._traced = True
        self._arguments = self._take_apart(args, kwargs)
        self._check_traceable()

    @staticmethod
    def from_callable(
        fn: Callable,
        dim: int,
        *,
        batched: bool = True,
        sample_prior: Callable | None = None,
        names: str | tuple[str, ...] | None = None,
        batch_size: int | None = None,
        gradient: bool = True,
    ) -> LogDensity:
        """Density of a JAX function instead of a model.

        Args:
            fn: Log density up to a constant, ``(N, D) -> (N,)``, or ``(D,) -> ()`` with ``batched=False``. Rows must
                not depend on each other.
            dim: Number of dimensions, ``D``.
            batched: Which of the two ``fn`` is.
            sample_prior: ``(key, n) -> (n, D)``: over-dispersed draws to start from.
            names: One name for the whole vector (default ``"x"``) or ``D`` names of scalar sites.
            batch_size: Points evaluated at once; ``None`` for all.
            gradient: ``False`` for a black box: ``fn`` is called with NumPy arrays ``(N, D)`` of float64 and returns
                ``(N,)``; only engines that need no gradient take it.

        Raises:
            ValueError: ``fn`` returns a wrong shape or cannot be traced by JAX.
        """
        from ppl_samplers.backends.numpyro.callable import CallableDensity

        options = {"sample_prior": sample_prior, "names": names, "batch_size": batch_size, "gradient": gradient}
        return CallableDensity(fn, dim, batched=batched, **options)

    def bind(self, *args: Any, **kwargs: Any) -> LogDensity:
        """The same density with other model arguments; cheap, and legal under ``jit`` with traced arguments.

        The space, the supports' structure and the checks are those of the first arguments: latent shapes must stay.
        """
        return self._fresh(args, kwargs)

    def __call__(self, x: Any) -> Array:
        """Log density at points ``x``, ``(N, D) -> (N,)``; NaN and ``+inf`` become ``-inf``.

        Differentiable once, in reverse mode and with respect to ``x`` only; gradients are 0 where the value or the
        gradient is not finite. For second derivatives use :meth:`raw`.
        """
        return self._call("value", self._points(x))

    def raw(self, x: Any) -> Array:
        """Log density as the model gives it, ``(N, D) -> (N,)``: NaN stay, and any derivative may be taken."""
        return self._call("raw", self._points(x))

    def value_and_grad(self, x: Any) -> tuple[Array, Array]:
        """Log density ``(N,)`` and its gradient ``(N, D)``, cleaned as in :meth:`__call__`."""
        return self._call("value_and_grad", self._points(x))

    def ravel(self, values: Mapping[str, Any]) -> Array:
        """Unconstrained dict, each site with the same leading shape -> ``(..., D)``."""
        return programs.ravel(self.space, values)

    def unravel(self, x: Any) -> dict[str, Array]:
        """``(..., D)`` -> unconstrained dict."""
        return programs.unravel(self.space, self._points(x, any_lead=True))

    def constrain(self, x: Any, deterministic: bool = True) -> dict[str, Array]:
        """Values of the latent sites, and of the deterministic sites, at points ``x`` ``(..., D)``.

        The model is replayed only for deterministic sites and for supports that depend on other sites or on data.
        """
        x = self._points(x, any_lead=True)
        lead, rows = x.shape[:-1], x.reshape(-1, self.dim)
        out = self._call("constrain_all" if deterministic else "constrain", rows)
        return {k: out[k].reshape(lead + out[k].shape[1:]) for k in self._order if k in out}

    def unconstrain(self, values: Mapping[str, Any]) -> Array:
        """Constrained dict (other names are ignored) -> ``(..., D)``."""
        missing = [s.name for s in self.space if s.name not in values]
        if missing:
            raise KeyError(f"no value for site {missing[0]!r}; the latent sites are {[s.name for s in self.space]}")
        arrays = {s.name: jnp.asarray(values[s.name], self.dtype) for s in self.space}
        leads = [arrays[s.name].shape[: arrays[s.name].ndim - len(s.constrained_shape)] for s in self.space]
        lead = jnp.broadcast_shapes(*leads)
        n = int(np.prod(lead))
        rows = {
            s.name: jnp.broadcast_to(arrays[s.name], lead + s.constrained_shape).reshape((n, *s.constrained_shape))
            for s in self.space
        }
        return self._call("unconstrain", rows).reshape((*lead, self.dim))

    @property
    def dtype(self) -> Any:
        """Floating-point type of points and densities, by ``jax_enable_x64``."""
        return jnp.result_type(float)

    @property
    def has_prior(self) -> bool:
        """Whether the prior can be sampled."""
        return not self.prior_reason

    @property
    def observed(self) -> dict[str, Array]:
        """Observed sites, name -> array."""
        return programs.observed(self._structure, self.model_args, self.model_kwargs)

    def sample_prior(self, key: Array, n: int) -> Array:
        """``n`` prior draws on the unconstrained space, ``(n, D)``.

        Raises:
            ValueError: There is no proper prior; the message says why.
        """
        if not self.has_prior:
            raise ValueError(f"the prior cannot be sampled: {self.prior_reason}; give it a proper distribution")
        return self._call("prior", random.split(one_key(key), n))

    def initial_points(self, key: Array, n: int) -> Array:
        """``n`` over-dispersed starting points ``(n, D)`` with a finite density.

        Prior draws where the prior is proper, otherwise uniform on (-2, 2); points without a finite density are drawn
        again a few times, and at last replaced by copies of good ones.

        Raises:
            ValueError: No point with a finite density was found; the message names the sites to blame. (Under ``jit``
                the points are returned as they are.)
        """
        return initial_points(self, one_key(key), n)

    def log_prior(self, x: Any) -> Array:
        """Log density of the latent sites alone, Jacobian included, ``(N, D) -> (N,)``.

        ``log_prior + sum of log_likelihood + log_factor`` is the density, unless discrete sites are summed out.
        """
        return self._call("log_prior", self._points(x))

    def log_prior_terms(self, x: Any) -> dict[str, Array]:
        """Log prior of each latent site on its constrained space, without the Jacobian, each ``(N,)``.

        Raises:
            NotImplementedError: Discrete sites are summed out, so that sites have no term of their own.
        """
        return self._terms(x, "prior_terms")

    def log_likelihood(self, x: Any) -> dict[str, Array]:
        """Pointwise log likelihood of each observed site, ``(N, *batch shape of the site)``.

        Masked entries are 0 and scaled ones are multiplied by their scale, so that the sums are terms of the density.

        Raises:
            NotImplementedError: Discrete sites are summed out, so that observations have no term of their own.
        """
        terms = self._terms(x)
        return {k: terms[k] for k in self._structure.observed}

    def log_factor(self, x: Any) -> Array:
        """Sum of all ``numpyro.factor`` terms, ``(N, D) -> (N,)``."""
        x = self._points(x)
        if not self._structure.factors:
            return jnp.zeros(x.shape[0], x.dtype)
        terms = self._terms(x)
        return sum(jnp.sum(terms[k].reshape(x.shape[0], -1), -1) for k in self._structure.factors)

    def condition(self, sites: str | Sequence[str], x: Any) -> ConditionalDensity:
        """The density of the other sites while ``sites`` are held at their values in ``x``.

        Args:
            sites: Names of the latent sites to hold.
            x: Points on the flat unconstrained space, ``(D,)`` or one per row, ``(N, D)``; may be traced.

        Raises:
            ValueError: A name that is no latent site, or nothing left to move.
        """
        return ConditionalDensity(self, sites, self._points(x, any_lead=True))

    def precision_note(self, x: Any, tolerance: float = 0.02) -> str | None:
        """A sentence if float32 changes the log density at points ``x`` by more than ``tolerance``, else ``None``."""
        from ppl_samplers.backends.numpyro.precision import precision_note

        return precision_note(self, x, tolerance)

    def _terms(self, x: Any, which: str = "site_terms") -> dict[str, Array]:
        if self._structure.enum:
            raise NotImplementedError(
                "discrete sites are summed out, so a site has no log likelihood or prior of its own; draw the discrete "
                "sites first with numpyro.infer.Predictive(model, samples, infer_discrete=True)"
            )
        return self._call(which, self._points(x))
