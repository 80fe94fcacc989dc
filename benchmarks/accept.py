"""Acceptance: every model of models/ by one default call in each framework, against its reference.

Rule: each mean within 0.1 sd and each sd within 10 % of the reference. One process per model and framework, so the
times include imports and compilation.

    python -m benchmarks.accept                                  # everything; about an hour
    python -m benchmarks.accept --models blr arK --backends numpyro --seed 1
    python -m benchmarks.accept --engine CMT
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from models.load import load, names


def run_one(backend: str, name: str, seed: int, engine: str = "BoltzmannGenerator") -> dict:
    """The default call on one model; figures against the reference."""
    entry, start = load(name), time.perf_counter()
    if backend == "numpyro":
        import jax

        import ppl_samplers.numpyro as door

        mcmc = door.MCMC(getattr(door, engine)(entry.numpyro_model), num_warmup=40, num_samples=1000, num_chains=4)
        mcmc.run(jax.random.key(seed), **entry.data)
    else:
        import pyro

        import ppl_samplers.pyro as door

        pyro.set_rng_seed(seed)
        mcmc = door.MCMC(getattr(door, engine)(entry.pyro_model), warmup_steps=40, num_samples=1000, num_chains=4)
        mcmc.run(**entry.torch_data())
    record = door.record(mcmc)
    out = {"engine": engine, "backend": backend, "model": name, "seed": seed, "seconds": time.perf_counter() - start}
    out |= compare(entry, record)
    from ppl_samplers.diagnostics.evidence import evidence_from_record

    evidence = evidence_from_record(record, force=True)
    out |= {
        "acceptance": float(np.mean(record.sample_stats["accepted"])),
        "relative_ess": float(evidence.ess / evidence.num_proposals),
        "pareto_k": float(evidence.pareto_k),
        "log_z": float(evidence.log_z),
        "standard_error": float(evidence.standard_error),
        "kind": evidence.kind,
        "verdict": evidence.verdict,
        "reliable": bool(evidence.reliable),
        "exact_log_z": entry.reference.get("log_evidence"),
    }
    return out


def compare(entry, record) -> dict:
    """Worst deviation of the means (in reference sds) and of the sds (relative) over the reference's parameters."""
    draws = entry.scalars(record.posterior)
    means, sds = {}, {}
    for parameter, truth in entry.reference["parameters"].items():
        means[parameter] = (draws[parameter].mean() - truth["mean"]) / truth["sd"]
        sds[parameter] = draws[parameter].std() / truth["sd"] - 1
    worst_mean = max(means, key=lambda k: abs(means[k]))
    worst_sd = max(sds, key=lambda k: abs(sds[k]))
    return {
        "worst_mean": float(means[worst_mean]),
        "worst_mean_of": worst_mean,
        "worst_sd": float(sds[worst_sd]),
        "worst_sd_of": worst_sd,
        "met": bool(abs(means[worst_mean]) <= 0.1 and abs(sds[worst_sd]) <= 0.1),
    }


def line(row: dict) -> str:
    """One row of the table."""
    if "error" in row:
        return f"{row['backend']:8s} {row['model']:28s} FAILED: {row['error']}"
    exact = "" if row["exact_log_z"] is None else f" (exact {row['exact_log_z']:.3f})"
    return (
        f"{row['backend']:8s} {row['model']:28s} {'met ' if row['met'] else 'MISS'} mean {row['worst_mean']:+.3f} sd "
        f"({row['worst_mean_of']}), sd {row['worst_sd']:+.1%} ({row['worst_sd_of']}); acc {row['acceptance']:.2f}, "
        f"ESS {row['relative_ess']:.2f}, k {row['pareto_k']:.2f}, "
        f"log Z {row['log_z']:.3f}+-{row['standard_error']:.3f}{exact}, "
        f"{row['verdict']}/{'reliable' if row['reliable'] else 'not reliable'}, {row['seconds']:.0f} s"
    )


def main() -> None:
    """Runs the models one after the other; exits with an error if a reference is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(names()))
    parser.add_argument("--backends", nargs="*", default=["numpyro", "pyro"])
    parser.add_argument("--engine", default="BoltzmannGenerator", help="any engine of both frameworks, such as CMT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/accept.jsonl"))
    parser.add_argument("--one", nargs=2, metavar=("BACKEND", "MODEL"), help="run here and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print("RESULT " + json.dumps(run_one(*arguments.one, arguments.seed, arguments.engine)))
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.models:
        for backend in arguments.backends:
            command = [sys.executable, "-m", "benchmarks.accept", "--one", backend, name]
            command += ["--seed", str(arguments.seed), "--engine", arguments.engine]
            done = subprocess.run(command, capture_output=True, text=True)
            found = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
            if found:
                rows.append(json.loads(found[-1].removeprefix("RESULT ")))
            else:
                last = (done.stderr.strip().splitlines() or ["no output"])[-1]
                rows.append(
                    {"engine": arguments.engine, "backend": backend, "model": name, "met": False, "error": last}
                )
            print(line(rows[-1]), flush=True)
            with arguments.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    missed = [f"{r['backend']} {r['model']}" for r in rows if not r["met"]]
    print(
        f"{len(rows) - len(missed)} of {len(rows)} meet their reference"
        + (f"; missed: {', '.join(missed)}" if missed else "")
    )
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
