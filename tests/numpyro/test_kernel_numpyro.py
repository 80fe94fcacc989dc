import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

from ppl_samplers.backends.numpyro import sampling
from ppl_samplers.core import evidence
from ppl_samplers.numpyro import ISIR, MCMC, Affine, BoltzmannGenerator, LogDensity, Pilot, Trained, record

TINY = dict(flow=Affine(), pilot=Pilot(num_particles=64, final_moves=4, max_stages=20), num_reseat=256, block=16)
DATA = np.array([0.3, 1.1, 0.5, -0.2], np.float32)


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.deterministic("twice", 2 * jnp.stack([mu, mu]))
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def exact(y):
    """Posterior mean and variance, and log evidence."""
    n = len(y)
    covariance = np.eye(n) + 1
    log_z = -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1] + n * np.log(2 * np.pi))
    return y.sum() / (n + 1), 1 / (n + 1), log_z


def _check(mcmc, y):
    mean, variance, log_z = exact(y.astype(float))
    mu = np.asarray(mcmc.get_samples(group_by_chain=True)["mu"])
    batches = mu.reshape(mu.shape[0] * 5, -1).mean(1)
    assert abs(batches.mean() - mean) < 4 * batches.std(ddof=1) / np.sqrt(len(batches))
    assert abs(mu.var() / variance - 1) < 0.4
    found, error, _, _ = evidence.finish(evidence.merge(record(mcmc).evidence_sums))
    assert abs(found - log_z) < 4 * error


def test_layout_of_chains_and_engines():
    class Kernel:
        num_engines, block, num_reseat, correction = 2, 4, 10, ISIR(3)

    layout = sampling.Layout(Kernel, 5)
    assert layout.group.tolist() == [0, 0, 0, 1, 1] and layout.slot.tolist() == [0, 1, 2, 0, 1]
    assert layout.members.tolist() == [[0, 1, 2], [3, 4, 3]] and layout.batch == 4 * 3 * 2
    one = sampling.Layout(Kernel, 1)
    assert one.alternates and [one.engines(jnp.asarray(b)).tolist() for b in range(3)] == [[0], [1], [0]]


@pytest.mark.slow
def test_vectorized_runs_twice_with_new_data_pickles_and_thins():
    kernel = BoltzmannGenerator(model, **TINY)
    mcmc = MCMC(kernel, num_warmup=3, num_samples=600, thinning=3, progress_bar=False)
    mcmc.run(random.key(0), DATA)
    _check(mcmc, DATA)
    samples = mcmc.get_samples(group_by_chain=True)
    assert samples["twice"].shape == (4, 200, 2) and samples["mu"].shape == (4, 200)
    np.testing.assert_allclose(samples["twice"][..., 0], 2 * samples["mu"], rtol=1e-5)
    kept = record(mcmc)
    assert kept.training["loss"].shape == (2, 3) and kept.probe_log_weights.shape == (2, 64)
    assert set(np.unique(kept.sample_stats["engine"])) == {0, 1}
    np.testing.assert_allclose(
        kept.log_weight_at(0, kept.unconstrained[0]), kept.sample_stats["log_weight"][0], atol=1e-3
    )
    other = pickle.loads(pickle.dumps(mcmc))
    np.testing.assert_array_equal(other.get_samples()["mu"], mcmc.get_samples()["mu"])
    programs = dict(kernel._programs)
    mcmc.run(random.key(1), DATA + 3)
    _check(mcmc, DATA + 3)
    assert kernel._programs == programs and all(p._cache_size() == 1 for p in programs.values())


@pytest.mark.slow
def test_warm_up_then_run_and_continue():
    kernel = BoltzmannGenerator(model, correction=ISIR(4), **TINY)
    mcmc = MCMC(kernel, num_warmup=3, num_samples=400, progress_bar=False)
    mcmc.warmup(random.key(0), DATA)
    mcmc.run(random.key(1), DATA)
    _check(mcmc, DATA)
    before = mcmc.last_state
    mcmc.post_warmup_state = before
    mcmc.run(random.key(2), DATA)
    assert int(mcmc.last_state.i) == int(before.i) + 400
    np.testing.assert_array_equal(mcmc.last_state.engines.loc, before.engines.loc)
    assert (mcmc.last_state.evidence_sums[:, 2] > before.evidence_sums[:, 2]).all()


@pytest.mark.slow
def test_one_chain_alternates_between_engines_and_odd_chain_counts_run():
    kernel = BoltzmannGenerator(model, **TINY)
    for chains in (1, 3):
        mcmc = MCMC(kernel, num_warmup=2, num_samples=600, num_chains=chains, progress_bar=False)
        mcmc.run(random.key(chains), DATA)
        _check(mcmc, DATA)
        assert set(np.unique(record(mcmc).sample_stats["engine"])) == {0, 1}


