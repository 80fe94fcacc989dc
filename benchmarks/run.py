"""All benchmarks in one run: ``make bench`` on an otherwise idle machine. Read the figures as ratios."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

SCRIPTS = (
    ("density_numpyro", "numpyro"),
    ("density_pyro", "pyro"),
    ("kernel_numpyro", "numpyro"),
    ("kernel_pyro", "pyro"),
    ("flow_numpyro", "numpyro"),
    ("cold_start", "numpyro"),
)


def main() -> None:
    """Runs the scripts whose framework is installed; stops at the first that fails."""
    for name, framework in SCRIPTS:
        if importlib.util.find_spec(framework) is None:
            print(f"{name}: {framework} is not installed here, left out")
            continue
        print(f"== {name} ==", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
