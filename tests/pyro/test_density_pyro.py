"""The flat log density of Pyro models: exact values, gradients, bookkeeping, and what must stay untouched."""

from __future__ import annotations

import pickle
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.poutine.runtime import _ENUM_ALLOCATOR

from ppl_samplers.backends.pyro import graphs
from ppl_samplers.backends.pyro.density import LogDensity
from ppl_samplers.backends.pyro.log_einsum import einsum
from ppl_samplers.testing.hostile_pyro import HOSTILE

CASES = {case.name: case for case in HOSTILE}


@pytest.fixture(autouse=True)
def seeded():
    pyro.clear_param_store()
    torch.manual_seed(1)


def density_of(name: str, **options) -> LogDensity:
    case = CASES[name]
    return LogDensity(case.make(), case.args, case.kwargs, **options)


def conjugate(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


DATA = torch.tensor([0.3, -1.0, 2.0])


def log_mass(density: LogDensity, low: float, high: float, n: int = 20001) -> float:
    """Log integral of a one-dimensional density by the trapezium rule."""
    x = torch.linspace(low, high, n, dtype=torch.float64)
    return float(torch.logsumexp(density(x[:, None]), 0) + torch.log(x[1] - x[0]))


# -- exact values ----------------------------------------------------------------------------------------
def test_conjugate_evidence_by_quadrature() -> None:
    cov = torch.eye(3, dtype=torch.float64) + 4.0
    exact = torch.distributions.MultivariateNormal(torch.zeros(3, dtype=torch.float64), cov).log_prob(DATA.double())
    density = LogDensity(conjugate, (DATA.double(),))
    assert log_mass(density, -15, 15) == pytest.approx(float(exact), abs=1e-6)
    assert density.evidence_kind == "absolute"


def test_bounds_that_depend_on_a_latent_are_exact() -> None:
    density = density_of("latent_bounds")
    x = torch.tensor([[0.3, -0.8], [-1.2, 2.0]], dtype=torch.float64)
    a = x[:, 0].exp()
    share = torch.sigmoid(x[:, 1])
    b = a * share
    expected = (
        torch.distributions.LogNormal(0.0, 1.0).log_prob(a)
        + x[:, 0]  # d a / d x
        - a.log()  # uniform on (0, a)
        + (a * share * (1 - share)).log()  # d b / d x
        + torch.distributions.Normal(b, 0.5).log_prob(torch.tensor(0.7))
    )
    torch.testing.assert_close(density(x), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(density.constrain(x)["b"], b, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(density.constrain(x)["gap"], a - b, rtol=1e-6, atol=1e-6)
    draws = density.constrain(density.sample_prior(4000).double())
    ratio = draws["b"] / draws["a"]
    assert abs(float(ratio.mean()) - 0.5) < 4 * (1 / 12 / 4000) ** 0.5
    assert abs(float(draws["a"].log().mean())) < 4 / 4000**0.5


def test_an_angle_lives_on_the_circle_once() -> None:
    def model():
        pyro.sample("angle", dist.VonMises(torch.tensor(1.0), torch.tensor(2.0)))

    assert log_mass(LogDensity(model), -40, 40, 400001) == pytest.approx(0.0, abs=1e-5)


def test_enumeration_equals_a_sum_by_hand() -> None:
    def model(y):
        p = pyro.sample("p", dist.Beta(1.0, 1.0))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(p))
            pyro.sample("y", dist.Normal(3 * z, 1.0), obs=y)

    density = LogDensity(model, (DATA.double(),))
    x = torch.tensor([[0.4], [-2.0]], dtype=torch.float64)
    p = torch.sigmoid(x)
    normal = torch.distributions.Normal
    likelihood = torch.logaddexp(
        p.log() + normal(3.0, 1.0).log_prob(DATA.double()), (1 - p).log() + normal(0.0, 1.0).log_prob(DATA.double())
    )
    torch.testing.assert_close(density.log_likelihood(x)["y"], likelihood)
    torch.testing.assert_close(density(x), likelihood.sum(-1) + (p * (1 - p)).log()[:, 0])


def test_log_einsum_survives_zeros_with_finite_gradients() -> None:
    a = torch.tensor([[0.2, -torch.inf], [-torch.inf, -torch.inf]], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.1, 0.5], dtype=torch.float64)
    out = einsum("ab,b->a", a, b)
    torch.testing.assert_close(out[0], torch.tensor(0.3, dtype=torch.float64))
    assert out[1] == -torch.inf
    (grad,) = torch.autograd.grad(out[0], a)
    assert torch.isfinite(grad).all() and grad[0, 0] == pytest.approx(1.0)


# -- gradients and bad values ----------------------------------------------------------------------------
def test_call_is_differentiable_once_and_says_so() -> None:
    density = LogDensity(conjugate, (DATA,))
    theta = torch.tensor(0.5, requires_grad=True)
    x = theta * torch.tensor([[1.0], [2.0]])  # linear: the whole second derivative is the density's own
    (grad,) = torch.autograd.grad(density(x).sum(), theta, create_graph=True)
    _, direct = density.value_and_grad(x)
    torch.testing.assert_close(grad, (direct[:, 0] * torch.tensor([1.0, 2.0])).sum())
    with pytest.raises(RuntimeError, match="differentiable once"):
        grad.backward()


def test_values_alone_cost_no_gradient() -> None:
    density = LogDensity(conjugate, (DATA,))
    with torch.no_grad():
        density(torch.zeros(5, 1, requires_grad=True))
    density(torch.zeros(2, 1))
    assert (density.num_evals, density.num_grad_evals) == (7, 0)
    density(torch.zeros(3, 1, requires_grad=True))
    assert (density.num_evals, density.num_grad_evals, density.num_invalid) == (10, 3, 0)


def bad_regions():
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    bad = torch.where(a > 1, torch.log(1 - a), torch.where(a < -1, torch.inf, 0.0) + 0 * a)
    pyro.factor("bad", bad)


@pytest.mark.parametrize("how", ["vmap", "graph", "loop"])
def test_nan_and_infinity_become_minus_infinity_with_zero_gradient(how: str) -> None:
    density = LogDensity(bad_regions, how=how)
    x = torch.tensor([[0.5], [2.0], [-2.0]], requires_grad=True)
    values = density(x)
    assert torch.isfinite(values[0]) and (values[1:] == -torch.inf).all()
    (grad,) = torch.autograd.grad(values[0] + values[1:].clamp(min=-50).sum(), x)
    torch.testing.assert_close(grad, torch.tensor([[-0.5], [0.0], [0.0]]))
    assert density.num_invalid == 2


def test_many_bad_points_are_said_once() -> None:
    density = LogDensity(bad_regions)
    with pytest.warns(UserWarning, match="not finite at 30 of 30"):
        density(torch.full((30, 1), 2.0))
    density(torch.full((30, 1), 2.0))  # filterwarnings=error: a second warning would fail here


@pytest.mark.parametrize("how", ["vmap", "graph", "loop"])
def test_one_singular_matrix_does_not_lose_the_batch(how: str) -> None:
    density = density_of("gaussian_process", how=how)
    good = torch.tensor([0.0, 0.0])
    x = torch.stack([good, torch.tensor([8.0, -40.0]), good])
    values, grads = density.value_and_grad(x)
    torch.testing.assert_close(values[[0, 2]], density(good[None]).expand(2))
    assert torch.isfinite(values[0]) and values[1] == -torch.inf
    assert (grads[1] == 0).all() and torch.isfinite(grads).all() and (grads[0] != 0).all()


def test_other_matrix_failures_are_isolated_too() -> None:
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        step = torch.where(a > 3, 0.0, 1.0)
        pyro.factor("solve", -torch.linalg.inv(step * torch.eye(2) * a.exp())[0, 0])

    density = LogDensity(model)
    values = density(torch.tensor([[0.0], [5.0], [1.0], [0.5], [4.0]]))
    assert torch.isfinite(values).tolist() == [True, False, True, True, False]


def test_masked_holes_in_the_data_leave_the_gradient_alone() -> None:
    density = density_of("masked_and_scaled")
    y = CASES["masked_and_scaled"].args[0]
    seen = y[~torch.isnan(y)]
    _, grads = density.value_and_grad(torch.tensor([[0.4]]))
    torch.testing.assert_close(grads, torch.tensor([[-0.4]]) + 0.5 * (seen - 0.4).sum())


# -- ways of evaluation ----------------------------------------------------------------------------------
def test_a_batch_size_that_comes_back_becomes_a_graph_and_pads_smaller_ones() -> None:
    density = density_of("eight_schools")
    x = torch.randn(16, 10)
    for _ in range(density._evaluator.graph_after):
        before = density.value_and_grad(x)
    assert density.how == "vmap"
    density._evaluator.how = "graph"  # adopt it even where the clock of a busy machine prefers vmap
    after = density.value_and_grad(x)
    assert density.how == "graph"
    assert graphs.close(before, after, 1e-4)
    padded = density.value_and_grad(x[:11])
    assert len(density._evaluator.graphs) == 1 and len(padded[0]) == 11
    assert graphs.close((before[0][:11], before[1][:11]), padded, 1e-4)


def test_auto_builds_its_graph_by_count() -> None:
    density = density_of("eight_schools")
    for _ in range(density._evaluator.graph_after):
        density(torch.zeros(4, 10))
    assert not density._evaluator.graphs
    density(torch.zeros(4, 10))
    assert len(density._evaluator.graphs) == 1


def test_a_wrong_graph_is_refused_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    density = LogDensity(conjugate, (DATA,), how="graph")
    expected = LogDensity(conjugate, (DATA,), how="vmap")(torch.ones(3, 1))
    monkeypatch.setattr(graphs, "build", lambda function, example, compiled: lambda z: function(z) + 1)
    with pytest.warns(UserWarning, match="differs"):
        found = density(torch.ones(3, 1))
    torch.testing.assert_close(found, expected)


def test_a_graph_that_cannot_be_built_falls_back_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    density = LogDensity(conjugate, (DATA,), how="graph")

    def broken(*_):
        raise RuntimeError("unsupported operator")

    monkeypatch.setattr(graphs, "build", broken)
    with pytest.warns(UserWarning, match="unsupported operator"):
        density(torch.ones(3, 1))
    density(torch.ones(3, 1))
    assert density.how == "vmap"


def test_a_vectorisation_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from ppl_samplers.backends.pyro.evaluate import Evaluator

    honest = Evaluator.value_fn
    monkeypatch.setattr(Evaluator, "value_fn", lambda self, z: honest(self, z) + torch.arange(len(z)))
    with pytest.warns(UserWarning, match="differ"):
        density = LogDensity(conjugate, (DATA,))
    assert density.how == "loop"


def test_forcing_vmap_on_a_model_that_refuses_it_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"how='vmap'.*torch\.where"):
        density_of("python_if", how="vmap")
    with pytest.raises(ValueError, match="choose one of"):
        density_of("python_if", how="fast")


