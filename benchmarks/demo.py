"""The main job on real-looking data: a sinusoid of unknown period, fitted by the engine and by NUTS in each framework.

Writes, per framework, a report, the posterior as netCDF and pictures. The exact answer (modes of the period, evidence
of this model and of a constant) is known by integration, and is printed beside.

    python -m benchmarks.demo --out out
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import time
from pathlib import Path

import numpy as np

from models.load import load

ENTRY = load("sinusoid")
MODES = ENTRY.reference["modes"]
EXACT = {"sinusoid": ENTRY.reference["log_evidence"], "constant": ENTRY.reference["log_evidence_constant_model"]}


def run_numpyro(seed: int) -> dict:
    """The engine, its rival model and NUTS in NumPyro."""
    import jax
    import numpyro

    import ppl_samplers.numpyro as door

    def engine(model, key):
        mcmc = door.MCMC(door.CMT(model), num_warmup=40, num_samples=1000, num_chains=4)
        mcmc.run(jax.random.key(key), **ENTRY.data)
        return mcmc

    def nuts():
        kernel = numpyro.infer.NUTS(ENTRY.numpyro_model)
        mcmc = numpyro.infer.MCMC(
            kernel, num_warmup=500, num_samples=1000, num_chains=4, chain_method="sequential", progress_bar=False
        )
        mcmc.run(jax.random.key(seed), **ENTRY.data)
        return np.asarray(mcmc.get_samples(group_by_chain=True)["log_period"])

    constant = ENTRY.alternative("numpyro")
    return _run(door, lambda: engine(ENTRY.numpyro_model, seed), lambda: engine(constant, seed + 1), nuts)


def run_pyro(seed: int) -> dict:
    """The engine, its rival model and NUTS in Pyro (fewer NUTS draws: Pyro's NUTS is slow)."""
    import pyro
    import pyro.infer

    import ppl_samplers.pyro as door

    data = ENTRY.torch_data()
    pyro.set_rng_seed(seed)

    def engine(model):
        mcmc = door.MCMC(door.CMT(model), num_samples=1000, warmup_steps=40, num_chains=4)
        mcmc.run(**data)
        return mcmc

    def nuts():
        chains = []
        for _ in range(3):
            mcmc = pyro.infer.MCMC(
                pyro.infer.NUTS(ENTRY.pyro_model), num_samples=150, warmup_steps=150, disable_progbar=True
            )
            mcmc.run(**data)
            chains.append(mcmc.get_samples()["log_period"].numpy())
        return np.stack(chains)

    return _run(door, lambda: engine(ENTRY.pyro_model), lambda: engine(ENTRY.alternative("pyro")), nuts)


def _run(door, engine, rival, nuts) -> dict:
    out, clock = {"door": door}, time.perf_counter
    for name, function in (("mcmc", engine), ("rival", rival), ("nuts", nuts)):
        start = clock()
        out[name] = function()
        out[f"{name}_seconds"] = clock() - start
    return out


def period_shares(log_period: np.ndarray) -> np.ndarray:
    """Share of the draws in the interval of each mode."""
    period = np.exp(log_period)
    return np.array([np.mean((period > m["interval"][0]) & (period < m["interval"][1])) for m in MODES])


def summarise(name: str, run: dict, out: Path) -> str:
    """Writes the report, the netCDF and the pictures of one framework; returns the comparison as text."""
    door, folder = run["door"], out / name
    folder.mkdir(parents=True, exist_ok=True)
    record = door.record(run["mcmc"])
    report = door.mcmc_report(run["mcmc"], file=io.StringIO())
    from ppl_samplers.diagnostics import arviz, plots

    data = door.to_arviz(run["mcmc"])
    arviz.save(data, folder / "posterior.nc")
    ours, rival = door.log_evidence(run["mcmc"]), door.log_evidence(run["rival"])
    draws = np.asarray(record.posterior["log_period"])
    lines = [
        f"== {name}: sinusoid of unknown period ==",
        f"{'period of the mode':28s}" + "".join(f"{m['period']:9.3f}" for m in MODES),
        f"{'exact weight':28s}" + "".join(f"{m['weight']:9.3f}" for m in MODES),
        f"{'CMT':28s}" + "".join(f"{s:9.3f}" for s in period_shares(draws)),
        *(
            f"{f'NUTS, chain {c}':28s}" + "".join(f"{s:9.3f}" for s in period_shares(chain))
            for c, chain in enumerate(run["nuts"])
        ),
        f"log evidence, sinusoid: {ours.log_z:.3f} +- {ours.standard_error:.3f} (exact {EXACT['sinusoid']:.3f})",
        f"log evidence, constant: {rival.log_z:.3f} +- {rival.standard_error:.3f} (exact {EXACT['constant']:.3f})",
        f"log Bayes factor for a signal: {ours.log_z - rival.log_z:.3f} "
        f"(exact {EXACT['sinusoid'] - EXACT['constant']:.3f})",
        f"seconds: engine {run['mcmc_seconds']:.1f}, constant model {run['rival_seconds']:.1f}, "
        f"NUTS {run['nuts_seconds']:.1f}",
        f"verdict: {ours.verdict}; reliable: {ours.reliable}",
    ]
    text = "\n".join(lines)
    (folder / "report.txt").write_text(f"{text}\n\n{report}\n")
    picture(name, run, record, folder / "periods.png")
    for function, file in ((plots.plot_training, "training.png"), (plots.plot_weights, "weights.png")):
        figure = function(record)
        getattr(figure, "figure", figure).savefig(folder / file, dpi=120)
    return text


def picture(name: str, run: dict, record, path: Path) -> None:
    """Data with posterior curves; the period by the engine and by each NUTS chain, beside the exact weights."""
    import matplotlib.pyplot as plt

    t, y = ENTRY.data["t"], ENTRY.data["y"]
    draws = {k: np.asarray(v).reshape(-1) for k, v in record.posterior.items() if np.ndim(v) == 2}
    figure, axes = plt.subplots(1, 2, figsize=(12, 4), width_ratios=(3, 2), layout="constrained")
    grid = np.linspace(t.min() - 1, t.max() + 1, 600)
    for k in np.random.default_rng(0).choice(len(draws["a"]), 40, replace=False):
        phase = 2 * np.pi * grid * np.exp(-draws["log_period"][k])
        curve = draws["offset"][k] + draws["a"][k] * np.cos(phase) + draws["b"][k] * np.sin(phase)
        axes[0].plot(grid, curve, color="C0", alpha=0.15, lw=1)
    axes[0].plot(t, y, "k.", ms=6)
    axes[0].set(title="data, and curves drawn from the posterior", xlabel="time (days)", ylabel="y")
    rows = {"exact": [m["weight"] for m in MODES], "ours": period_shares(np.asarray(record.posterior["log_period"]))}
    rows |= {f"NUTS {c}": period_shares(chain) for c, chain in enumerate(run["nuts"])}
    left = np.zeros(len(rows))
    for k, mode in enumerate(MODES):
        share = np.array([row[k] for row in rows.values()])
        axes[1].barh(list(rows), share, left=left, color=f"C{k}", label=f"{mode['period']:.2f} days")
        left += share
    axes[1].invert_yaxis()
    axes[1].set(title=f"posterior of the period ({name})", xlabel="share of the draws", xlim=(0, 1))
    axes[1].legend(title="period", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Runs both frameworks where they are installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    texts = []
    for name, module, run in (("numpyro", "numpyro", run_numpyro), ("pyro", "torch", run_pyro)):
        if importlib.util.find_spec(module) is None:
            texts.append(f"== {name}: not installed here, left out (make demo EXTRAS=all installs it) ==")
            continue
        texts.append(summarise(name, run(arguments.seed), arguments.out))
        print(texts[-1], flush=True)
    (arguments.out / "summary.txt").write_text("\n\n".join(texts) + "\n")
    print(f"written: {arguments.out}/summary.txt, and per framework report.txt, posterior.nc and pictures")


if __name__ == "__main__":
    main()
