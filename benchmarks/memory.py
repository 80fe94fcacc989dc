"""Memory of the sampling phase against the number of kept draws: only the draws themselves may grow.

Peak resident memory while sampling with trained engines, less what was resident before, on the eight schools; each
row is a process of its own. The last two columns are the increase from row to row, per kept draw: peak and draws.

    python -m benchmarks.memory
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from models.load import load

LENGTHS = (1000, 8000, 64000)


def _status(field: str) -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(field))
    return 1024 * int(line.split()[1])


def run_one(backend: str, length: int) -> dict:
    """Peak while drawing ``length`` iterations of four chains, and the size of what was kept."""
    entry = load("eight_schools_noncentered")
    if backend == "numpyro":
        import jax

        import ppl_samplers.numpyro as door

        flow = {"flow": door.Affine()}
        model, key = entry.numpyro_model, jax.random.key(0)
        trained = door.BoltzmannGenerator(model, **flow).fit(key, **entry.data, num_warmup=2, progress=False)
        kernel = door.BoltzmannGenerator(model, trained=trained, **flow)
        mcmc = door.MCMC(kernel, num_warmup=0, num_samples=length, num_chains=4, progress_bar=False)
        draw = lambda: mcmc.run(key, **entry.data)  # noqa: E731
    else:
        import pyro

        import ppl_samplers.pyro as door

        pyro.set_rng_seed(0)
        flow, data = {"flow": door.Affine()}, entry.torch_data()
        trained = door.BoltzmannGenerator(entry.pyro_model, **flow).fit(**data, num_warmup=2, progress=False)
        kernel = door.BoltzmannGenerator(entry.pyro_model, trained=trained, **flow)
        mcmc = door.MCMC(kernel, num_samples=length, warmup_steps=0, num_chains=4, disable_progbar=True)
        draw = lambda: mcmc.run(**data)  # noqa: E731
    # Forget the peak of training; compiling and tracing belong to the phase, and cost the same for every length.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    draw()
    peak = _status("VmHWM") - before
    record = door.record(mcmc)
    kept = [np.asarray(v) for group in (record.posterior, record.sample_stats) for v in group.values()]
    return {"backend": backend, "length": length, "peak": peak, "kept": sum(a.nbytes for a in kept)}


def main() -> None:
    """Print the table, or one row as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, metavar=("BACKEND", "LENGTH"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.one[0], int(options.one[1]))))
        return
    print(f"{'':8s} {'draws':>8s} {'peak MB':>8s} {'kept MB':>8s} {'peak B/draw':>12s} {'kept B/draw':>12s}")
    for backend in ("numpyro", "pyro"):
        last = None
        for length in LENGTHS:
            command = [sys.executable, "-m", "benchmarks.memory", "--one", backend, str(length)]
            row = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
            slope = ""
            if last is not None:
                more = 4 * (length - last["length"])
                slope = "".join(f" {(row[k] - last[k]) / more:12.0f}" for k in ("peak", "kept"))
            print(f"{backend:8s} {4 * length:8d} {row['peak'] / 1e6:8.1f} {row['kept'] / 1e6:8.1f}{slope}", flush=True)
            last = row


if __name__ == "__main__":
    main()
