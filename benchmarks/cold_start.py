"""From a cold process to the first posterior summary of eight schools, imports and compilation included.

Each framework runs in a process of its own, without a compilation cache on disk. Goals on two cores: 60 s in NumPyro,
90 s in Pyro.

    python -m benchmarks.cold_start
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time

GOALS = {"numpyro": 60, "pyro": 90}
PROGRAMS = {
    "numpyro": """
import jax
from models.load import load
from ppl_samplers.numpyro import MCMC, BoltzmannGenerator, mcmc_report
entry = load("eight_schools_noncentered")
mcmc = MCMC(BoltzmannGenerator(entry.numpyro_model), num_warmup=40, num_samples=1000, num_chains=4, progress_bar=False)
mcmc.run(jax.random.key(0), **entry.data)
mcmc_report(mcmc)
""",
    "pyro": """
import pyro
from models.load import load
from ppl_samplers.pyro import MCMC, BoltzmannGenerator, mcmc_report
pyro.set_rng_seed(0)
entry = load("eight_schools_noncentered")
kernel = BoltzmannGenerator(entry.pyro_model)
mcmc = MCMC(kernel, warmup_steps=40, num_samples=1000, num_chains=4, disable_progbar=True)
mcmc.run(**entry.torch_data())
mcmc_report(mcmc)
""",
}


def main() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    for name, program in PROGRAMS.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed here, left out")
            continue
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, env=environment, stdout=subprocess.DEVNULL)
        print(f"{name:8s} {time.perf_counter() - start:6.1f} s from a cold process (goal {GOALS[name]} s)", flush=True)


if __name__ == "__main__":
    main()
