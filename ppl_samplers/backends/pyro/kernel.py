"""A trained transport as a Pyro MCMC kernel: it trains in warm-up, and is exact and frozen afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from ppl_samplers.backends.pyro.density import LogDensity
from ppl_samplers.backends.pyro.ensemble import Ensemble, Options
from ppl_samplers.backends.pyro.results import KernelResults, stacked
from ppl_samplers.backends.pyro.trained import Trained
from ppl_samplers.backends.settings import Probe, check_kernel, parse_correction, warn_undefined, without_gradient
from ppl_samplers.backends.torch.moves import HMC

_UNTRAINED = (
    "warmup_steps=0, but this kernel is not trained: ask for training units (warmup_steps=40 is a good start), or pass "
    "trained=kernel.fit(...)"
)


class TransportKernel(KernelResults, MCMCKernel):
    """Kernel over any transport: knows its contract and nothing of what it is made of.

    Works in Pyro's own ``MCMC`` with one chain or with sequential chains (trained once), and holds many chains in one
    tensor in :class:`ppl_samplers.pyro.MCMC`.

    Args:
        model: Pyro model, or a :class:`LogDensity`.
        log_density: A :class:`LogDensity`, in place of a model.
        transport: Settings of the engines.
        num_engines: Independently trained engines; two or more let R-hat see a mode that one of them missed.
        correction: ``"imh"``, ``"isir"``, or :class:`IMH`, :class:`ISIR` with settings.
        local_move: :class:`HMC` between the global moves, or ``None``.
        local_every: Iterations from one local move to the next.
        block: Iterations whose proposals are drawn at once.
        num_reseat: Proposals per engine that place the chains when training ends.
        probe: Independent check for missed modes, or ``None``.
        trained: Result of :meth:`fit`: no training with ``warmup_steps=0``, fine-tuning otherwise.

    Raises:
        ValueError: For options that contradict each other.
    """

    name = "TransportKernel"
    # Whether the transport trains on gradients of the density.
    needs_gradient = True

    def __init__(
        self,
        model: Callable[..., Any] | LogDensity | None = None,
        *,
        log_density: Any = None,
        transport: Any,
        num_engines: int = 2,
        correction: Any = "imh",
        local_move: HMC | None = HMC(),  # noqa: B008 - frozen settings
        local_every: int = 5,
        block: int = 64,
        num_reseat: int = 1024,
        probe: Probe | None = Probe(),  # noqa: B008
        trained: Trained | None = None,
    ):
        if isinstance(model, LogDensity):
            model, log_density = None, model
        numbers = {"num_engines": num_engines, "local_every": local_every, "block": block, "num_reseat": num_reseat}
        check_kernel(self.name, "Pyro", model, log_density, trained, numbers)
        if without_gradient(self.name, self.needs_gradient, log_density):
            local_move = probe = None
        if num_reseat < 4:
            raise ValueError(f"{self.name}: num_reseat={num_reseat}; write 4 or more (1024 by default)")
        self.model = model
        self.transport = transport if trained is None else trained.transport
        self.options = Options(
            num_engines, parse_correction(correction), local_move, local_every, block, num_reseat, probe
        )
        self.num_chains = 1
        self.transforms: dict[str, Any] | None = None
        self._given, self._pretrained = log_density, trained
        self._start: dict[str, Tensor] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what was trained and drawn (a pre-trained engine that was handed over stays)."""
        self.density: Any = self._given
        self.ensemble: Ensemble | None = None
        self.warmup_steps, self._step = 0, 0
        self.seconds = {"train_seconds": 0.0, "sample_seconds": 0.0}
        self._arguments: dict[Any, tuple] | None = None
        self._frozen: list[Any] | None = None
        self._finished: list[dict[str, Tensor]] = []
        self._clear_chain()

    def _clear_chain(self) -> None:
        self._block: tuple[Tensor, dict[str, Tensor]] | None = None
        self._cursor = 0
        self._drawn: dict[str, list[Tensor]] = {}
        self._diverging: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        """Settings only: a worker process builds its own density and trains its own engines."""
        kept = ("model", "transport", "options", "num_chains", "_given", "_pretrained", "_start")
        return {name: self.__dict__[name] for name in kept} | {"save_params": self.__dict__.get("save_params")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        names = state.pop("save_params")
        self.__dict__.update(state)
        if names is not None:
            self.save_params = names
        self.transforms = None
        self.reset()

    # -- Pyro's contract ----------------------------------------------------------------------------------------------

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Build the density and place the chains; training is left to the warm-up iterations.

        Engines that were trained on these very arguments are kept, so that sequential chains train once.
        """
        arguments = _fingerprint(args, kwargs)
        known = self.ensemble is not None and self._arguments == arguments
        earlier = self.ensemble if known and self._frozen is not None else None
        if not known:
            start, self._start = self._start, None
            self.reset()
            self._start = start
        if self._given is not None and (args or kwargs):
            self.density = self._given.bind(*args, **kwargs)
        elif self.density is None:
            self.density = LogDensity(self.model, args, kwargs)
            warn_undefined(self.density)
        self.density.warn_invalid = False
        if self._pretrained is not None:
            self._pretrained.check(self.density)
        self._arguments = arguments
        self._clear_chain()
        self.warmup_steps, self._step = warmup_steps, 0
        states = self._frozen if earlier is not None else None
        if earlier is None and self._pretrained is not None:
            states = self._pretrained.states
        initial = None if self._start is None else self._stacked(self._start)
        units = 0 if earlier is not None else warmup_steps
        self.ensemble = Ensemble(self.density, self.transport, self.options, self.num_chains, units, initial, states)
        if earlier is not None:
            self.ensemble.continue_from(earlier)
        self.transforms = self._make_transforms()

    def _stacked(self, values: dict[str, Tensor]) -> Tensor:
        flat = self.density.ravel(values)
        return flat.reshape(-1, self.density.dim)

    def _make_transforms(self) -> dict[str, Any]:
        layout = getattr(self.density, "layout", None)
        if layout is None or not layout.transforms:
            return {}
        moving = set(layout.dynamic)
        return {
            name: _Moving(name) if name in moving else transform.inv for name, transform in layout.transforms.items()
        }

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """Unconstrained start values by site; with a leading chain dimension where several chains share a tensor."""
        if self.ensemble is None:
            if self._start is None:
                raise ValueError("initial_params are known after setup(warmup_steps, *model_args)")
            return self._start
        return self._unravel(self.ensemble.start())

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor] | None) -> None:
        self._start = None if params is None else {name: torch.as_tensor(value) for name, value in params.items()}
        if self.ensemble is not None and self._start is not None:
            self.ensemble.initial, self.ensemble.x = self._stacked(self._start), None

    def _unravel(self, x: Tensor) -> dict[str, Tensor]:
        return self.density.unravel(x if self.num_chains > 1 else x[0])

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """One iteration: a unit of training in warm-up (the points stay), an exact transition afterwards."""
        self._step += 1
        if self._step <= self.warmup_steps:
            self.train_unit()
            return {name: value.detach() for name, value in params.items()}
        if self._block is None or self._cursor >= self._block[0].shape[1]:
            self._block, self._cursor = self.draw_block(self.options.block), 0
        points, stats = self._block
        for name, value in stats.items():
            self._drawn.setdefault(name, []).append(value[:, self._cursor])
        self._drawn.setdefault("unconstrained", []).append(points[:, self._cursor])
        out = self._unravel(points[:, self._cursor])
        if not bool(torch.isfinite(stats["prop_log_weight"][:, self._cursor]).all()):
            self._diverging.append(self._step - self.warmup_steps - 1)
        self._cursor += 1
        return out

    def train_unit(self) -> None:
        """One unit of training of all engines; nothing where the engines of an earlier chain were kept."""
        if self._frozen is not None:
            return
        began = time.perf_counter()
        self.ensemble.train_unit()
        self.seconds["train_seconds"] += time.perf_counter() - began

    def draw_block(self, n: int) -> tuple[Tensor, dict[str, Tensor]]:
        """``n`` exact transitions of all chains: points ``(C, n, D)`` and statistics ``(C, n)``.

        Raises:
            ValueError: If there is no trained engine.
        """
        if self.ensemble is None or self.ensemble.states is None:
            raise ValueError(f"{self.name}: {_UNTRAINED}")
        began = time.perf_counter()
        self._frozen = self.ensemble.states
        block = self.ensemble.advance(n)
        self.seconds["sample_seconds"] += time.perf_counter() - began
        return block

    def cleanup(self) -> None:
        """Close the current chain. Idempotent; keeps the trained engines, the statistics and ``transforms``."""
        if self._drawn:
            self._finished.append(stacked(self._drawn))
        self._clear_chain()


class _Moving:
    """The transform of a site whose support depends on another site: not a function of the site alone."""

    def __init__(self, name: str):
        self.name = name

    def inv(self, value: Tensor) -> Tensor:
        """Refuse, and say what to use."""
        raise ValueError(
            f"the support of site '{self.name}' depends on another latent site, and pyro.infer.MCMC maps sites one "
            "by one: use ppl_samplers.pyro.MCMC, which maps them together"
        )


def _fingerprint(args: tuple, kwargs: dict) -> dict[Any, tuple]:
    """What tells one set of model arguments from another; holds on to the objects, so that no address is reused."""
    out = {}
    for key, value in [*enumerate(args), *kwargs.items()]:
        if isinstance(value, Tensor):
            # The version counter is shared by detached copies, and rises with every change in place.
            out[key] = (value.data_ptr(), value.shape, value.stride(), value.dtype, value._version, _Held(value))
        elif isinstance(value, bool | int | float | str | None):
            out[key] = (type(value), value)
        else:
            out[key] = (id(value), _Held(value))
    return out


class _Held:
    """Keeps an object alive and is equal to any other of its kind."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    __hash__ = None


__all__ = ["TransportKernel"]