# NumPyro donates its buffers inside the mapped run, where JAX cannot use them.
@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["sequential", jax.vmap], ids=["sequential", "vmap"])
def test_other_chain_methods_work_and_warn(method):
    kernel = BoltzmannGenerator(model, num_engines=1, **TINY)
    mcmc = MCMC(kernel, num_warmup=2, num_samples=400, num_chains=2, chain_method=method, progress_bar=False)
    with pytest.warns(UserWarning, match="vectorized"):
        mcmc.run(random.key(0), DATA)
    _check(mcmc, DATA)
    assert record(mcmc).evidence_sums.shape == (2, 3)


@pytest.mark.slow
def test_trained_engine_is_reused_saved_and_loaded(tmp_path):
    trained = BoltzmannGenerator(model, **TINY).fit(
        random.key(0), DATA, num_warmup=3, progress=False, checkpoint=tmp_path / "a.npz"
    )
    loaded = Trained.load(tmp_path / "a.npz", BoltzmannGenerator(model, **TINY), DATA)
    for a, b in zip(trained.propose(7), loaded.propose(7)):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="settings"):
        Trained.load(tmp_path / "a.npz", BoltzmannGenerator(model, pilot=Pilot(num_particles=32)), DATA)
    start = {"mu": jnp.array([0.0, 0.5, 1.0, -1.0])}
    mcmc = MCMC(BoltzmannGenerator(model, trained=loaded, **TINY), num_warmup=0, num_samples=400, progress_bar=False)
    mcmc.run(random.key(1), DATA, init_params=start)
    _check(mcmc, DATA)
    assert int(mcmc.last_state.engines.unit[0]) == 3


@pytest.mark.slow
def test_arguments_in_the_carry_and_legacy_keys():
    mcmc = MCMC(
        BoltzmannGenerator(model, **TINY), num_warmup=2, num_samples=200, progress_bar=False, jit_model_args=True
    )
    mcmc.run(random.PRNGKey(0), DATA)
    _check(mcmc, DATA)


@pytest.mark.slow
@pytest.mark.parametrize("progress_bar", [False, True])
def test_new_data_of_the_same_shapes_compile_nothing(progress_bar):
    """A third run: the second one may still compile what turns results into arrays for the test itself."""
    compiled, counting = [], [False]

    def count(event, seconds, **_):
        if counting[0] and "backend_compile" in event:
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(count)
    mcmc = MCMC(BoltzmannGenerator(model, **TINY), num_warmup=2, num_samples=300, progress_bar=progress_bar)
    for turn, y in enumerate((DATA, DATA + 1, DATA - 1)):
        counting[0] = turn == 2
        mcmc.run(random.key(turn), jnp.asarray(y))
        counting[0] = False
        _check(mcmc, y)
    assert not compiled


@pytest.mark.slow
def test_one_kernel_serves_runs_of_another_chain_method():
    kernel = BoltzmannGenerator(model, **TINY)
    for method in ("vectorized", "sequential"):
        mcmc = MCMC(kernel, num_warmup=2, num_samples=300, num_chains=2, chain_method=method, progress_bar=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="with this chain_method")
            mcmc.run(random.key(0), DATA)
        assert mcmc.get_samples(group_by_chain=True)["twice"].shape == (2, 300, 2)
        _check(mcmc, DATA)


def test_a_given_density_keeps_its_data_unless_the_run_brings_others():
    density = LogDensity(model, (DATA,))
    trained = BoltzmannGenerator(density, **TINY).fit(random.key(0), num_warmup=1, progress=False)
    for options in ({"progress_bar": False}, {"progress_bar": True}):
        mcmc = MCMC(BoltzmannGenerator(density, trained=trained, **TINY), num_warmup=0, num_samples=300, **options)
        mcmc.run(random.key(1))
        _check(mcmc, DATA)
        mcmc.run(random.key(2), DATA + 1)
        _check(mcmc, DATA + 1)


def test_interruption_keeps_what_was_trained(monkeypatch):
    calls = []

    def stop(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    original = jax.block_until_ready
    density = LogDensity.from_callable(lambda x: -0.5 * jnp.sum(x**2, -1), 1)
    kernel = BoltzmannGenerator(log_density=density, num_engines=1, **TINY)
    monkeypatch.setattr(jax, "block_until_ready", stop)
    with pytest.warns(UserWarning, match="interrupted after 1 of 5"):
        trained = kernel.fit(random.key(0), num_warmup=5, progress=False)
    assert int(trained.states.unit[0]) == 1 and trained.history["loss"].shape == (1, 1)


def test_model_and_density_together_are_refused_and_a_density_is_known_by_its_kind():
    with pytest.raises(ValueError, match="log_density"):
        BoltzmannGenerator()
    density = LogDensity.from_callable(lambda x: -jnp.sum(x**2, -1), 1)
    with pytest.raises(ValueError, match="not both"):
        BoltzmannGenerator(lambda: None, log_density=density)
    assert BoltzmannGenerator(density).density() is density
