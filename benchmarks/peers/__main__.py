"""Runs every sampler on every problem, one process each, and prints one table.

make bench-peers                                         # all of it: hours
.venv/bin/python -m benchmarks.peers --peers .venv-peers/bin/python --problems gmm40 --samplers pocomc cmt_numpyro
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers.ours import OURS
from benchmarks.peers.problems import PROBLEMS, judge
from benchmarks.peers.theirs import PEERS

COLUMNS = ("seconds", "evaluations", "log_z_error", "missed", "mode_error", "tv", "ess_per_second")


def run_one(sampler: str, name: str, seed: int) -> dict:
    """One sampler on one problem, imports and compilation included."""
    problem, began = PROBLEMS[name](), time.perf_counter()
    draws, log_z, effective, evaluations = ({**OURS, **PEERS})[sampler](problem, seed)
    seconds = time.perf_counter() - began
    row = {"problem": name, "sampler": sampler, "seed": seed, "seconds": seconds, "evaluations": evaluations}
    return row | judge(problem, draws, log_z) | {"ess_per_second": effective / seconds}


def main() -> None:
    """Print the table as it grows; keep the rows in a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=".venv-peers/bin/python", help="Python of the peers' environment")
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--samplers", nargs="*", default=[*OURS, *PEERS], choices=[*OURS, *PEERS])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds per run")
    parser.add_argument("--out", type=Path, default=Path("out/peers.jsonl"))
    parser.add_argument("--one", nargs=3, metavar=("SAMPLER", "PROBLEM", "SEED"), help="run here and print JSON")
    options = parser.parse_args()
    if options.one:
        print("RESULT " + json.dumps(run_one(options.one[0], options.one[1], int(options.one[2]))))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{'problem':14s} {'sampler':14s} seed " + " ".join(f"{name:>14s}" for name in COLUMNS), flush=True)
    for name in options.problems:
        for seed in options.seeds:
            for sampler in options.samplers:
                python = sys.executable if sampler in OURS else options.peers
                row = _process([python, "-m", "benchmarks.peers", "--one", sampler, name, str(seed)], options.limit)
                figures = " ".join(f"{row[c]:14.4g}" for c in COLUMNS) if "seconds" in row else row["error"]
                print(f"{name:14s} {sampler:14s} {seed:4d} {figures}", flush=True)
                with options.out.open("a") as file:
                    file.write(json.dumps({"problem": name, "sampler": sampler, "seed": seed} | row) + "\n")


def _process(command: list[str], limit: float) -> dict:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {limit:.0f} s"}
    found = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    if found:
        return json.loads(found[-1].removeprefix("RESULT "))
    return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}


if __name__ == "__main__":
    main()
