"""The NumPyro and the Pyro version of every model are one density, in float64, constants included."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))
from models.load import _split, load, names

jax = pytest.importorskip("jax")
pytest.importorskip("numpyro")
torch = pytest.importorskip("torch")
pyro = pytest.importorskip("pyro")

import numpyro  # noqa: E402
import numpyro.infer.util  # noqa: E402
from pyro import poutine  # noqa: E402

NUM_POINTS = 5


@pytest.fixture(autouse=True)
def double_precision():
    """float64, one thread and no argument checks inside one test; the state of the process is put back."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        with jax.enable_x64(True), pyro.validation_enabled(False):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def points_near_reference(entry, seed=0):
    """``NUM_POINTS`` constrained points, a third of an sd about the reference mean: dict site -> (NUM_POINTS, ...)."""
    rng = np.random.default_rng(seed)
    sites: dict[str, list] = {}
    for name, ref in entry.reference["parameters"].items():
        value = ref["mean"] + 0.3 * ref["sd"] * rng.standard_normal(NUM_POINTS)
        sites.setdefault(_split(name)[0], []).append(value)
    out = {name: np.stack(v, -1) for name, v in sites.items()}
    scalars = {_split(n)[0] for n in entry.reference["parameters"] if _split(n)[1] is None}
    out = {name: v[:, 0] if name in scalars else v for name, v in out.items()}
    if entry.name == "eight_schools_noncentered":
        del out["theta"]
        out["z"] = rng.standard_normal((NUM_POINTS, 8))
    if entry.name.startswith("hmm"):
        for name in ("theta1", "theta2"):
            out[name] = np.clip(out[name], 1e-3, None)
            out[name] /= out[name].sum(-1, keepdims=True)
    return out


def numpyro_log_joint(model, data, points):
    """Values (NUM_POINTS,) and gradients, a dict of the shapes of ``points``."""
    single = jax.value_and_grad(lambda p: numpyro.infer.util.log_density(model, (), data, p)[0])
    values, gradients = jax.jit(jax.vmap(single))(points)
    return np.asarray(values), {name: np.asarray(value) for name, value in gradients.items()}


@functools.cache
def numpyro_side(name):
    """The points, and values and gradients of the NumPyro model: compiled once for all tests."""
    entry = load(name)
    points = points_near_reference(entry)
    return points, *numpyro_log_joint(entry.numpyro_model, entry.data, points)


def pyro_log_joint(model, data, point):
    trace = poutine.trace(poutine.condition(model, data=point)).get_trace(**data)
    return trace.log_prob_sum()


def as_tensors(points):
    return {name: torch.as_tensor(value) for name, value in points.items()}


@pytest.fixture(params=names(), scope="module")
def entry(request):
    return load(request.param)


def test_the_joint_log_densities_are_equal(entry):
    points, in_numpyro, _ = numpyro_side(entry.name)
    tensors, data = as_tensors(points), entry.torch_data()
    in_pyro = [float(pyro_log_joint(entry.pyro_model, data, {k: v[i] for k, v in tensors.items()})) for i in range(5)]
    assert np.all(np.isfinite(in_numpyro))
    assert np.ptp(in_numpyro) > 1e-2, "the points do not probe the density"
    np.testing.assert_allclose(in_pyro, in_numpyro, rtol=1e-8, atol=1e-8)


