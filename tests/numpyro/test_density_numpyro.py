"""The NumPyro density against hand-written densities, loops, and its own parts."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from numpyro.distributions import constraints
from numpyro.handlers import mask, scale

from ppl_samplers.backends.numpyro.density import LogDensity
from ppl_samplers.testing import hostile_numpyro_models as models
from ppl_samplers.testing.hostile_numpyro import REGRESSION_LOG_Z, REGRESSION_X, REGRESSION_Y, by_id

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
S = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)
SMALL = by_id("1").args[0]


def schools_by_hand(y, x):
    """Eight schools, centred, tau = exp(x[1]), Jacobian x[1]."""
    mu, log_tau, theta = x[0], x[1], x[2:]
    tau = jnp.exp(log_tau)
    prior = norm.logpdf(mu, 0, 5) + jnp.log(2 / (jnp.pi * 5 * (1 + (tau / 5) ** 2))) + log_tau
    return prior + norm.logpdf(theta, mu, tau).sum() + norm.logpdf(y, theta, S).sum()


def points(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


@pytest.fixture(scope="module")
def schools():
    return LogDensity(models.eight_schools, (Y,), {"sigma": S})


@pytest.fixture(scope="module")
def unsorted():
    return LogDensity(models.unsorted_sites, (SMALL,))


@pytest.fixture(scope="module")
def mixture():
    return LogDensity(models.mixture, (SMALL,))


def test_values_and_gradients_against_a_hand_written_density(schools):
    x = points(16, 10)
    value, grad = jax.vmap(jax.value_and_grad(lambda v: schools_by_hand(Y, v)))(x)
    v, g = schools.value_and_grad(x)
    np.testing.assert_allclose(v, value, rtol=2e-6)
    np.testing.assert_allclose(g, grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(schools(x), value, rtol=2e-6)
    np.testing.assert_allclose(schools.raw(x), value, rtol=2e-6)
    pulled = jax.grad(lambda u: (jnp.arange(16.0) * schools(u)).sum())(x)
    np.testing.assert_allclose(pulled, np.arange(16.0)[:, None] * grad, rtol=1e-4, atol=1e-3)


def test_batch_is_the_loop(schools):
    x = points(5, 10, 1)
    np.testing.assert_allclose(schools(x), [schools(v[None])[0] for v in x], rtol=1e-6)


@pytest.mark.parametrize("n", [0, 3, 7, 8])
def test_chunks_give_the_same(schools, n):
    chunked = LogDensity(models.eight_schools, (Y,), {"sigma": S}, batch_size=4)
    x = points(n, 10, 2)
    np.testing.assert_allclose(chunked(x), schools(x), rtol=1e-6)
    for a, b in zip(chunked.value_and_grad(x), schools.value_and_grad(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_space_is_in_trace_order(unsorted):
    assert [(s.name, s.slice, s.unconstrained_shape) for s in unsorted.space] == [
        ("b", slice(0, 3), (3,)),
        ("a", slice(3, 7), (2, 2)),
    ]
    x = points(6, 7).reshape(2, 3, 7)
    sites = unsorted.unravel(x)
    np.testing.assert_array_equal(sites["b"], x[..., :3])
    np.testing.assert_array_equal(sites["a"], x[..., 3:].reshape(2, 3, 2, 2))
    np.testing.assert_array_equal(unsorted.ravel({"a": sites["a"], "b": sites["b"]}), x)
    np.testing.assert_array_equal(unsorted.ravel(unsorted.unravel(x[0, 0])), x[0, 0])


def test_ravel_names_the_missing_site(unsorted):
    with pytest.raises(KeyError, match="'a'"):
        unsorted.ravel({"b": jnp.zeros(3)})
    with pytest.raises(KeyError, match="'a'"):
        unsorted.unconstrain({"b": jnp.zeros(3)})
    with pytest.raises(ValueError, match="'a'"):
        unsorted.ravel({"b": jnp.zeros(3), "a": jnp.zeros((3, 2))})


def test_constrain_and_back_for_any_leading_shape(unsorted):
    x = points(6, 7).reshape(2, 3, 7)
    values = unsorted.constrain(x)
    assert list(values) == ["b", "a"]
    np.testing.assert_allclose(values["a"], np.exp(x[..., 3:]).reshape(2, 3, 2, 2), rtol=1e-6)
    np.testing.assert_allclose(unsorted.unconstrain(values), x, atol=1e-5)
    np.testing.assert_allclose(unsorted.unconstrain(unsorted.constrain(x[0, 0])), x[0, 0], atol=1e-5)


def test_constrain_replays_only_where_it_must():
    runs = []

    def model(y):
        runs.append(1)
        a = numpyro.sample("a", dist.HalfNormal(1.0))
        numpyro.deterministic("table", jnp.outer(a * y, y))

    density = LogDensity(model, (jnp.arange(2.0),))
    x = points(4, 1)
    before = len(runs)
    assert list(density.constrain(x, deterministic=False)) == ["a"]
    assert len(runs) == before
    values = density.constrain(x)
    assert len(runs) == before + 1
    np.testing.assert_allclose(values["table"][:, 1, 1], np.exp(x[:, 0]), rtol=1e-6)


def test_latent_bound_follows_the_bound():
    density = LogDensity(models.latent_bound, (SMALL,))
    x = points(8, 2)
    values = density.constrain(x)
    a = np.exp(x[:, 0])
    np.testing.assert_allclose(values["b"], a / (1 + np.exp(-x[:, 1])), rtol=1e-5)
    np.testing.assert_allclose(density.unconstrain(values), x, atol=1e-4)
    b = values["b"]
    by_hand = norm.logpdf(x[:, 0]) - np.log(a) + np.log(b) + np.log1p(-b / a)  # Jacobian of b, b (a - b) / a
    by_hand = by_hand + norm.logpdf(SMALL[:, None], b).sum(0)
    np.testing.assert_allclose(density(x), by_hand, rtol=1e-4)


def test_data_bound_follows_bind():
    def model(high):
        numpyro.sample("u", dist.Uniform(0.0, high))

    density = LogDensity(model, (jnp.array(1.0),))
    x = jnp.zeros((1, 1))
    np.testing.assert_allclose(density.bind(jnp.array(6.0)).constrain(x)["u"], 3.0, rtol=1e-6)
    np.testing.assert_allclose(density.bind(jnp.array(6.0)).unconstrain({"u": jnp.array([3.0])}), 0.0, atol=1e-6)


def test_parts_add_up_to_the_density():
    def model(y):
        a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
        with scale(scale=0.5):
            b = numpyro.sample("b", dist.Dirichlet(jnp.ones(3)))
            numpyro.sample("one", dist.Normal(a, b[0]), obs=y)
        numpyro.factor("penalty", -a * b)
        with mask(mask=y > 0):
            numpyro.sample("two", dist.Normal(a, 1.0), obs=y)

    density = LogDensity(model, (SMALL,))
    x = points(6, 3)
    likelihood = density.log_likelihood(x)
    assert {k: v.shape for k, v in likelihood.items()} == {"one": (6, 12), "two": (6, 12)}
    assert np.all(np.asarray(likelihood["two"])[:, SMALL <= 0] == 0)
    total = density.log_prior(x) + sum(v.sum(-1) for v in likelihood.values()) + density.log_factor(x)
    np.testing.assert_allclose(total, density(x), rtol=1e-5)
    assert density.evidence_kind == "relative"
    assert all(word in density.evidence_reason for word in ("'one'", "'two'", "'penalty'"))
    assert set(density.observed) == {"one", "two"}


def test_pointwise_log_likelihood_by_hand(schools):
    x = points(4, 10)
    np.testing.assert_allclose(schools.log_likelihood(x)["obs"], norm.logpdf(Y, x[:, 2:], S), rtol=1e-5)
    np.testing.assert_array_equal(schools.observed["obs"], Y)


def test_bind_takes_new_data_under_jit_without_discovery():
    runs = []

    def model(y, sigma):
        runs.append(1)
        models.eight_schools(y, sigma)

    density = LogDensity(model, (Y,), {"sigma": S})
    x = points(4, 10)
    density(x)
    before = len(runs)
    moved = density.bind(Y + 1, sigma=S)
    assert len(runs) == before
    expected = [schools_by_hand(Y + 1, v) for v in x]
    np.testing.assert_allclose(moved(x), expected, rtol=1e-5)
    assert len(runs) == before  # the compiled program is shared
    traced = jax.jit(lambda y, x: density.bind(y, sigma=S).value_and_grad(x))(Y + 1, x)
    np.testing.assert_allclose(traced[0], expected, rtol=1e-5)
    np.testing.assert_allclose(density(x), [schools_by_hand(Y, v) for v in x], rtol=1e-5)
    batched = jax.vmap(lambda y: density.bind(y, sigma=S)(x))(jnp.stack([Y, Y + 1]))
    np.testing.assert_allclose(batched[1], expected, rtol=1e-5)


def test_bind_tells_static_arguments_apart():
    def model(y, power=1):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(a**power, 1.0), obs=y)

    density = LogDensity(model, (SMALL,))
    x = jnp.full((1, 1), 2.0)
    for power in (1, 2, 1):
        value = density.bind(SMALL, power=power)(x)
        np.testing.assert_allclose(value, norm.logpdf(2.0) + norm.logpdf(SMALL, 2.0**power).sum(), rtol=1e-5)


def test_data_in_python_and_numpy_are_constants():
    def model(y):
        groups = len(np.unique(np.asarray(y) > 0))
        a = numpyro.sample("a", dist.Normal(jnp.zeros(groups), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(a.sum(), 1.0), obs=y)

    density = LogDensity(model, (SMALL,))
    x = jnp.ones((1, 2))
    by_hand = norm.logpdf(jnp.ones(2)).sum() + norm.logpdf(SMALL, 2.0).sum()
    np.testing.assert_allclose(density(x), by_hand, rtol=1e-5)
    other = density.bind(SMALL + 1)
    np.testing.assert_allclose(other(x), norm.logpdf(jnp.ones(2)).sum() + norm.logpdf(SMALL + 1, 2.0).sum(), rtol=1e-5)


def test_discovery_inside_jit():
    def program(key, x):
        density = LogDensity(models.latent_bound, (SMALL,))
        return density.initial_points(key, 3), density(x)

    x = points(4, 2)
    start, value = jax.jit(program)(random.key(0), x)
    density = LogDensity(models.latent_bound, (SMALL,))
    np.testing.assert_allclose(value, density(x), rtol=1e-6)
    np.testing.assert_allclose(start, density.initial_points(random.key(0), 3), rtol=1e-5)


def test_invalid_points_have_weight_zero_and_no_gradient():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        y = numpyro.sample("y", dist.Normal(0.0, 1.0))
        numpyro.factor("wall", jnp.where(x > 0, 0.0, -jnp.inf))
        numpyro.factor("nan gradient", jnp.where(y > 0, jnp.sqrt(y), 0.0))
        numpyro.factor("nan", jnp.where(x > 2, jnp.nan, 0.0))
        numpyro.factor("plus", jnp.where(x > 3, jnp.inf, 0.0))

    density = LogDensity(model)
    x = jnp.array([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [2.5, 1.0], [3.5, 1.0]])
    v, g = density.value_and_grad(x)
    assert np.isfinite(v).tolist() == [True, False, True, False, False]
    assert np.all(np.asarray(v)[[1, 3, 4]] == -np.inf)
    assert np.all(np.asarray(g)[1:] == 0)
    assert np.all(np.asarray(g)[0] != 0)
    np.testing.assert_array_equal(density(x), v)
    np.testing.assert_array_equal(jax.grad(lambda u: density(u).sum())(x), g)
    assert np.isnan(density.raw(x)[3])
    start = density.initial_points(random.key(0), 20)
    assert np.isfinite(density(start)).all()
    assert len(np.unique(np.asarray(start), axis=0)) > 15


def test_raw_has_second_derivatives_and_the_evidence_is_exact():
    density = LogDensity(models.regression, (REGRESSION_X, REGRESSION_Y))
    single = lambda v: density.raw(v[None])[0]  # noqa: E731
    start = jnp.zeros(4)
    hessian = jax.hessian(single)(start)
    mode = start - jnp.linalg.solve(hessian, jax.grad(single)(start))
    log_z = single(mode) + 2 * jnp.log(2 * jnp.pi) - 0.5 * jnp.linalg.slogdet(-hessian)[1]
    np.testing.assert_allclose(log_z, REGRESSION_LOG_Z, atol=1e-3)
    np.testing.assert_allclose(mode, [1.0577, -2.0507, 0.5006, 0.0383], atol=2e-4)
    assert density.evidence_kind == "absolute"


def test_prior_draws_have_the_prior_moments(schools):
    n = 4000
    x = np.asarray(schools.sample_prior(random.key(3), n), np.float64)
    assert x.shape == (n, 10)
    assert abs(x[:, 0].mean()) < 4 * 5 / np.sqrt(n)
    # The log of a half-Cauchy variable has mean log(scale) and standard deviation pi / 2.
    assert abs(x[:, 1].mean() - np.log(5)) < 4 * (np.pi / 2) / np.sqrt(n)
    z = (x[:, 2:] - x[:, :1]) / np.exp(x[:, 1:2])
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / (8 * n))


@pytest.mark.parametrize("key", [random.key(1), random.PRNGKey(1), random.split(random.key(1), 4)], ids=str)
def test_keys_of_any_form(schools, key):
    assert schools.sample_prior(key, 3).shape == (3, 10)
    assert schools.initial_points(key, 3).shape == (3, 10)


def test_legacy_key_batch(schools):
    assert schools.sample_prior(random.split(random.PRNGKey(1), 4), 3).shape == (3, 10)


def _improper_wrapped():
    improper = dist.ImproperUniform(constraints.positive, (), ())
    numpyro.sample("s", improper.expand([2]).mask(True).to_event(1))


def _factor():
    numpyro.sample("s", dist.Normal(0.0, 1.0))
    numpyro.factor("extra", 1.0)


def _scaled():
    with scale(scale=2.0):
        numpyro.sample("s", dist.Normal(0.0, 1.0))


def _unit_scale():
    with scale(scale=1.0), mask(mask=jnp.array(True)):
        numpyro.sample("s", dist.Normal(0.0, 1.0))


def _missing():
    y = jnp.array([1.0, 0.0])
    loc = numpyro.sample("s", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(loc, 1.0).expand([2]), obs=y, obs_mask=jnp.array([True, False]))


@pytest.mark.parametrize(
    ("model", "kind", "word", "prior"),
    [
        (_improper_wrapped, "undefined", "'s'", False),
        (_factor, "relative", "'extra'", True),
        (_scaled, "relative", "'s'", True),
        (_unit_scale, "absolute", "proper", True),
        (_missing, "undefined", "y_unobserved", False),
    ],
)
def test_evidence_kind(model, kind, word, prior):
    density = LogDensity(model)
    assert density.evidence_kind == kind
    assert word in density.evidence_reason
    assert density.has_prior is prior


def test_improper_prior_starts_in_a_box():
    density = LogDensity(models.flat_real, (SMALL,))
    with pytest.raises(ValueError, match="'loc' is improper"):
        density.sample_prior(random.key(0), 2)
    x = np.asarray(density.initial_points(random.key(0), 200))
    assert np.abs(x).max() < 2
    assert np.abs(x).max() > 1.5


def test_no_finite_start_names_the_site():
    def model(x, y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("good", dist.Normal(a, 1.0), obs=y)
        numpyro.sample("bad", dist.Normal(a * x, 1.0), obs=y)

    density = LogDensity(model, (np.where(SMALL > 0, SMALL, np.nan), SMALL))
    with pytest.raises(ValueError, match=r"'bad' is .* at every one of them") as error:
        density.initial_points(random.key(0), 4)
    assert "'good'" not in str(error.value)


def test_mixture_is_the_sum_over_labels(mixture):
    x = points(5, 3)
    w = 1 / (1 + np.exp(-x[:, 2]))
    prior = norm.logpdf(x[:, :2], 0, 3).sum(-1) + np.log(6 * w * (1 - w)) + np.log(w * (1 - w))
    both = jnp.stack([norm.logpdf(SMALL, x[:, k : k + 1]) for k in (0, 1)], -1)
    likelihood = logsumexp(both + jnp.log(jnp.stack([1 - w, w], -1))[:, None], axis=-1).sum(-1)
    np.testing.assert_allclose(mixture(x), prior + likelihood, rtol=1e-5)
    np.testing.assert_allclose(mixture.log_prior(x), prior, rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="infer_discrete"):
        mixture.log_likelihood(x)
    assert [s.name for s in mixture.space] == ["loc", "weight"]


def test_deterministic_sites_of_summed_out_sites_are_left_out():
    def model():
        loc = numpyro.sample("loc", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        z = numpyro.sample("z", dist.Categorical(jnp.full(2, 0.5)), infer={"enumerate": "parallel"})
        numpyro.deterministic("gap", loc[1] - loc[0])
        numpyro.deterministic("chosen", loc[z])

    density = LogDensity(model, key=random.key(2))
    assert set(density.constrain(points(3, 2))) == {"loc", "gap"}
    assert any("'chosen'" in note for note in density.notes)


def test_frozen_sites_warn_and_leave_a_note():
    with pytest.warns(UserWarning, match="'width' .param."):
        density = LogDensity(models.param_and_mutable, (SMALL,))
    assert "width" in density.notes[0]
    x = points(4, 1)
    np.testing.assert_allclose(
        density(x), norm.logpdf(x[:, 0], 0, 2) + norm.logpdf(SMALL[:, None], x[:, 0]).sum(0), rtol=1e-5
    )


def test_data_of_another_shape_warn():
    def model(y):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.full(12, a), 1.0), obs=y)

    with pytest.warns(UserWarning, match="'y'.*every row"):
        LogDensity(model, (SMALL[:, None],))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LogDensity(model, (SMALL,))


def test_while_loop_is_refused():
    def model():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.factor("f", jax.lax.while_loop(lambda v: v < 1, lambda v: v + 1.0, a))

    with pytest.raises(ValueError, match=r"while_loop.*lax\.scan"):
        LogDensity(model)


def test_wrong_points_are_refused(schools):
    for bad in (np.zeros(10), np.zeros((2, 9)), np.zeros((2, 2, 10))):
        with pytest.raises(ValueError, match=r"\(N, 10\)"):
            schools(bad)


def test_float64():
    with jax.enable_x64(True):
        density = LogDensity(models.eight_schools, (Y.astype(float),), {"sigma": S.astype(float)})
        x = points(4, 10).astype(float)
        v, g = density.value_and_grad(x)
        assert v.dtype == g.dtype == np.float64
        assert density.initial_points(random.key(0), 2).dtype == np.float64
        np.testing.assert_allclose(v, [schools_by_hand(Y.astype(float), jnp.asarray(u)) for u in x], rtol=1e-12)
        assert density.precision_note(x) is None


def test_precision_note(schools):
    case = by_id("28")
    density = LogDensity(case.make(), case.args)
    x = np.array([[0.7, np.log(0.01)], [0.7003, np.log(0.0101)]])
    note = density.precision_note(x)
    assert note is not None
    assert "float32" in note
    assert "jax_enable_x64" in note
    assert schools.precision_note(points(4, 10)) is None
    assert not jax.config.jax_enable_x64


def test_precision_note_of_a_model_with_its_own_random_numbers():
    density = LogDensity(models.own_randomness, (SMALL,))
    assert density.precision_note(points(4, 3)) is None


def test_pickle(unsorted):
    x = points(3, 7)
    expected = unsorted(x)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(unsorted))(x), expected)
