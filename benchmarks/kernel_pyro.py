"""The Pyro kernel against the bare loop of its engine: eight schools, one process.

The bare loop trains the same engines and draws and judges the same number of proposals; the kernel adds Pyro's
messengers, the local moves, the probe and the curves. The ratio should stay under 1.5.

    python -m benchmarks.kernel_pyro
"""

from __future__ import annotations

import time
import warnings

import pyro
import torch

from models.load import load
from ppl_samplers.core import acceptance
from ppl_samplers.pyro import MCMC, BoltzmannGenerator, LogDensity

UNITS, SAMPLES, CHAINS, BLOCK, REPEATS = 40, 1000, 4, 64, 2


def bare_loop(transport, density: LogDensity, num_engines: int = 2) -> torch.Tensor:
    """Training and independence sampling with nothing around them; the points ``(C, S, D)``."""
    engines = []
    for _ in range(num_engines):
        state = transport.init(density, UNITS, None)
        while not state.done:
            state = transport.train_step(state, density)
        engines.append(state)
    kept = []
    with torch.no_grad():
        x, log_w = torch.zeros(CHAINS, density.dim), torch.full((CHAINS,), -torch.inf, dtype=torch.float64)
        for _ in range(-(-SAMPLES // BLOCK)):
            made = [transport.propose(state, density, CHAINS // num_engines * BLOCK) for state in engines]
            new_x = torch.cat([points.reshape(-1, BLOCK, density.dim) for points, _ in made])
            new_w = torch.cat([w.reshape(-1, BLOCK) for _, w in made])
            log_u = torch.rand_like(new_w).log()
            for i in range(BLOCK):
                accept = acceptance.imh(new_w[:, i], log_w, log_u[:, i])
                x = torch.where(accept[:, None], new_x[:, i], x)
                log_w = torch.where(accept, new_w[:, i], log_w)
                kept.append(x)
    return torch.stack(kept, 1)


def timed(fn, seed: int) -> float:
    """Seconds of ``fn`` with a seed of its own."""
    pyro.set_rng_seed(seed)
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def main() -> None:
    warnings.simplefilter("ignore")
    entry = load("eight_schools_noncentered")
    data = entry.torch_data()
    kernel = BoltzmannGenerator(entry.pyro_model)
    density = LogDensity(entry.pyro_model, (), data)

    def run() -> None:
        mcmc = MCMC(kernel, num_samples=SAMPLES, warmup_steps=UNITS, num_chains=CHAINS, disable_progbar=True)
        mcmc.run(**data)

    best = {"kernel": float("inf"), "bare loop": float("inf")}
    for seed in range(REPEATS):
        best["kernel"] = min(best["kernel"], timed(run, seed))
        best["bare loop"] = min(best["bare loop"], timed(lambda: bare_loop(kernel.transport, density), seed))
    for name, seconds in best.items():
        print(f"{name:10s} {seconds:6.2f} s   x {seconds / best['bare loop']:.2f}")


if __name__ == "__main__":
    main()