def test_batch_size_splits_and_changes_nothing() -> None:
    whole, split = LogDensity(conjugate, (DATA,)), LogDensity(conjugate, (DATA,), batch_size=4)
    x = torch.randn(11, 1)
    for first, second in zip(whole.value_and_grad(x), split.value_and_grad(x)):
        torch.testing.assert_close(first, second)
    assert split.log_likelihood(x)["y"].shape == (11, 3)
    assert whole(torch.zeros(0, 1)).shape == (0,)


@pytest.mark.slow
@pytest.mark.skipif(not graphs.has_compiler(), reason="torch.compile needs a C++ compiler")
def test_compiled_density_equals_the_loop() -> None:
    density = LogDensity(conjugate, (DATA,), compile=True)
    x = torch.randn(5, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = density.value_and_grad(x)
    assert density.how == "compile"
    assert graphs.close(LogDensity(conjugate, (DATA,), how="loop").value_and_grad(x), found, 1e-4)


# -- number types ----------------------------------------------------------------------------------------
def test_double_data_are_not_lowered() -> None:
    y = torch.tensor([1e8 + 0.25], dtype=torch.float64)

    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(a + 1e8, 1.0).expand([1]).to_event(1), obs=y)

    value, grad = LogDensity(model, (y,)).value_and_grad(torch.zeros(1, 1))
    assert value.dtype == torch.float32
    assert float(grad) == pytest.approx(0.25, abs=1e-6)


