"""One NumPyro MCMC kernel for every trained transport: train, reseat, freeze, correct exactly, stream the evidence."""

from __future__ import annotations

import sys
import warnings
from collections import namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer.mcmc import MCMC, MCMCKernel
from numpyro.util import identity, is_prng_key

from ppl_samplers.backends.jax.moves import HMC
from ppl_samplers.backends.jax.training import when
from ppl_samplers.backends.numpyro import sampling
from ppl_samplers.backends.numpyro.compiled import one_key
from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.backends.settings import Probe, check_kernel, parse_correction, warn_undefined, without_gradient

Array = jax.Array
HISTORY = 256

EngineState = namedtuple(
    "EngineState",
    [
        "i", "num_warmup", "keep_start", "z", "potential_energy", "log_weight", "prop_log_weight", "accept_prob",
        "accepted", "mean_accept_prob", "engine_id", "train_loss", "num_evals", "history", "evidence_sums",
        "fresh_log_weights", "probe_log_weights", "probe_log_density", "probe_start", "starts", "move", "blocks",
        "engines", "work", "rng_key",
    ],
)  # fmt: skip
EngineState.__doc__ = """State of the kernel. The first axis of everything from ``z`` to ``num_evals`` is the chain
(absent for a single chain); the rest is shared: ``history`` (training curves, ``(R, 256)``), ``evidence_sums``
``(R, 3)``, ``fresh_log_weights`` ``(R, F)``, ``blocks`` (the proposals in store) and ``engines`` (stacked states)."""


_MOVE, _PROBE = HMC(), Probe()


def _num_chains(obj: Any) -> int:
    return obj.num_chains if isinstance(obj, MCMC) else 0