def test_the_pyro_model_works_under_vmap_with_gradients(entry):
    points, values, gradients = numpyro_side(entry.name)
    data = entry.torch_data()

    def single(point):
        return pyro_log_joint(entry.pyro_model, data, point)

    in_pyro = torch.func.vmap(torch.func.grad_and_value(single))(as_tensors(points))
    np.testing.assert_allclose(in_pyro[1].numpy(), values, rtol=1e-8, atol=1e-8)
    for name, value in in_pyro[0].items():
        np.testing.assert_allclose(value.numpy(), gradients[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_both_versions_have_the_same_sites(entry):
    points = {name: value[0] for name, value in points_near_reference(entry).items()}
    here = {}

    def record():
        here.update(
            numpyro.handlers.trace(numpyro.handlers.condition(entry.numpyro_model, points)).get_trace(**entry.data)
        )

    jax.eval_shape(record)
    there = poutine.trace(poutine.condition(entry.pyro_model, as_tensors(points))).get_trace(**entry.torch_data())
    shapes = {n: tuple(s["value"].shape) for n, s in here.items() if s["type"] == "sample" and n in points}
    others = {n: tuple(s["value"].shape) for n, s in there.nodes.items() if s["type"] == "sample" and n in points}
    assert shapes == others == {name: np.shape(value) for name, value in points.items()}
    latent = {n for n, s in here.items() if s["type"] == "sample" and n not in points and not s["is_observed"]}
    assert not latent, "a latent site is missing from the reference"


def test_scalars_have_the_names_of_the_reference_and_any_leading_shape(entry):
    points = points_near_reference(entry)
    draws = {name: np.stack([value, value]) for name, value in points.items()}
    scalars = entry.scalars(draws)
    assert list(scalars) == list(entry.reference["parameters"])
    assert {value.shape for value in scalars.values()} == {(2, NUM_POINTS)}


def test_the_density_of_the_unordered_mixture_is_blind_to_the_labels():
    entry = load("mixture_unordered")
    points = points_near_reference(entry)
    swapped = {"mu": points["mu"][:, ::-1], "sigma": points["sigma"][:, ::-1], "theta": 1.0 - points["theta"]}
    values, _ = numpyro_log_joint(entry.numpyro_model, entry.data, swapped)
    np.testing.assert_allclose(values, numpyro_side("mixture_unordered")[1], rtol=1e-12)
    for name, value in entry.scalars(swapped).items():
        np.testing.assert_allclose(value, entry.scalars(points)[name], rtol=1e-12)


def test_the_constant_model_of_the_sinusoid_is_the_same_in_both():
    entry = load("sinusoid")
    points = points_near_reference(entry)
    points = {name: points[name] for name in ("offset", "sigma")}
    here, _ = numpyro_log_joint(entry.alternative("numpyro"), entry.data, points)
    tensors, data = as_tensors(points), entry.torch_data()
    model = entry.alternative("pyro")
    there = [float(pyro_log_joint(model, data, {k: v[i] for k, v in tensors.items()})) for i in range(NUM_POINTS)]
    np.testing.assert_allclose(there, here, rtol=1e-8)


def test_the_positive_normal_is_a_normalised_truncated_normal():
    from scipy.stats import truncnorm

    positive_normal = load("lotka_volterra").pyro_model.__globals__["PositiveNormal"]
    d = positive_normal(torch.tensor([1.0, -0.5, 0.05]), torch.tensor([0.5, 1.0, 0.05]))
    grid = torch.linspace(0.01, 1.0, 7)[:, None]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sample = d.sample((40_000,))
    for i, (loc, scale) in enumerate([(1.0, 0.5), (-0.5, 1.0), (0.05, 0.05)]):
        truth = truncnorm(-loc / scale, np.inf, loc=loc, scale=scale)
        np.testing.assert_allclose(d.log_prob(grid)[:, i], truth.logpdf(grid[:, 0]), rtol=1e-8)
        draws = sample[:, i].numpy()
        assert draws.min() > 0.0
        assert abs(draws.mean() - truth.mean()) < 4.0 * truth.std() / np.sqrt(40_000)


@pytest.mark.parametrize("framework", ["numpyro", "pyro"])
def test_the_solver_of_lotka_volterra_is_accurate(framework):
    from scipy.integrate import solve_ivp

    entry = load("lotka_volterra")
    points = points_near_reference(entry)
    model = entry.numpyro_model if framework == "numpyro" else entry.pyro_model
    solve = model.__globals__["solve"]
    for theta, start in zip(points["theta"], points["z_init"]):

        def slope(_, z, th=theta):
            return [(th[0] - th[1] * z[1]) * z[0], (-th[2] + th[3] * z[0]) * z[1]]

        truth = solve_ivp(slope, (0, 20), start, t_eval=np.arange(1, 21), rtol=1e-11, atol=1e-11, method="DOP853").y.T
        args = (theta, start) if framework == "numpyro" else (torch.as_tensor(theta), torch.as_tensor(start))
        np.testing.assert_allclose(np.asarray(solve(*args, 20)), truth, rtol=1e-6)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="eight_schools_noncentered"):
        load("nine_schools")