def test_a_closed_over_single_precision_module_takes_double_points() -> None:
    layer = torch.nn.Linear(2, 1)

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(layer(w), 1.0).to_event(1), obs=torch.zeros(1))

    density = LogDensity(model)
    x = torch.randn(3, 2, dtype=torch.float64)
    assert density(x).dtype == torch.float64
    torch.testing.assert_close(density(x).float(), density(x.float()), rtol=1e-5, atol=1e-5)


# -- the space, the prior, the start ---------------------------------------------------------------------
def test_sites_stand_in_trace_order_and_are_named_when_missing() -> None:
    density = density_of("eight_schools")
    assert [(s.name, s.slice, s.constrained_shape) for s in density.space] == [
        ("mu", slice(0, 1), ()),
        ("tau", slice(1, 2), ()),
        ("theta", slice(2, 10), (8,)),
    ]
    with pytest.raises(ValueError, match="'tau'"):
        density.ravel({"mu": torch.zeros(())})
    with pytest.raises(ValueError, match=r"\(N, 10\)"):
        density(torch.zeros(3, 9))


@pytest.mark.parametrize("name", ["eight_schools", "fresh_assignment"])
def test_prior_draws_have_the_prior_moments_and_follow_the_seed(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        density = density_of(name)
    torch.manual_seed(3)
    first = density.sample_prior(2000)
    torch.manual_seed(3)
    torch.testing.assert_close(first, density.sample_prior(2000))
    scale = 5.0 if name == "eight_schools" else 1.0
    assert abs(float(first[:, 0].mean())) < 4 * scale / 2000**0.5
    assert abs(float(first[:, 0].square().mean()) / scale**2 - 1) < 4 * (2 / 2000) ** 0.5
    if name == "eight_schools":  # a half-Cauchy has half its mass below its scale, and schools scatter by tau
        assert abs(float((first[:, 1].exp() < 5).float().mean()) - 0.5) < 4 * 0.5 / 2000**0.5
        z = (first[:, 2:] - first[:, :1]) / first[:, 1:2].exp()
        assert abs(float(z.square().mean()) - 1) < 4 * (2 / 16000) ** 0.5
        assert len(torch.unique(first[:, 0])) == 2000


def test_no_finite_start_is_an_error_that_names_the_data() -> None:
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("wait", dist.Exponential(a.exp()), obs=torch.tensor(-1.0))

    def impossible():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.factor("never", torch.where(a > 1e9, 0.0, -torch.inf))
        pyro.sample("y", dist.Normal(a, 1.0), obs=torch.tensor(0.0))

    assert LogDensity(model).dim == 1  # outside the support, yet a number: torch gives it a density
    with pytest.raises(ValueError, match="'y'"):
        LogDensity(impossible).initial_points(4)


def test_bad_start_draws_are_replaced() -> None:
    density = LogDensity(bad_regions)
    x = density.initial_points(50)
    assert x.shape == (50, 1) and torch.isfinite(density(x)).all()


def test_deterministic_sites_of_summed_out_sites_are_left_out() -> None:
    def model(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.deterministic("twice", 2 * m)
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            mean = pyro.deterministic("mean", m + z)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    density = LogDensity(model, (DATA,))
    x = torch.randn(4, 1)
    values = density.constrain(x)
    assert set(values) == {"m", "twice"} and set(density.constrain(x, deterministic=False)) == {"m"}
    torch.testing.assert_close(values["twice"], 2 * x[:, 0])
    assert any("mean" in note for note in density.notes)


# -- refusals --------------------------------------------------------------------------------------------
def test_sites_that_come_and_go_are_refused() -> None:
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        if a > 0:
            pyro.sample("b", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match="'b'"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        LogDensity(model)


def test_sequential_enumeration_is_refused_by_name() -> None:
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "sequential"})
        pyro.sample("a", dist.Normal(z, 1.0))

    with pytest.raises(ValueError, match=r"'z'.*sequential"):
        LogDensity(model)


# -- what must stay as it was ----------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["with_param", "enumerated_hmm", "gaussian_process", "python_if"])
def test_global_state_is_left_alone(name: str) -> None:
    def state():
        return (
            pyro.distributions.distribution.Distribution.__name__,
            torch.distributions.Distribution._validate_args,
            pyro.infer.util.is_validation_enabled(),
            pyro.poutine.util.is_validation_enabled(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            sorted(pyro.get_param_store().keys()),
            dict(vars(_ENUM_ALLOCATOR)),
            torch.get_rng_state().tolist(),
        )

    before = state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        density = density_of(name)
    x = torch.zeros(3, density.dim)
    density.value_and_grad(x)
    density(x.double())
    density.constrain(x)
    density.log_likelihood(x)
    assert state() == before


def test_checks_of_a_distribution_made_outside_the_model_do_not_raise() -> None:
    prior = dist.Normal(0.0, 1.0, validate_args=True).expand([2]).to_event(1)

    def model():
        a = pyro.sample("a", prior)
        pyro.factor("root", torch.sqrt(a).sum())

    values = LogDensity(model)(torch.tensor([[1.0, 1.0], [-1.0, 1.0], [torch.nan, 0.0]]))
    assert torch.isfinite(values).tolist() == [True, False, False]
    assert prior._validate_args or prior.base_dist._validate_args


def test_handlers_of_the_caller_see_nothing() -> None:
    density = LogDensity(conjugate, (DATA,))
    with poutine.trace() as tr, poutine.scale(scale=7.0):
        value = density(torch.zeros(1, 1))
    assert len(tr.trace.nodes) == 0
    torch.testing.assert_close(value, density(torch.zeros(1, 1)))


def test_param_sites_are_frozen() -> None:
    density = density_of("with_param")
    first = density(torch.ones(1, 1))
    pyro.param("scale", torch.tensor(9.0))
    torch.testing.assert_close(density(torch.ones(1, 1)), first)
    assert any("scale" in note for note in density.notes)


def test_pickle_keeps_the_density_and_drops_the_graphs() -> None:
    density = density_of("eight_schools", how="graph")
    x = torch.randn(3, 10)
    expected = density(x)
    copy = pickle.loads(pickle.dumps(density))
    assert copy.how == "vmap"
    torch.testing.assert_close(copy(x), expected)
