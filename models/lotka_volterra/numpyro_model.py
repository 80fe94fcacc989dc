"""Lynx and hare: the predator-prey equations with multiplicative noise."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax

STEPS_PER_YEAR = 16  # fixed steps: a relative error below 1e-6 at posterior draws


def solve(theta, z_init, num_years):
    """Fourth-order Runge-Kutta from year 0; returns the populations at years 1..num_years, shape (num_years, 2)."""
    dt = 1.0 / STEPS_PER_YEAR

    def slope(z):
        u, v = z[0], z[1]
        return jnp.stack([(theta[0] - theta[1] * v) * u, (-theta[2] + theta[3] * u) * v])

    def step(z, _):
        k1 = slope(z)
        k2 = slope(z + 0.5 * dt * k1)
        k3 = slope(z + 0.5 * dt * k2)
        k4 = slope(z + dt * k3)
        z = z + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        return z, z

    _, path = lax.scan(step, z_init, None, length=num_years * STEPS_PER_YEAR)
    return path[STEPS_PER_YEAR - 1 :: STEPS_PER_YEAR]


def model(ts, y_init, y):
    """The observation times ``ts`` are the years 1, 2, ..., len(ts)."""
    loc, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    theta = numpyro.sample("theta", dist.TruncatedNormal(loc, scale, low=0.0).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
    z = solve(theta, z_init, len(ts))
    # Far from the posterior an explicit solver can leave the positive quadrant or overflow; keep the logarithm finite.
    log_z = jnp.log(jnp.clip(z, 1e-10, 1e10))
    numpyro.sample("y_init", dist.LogNormal(jnp.log(z_init), sigma).to_event(1), obs=y_init)
    with numpyro.plate("years", len(ts)):
        numpyro.sample("y", dist.LogNormal(log_z, sigma).to_event(1), obs=y)
