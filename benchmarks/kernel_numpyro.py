"""The NumPyro kernel against the bare loop of its engine: eight schools, both compiled, one process.

The bare loop trains the same engines and draws and judges the same number of proposals; the kernel adds the state
that NumPyro carries, the local moves, the probe and the curves. The ratio should stay under 1.5. On a second run our
own programs are not compiled again; NumPyro compiles its loop anew on every run without a bar, for its own kernels too
(unless a compilation cache is set), and that time is taken off.

    python -m benchmarks.kernel_numpyro
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
from jax import lax, random

from models.load import load
from ppl_samplers.backends.jax.training import when
from ppl_samplers.backends.numpyro import sampling
from ppl_samplers.core import acceptance
from ppl_samplers.numpyro import MCMC, BoltzmannGenerator

UNITS, SAMPLES, CHAINS, REPEATS = 40, 1000, 4, 3


def bare_loop(kernel: BoltzmannGenerator, density, key: jax.Array) -> jax.Array:
    """Training and independence sampling with nothing around them; the last points ``(C, D)``."""
    transport = kernel.transport
    init_key, propose_key, accept_key = random.split(key, 3)
    engines = sampling.init_engines(kernel, density, init_key, jnp.asarray(UNITS), None)
    unit = lambda s: when(~s.done, lambda t: transport.train_step(t, density), s)  # noqa: E731
    engines = lax.fori_loop(0, UNITS, lambda _, e: lax.map(unit, e), engines)
    per_engine = CHAINS // kernel.num_engines
    size = kernel.block * per_engine

    def block(carry: tuple, i: jax.Array) -> tuple[tuple, None]:
        keys = random.split(random.fold_in(propose_key, i), kernel.num_engines)
        x, log_w = lax.map(lambda a: transport.propose(a[0], a[1], density, size), (engines, keys))
        shape = (CHAINS, kernel.block)
        log_u = jnp.log(random.uniform(random.fold_in(accept_key, i), shape))
        rows = (x.reshape(*shape, -1).swapaxes(0, 1), log_w.reshape(shape).T, log_u.T)

        def one(carry: tuple, row: tuple) -> tuple[tuple, None]:
            accept = acceptance.imh(row[1], carry[1], row[2])
            return (jnp.where(accept[:, None], row[0], carry[0]), jnp.where(accept, row[1], carry[1])), None

        return lax.scan(one, carry, rows)[0], None

    start = (jnp.zeros((CHAINS, density.dim)), jnp.full((CHAINS,), -jnp.inf))
    return lax.scan(block, start, jnp.arange(-(-SAMPLES // kernel.block)))[0][0]


def timed(fn) -> float:
    """Seconds of ``fn``, results awaited."""
    start = time.perf_counter()
    jax.block_until_ready(fn())
    return time.perf_counter() - start


def main() -> None:
    entry = load("eight_schools_noncentered")
    kernel = BoltzmannGenerator(entry.numpyro_model)
    mcmc = MCMC(kernel, num_warmup=UNITS, num_samples=SAMPLES, num_chains=CHAINS, progress_bar=False)
    compiled: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(seconds) if name.endswith("backend_compile_duration") else None
    )

    def run(seed: int) -> jax.Array:
        mcmc.run(random.key(seed), **entry.data)
        return mcmc.last_state.potential_energy

    first = timed(lambda: run(0))
    print(f"first run of the kernel {first:6.2f} s, of it {sum(compiled):.2f} s of compilation")
    density = kernel.density((), entry.data)
    bare = jax.jit(lambda key: bare_loop(kernel, density, key))
    timed(lambda: bare(random.key(0)))
    best = {"kernel": float("inf"), "bare loop": float("inf")}
    for seed in range(1, REPEATS + 1):
        compiled.clear()
        seconds = timed(lambda seed=seed: run(seed))
        best["kernel"] = min(best["kernel"], seconds - sum(compiled))
        if seed == 1:
            print(f"second run {seconds:.2f} s, of it {sum(compiled):.2f} s in {len(compiled)} programs of NumPyro's")
        best["bare loop"] = min(best["bare loop"], timed(lambda seed=seed: bare(random.key(seed))))
    for name, seconds in best.items():
        print(f"{name:10s} {seconds:6.2f} s   x {seconds / best['bare loop']:.2f}")
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(mcmc.last_state) if hasattr(leaf, "nbytes") and leaf.ndim)
    print(f"state between iterations {state / 1e6:.2f} MB, whatever the number of samples")


if __name__ == "__main__":
    main()
