"""NumPyro's ``MCMC`` with this library's defaults, whose second run compiles nothing."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpyro.infer

from ppl_samplers.backends.numpyro.kernel import TransportKernel


class MCMC(numpyro.infer.MCMC):
    """NumPyro's ``MCMC`` with ``chain_method="vectorized"`` and four chains by default: all chains share the engines.

    Everything else is NumPyro's, but for what a second ``run`` costs. NumPyro compiles the loop again for new data
    (they are constants of its program) and, without a progress bar, on every run. Here the arrays among the arguments
    are inputs, so that another run with the same shapes reuses the loop.

    Args:
        sampler: A kernel, of this library or of NumPyro.
        num_warmup: Warm-up iterations; training units for an engine.
        num_samples: Iterations kept per chain.
        num_chains: Chains.
        chain_method: As in NumPyro.
        jit_model_args: As in NumPyro; ``None`` for ``True`` where every argument is an array.
        options: Other options of NumPyro's ``MCMC``.
    """

    def __init__(
        self,
        sampler: Any,
        *,
        num_warmup: int,
        num_samples: int,
        num_chains: int = 4,
        chain_method: Any = "vectorized",
        jit_model_args: bool | None = None,
        **options: Any,
    ):
        super().__init__(
            sampler,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            chain_method=chain_method,
            jit_model_args=bool(jit_model_args),
            **options,
        )
        self._automatic = jit_model_args is None

    def run(self, rng_key: Any, *args: Any, **kwargs: Any) -> None:
        """Train and sample; see NumPyro's ``MCMC.run``."""
        try:
            super().run(rng_key, *args, **kwargs)
        except KeyboardInterrupt:
            warnings.warn(
                "NumPyro cannot keep an interrupted run: to be able to stop and resume, train first with "
                'trained = engine.fit(key, ..., checkpoint="engine.npz") and sample with trained=trained, num_warmup=0',
                UserWarning,
                stacklevel=2,
            )
            raise

    def _single_chain_mcmc(self, init, args, kwargs, collect_fields, remove_sites):
        kernel, rng_key, state, initial = self.sampler, *init
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((rng_key, args, kwargs)))
        if not isinstance(kernel, TransportKernel) or traced:
            return super()._single_chain_mcmc(init, args, kwargs, collect_fields, remove_sites)
        if state is None or kernel._sample_fn is None:
            new = kernel.init(rng_key, self.num_warmup, initial, model_args=args, model_kwargs=kwargs)
            state = new if state is None else state
        density = kernel.bound(args, kwargs)
        data, name = kernel._arguments(density)
        if self._automatic:
            self._jit_model_args = name is not None and len(data) == len(jax.tree.leaves((args, kwargs)))
        if self.progress_bar or name is None:
            return super()._single_chain_mcmc((rng_key, state, initial), args, kwargs, collect_fields, remove_sites)

        def loop(state: Any, data: tuple) -> Any:
            own = self._args, self._kwargs, self._jit_model_args
            # NumPyro's loop reads its arguments there; as inputs of this program they need not be inputs of its own.
            (self._args, self._kwargs), self._jit_model_args = density._arguments.rebuild(data), False
            try:
                return numpyro.infer.MCMC._single_chain_mcmc(
                    self, (rng_key, state, None), self._args, self._kwargs, collect_fields, remove_sites
                )
            finally:
                self._args, self._kwargs, self._jit_model_args = own

        # All that the loop reads of this object: another `MCMC` may share the kernel.
        settings = (*self._collection_params.values(), self.thinning, self.num_chains, self.chain_method)
        settings += (self.postprocess_fn,)
        return kernel._program(("loop", name, settings, collect_fields, remove_sites), loop)(state, data)
