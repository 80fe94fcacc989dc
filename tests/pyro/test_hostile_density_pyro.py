"""Every row of the table of hostile models behaves as the table says."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch
from pyro.infer.mcmc.util import initialize_model
from torch.utils._pytree import tree_map

from ppl_samplers.backends.pyro.density import LogDensity
from ppl_samplers.testing.hostile_pyro import HOSTILE, HostileModel

ACCEPTED = [case for case in HOSTILE if case.expect != "refused"]
VECTORISED = [case for case in HOSTILE if case.expect == "vmap"]


def ids(case: HostileModel) -> str:
    return f"{case.number}-{case.name}"


def case_is_slow(case: HostileModel) -> tuple[str, ...]:
    """Ways of evaluation that take many seconds to build or to compare with a loop."""
    return {"enumerated_hmm": ("vmap", "graph"), "ode_loop": ("graph",), "enumerated_mixture": ("graph",)}.get(
        case.name, ()
    )


@pytest.fixture(autouse=True)
def clean_store():
    pyro.clear_param_store()
    torch.manual_seed(0)
    yield
    pyro.clear_param_store()


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def to_double(tree):
    return tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, tree)


def build(case: HostileModel, how: str = "auto", **options) -> LogDensity:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogDensity(case.make(), case.args, case.kwargs, how=how, **options)


@pytest.mark.parametrize("case", HOSTILE, ids=ids)
def test_row_behaves_as_the_table_says(case: HostileModel) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if case.expect == "refused":
            with pytest.raises(ValueError, match=case.match):
                LogDensity(case.make(), case.args, case.kwargs)
            return
        density = LogDensity(case.make(), case.args, case.kwargs)
    messages = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    assert density.dim == case.dim
    assert density.how == ("vmap" if case.expect == "vmap" else "loop")
    wanted = {"vmap": [], "loop": ["falls back"], "lost": ["falls back", "gradient through"]}[case.expect]
    assert len(messages) == len(wanted), messages
    for message, words in zip(messages, wanted):
        assert words in message
    if wanted:
        assert case.match in messages[0]


def test_table_covers_the_twenty_two_models() -> None:
    assert {case.number for case in HOSTILE} >= set(range(1, 23))


@pytest.mark.parametrize("case", [c for c in ACCEPTED if c.reference], ids=ids)
def test_equals_minus_pyro_potential(case: HostileModel, double: None) -> None:
    args, kwargs = to_double(case.args), to_double(dict(case.kwargs))
    model = case.make()
    if isinstance(model, torch.nn.Module):
        model = model.double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        density = LogDensity(model, args, kwargs)
        x = torch.randn(6, density.dim)
        # Masked NaN data do not pass Pyro's own checks, and poison the gradients that its search for a start wants.
        with pyro.validation_enabled(False):
            start = density.unravel(x[0])
            _, potential, _, _ = initialize_model(model, args, kwargs, initial_params=start)
            expected = torch.stack([-potential(density.unravel(row)) for row in x]).detach()
    torch.testing.assert_close(density(x), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("case", "how"),
    [
        pytest.param(case, how, id=f"{how}-{ids(case)}", marks=[pytest.mark.slow] if how in case_is_slow(case) else [])
        for case in VECTORISED
        for how in ("vmap", "graph")
    ],
)
def test_batches_equal_the_loop(case: HostileModel, how: str, double: None) -> None:
    args, kwargs = to_double(case.args), to_double(dict(case.kwargs))
    model = case.make()
    if isinstance(model, torch.nn.Module):
        model = model.double()
    batched, loop = (LogDensity(model, args, kwargs, how=h) for h in (how, "loop"))
    sizes = sorted({1, 3, 100, *case.plates}) if how == "vmap" else sorted(case.plates or {3})
    x = 0.7 * torch.randn(max(sizes), batched.dim)
    values, grads = loop.value_and_grad(x)
    for n in sizes:
        found, found_grads = batched.value_and_grad(x[:n])
        torch.testing.assert_close(found, values[:n], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found_grads, grads[:n], rtol=1e-7, atol=1e-7)
        if how == "vmap":
            torch.testing.assert_close(batched(x[:n]), values[:n], rtol=1e-8, atol=1e-8)
    assert batched.how == how
    assert torch.isfinite(values).any() and grads.abs().sum() > 0


@pytest.mark.parametrize("case", ACCEPTED, ids=ids)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_of_either_type_give_results_of_that_type(case: HostileModel, dtype: torch.dtype) -> None:
    density = build(case)
    x = 0.5 * torch.randn(4, density.dim).to(dtype)
    values, grads = density.value_and_grad(x)
    assert values.dtype == grads.dtype == dtype and grads.shape == x.shape
    assert torch.isfinite(values).all() and torch.isfinite(grads).all()


@pytest.mark.parametrize("case", ACCEPTED, ids=ids)
def test_space_maps_round_trip(case: HostileModel) -> None:
    density = build(case)
    x = torch.randn(2, 3, density.dim, dtype=torch.float64)
    torch.testing.assert_close(density.ravel(density.unravel(x)), x)
    values = density.constrain(x)
    for site in density.space:
        assert tuple(values[site.name].shape) == (2, 3, *site.constrained_shape)
    torch.testing.assert_close(density.unconstrain(values), x, rtol=1e-5, atol=1e-5)
    one = density.constrain(x[0, 0])
    for name, value in values.items():
        torch.testing.assert_close(one[name], value[0, 0])


@pytest.mark.parametrize("case", ACCEPTED, ids=ids)
def test_prior_and_likelihood_add_up(case: HostileModel) -> None:
    density = build(case)
    if case.name in ("enumerated_hmm", "factor_ring"):  # no pointwise likelihood; a factor that is neither
        return
    x = 0.5 * torch.randn(3, density.dim, dtype=torch.float64)
    terms = density.log_likelihood(x)
    assert set(terms) == set(density.observed)
    total = density.log_prior(x) + sum(term.reshape(3, -1).sum(-1) for term in terms.values())
    torch.testing.assert_close(total, density(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ACCEPTED, ids=ids)
def test_starting_points_have_finite_density(case: HostileModel) -> None:
    density = build(case)
    x = density.initial_points(7)
    assert x.shape == (7, density.dim)
    assert torch.isfinite(density(x)).all()
    if case.name == "improper":
        assert density.evidence_kind == "undefined" and not density.has_prior
        with pytest.raises(ValueError, match="improper"):
            density.sample_prior(3)
    else:
        assert density.sample_prior(3).shape == (3, density.dim)


def test_evidence_kinds() -> None:
    kinds = {case.name: build(case).evidence_kind for case in ACCEPTED if case.number in (1, 3, 18, 19, 31)}
    assert kinds == {
        "eight_schools": "absolute",
        "enumerated_mixture": "absolute",
        "factor_ring": "relative",
        "masked_and_scaled": "relative",
        "improper": "undefined",
    }


def test_factor_model_has_no_data() -> None:
    density = build(next(c for c in HOSTILE if c.name == "factor_ring"))
    assert density.observed == {} and density.log_likelihood(torch.zeros(2, 2)) == {}


def test_hidden_markov_model_has_no_pointwise_likelihood_and_says_so() -> None:
    density = build(next(c for c in HOSTILE if c.name == "enumerated_hmm"))
    assert density.log_likelihood(torch.zeros(2, 4)) == {}
    assert any("y_0" in note for note in density.notes)
