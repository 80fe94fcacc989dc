"""Our coupling flow against flowjax's of the same size: compilation and time of a training gradient, one process.

The reason why the flow is written here: a kernel holds the flow in eight places, and compilation is most of what a user
waits for on a small model.

    python -m benchmarks.flow_numpyro
"""

from __future__ import annotations

import time

import equinox as eqx
import jax
import jax.numpy as jnp
from flowjax.bijections import RationalQuadraticSpline
from flowjax.distributions import StandardNormal
from flowjax.flows import coupling_flow

from ppl_samplers.backends.jax.flows import SplineCoupling

DIM, POINTS, LAYERS, REPEATS = 10, 256, 6, 100


def measure(name: str, fn, parameters, x: jax.Array) -> tuple[float, float]:
    """Seconds to compile the gradient of a negative log likelihood, milliseconds to run it."""
    gradient = jax.jit(jax.value_and_grad(fn))
    start = time.perf_counter()
    program = gradient.lower(parameters, x).compile()
    compiled = time.perf_counter() - start
    jax.block_until_ready(program(parameters, x))
    start = time.perf_counter()
    for _ in range(REPEATS):
        out = program(parameters, x)
    jax.block_until_ready(out)
    ran = 1e3 * (time.perf_counter() - start) / REPEATS
    print(f"{name:10s} compiled in {compiled:5.2f} s, gradient {ran:6.2f} ms", flush=True)
    return compiled, ran


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (POINTS, DIM))
    ours = SplineCoupling(layers=LAYERS)
    params = ours.init(jax.random.key(1), DIM)
    jax.block_until_ready(jax.jit(lambda a: a + 1)(x))

    def own_loss(network, x):
        return -jnp.mean(ours.log_prob({**params, "network": network}, x))

    theirs = coupling_flow(
        jax.random.key(1),
        base_dist=StandardNormal((DIM,)),
        transformer=RationalQuadraticSpline(knots=ours.num_bins(DIM), interval=ours.interval),
        flow_layers=LAYERS,
        nn_width=ours.width,
        nn_depth=ours.depth,
        nn_activation=jax.nn.silu,
    )
    arrays, static = eqx.partition(theirs, eqx.is_inexact_array)

    def their_loss(arrays, x):
        return -jnp.mean(eqx.combine(arrays, static).log_prob(x))

    own = measure("ours", own_loss, params["network"], x)
    other = measure("flowjax", their_loss, arrays, x)
    print(f"flowjax / ours: {other[0] / own[0]:.1f} x compilation, {other[1] / own[1]:.1f} x time")


if __name__ == "__main__":
    main()
