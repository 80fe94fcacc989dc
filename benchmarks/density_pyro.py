"""Speed of the Pyro log density: milliseconds for value and gradient of a batch, and the ratio to a Python loop.

Run as ``python benchmarks/density_pyro.py [--compile] [names ...]``. The loop runs Pyro's own potential function.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import torch
from pyro.infer.mcmc.util import initialize_model

from ppl_samplers.backends.pyro.density import LogDensity
from ppl_samplers.testing.hostile_pyro import HOSTILE

NAMES = ("eight_schools", "logistic_matmul", "enumerated_mixture", "ode_loop", "gaussian_process", "enumerated_hmm")


def processor_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median processor time of a call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return sorted(times)[len(times) // 2]


def pyro_loop(density: LogDensity, potential: Callable, x: torch.Tensor) -> Callable[[], None]:
    """Value and gradient of each row by Pyro's potential function."""

    def call() -> None:
        for row in x:
            leaf = row.clone().requires_grad_()
            (-potential(density.unravel(leaf))).backward()

    return call


def main() -> None:
    """Print one line a model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':20s}   D   loop ms   vmap ms  graph ms   compile  vmap x  graph x")
    for case in HOSTILE:
        if case.name not in (options.names or NAMES):
            continue
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        timed = {}
        for how in ("vmap", "graph", "compile") if options.compile else ("vmap", "graph"):
            density = LogDensity(case.make(), case.args, case.kwargs, how=how)
            x = 0.3 * torch.randn(options.points, density.dim)
            density.value_and_grad(x)
            timed[how] = processor_seconds(lambda density=density, x=x: density.value_and_grad(x), 20)
        _, potential, _, _ = initialize_model(case.make(), case.args, dict(case.kwargs))
        timed["loop"] = processor_seconds(pyro_loop(density, potential, x), 1)
        ms = {key: 1000 * value for key, value in timed.items()}
        print(
            f"{case.name:20s} {density.dim:3d} {ms['loop']:9.1f} {ms['vmap']:9.2f} {ms['graph']:9.2f} "
            f"{ms.get('compile', float('nan')):9.3f} {ms['loop'] / ms['vmap']:7.0f} {ms['loop'] / ms['graph']:8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
