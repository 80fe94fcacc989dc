"""Bad input is refused early, in plain words and alike in both frameworks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pyro = pytest.importorskip("pyro")
jax = pytest.importorskip("jax")
numpyro = pytest.importorskip("numpyro")
torch = pytest.importorskip("torch")

import numpyro.distributions as np_dist  # noqa: E402
import pyro.distributions as py_dist  # noqa: E402

import ppl_samplers.numpyro as np_door  # noqa: E402
import ppl_samplers.pyro as py_door  # noqa: E402


def np_model(y):
    mu = numpyro.sample("mu", np_dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", np_dist.HalfNormal(1.0))
    numpyro.sample("y", np_dist.Normal(mu * np.ones(3, np.float32), scale), obs=y)


def py_model(y):
    mu = pyro.sample("mu", py_dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", py_dist.HalfNormal(1.0))
    pyro.sample("y", py_dist.Normal(mu * torch.ones(3), scale).to_event(1), obs=y)


def np_flat(y):
    mu = numpyro.sample("mu", np_dist.ImproperUniform(np_dist.constraints.real, (), ()))
    numpyro.sample("y", np_dist.Normal(mu, 1.0), obs=y)


def py_flat(y):
    mu = pyro.sample("mu", py_dist.ImproperUniform(py_dist.constraints.real, (), ()))
    pyro.sample("y", py_dist.Normal(mu * torch.ones(3), 1.0).to_event(1), obs=y)


def py_nothing(y):
    pyro.sample("mu", py_dist.Normal(0.0, 1.0))
    pyro.factor("f", torch.tensor(float("nan")))


def np_fit(kernel, y):
    return kernel.fit(jax.random.key(0), y, num_warmup=1, progress=False)


def py_fit(kernel, y):
    return kernel.fit(torch.as_tensor(y), num_warmup=1, progress=False)


BOTH = {
    "numpyro": SimpleNamespace(name="numpyro", door=np_door, model=np_model, fit=np_fit, array=np.asarray),
    "pyro": SimpleNamespace(name="pyro", door=py_door, model=py_model, fit=py_fit, array=torch.as_tensor),
}
Y = np.array([0.1, 0.4, -0.2], np.float32)


@pytest.fixture(params=list(BOTH))
def side(request):
    return BOTH[request.param]


def cheap(side, model=None, **options):
    door = side.door
    pilot = door.Pilot(num_particles=64, num_moves=1, final_moves=2, max_stages=5)
    options = {"flow": door.Affine(), "pilot": pilot, "train_steps": 2, "num_engines": 1, "probe": None} | options
    return door.BoltzmannGenerator(side.model if model is None else model, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_steps": 0}, "train_steps=0; write an integer of 1 or more"),
        ({"batch_size": 2.5}, "batch_size=2.5; write an integer"),
        ({"ensemble_refreshes": 0}, "ensemble_refreshes=0"),
        ({"learning_rate": -1}, "learning_rate=-1; write a positive number"),
        ({"clip": 0}, "clip=0; write a positive"),
        ({"defensive": 2}, r"defensive=2; write a share in \[0, 1\)"),
        ({"stop_ess": 0}, "stop_ess=0"),
        ({"num_engines": 0}, "num_engines=0"),
        ({"flow": "spline"}, r"flow='spline'; write one of SplineCoupling\(\)"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_construction(side, options, message):
    with pytest.raises(ValueError, match=message):
        cheap(side, **options)


@pytest.mark.parametrize("option", ["learning_rat", "num_engine"])
def test_an_unknown_option_names_the_engine_and_the_nearest(side, option):
    with pytest.raises(TypeError, match=f"BoltzmannGenerator has no option '{option}'; did you mean {option}"):
        cheap(side, **{option: 1})


def test_things_that_are_no_model_are_refused_at_construction(side):
    with pytest.raises(TypeError, match=r"the first argument is a .* model"):
        cheap(side, 3)
    with pytest.raises(TypeError, match=r"LogDensity\.from_callable"):
        side.door.BoltzmannGenerator(log_density=lambda x: x)
    with pytest.raises(ValueError, match="not both"):
        side.door.BoltzmannGenerator()
    with pytest.raises(TypeError, match=r"Trained\.load"):
        cheap(side, trained="engine.npz")


def test_data_of_the_wrong_shape_are_named(side):
    with pytest.raises(ValueError, match=r"'y': data of shape \(5,\) do not fit a distribution of shape \(3,\)"):
        side.fit(cheap(side), np.zeros(5, np.float32))


def test_draws_outside_the_support_are_named(side):
    draws = {"mu": side.array(np.zeros(8, np.float32)), "scale": side.array(np.linspace(-1, 1, 8).astype(np.float32))}
    kernel = cheap(side, objective=side.door.ForwardKL(draws=draws))
    with pytest.raises(ValueError, match="4 of 8 draws of site 'scale' lie outside its support"):
        side.fit(kernel, Y)


def test_files_that_hold_no_engine_of_this_kind_are_refused(side, tmp_path):
    load = lambda path, **options: side.door.Trained.load(path, cheap(side, **options), side.array(Y))  # noqa: E731
    with pytest.raises(FileNotFoundError, match=r"trained\.save"):
        load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "arrays.npz", x=np.zeros(3))
    for name in ("text.npz", "arrays.npz"):
        with pytest.raises(ValueError, match="does not hold trained engines"):
            load(tmp_path / name)
    trained = side.fit(cheap(side), Y)
    trained.save(tmp_path / "engine.npz")
    assert load(tmp_path / "engine.npz").propose(4)[0].shape == (4, 2)
    with pytest.raises(ValueError, match=r"write the engine as it was, BoltzmannGenerator\(model, flow=Affine\(\)\)"):
        load(tmp_path / "engine.npz", flow=side.door.SplineCoupling())
    other = BOTH["pyro" if side.name == "numpyro" else "numpyro"]
    with pytest.raises(ValueError, match=f"was trained in {side.name}"):
        other.door.Trained.load(tmp_path / "engine.npz", cheap(other), other.array(Y))
    assert len(repr(trained)) < 100
    assert "2 dimensions" in repr(trained)


def test_a_density_that_is_nowhere_finite_says_where_to_look():
    with pytest.raises(ValueError, match="no data are observed"):
        py_fit(cheap(BOTH["pyro"], py_nothing), Y)


def test_an_improper_prior_is_said_at_set_up_in_pyro():
    with pytest.warns(UserWarning, match=r"undefined: the prior of site\(s\) \['mu'\] is improper"):
        py_fit(cheap(BOTH["pyro"], py_flat), Y)


def test_the_report_prints_no_evidence_where_there_is_none():
    kernel = cheap(BOTH["numpyro"], np_flat)
    mcmc = np_door.MCMC(kernel, num_warmup=1, num_samples=5, num_chains=4, progress_bar=False)
    with pytest.warns(UserWarning, match="undefined: the prior of 'mu' is improper"):
        mcmc.run(jax.random.key(0), Y)
    text = np_door.mcmc_report(mcmc, modes=False)
    assert "undefined" in text
    assert "log Z" not in text.split("Verdict")[0]
