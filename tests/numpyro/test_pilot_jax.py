import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ppl_samplers.backends.jax.moves import HMC
from ppl_samplers.backends.jax.pilot import Pilot, run_pilot
from ppl_samplers.backends.numpyro.density import LogDensity

LOG_2PI = float(np.log(2 * np.pi))


def _two_modes(x):
    near = -0.5 * jnp.sum((x - 4) ** 2, -1)
    far = -0.5 * jnp.sum((x + 4) ** 2, -1)
    return jnp.logaddexp(near, far) - jnp.log(2.0) - 0.5 * x.shape[-1] * LOG_2PI + 3.0


def test_finds_both_modes_and_the_evidence():
    density = LogDensity.from_callable(_two_modes, 2, sample_prior=lambda k, n: 4 * random.normal(k, (n, 2)))
    run = jax.jit(lambda key: run_pilot(Pilot(num_particles=256), HMC(), key, density))
    results = [run(random.key(s)) for s in range(6)]
    log_z = np.array([float(r.log_z) for r in results])
    share = np.array([float((r.buffer[:, 0] < 0).mean()) for r in results])
    # Six runs: the spread between them is the Monte Carlo error.
    assert abs(log_z.mean() - 3.0) < 4 * log_z.std(ddof=1) / np.sqrt(6)
    assert log_z.std(ddof=1) < 0.3
    assert abs(share.mean() - 0.5) < 4 * share.std(ddof=1) / np.sqrt(6)
    first = results[0]
    assert first.buffer.shape == (2048, 2) and 1 < int(first.stages) < 50
    assert abs(float(first.reference) - (-3.0 + LOG_2PI + np.log(2))) < 0.3
    np.testing.assert_allclose(first.scale_tril @ first.scale_tril.T, np.cov(np.asarray(first.buffer).T), rtol=0.05)


def test_initial_points_reach_a_mode_that_the_prior_misses():
    def narrow(x):
        return jnp.logaddexp(-0.5 * jnp.sum(x**2, -1), -0.5 * jnp.sum((x - 100) ** 2, -1))

    density = LogDensity.from_callable(narrow, 2, sample_prior=lambda k, n: random.normal(k, (n, 2)))
    initial = jnp.full((10, 2), 100.0)
    result = jax.jit(lambda k: run_pilot(Pilot(num_particles=64), HMC(), k, density, initial))(random.key(0))
    assert int((result.particles[:, 0] > 50).sum()) == 10
