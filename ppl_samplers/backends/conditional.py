"""A density with some sites held: what a move over one block of a model sees. The same for both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace


class ConditionalDensity:
    """Joint log density as a function of some sites, the others held: ``(N, d) -> (N,)``.

    As a function of the free sites this is their conditional density up to a constant: it includes the prior and the
    Jacobian of the held ones, so that values of several blocks are values of one joint density.

    Args:
        density: The joint density, over ``D`` dimensions.
        sites: Names of the sites to hold.
        x: Points of the joint density, ``(D,)`` or ``(N, D)``: where the held sites are.

    Attributes:
        dim: Number of free dimensions, ``d``.
        space: The free sites, with slices of the free vector.

    Raises:
        ValueError: A name that is no latent site, or nothing left to move.

    Example:
        >>> import jax.numpy as jnp
        >>> from ppl_samplers.numpyro import LogDensity
        >>> density = LogDensity.from_callable(lambda x: -0.5 * jnp.sum(x**2, -1), 2, names=("a", "b"))
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> block = density.condition("a", x)
        >>> block.dim, block(block.take(x)).tolist()
        (1, [-2.5, -12.5])
    """

    def __init__(self, density: Any, sites: str | Sequence[str], x: Any):
        held = {sites} if isinstance(sites, str) else set(sites)
        names = [site.name for site in density.space]
        unknown = sorted(held - set(names))
        if unknown:
            raise ValueError(f"no latent site {unknown[0]!r} to hold; the latent sites are {names}")
        if len(held) == len(names):
            raise ValueError(f"all of the latent sites {names} are held: leave one free")
        self.density, self._x = density, x
        free, space, start = [], [], 0
        for site in density.space:
            if site.name not in held:
                size = site.slice.stop - site.slice.start
                free.append(np.arange(site.slice.start, site.slice.stop))
                space.append(_moved(site, slice(start, start + size)))
                start += size
        self._free = np.concatenate(free)
        self._held = np.setdiff1d(np.arange(density.dim), self._free)
        # Where each coordinate of the joint vector lies among the free ones followed by the held ones.
        self._order = np.argsort(np.concatenate([self._free, self._held]))
        self.dim, self.space = start, tuple(space)

    def take(self, x: Any) -> Any:
        """The free coordinates of joint points, ``(..., D) -> (..., d)``."""
        return x[..., self._free]

    def put(self, free: Any) -> Any:
        """Joint points with the free coordinates ``(N, d)`` and the held ones, ``(N, D)``."""
        xp = array_namespace(free)
        held = xp.broadcast_to(self._x[..., self._held], (*free.shape[:-1], len(self._held)))
        return xp.concat([free, held], axis=-1)[..., self._order]

    def __call__(self, free: Any) -> Any:
        """Joint log density at free coordinates ``(N, d)``, ``(N,)``; NaN and ``+inf`` become ``-inf``."""
        return self.density(self.put(free))

    def value_and_grad(self, free: Any) -> tuple[Any, Any]:
        """Joint log density ``(N,)`` and its gradient in the free coordinates, ``(N, d)``."""
        value, gradient = self.density.value_and_grad(self.put(free))
        return value, self.take(gradient)

    def constrain(self, free: Any) -> Any:
        """Values of all sites, held ones included, at free coordinates ``(N, d)``."""
        return self.density.constrain(self.put(free))


def _moved(site: Any, place: slice) -> Any:
    """A site's description at another place of the vector."""
    return site._replace(slice=place) if isinstance(site, tuple) else replace(site, slice=place)
