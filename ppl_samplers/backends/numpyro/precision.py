"""Whether float32 is enough for a density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from ppl_samplers.backends.numpyro.density import LogDensity


def precision_note(density: LogDensity, x: Any, tolerance: float = 0.02) -> str | None:
    """Compare the float32 density with one in float64 at the same points; see :meth:`LogDensity.precision_note`.

    An error of the log density goes straight into log weights and the evidence. Runs on concrete points only.

    Args:
        density: The density.
        x: Points ``(N, D)``; take draws near the posterior, where precision matters.
        tolerance: Largest error, in nats, that is passed over.
    """
    if jax.config.jax_enable_x64:
        return None
    x = np.asarray(x)
    single = np.asarray(density(x), np.float64)
    structure = getattr(density, "_structure", None)
    try:
        # JAX draws other numbers in float64, so a model with prng_key() would be another model there.
        if structure is not None and structure.base.used:
            raise TypeError("the model draws numbers of its own")
        exact = _in_float64(density, x)
        how = "float64"
    except Exception:  # a model may hold float32 arrays that do not mix with float64
        exact = _summed_in_float64(density, x)
        how = "the same terms summed in float64"
    both = np.isfinite(single) & np.isfinite(exact)
    if not both.any():
        return None
    error = np.abs(single - exact)[both].max()
    if error <= tolerance:
        return None
    size = np.abs(exact[both]).max()
    return (
        f"float32 is too coarse for this model: log densities of size {size:.1e} differ from {how} by up to "
        f"{error:.2g}, which goes into every log weight and the evidence; "
        "call jax.config.update('jax_enable_x64', True) at the start"
    )


def _in_float64(density: LogDensity, x: np.ndarray) -> np.ndarray:
    def widen(leaf: Any) -> Any:
        if isinstance(leaf, (np.ndarray, jax.Array)) and leaf.dtype == np.float32:
            return np.asarray(leaf, np.float64)
        return leaf

    with jax.enable_x64(True):
        wide = density._fresh(*jax.tree.map(widen, (density.model_args, density.model_kwargs)))
        return np.asarray(wide.raw(x.astype(np.float64)), np.float64)


def _summed_in_float64(density: LogDensity, x: np.ndarray) -> np.ndarray:
    terms = list(density.log_likelihood(x).values())
    total = np.asarray(density.log_prior(x), np.float64) + np.asarray(density.log_factor(x), np.float64)
    return total + sum(np.asarray(t, np.float64).reshape(len(x), -1).sum(-1) for t in terms)
