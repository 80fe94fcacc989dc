"""The NumPyro density against a hand-written JAX density: 2000 eight-schools points with gradients, one process.

Run: ``python benchmarks/density_numpyro.py``. The ratio should stay under 2.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.testing.hostile_numpyro_models import eight_schools

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
S = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)


def by_hand(x: jax.Array) -> jax.Array:
    mu, log_tau, theta = x[0], x[1], x[2:]
    tau = jnp.exp(log_tau)
    prior = norm.logpdf(mu, 0, 5) + jnp.log(2 / (jnp.pi * 5)) - jnp.log1p((tau / 5) ** 2) + log_tau
    return prior + norm.logpdf(theta, mu, tau).sum() + norm.logpdf(Y, theta, S).sum()


def fastest(functions: dict, x: jax.Array, repeats: int = 30, calls: int = 20) -> dict[str, float]:
    """Shortest mean time of a call in milliseconds; the functions take turns, so that a busy machine hits all alike."""
    best = dict.fromkeys(functions, np.inf)
    for fn in functions.values():
        jax.block_until_ready(fn(x))
    for _ in range(repeats):
        for name, fn in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                jax.block_until_ready(fn(x))
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start) / calls)
    return best


def main() -> None:
    start = time.perf_counter()
    density = LogDensity(eight_schools, (Y, S))
    print(f"set-up {time.perf_counter() - start:.2f} s")
    x = jax.random.normal(jax.random.key(0), (2000, 10))
    hand = jax.jit(jax.vmap(jax.value_and_grad(by_hand)))
    difference = np.abs(np.asarray(density(x)) - np.asarray(hand(x)[0])).max()
    bound = lambda v: density.bind(Y, S).value_and_grad(v)  # noqa: E731
    best = fastest({"hand-written": hand, "density": density.value_and_grad, "bind and density": bound}, x)
    for name, ms in best.items():
        print(f"{name:18s} {ms:7.3f} ms   x {ms / best['hand-written']:.2f}")
    print(f"largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
