"""Our engines on the same problems, by their default call with the same starting draws."""

from __future__ import annotations

import numpy as np

from benchmarks.peers.problems import Problem


def cmt_numpyro(problem: Problem, seed: int) -> tuple[np.ndarray, float, float, int]:
    """``CMT`` in NumPyro: 40 units, 4 chains of 2000 kept draws."""
    import jax
    import jax.numpy as jnp

    import ppl_samplers.numpyro as door

    dim, sd = problem.target.dim, problem.prior_sd
    density = door.LogDensity.from_callable(
        problem.target.log_density, dim, sample_prior=lambda key, n: sd * jax.random.normal(key, (n, dim), jnp.float32)
    )
    mcmc = door.MCMC(door.CMT(density), num_warmup=40, num_samples=2000, num_chains=4, progress_bar=False)
    mcmc.run(jax.random.key(seed))
    return _result(door, mcmc)


def cmt_pyro(problem: Problem, seed: int) -> tuple[np.ndarray, float, float, int]:
    """The same in Pyro."""
    import pyro
    import torch

    import ppl_samplers.pyro as door

    dim, sd = problem.target.dim, problem.prior_sd
    pyro.set_rng_seed(seed)
    density = door.LogDensity.from_callable(
        problem.target.log_density, dim, sample_prior=lambda n: sd * torch.randn(n, dim)
    )
    mcmc = door.MCMC(door.CMT(density), num_samples=2000, warmup_steps=40, num_chains=4, disable_progbar=True)
    mcmc.run()
    return _result(door, mcmc)


def _result(door, mcmc) -> tuple[np.ndarray, float, float, int]:
    from ppl_samplers.diagnostics.arviz import summary

    record, evidence = door.record(mcmc), door.log_evidence(mcmc)
    draws = record.unconstrained
    effective = float(summary(door.to_arviz(mcmc))["ess_bulk"].min())
    evals = int(record.counts["num_energy_evaluations"])
    return draws.reshape(-1, draws.shape[-1]), evidence.log_z, effective, evals


OURS = {"cmt_numpyro": cmt_numpyro, "cmt_pyro": cmt_pyro}
