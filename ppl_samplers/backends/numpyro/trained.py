"""Training without sampling: ``fit``, and the trained engines it gives (draws, evidence, files)."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from tqdm import tqdm

from ppl_samplers.backends import files
from ppl_samplers.backends.jax.training import when
from ppl_samplers.backends.numpyro import sampling
from ppl_samplers.core import evidence, resampling

Array = jax.Array


def fit(
    kernel: Any,
    key: Array,
    args: tuple = (),
    *,
    num_warmup: int = 40,
    init_params: Any = None,
    progress: bool = True,
    checkpoint: str | os.PathLike | None = None,
    every: int = 10,
    **model_kwargs: Any,
) -> Trained:
    """Train the engines of ``kernel`` and keep them, interruptible at any unit; with ``trained=``, train those further.

    Args:
        kernel: A transport kernel, for example ``BoltzmannGenerator(model)``.
        key: PRNG key.
        args: Positional arguments of the model.
        num_warmup: Training units.
        init_params: Unconstrained starting points, a dict with a leading axis; they seed the pilot run.
        progress: Whether to show a bar with loss, ESS and log evidence.
        checkpoint: File to save to every ``every`` units and at the end.
        every: Units between two checkpoints.
        **model_kwargs: Keyword arguments of the model.

    Returns:
        The trained engines; after an interruption (Ctrl-C), what was trained until then.
    """
    began = time.perf_counter()
    density = kernel.density(args, model_kwargs)
    kernel._check_density(density)
    data, name = kernel._arguments(density)
    initial = None if init_params is None else jnp.atleast_2d(density.ravel(init_params))

    def start(key: Array, data: tuple, initial: Array | None, units: Array) -> Any:
        return sampling.init_engines(kernel, kernel._rebound(density, data), key, units, initial)

    def unit(states: Any, data: tuple) -> Any:
        bound = kernel._rebound(density, data)
        return lax.map(lambda s: when(~s.done, lambda t: kernel.transport.train_step(t, bound), s), states)

    if kernel.trained is None:
        states = kernel._program(("fit-init", name), start)(key, data, initial, jnp.asarray(num_warmup, jnp.int32))
    else:
        states = kernel.transport.restart(kernel.trained.states, num_warmup)
    step = kernel._program(("fit-unit", name), unit)
    history: dict[str, list] = {}
    trained = Trained(kernel, density, states, {}, {})
    hidden = not progress or "CI" in os.environ
    with tqdm(total=num_warmup, desc=f"training {kernel.name}", disable=hidden, dynamic_ncols=True) as bar:
        try:
            for k in range(num_warmup):
                states = jax.block_until_ready(step(states, data))
                row = {c: np.asarray(getattr(states, c)) for c in sampling.CURVES} | jax.tree.map(
                    np.asarray, states.metrics
                )
                for curve, value in row.items():
                    history.setdefault(curve, []).append(value)
                trained.states = states
                bar.update()
                if not hidden:
                    bar.set_postfix(
                        {c: f"{np.nanmean(row[c]):.4g}" for c in ("loss", "ess", "log_evidence") if c in row}
                    )
                if checkpoint is not None and (k + 1) % every == 0:
                    trained.history = {c: np.stack(v, 1) for c, v in history.items()}
                    trained.save(checkpoint)
        except KeyboardInterrupt:
            done = len(next(iter(history.values()), ()))
            warnings.warn(
                f"interrupted after {done} of {num_warmup} training units; what was trained until then is kept "
                "and can be sampled exactly with trained=..., num_warmup=0",
                UserWarning,
                stacklevel=3,
            )
    trained.history = {c: np.stack(v, 1) for c, v in history.items()}
    trained.counts = {
        "train_seconds": time.perf_counter() - began,
        "num_energy_evaluations": int(np.sum(np.asarray(states.num_evals))),
        "num_skipped": int(np.sum(np.asarray(states.num_skipped))),
    }
    if checkpoint is not None:
        trained.save(checkpoint)
    return trained


class Trained:
    """Engines trained on one density; frozen. Pass them on by ``trained=`` with ``num_warmup=0``.

    Attributes:
        kernel: The kernel that trained them.
        density: The log density.
        states: Stacked states of the engines.
        history: Training curves, each ``(R, units)``.
        counts: Plain numbers such as ``train_seconds``.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax import random
        >>> from ppl_samplers.numpyro import Affine, BoltzmannGenerator, LogDensity
        >>> density = LogDensity.from_callable(lambda x: -0.5 * jnp.sum(x**2, -1), 2)
        >>> kernel = BoltzmannGenerator(log_density=density, flow=Affine(), num_engines=1)
        >>> x, log_w = kernel.fit(random.key(0), num_warmup=2, progress=False).propose(10)
        >>> x.shape, log_w.shape
        ((10, 2), (10,))
    """

    def __init__(self, kernel: Any, density: Any, states: Any, history: dict, counts: dict):
        self.kernel, self.density, self.states, self.history, self.counts = kernel, density, states, history, counts

    def __repr__(self) -> str:
        return f"Trained({self.kernel.name} in NumPyro, {self.num_engines} engines, {self.density.dim} dimensions)"

    @property
    def transport(self) -> Any:
        """Settings of the engines."""
        return self.kernel.transport

    @property
    def num_engines(self) -> int:
        """Number of engines, ``R``."""
        return jax.tree.leaves(self.states)[0].shape[0]

    def propose(self, n: int, key: Array | None = None) -> tuple[Array, Array]:
        """``n`` draws ``(n, D)``, the engines taking equal parts, with their exact log weights ``(n,)``."""
        share = -(-n // self.num_engines)
        x, log_w = self._propose(share, random.key(0) if key is None else key)
        # Cut from the end of each engine's part in turn, so that no engine is left out.
        order = np.arange(share * self.num_engines).reshape(self.num_engines, share).T.ravel()[:n]
        return x.reshape(-1, x.shape[-1])[order], log_w.reshape(-1)[order]

    def _propose(self, n: int, key: Array) -> tuple[Array, Array]:
        keys = random.split(key, self.num_engines)
        data, name = self.kernel._arguments(self.density)

        def draw(states: Any, keys: Array, data: tuple) -> tuple[Array, Array]:
            density = self.kernel._rebound(self.density, data)
            return lax.map(lambda a: self.transport.propose(a[0], a[1], density, n), (states, keys))

        return self.kernel._program(("propose", name, n), draw)(self.states, keys, data)

    def resampled(self, n: int, num_draws: int = 1000, key: Array | None = None) -> tuple[Array, Array, Array]:
        """``n`` proposals of every engine, resampled.

        Returns:
            Points ``(R, num_draws, D)``, their log weights ``(R, num_draws)``, and the log weights of all proposals,
            ``(R, n)``.
        """
        draw_key, u_key, order_key = random.split(random.key(0) if key is None else key, 3)
        x, log_w = self._propose(n, draw_key)
        points, kept = [], []
        for r in range(self.num_engines):
            index = resampling.systematic(log_w[r], random.uniform(random.fold_in(u_key, r), ()), num_draws)
            index = random.permutation(random.fold_in(order_key, r), index)
            points.append(x[r][index])
            kept.append(log_w[r][index])
        return jnp.stack(points), jnp.stack(kept), log_w

    @staticmethod
    def sums(log_w: np.ndarray) -> np.ndarray:
        """Evidence accumulator ``(3,)`` of log weights, in float64."""
        return np.asarray(evidence.sums_of(np.asarray(log_w, np.float64)))

    def record(self, num_proposals: int = 4096, num_draws: int = 1000, key: Array | None = None) -> Any:
        """A :class:`RunRecord` of importance-resampled draws, one "chain" per engine."""
        from ppl_samplers.backends.numpyro.record import record_of_trained

        return record_of_trained(self, num_proposals, num_draws, random.key(0) if key is None else key)

    def log_evidence(self, num_proposals: int = 4096, key: Array | None = None) -> Any:
        """The evidence with its error and verdict, from fresh proposals."""
        from ppl_samplers.diagnostics.evidence import evidence_from_record

        return evidence_from_record(self.record(num_proposals, num_draws=4, key=key))

    def guide(self, engine: int = 0, *, prefix: str = "auto") -> tuple[Any, dict[str, Any]]:
        """One engine's flow as a guide, with its parameters.

        For ``guide.sample_posterior(key, params, sample_shape=(n,))``, ``Predictive(model, guide=guide,
        params=params, ...)``, ``NeuTraReparam(guide, params)``, or ``SVI``, which goes on from there. The draws are the
        flow's own, without correction.

        Args:
            engine: Which of the engines.
            prefix: Of the guide's parameters.

        Raises:
            ValueError: There is no model or no flow to make a guide of.
        """
        from ppl_samplers.backends.numpyro.guide import AutoFlow

        files.check_guide(self.density.model, self.transport, engine, self.num_engines)
        guide = AutoFlow(self.density.model, flow=self.transport.flow, prefix=prefix)
        state = jax.tree.map(lambda leaf: leaf[engine], self.states)
        args, kwargs = self.density.model_args, self.density.model_kwargs
        params = guide.adopt(state.params, state.loc, state.scale_tril, args, kwargs)
        files.check_space(guide, self.density)
        return guide, params

    def save(self, path: str | os.PathLike) -> None:
        """Write all arrays and settings to ``path`` (``.npz``; no code, no pickle), replacing the file in one step."""
        leaves = [_plain(leaf) for leaf in jax.tree.leaves(self.states)]
        header = {
            "framework": "numpyro",
            "engine": self.kernel.name,
            "flow": files.flow_of(self.kernel),
            "num_engines": self.num_engines,
            "sites": _sites(self.density),
            "settings": repr(self.transport),
            "counts": self.counts,
        }
        arrays = {f"state:{i}": leaf for i, leaf in enumerate(leaves)}
        arrays |= {f"history:{k}": np.asarray(v) for k, v in self.history.items()}
        files.write(path, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike, engine: Any, *args: Any, **kwargs: Any) -> Trained:
        """Read what :meth:`save` wrote.

        Args:
            path: The file.
            engine: A kernel on the same model with the same settings, for example ``BoltzmannGenerator(model)``.
            *args: Arguments of the model.
            **kwargs: Keyword arguments of the model.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: If the file is of another engine, of other settings, or of a model with other sites.
        """
        header, arrays = files.read(path, engine, "numpyro")
        density = engine.density(args, kwargs)
        if _sites(density) != header["sites"]:
            raise ValueError(f"{path} was trained on sites {header['sites']}, this model has {_sites(density)}")
        wanted = jax.eval_shape(
            lambda k: sampling.init_engines(engine, density, k, jnp.asarray(1), None), random.key(0)
        )
        like, tree = jax.tree.flatten(wanted)
        count = header["num_engines"]
        saved = [arrays.get(f"state:{i}") for i in range(len(like))]
        if f"state:{len(like)}" in arrays or any(
            a is None or a.shape[1:] != _shape(w)[1:] for a, w in zip(saved, like)
        ):
            raise ValueError(
                f"{path} was trained with other settings: write the engine as it was, {header['settings']}"
            )
        leaves = [_restore(a, w) for a, w in zip(saved, like)]
        engine.num_engines = count
        history = {k.split(":", 1)[1]: v for k, v in arrays.items() if k.startswith("history:")}
        return cls(engine, density, jax.tree.unflatten(tree, leaves), history, header["counts"])


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(random.key_data(leaf) if _is_key(leaf) else leaf)


def _shape(like: Any) -> tuple[int, ...]:
    return jax.eval_shape(random.key_data, like).shape if _is_key(like) else like.shape


def _restore(array: np.ndarray, like: Any) -> Array:
    return random.wrap_key_data(jnp.asarray(array)) if _is_key(like) else jnp.asarray(array, like.dtype)


def _sites(density: Any) -> list[list[Any]]:
    return [[site.name, list(site.unconstrained_shape)] for site in density.space]
