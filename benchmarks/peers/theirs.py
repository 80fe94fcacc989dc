"""One function per peer: ``(problem, seed) -> draws (n, D), log Z or None, effective draws, density evaluations``.

Settings are the projects' own defaults, with budgets of the size of ours; where a project has no default the value of
its introductory example is used. Gradients count as one evaluation each.
"""

from __future__ import annotations

import numpy as np

from benchmarks.peers.problems import Problem

Result = tuple[np.ndarray, float | None, float, int]


def pocomc(problem: Problem, seed: int) -> Result:
    """Preconditioned Monte Carlo (Karamanis et al., 2022), vectorised likelihood."""
    import pocomc as pc
    from scipy.stats import norm

    prior = pc.Prior([norm(0, problem.prior_sd)] * problem.target.dim)
    sampler = pc.Sampler(prior=prior, likelihood=problem.log_likelihood, vectorize=True, random_state=seed)
    sampler.run(n_total=8192, progress=False)
    draws = sampler.posterior(resample=True)[0]
    w = sampler.posterior()[1]
    return draws, float(sampler.evidence()[0]), float(w.sum() ** 2 / (w**2).sum()), int(sampler.results["calls"][-1])


def dynesty(problem: Problem, seed: int) -> Result:
    """Nested sampling (Speagle, 2020): 500 live points, automatic choice of the sampler."""
    import dynesty
    from scipy.stats import norm

    def single(v: np.ndarray) -> float:
        return float(problem.log_likelihood(v[None])[0])

    def transform(u: np.ndarray) -> np.ndarray:
        return norm.ppf(u) * problem.prior_sd

    rng = np.random.default_rng(seed)
    sampler = dynesty.NestedSampler(single, transform, problem.target.dim, rstate=rng)
    sampler.run_nested(print_progress=False)
    found = sampler.results
    w = found.importance_weights()
    return found.samples_equal(rstate=rng), float(found.logz[-1]), float(1 / (w**2).sum()), int(np.sum(found.ncall))


def blackjax_smc(problem: Problem, seed: int) -> Result:
    """Adaptive tempered SMC with HMC moves: 4000 particles, ten moves of ten leapfrog steps per temperature."""
    import blackjax
    import blackjax.smc.resampling as resampling
    import jax
    import jax.numpy as jnp
    from blackjax.smc import extend_params

    dim, particles, moves, leapfrog = problem.target.dim, 4000, 10, 10
    parameters = {"step_size": 0.2, "inverse_mass_matrix": jnp.ones(dim), "num_integration_steps": leapfrog}
    smc = blackjax.adaptive_tempered_smc(
        lambda v: problem.log_prior(v[None])[0],
        lambda v: problem.log_likelihood(v[None])[0],
        blackjax.hmc.build_kernel(),
        blackjax.hmc.init,
        extend_params(parameters),
        resampling.systematic,
        0.9,
        num_mcmc_steps=moves,
    )
    state = smc.init(jnp.asarray(problem.start(seed, particles), jnp.float32))
    step, key = jax.jit(smc.step), jax.random.key(seed)
    log_z, steps = 0.0, 0
    while float(state.tempering_param) < 1:
        key, now = jax.random.split(key)
        state, info = step(now, state)
        log_z, steps = log_z + float(info.log_likelihood_increment), steps + 1
    return np.asarray(state.particles), log_z, float(particles), steps * particles * moves * leapfrog


def flowmc(problem: Problem, seed: int) -> Result:
    """Flow-enhanced MALA (Wong, Gabrié, Foreman-Mackey, 2023): 100 chains, the bundle with splines; no evidence."""
    import tempfile

    import jax
    import jax.numpy as jnp
    from flowMC.resource_strategy_bundle.RQSpline_MALA import RQSpline_MALA_Bundle
    from flowMC.Sampler import Sampler

    dim, chains, local, fresh, train, production = problem.target.dim, 100, 50, 50, 20, 10
    key, bundle_key = jax.random.split(jax.random.key(seed))
    bundle = RQSpline_MALA_Bundle(
        bundle_key,
        chains,
        dim,
        lambda v, data: problem.target.log_density(v[None])[0],
        local,
        fresh,
        train,
        production,
        5,
    )
    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(n_dim=dim, n_chains=chains, rng_key=key, resource_strategy_bundles=bundle, outdir=folder)
        sampler.sample(jnp.asarray(problem.start(seed, chains), jnp.float32), {})
        draws = np.asarray(sampler.resources["positions_production"].data)
    return draws.reshape(-1, dim), None, _chain_ess(draws), chains * (local + fresh) * (train + production)


def nuts(problem: Problem, seed: int) -> Result:
    """NumPyro's NUTS: 8 chains from the prior, 1000 warm-up and 1000 kept draws each; no evidence."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(potential_fn=lambda v: -problem.target.log_density(v[None])[0])
    chain = MCMC(kernel, num_warmup=1000, num_samples=1000, num_chains=8, chain_method="vectorized", progress_bar=False)
    start = jnp.asarray(problem.start(seed, 8), jnp.float32)
    chain.run(jax.random.key(seed), init_params=start, extra_fields=("num_steps",))
    draws = np.asarray(chain.get_samples(group_by_chain=True))
    # The warm-up is not recorded; it takes about as many steps as the sampling.
    evals = 2 * int(np.asarray(chain.get_extra_fields()["num_steps"]).sum())
    return draws.reshape(-1, draws.shape[-1]), None, _chain_ess(draws), evals


def _chain_ess(draws: np.ndarray) -> float:
    from numpyro.diagnostics import effective_sample_size

    return float(np.min(effective_sample_size(draws)))


PEERS = {"pocomc": pocomc, "dynesty": dynesty, "blackjax_smc": blackjax_smc, "flowmc": flowmc, "nuts": nuts}