class TransportKernel(MCMCKernel):
    """NumPyro kernel around a transport and a local move.

    The warm-up trains ``num_engines`` engines, one unit per iteration. When it ends, the chains are set down on points
    drawn by their importance weights, and from then on everything is frozen: each iteration is one exact step from
    fresh proposals, every ``local_every`` iterations also a local step. In ``chain_method="vectorized"`` all chains
    share the engines; in the other modes every chain trains its own.

    Args:
        model: NumPyro model.
        log_density: A ``LogDensity`` in place of a model.
        transport: Settings of the transport, see the architecture page.
        num_engines: Engines trained independently of each other.
        correction: ``"imh"``, ``"isir"``, :class:`IMH` or :class:`ISIR`.
        local_move: Local move, or ``None`` to leave it out.
        local_every: Iterations between local steps.
        block: Iterations for which proposals are drawn at once.
        num_reseat: Fresh proposals per engine at the end of the training.
        probe: :class:`Probe`, or ``None`` to leave it out.
        trained: A ``Trained`` from :meth:`fit`: no training with ``num_warmup=0``, else fine-tuning.
    """

    # Whether the transport trains on gradients of the density.
    needs_gradient = True

    def __init__(
        self,
        model: Callable | None = None,
        *,
        log_density: LogDensity | None = None,
        transport: Any,
        num_engines: int = 2,
        correction: Any = "imh",
        local_move: Any = _MOVE,
        local_every: int = 5,
        block: int = 64,
        num_reseat: int = 1024,
        probe: Probe | None = _PROBE,
        trained: Any = None,
    ):
        if isinstance(model, LogDensity):
            model, log_density = None, model
        numbers = {"num_engines": num_engines, "local_every": local_every, "block": block, "num_reseat": num_reseat}
        check_kernel(self.name, "NumPyro", model, log_density, trained, numbers)
        if without_gradient(self.name, self.needs_gradient, log_density):
            local_move = probe = None
        if trained is not None and trained.num_engines != num_engines:
            num_engines = trained.num_engines
        self._model, self._density, self._given = model, log_density, log_density
        # Trained engines bring the settings they were trained with; others would misread their arrays.
        self.transport = transport if trained is None else trained.transport
        self.num_engines = num_engines
        self.correction = parse_correction(correction)
        self.local_move, self.local_every, self.block = local_move, local_every, block
        self.num_reseat, self.probe, self.trained = num_reseat, probe, trained
        self._batched: bool | None = None
        self._sample_fn: Any = None
        self._programs: dict = {}
        self._warned = False

    @property
    def name(self) -> str:
        """Registered name of the engine."""
        return type(self).__name__

    # --- NumPyro's contract ---

    sample_field = "z"
    default_fields = (
        "z", "potential_energy", "accept_prob", "accepted", "log_weight", "prop_log_weight", "engine_id", "num_evals"
    )  # fmt: skip

    @property
    def model(self) -> Callable | None:
        """The NumPyro model; ``None`` for a density from a callable."""
        return self._model

    @property
    def is_ensemble_kernel(self) -> bool:
        """Whether chains share one state; with a single chain they do not."""
        return self._batched is not False

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None):
        """State before the first iteration; called by NumPyro on every run."""
        kwargs = dict(model_kwargs or {})
        num_chains = None if is_prng_key(rng_key) else rng_key.shape[0]
        self._batched = num_chains is not None
        self._warn_separate(rng_key)
        key = one_key(rng_key)
        if isinstance(key, jax.core.Tracer) and getattr(self.transport, "calls_host", False) and _many_cpus():
            raise ValueError(
                f"{self.name} computes a part of its training outside of JAX, which cannot run on several CPU devices "
                'at once: write MCMC(..., chain_method="vectorized")'
            )
        density = self.density(model_args, kwargs)
        initial = None
        if init_params is not None:
            initial = jnp.atleast_2d(density.ravel(init_params)).astype(jnp.result_type(float))
        if self.trained is not None and self.trained.density.space != density.space:
            raise ValueError("trained= was fitted on a model with other latent sites or shapes; fit it with this model")
        self._check_density(density)
        data, name = self._arguments(density)
        units = int(num_warmup) if not hasattr(num_warmup, "aval") else num_warmup
        if self.trained is None and isinstance(units, int) and units < 1:
            raise ValueError(
                f"num_warmup=0, but this {self.name} is not trained: ask for training units (num_warmup=40 is a good "
                "start), or pass trained=engine.fit(key, ...)"
            )
        fixed = ("init", name, num_chains, units > 0)

        def build(key: Array, data: tuple, initial: Array | None, states: Any, warmup: Array) -> EngineState:
            return sampling.begin(self, self._rebound(density, data), key, warmup, num_chains, initial, states)

        states = None
        if self.trained is not None:
            states = self.trained.states
            if units > 0:
                states = self.transport.restart(states, units)
        state = self._program(fixed, build)(key, data, initial, states, jnp.asarray(units, jnp.int32))
        if initial is None and not isinstance(state.starts, jax.core.Tracer) and int(state.starts) == 0:
            # Outside of `jit` the same call finds the terms to blame and raises.
            density.initial_points(key, 64)
        self._sample_fn = True
        return state

    def sample(self, state, model_args, model_kwargs):
        """One iteration: a training unit in the warm-up, an exact step of every chain afterwards."""
        density = self.bound(model_args, model_kwargs)
        key, move_key = random.split(state.rng_key)
        state = state._replace(rng_key=key)
        state = when(state.i < state.num_warmup, lambda s: sampling.train(self, s, density), state)
        state = when(state.i >= state.num_warmup, lambda s: sampling.advance(self, s, density, move_key), state)
        return state._replace(i=state.i + 1)

    def postprocess_fn(self, model_args, model_kwargs):
        """Function from one unconstrained draw to the values of the model's sites."""
        if self._density is None:
            return identity
        density = self.bound(model_args, model_kwargs)
        return lambda z: density.constrain(density.ravel(z))

    def get_diagnostics_str(self, state) -> str:
        """Text beside the progress bar: training loss and ESS, then acceptance."""
        if int(state.i) <= int(state.num_warmup):
            ess = state.engines.metrics.get("ess") if hasattr(state.engines, "metrics") else None
            text = f"training, loss {float(np.mean(state.engines.loss)):.4g}"
            return text if ess is None else text + f", ESS {float(np.mean(ess)):.0%}"
        return f"acc. prob {float(np.mean(state.mean_accept_prob)):.2f}"

    # --- used by fit and the record ---

    def density(self, args: tuple = (), kwargs: Any = None) -> LogDensity:
        """The density of the model at these arguments; its space is discovered anew."""
        if self._given is not None:
            self._density = self._given
            return self.bound(args, kwargs)
        # chain_method="parallel" calls this while it is traced; what is kept must not belong to that trace.
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        with nullcontext() if traced else jax.ensure_compile_time_eval():
            density, earlier = LogDensity(self._model, args, kwargs), self._density
        name = self._arguments(density)[1]
        if earlier is not None and name is not None and name == self._arguments(earlier)[1]:
            # Data are inputs of the compiled programs; all else is equal.
            density._shared = earlier._shared
        self._density = density
        return density

    def bound(self, args: tuple = (), kwargs: Any = None) -> LogDensity:
        """The density found last, at these arguments; a given one without arguments stays at its own."""
        if self._given is not None and not args and not kwargs:
            return self._given
        return self._density.bind(*args, **(kwargs or {}))

    def fit(self, key: Array, *args: Any, **options: Any) -> Any:
        """Train without sampling: see :func:`ppl_samplers.backends.numpyro.trained.fit`."""
        from ppl_samplers.backends.numpyro.trained import fit

        return fit(self, key, args, **options)

    def _check_density(self, density: LogDensity) -> None:
        """Warn of an evidence that does not exist; let the transport refuse what it can only judge outside ``jit``."""
        warn_undefined(density)
        check = getattr(self.transport, "check", None)
        if check is not None and self.trained is None:
            check(density)

    def _arguments(self, density: LogDensity) -> tuple[tuple, Any]:
        """Arrays among the model's arguments, and a hashable name for everything else (``None`` if there is none)."""
        arguments = density._arguments
        # Slices do not hash before Python 3.12.
        space = tuple((site.name, site.unconstrained_shape, site.constrained_shape) for site in density.space)
        return arguments.data, None if arguments.key is None else (space, arguments.key)

    def _rebound(self, density: LogDensity, data: tuple) -> LogDensity:
        args, kwargs = density._arguments.rebuild(data)
        return density.bind(*args, **kwargs)

    def _program(self, name: tuple, fn: Callable) -> Callable:
        """Compiled ``fn``, made once per ``name``: data are inputs, so that new data of the same shapes reuse it."""
        if name[1] is None and self._given is None:
            return jax.jit(fn)
        if name not in self._programs:
            self._programs[name] = jax.jit(fn)
        return self._programs[name]

    def _warn_separate(self, key: Any) -> None:
        if self._batched or self._warned:
            return
        chains = 0
        if isinstance(key, jax.core.Tracer):
            chains = 2
        else:
            # Only the MCMC object knows how many chains will follow, and it does not tell its kernel.
            frame = sys._getframe(2)
            for _ in range(12):
                if frame is None:
                    break
                chains = max(chains, _num_chains(frame.f_locals.get("self")))
                frame = frame.f_back
        if chains > 1:
            self._warned = True
            warnings.warn(
                "with this chain_method every chain trains engines of its own; to train once for all chains, write "
                'MCMC(..., chain_method="vectorized")',
                UserWarning,
                stacklevel=3,
            )

    def __getstate__(self) -> dict:
        # Compiled programs do not pickle; they are made again when needed.
        return {**self.__dict__, "_programs": {}, "_sample_fn": None}


def _many_cpus() -> bool:
    return jax.default_backend() == "cpu" and jax.local_device_count() > 1
