"""Each hostile model at the density level: space, values and gradients against NumPyro's own potential, one by one."""

import warnings

import jax
import numpy as np
import pytest
from jax import random
from numpyro.infer.util import initialize_model

from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.testing.hostile_numpyro import HOSTILE, by_id, other_data, runnable

ERRORS = [case for case in HOSTILE if case.expect == "error"]
# The last two are the regression again, there for tests of kernels.
RUNNABLE = [case for case in runnable() if case.id not in ("29", "30")]
# Long to compile.
HEAVY = ("3", "5b", "16", "17a", "20d")
FAST_AND_SLOW = [pytest.param(c, marks=[pytest.mark.slow] if c.id in HEAVY else [], id=c.id) for c in RUNNABLE]


def build(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogDensity(case.make(), case.args, case.kwargs)


def points(case, n=3):
    return np.random.default_rng(7).uniform(-2, 2, (n, case.dim)).astype(np.float32)


def reference(case, args):
    """NumPyro's potential, one point at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        info = initialize_model(
            random.key(0), case.make(), model_args=args, model_kwargs=dict(case.kwargs), validate_grad=False
        )
    return jax.jit(jax.value_and_grad(lambda z: -info.potential_fn(z)))


def test_all_thirty_are_there():
    assert {int("".join(c for c in case.id if c.isdigit())) for case in HOSTILE} == set(range(1, 31))
    assert len({case.id for case in HOSTILE}) == len(HOSTILE)


@pytest.mark.parametrize("case", ERRORS, ids=lambda c: c.id)
def test_refused_with_a_remedy(case):
    with pytest.raises(case.error, match=case.fragment):
        LogDensity(case.make(), case.args, case.kwargs)


@pytest.mark.parametrize("case", [c for c in HOSTILE if c.expect == "warns"], ids=lambda c: c.id)
def test_warned(case):
    with pytest.warns(case.error, match=case.fragment):
        LogDensity(case.make(), case.args, case.kwargs)


@pytest.mark.parametrize("case", FAST_AND_SLOW)
def test_density(case):
    density = build(case)
    assert density.dim == case.dim == sum(s.slice.stop - s.slice.start for s in density.space)
    assert density.evidence_kind == case.evidence_kind
    assert density.evidence_reason
    assert density.has_prior is case.has_prior
    x = points(case)
    v, g = map(np.asarray, density.value_and_grad(x))
    assert v.shape == (3,)
    assert g.shape == (3, case.dim)
    assert not np.isnan(v).any()
    assert np.isfinite(g).all()
    assert np.isfinite(v).all() or not case.covers_all
    single = reference(case, case.args)
    for row, value, grad in zip(x, v, g, strict=True):
        expected, expected_grad = single(density.unravel(row))
        expected_grad = np.concatenate([np.ravel(expected_grad[s.name]) for s in density.space])
        np.testing.assert_allclose(value, expected, rtol=1e-4)
        if np.isfinite(expected) and np.isfinite(expected_grad).all():
            np.testing.assert_allclose(grad, expected_grad, rtol=2e-3, atol=2e-3)
        else:
            assert np.all(grad == 0)


SPACES = {
    "3": lambda v: np.testing.assert_allclose((np.asarray(v["corr"]) ** 2).sum(-1), 1, rtol=1e-5),
    "4": lambda v: np.all(np.diff(v["cut"]) > 0),
    "5a": lambda v: np.testing.assert_allclose(v["p"].sum(-1), 1, rtol=1e-5),
    "5b": lambda v: np.testing.assert_allclose(v["p"].sum(-1), 1, rtol=1e-5),
    "8": lambda v: np.all((v["b"] > 0) & (v["b"] < v["a"])),
    "9b": lambda v: v["empty"].shape == (3, 0),
    "16": lambda v: set(v) == {"loc", "weight"},
    "17b": lambda v: v["x"].shape == (3, 12),
    "20a": lambda v: v["table"].shape == (3, 3, 3),
    "20b": lambda v: np.testing.assert_allclose(
        v["theta"], v["mu"][:, None] + v["tau"][:, None] * v["theta_decentered"], rtol=1e-4
    ),
    "20c": lambda v: np.all(np.abs(v["loc"]) <= np.pi),
    "20d": lambda v: v["b"].shape == (3, 3) and v["a"].shape == (3, 2, 2),
}


@pytest.mark.parametrize("id", SPACES)
def test_constrained_values(id):
    case = by_id(id)
    density = build(case)
    x = points(case)
    values = density.constrain(x)
    assert SPACES[id](values) is not False
    np.testing.assert_allclose(density.unconstrain(values), x, atol=2e-3)


@pytest.mark.parametrize("id", ["1", "8", "13", pytest.param("16", marks=pytest.mark.slow), "20b", "20c", "24b"])
def test_starting_points_and_prior(id):
    case = by_id(id)
    density = build(case)
    x = density.initial_points(random.key(1), 6)
    assert x.shape == (6, case.dim)
    assert np.isfinite(density(x)).all()
    if case.has_prior:
        assert density.sample_prior(random.key(2), 4).shape == (4, case.dim)
        assert np.isfinite(density.log_prior(x)).all()


@pytest.mark.parametrize("id", ["11", "12", pytest.param("17a", marks=pytest.mark.slow), "20b", "24a", "30"])
def test_new_data_on_one_object(id):
    case = by_id(id)
    density = build(case)
    x = points(case)
    before = density(x)
    args = other_data(case)
    fresh = LogDensity(case.make(), args, case.kwargs)
    np.testing.assert_allclose(density.bind(*args, **case.kwargs)(x), fresh(x), rtol=1e-6)
    np.testing.assert_array_equal(density(x), before)
    if id != "11":  # its floating-point data are a list, which stays
        assert not np.allclose(before, fresh(x))


def test_masked_nan_is_the_model_without_those_rows():
    case = by_id("12")
    seen = case.args[0][~np.isnan(case.args[0])]
    other = LogDensity(by_id("27a").make(), (seen,))
    x = points(case)
    np.testing.assert_allclose(build(case)(x), other(x), rtol=1e-5)


@pytest.mark.full
# 20d trains in float32, 28 is there to differ, and 24a draws other numbers in float64.
@pytest.mark.parametrize("case", [c for c in RUNNABLE if c.id not in ("20d", "24a", "28")], ids=lambda c: c.id)
def test_float64_agrees_with_float32(case):
    x = points(case)
    single = np.asarray(build(case)(x))
    with jax.enable_x64(True):
        wide = build(case)(x.astype(np.float64))
        assert wide.dtype == np.float64
    np.testing.assert_allclose(single, wide, rtol=2e-5, atol=1e-4)
