"""The exact targets give the same numbers, and gradients, on NumPy, torch and JAX arrays."""

from __future__ import annotations

import numpy as np
import pytest

from ppl_samplers.testing import targets

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")


@pytest.mark.parametrize("name", sorted(targets.TARGETS))
def test_three_namespaces_agree(name):
    target = targets.TARGETS[name]()
    x = target.sample(np.random.default_rng(0), 50)
    reference = target.log_density(x)
    x_torch = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    in_torch = target.log_density(x_torch)
    assert in_torch.dtype == torch.float64
    np.testing.assert_allclose(in_torch.detach().numpy(), reference, rtol=1e-10, atol=1e-10)
    (grad_torch,) = torch.autograd.grad(in_torch.sum(), x_torch)
    x_jax = jax.numpy.asarray(x, dtype=jax.numpy.float32)
    in_jax = target.log_density(x_jax)
    assert isinstance(in_jax, jax.Array)
    scale = 1e-5 * (1 + np.abs(reference).max() + (x**2).max())
    np.testing.assert_allclose(np.asarray(in_jax), reference, atol=scale)
    grad_jax = jax.grad(lambda v: target.log_density(v).sum())(x_jax)
    size = 1 + np.abs(grad_torch.numpy()).max()
    np.testing.assert_allclose(np.asarray(grad_jax), grad_torch.numpy(), atol=1e-4 * size)


def test_gmm40_means_are_the_float32_stream_of_torch():
    state = torch.get_rng_state()
    torch.manual_seed(0)
    means = 80 * (torch.rand(40, 2) - 0.5)
    torch.set_rng_state(state)
    np.testing.assert_allclose(targets._GMM40_MEANS, means.numpy(), atol=0, rtol=1e-7)
