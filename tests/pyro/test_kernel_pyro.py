import pickle
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC as PyroMCMC
from pyro.infer import NUTS

from ppl_samplers.pyro import ISIR, MCMC, Affine, BoltzmannGenerator, LogDensity, Pilot, Probe, log_evidence, record

SMALL = Pilot(num_particles=64, num_moves=1, final_moves=2)
Y = torch.tensor([0.3, 1.1, 0.7])


def model(y):
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    pyro.deterministic("total", loc.sum())
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc[0] + loc[1], 0.5 + scale), obs=y)


def make(**options):
    settings = {"flow": Affine(), "pilot": SMALL, "num_reseat": 64, "block": 8, "probe": Probe(8, 2)}
    return BoltzmannGenerator(model, **(settings | options))


def run(kernel, seed=0, args=(Y,), **options):
    torch.manual_seed(seed)
    settings = {"num_samples": 12, "warmup_steps": 3, "num_chains": 4, "disable_progbar": True}
    mcmc = MCMC(kernel, **(settings | options))
    mcmc.run(*args)
    return mcmc


def stock(kernel, seed=0, **options):
    torch.manual_seed(seed)
    settings = {"num_samples": 12, "warmup_steps": 3, "num_chains": 1, "disable_progbar": True}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="num_chains=")
        mcmc = PyroMCMC(kernel, **(settings | options))
    mcmc.run(Y)
    return mcmc


@pytest.mark.parametrize("chains", [1, 2, 3, 5])
def test_shapes_summary_and_diagnostics(chains, capsys):
    mcmc = run(make(), num_chains=chains)
    samples = mcmc.get_samples(group_by_chain=True)
    assert {name: tuple(v.shape) for name, v in samples.items()} == {"scale": (chains, 12), "loc": (chains, 12, 2)}
    assert (samples["scale"] > 0).all()
    assert mcmc.get_samples()["loc"].shape == (12 * chains, 2)
    mcmc.summary()
    assert "divergences" in capsys.readouterr().out
    diagnostics = mcmc.diagnostics()
    assert set(diagnostics["divergences"]) == {f"chain {i}" for i in range(chains)}
    assert 0 < diagnostics["acceptance rate"]["chain 0"] <= 1


def test_equal_seeds_give_equal_results_on_new_and_on_used_objects():
    first = run(make(), seed=7)
    again = run(make(), seed=7)
    torch.manual_seed(7)
    before = {name: value.clone() for name, value in first.get_samples().items()}
    first.run(Y)
    for name, value in before.items():
        assert torch.equal(value, again.get_samples()[name])
        assert torch.equal(value, first.get_samples()[name])
    assert not torch.equal(before["loc"], run(make(), seed=8).get_samples()["loc"])


def test_new_data_train_anew():
    mcmc = run(make())
    mcmc.run(Y + 2.0)
    assert torch.equal(mcmc.kernel.density.observed["y"], Y + 2.0)


def test_save_params_in_any_order_keep_their_values():
    full, part = run(make()), run(make(), save_params=["scale", "loc"])
    assert torch.equal(full.get_samples()["scale"], part.get_samples()["scale"])
    only = run(make(), save_params=["scale"])
    assert list(only.get_samples()) == ["scale"]
    with pytest.raises(ValueError, match="save_params"):
        run(make(), save_params=["nothing"])


def test_initial_params_start_the_chains_without_warm_up():
    trained = make().fit(Y, num_warmup=2, progress=False)
    start = {"scale": torch.tensor([1.0, 2.0]), "loc": torch.tensor([[0.0, 1.0], [2.0, 3.0]])}
    kernel = make(trained=trained)
    kernel.num_chains = 2
    kernel.initial_params = start  # before setup: the data are not known yet
    kernel.setup(0, Y)
    for name, value in start.items():
        assert torch.equal(kernel.initial_params[name], value)
    kernel.ensemble.reseat()
    assert torch.equal(kernel.ensemble.x, kernel.density.ravel(start))
    assert kernel.ensemble.fresh.shape == (2, 64)
    with pytest.raises(ValueError, match="num_chains=3"):
        MCMC(make(), num_samples=5, num_chains=3, initial_params=start)


def test_untrained_kernel_without_warm_up_is_refused_in_words():
    with pytest.raises(ValueError, match="warmup_steps=40"):
        run(make(), warmup_steps=0)


def test_engines_are_frozen_after_warm_up():
    kernel = make()
    mcmc = run(kernel)
    state = kernel.ensemble.states[0]
    before = {name: value.clone() for name, value in state.flow.state_dict().items()}
    step, scale = kernel.ensemble.local.log_step, kernel.ensemble.local.scale_tril.clone()
    kernel.ensemble.advance(10)
    assert all(torch.equal(value, state.flow.state_dict()[name]) for name, value in before.items())
    assert kernel.ensemble.local.log_step == step and torch.equal(kernel.ensemble.local.scale_tril, scale)
    assert mcmc.kernel is kernel


@pytest.mark.parametrize("correction", ["imh", ISIR(num_candidates=4)])
def test_statistics_belong_to_the_draws(correction):
    kernel = make(correction=correction)
    mcmc = run(kernel, num_chains=3)
    found = record(mcmc)
    assert found.posterior["loc"].shape == (3, 12, 2) and found.posterior["total"].shape == (3, 12)
    points = torch.tensor(found.unconstrained)
    log_p = kernel.density(points.reshape(36, -1)).reshape(3, 12)
    torch.testing.assert_close(torch.tensor(found.sample_stats["lp"]), log_p.double(), rtol=1e-5, atol=1e-4)
    for chain in range(3):
        engine = int(found.sample_stats["engine"][chain, 0])
        expected = found.log_weight_at(engine, found.unconstrained[chain])
        torch.testing.assert_close(
            torch.tensor(found.sample_stats["log_weight"][chain]), torch.tensor(expected), rtol=0, atol=1e-3
        )
    # Every fresh proposal is counted once: reseating, and a proposal (or three) per chain and iteration.
    per_draw = 1 if correction == "imh" else 3
    assert found.evidence_sums[:, 2].sum() == 2 * 64 + 3 * 12 * per_draw
    assert found.fresh_log_weights.shape == (2, 64)
    assert found.probe_log_weights.shape == (2, 8)
    assert found.training["num_evals"].shape == (2, 3)
    assert found.log_likelihood()["y"].shape == (3, 12, 3)
    assert found.observed["y"].shape == (3,)
    assert (torch.diff(torch.tensor(found.sample_stats["num_evals"])) >= 0).all()


def test_stock_mcmc_with_one_chain():
    kernel = make()
    mcmc = stock(kernel)
    assert mcmc.get_samples()["loc"].shape == (12, 2)
    assert (mcmc.get_samples()["scale"] > 0).all()
    mcmc.summary()
    assert mcmc.diagnostics()["divergences"] == {"chain 0": []}
    found = record(mcmc)
    torch.testing.assert_close(torch.tensor(found.posterior["loc"][0]), mcmc.get_samples()["loc"])
    assert set(found.sample_stats["engine"].ravel()) == {0, 1}
    assert log_evidence(mcmc).num_proposals == 2 * 64 + 16  # whole blocks of 8 count


def test_stock_sequential_chains_train_once(monkeypatch):
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 1)
    kernel = make()
    mcmc = stock(kernel, num_chains=2)
    assert mcmc.get_samples(group_by_chain=True)["loc"].shape == (2, 12, 2)
    found = record(mcmc)
    assert found.posterior["loc"].shape == (2, 12, 2)
    assert found.training["loss"].shape == (2, 3)  # three units, not six
    torch.testing.assert_close(torch.tensor(found.posterior["loc"]), mcmc.get_samples(group_by_chain=True)["loc"])


def test_order_of_calls_is_survived():
    kernel = make()
    kernel.setup(2, Y)
    params = kernel.initial_params
    for _ in range(5):
        params = kernel.sample(params)
        assert not any(value.requires_grad for value in params.values())
        assert all(isinstance(value, str) for value in kernel.logging().values())
    assert kernel.diagnostics()["divergences"] == []
    kernel.cleanup()
    kernel.cleanup()
    assert set(kernel.transforms) == {"scale", "loc"}
    assert kernel.trained is not None and kernel.sample_stats["accepted"].shape == (1, 3)
    evaluations = kernel.density.num_evals
    kernel.setup(0, Y)  # the main process of a parallel run does this to find the transforms
    assert kernel.density.num_evals - evaluations <= 1000
    torch.testing.assert_close(kernel.transforms["scale"].inv(torch.zeros(1)), torch.ones(1))


def test_data_changed_in_place_are_noticed():
    kernel, data = make(), Y.clone()
    kernel.setup(1, data)
    params = kernel.initial_params
    for _ in range(2):
        params = kernel.sample(params)
    kernel.setup(1, data.detach())
    assert kernel.ensemble.states is not None
    data += 1.0
    kernel.setup(1, data)
    assert kernel.ensemble.states is None


def test_kernel_pickles_before_and_after_a_run():
    kernel = make()
    run(kernel)
    copy = pickle.loads(pickle.dumps(kernel))
    assert copy.options == kernel.options and copy.ensemble is None
    run(copy)


def test_interruption_keeps_what_was_trained(monkeypatch):
    kernel, calls = make(), []

    original = type(kernel.transport).train_step

    def interrupted(self, state, density):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(self, state, density)

    monkeypatch.setattr(type(kernel.transport), "train_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(kernel, warmup_steps=10)
    trained = kernel.trained
    assert len(trained.history[0]) == 2
    again = run(make(trained=trained), warmup_steps=0)
    assert again.get_samples()["loc"].shape == (48, 2)
    calls.clear()
    assert len(make().fit(Y, num_warmup=10, progress=False).history[0]) == 2


def test_hook_and_names_of_the_warm_up():
    seen = []
    run(make(), hook_fn=lambda kernel, params, stage, i: seen.append((stage, i, params["loc"].shape)), num_chains=2)
    assert [s for s in seen if s[0] == "Warmup"] == [("Warmup", i, (2, 2)) for i in range(3)]
    assert [s for s in seen if s[0] == "Sample"] == [("Sample", i, (2, 2)) for i in range(12)]
    assert MCMC(make(), num_samples=10, num_warmup=7).warmup_steps == 7
    with pytest.raises(ValueError, match="num_warmup"):
        MCMC(make(), num_samples=10, num_warmup=7, warmup_steps=6)


def test_other_kernels_and_other_models_are_refused_in_words():
    with pytest.raises(TypeError, match=r"pyro\.infer\.MCMC"):
        MCMC(NUTS(model), num_samples=5)
    with pytest.raises(ValueError, match="nothing has been drawn"):
        record(make())
    trained = make().fit(Y, num_warmup=1, progress=False)

    def other():
        pyro.sample("z", dist.Normal(0.0, 1.0))

    kernel = BoltzmannGenerator(other, trained=trained)
    with pytest.raises(ValueError, match="trained on sites"):
        run(kernel, args=(), warmup_steps=0)


def test_one_dimension_and_one_engine():
    def single(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    torch.manual_seed(0)
    kernel = BoltzmannGenerator(single, flow=Affine(), pilot=SMALL, num_engines=1, num_reseat=2000)
    mcmc = MCMC(kernel, num_samples=50, warmup_steps=3, num_chains=2, disable_progbar=True)
    mcmc.run(torch.tensor(1.0))
    assert mcmc.get_samples(group_by_chain=True)["loc"].shape == (2, 50)
    # y ~ N(0, 2): log Z = -log(4 pi)/2 - 1/4.
    evidence = log_evidence(mcmc)
    truth = -0.5 * torch.log(torch.tensor(4 * torch.pi)).item() - 0.25
    assert abs(evidence.log_z - truth) < max(4 * evidence.standard_error, 1e-3)


def test_a_given_density_keeps_its_data_unless_the_run_brings_others():
    given = LogDensity(model, (Y,))
    kernel = BoltzmannGenerator(given, flow=Affine(), pilot=SMALL, num_reseat=64, block=8, probe=Probe(8, 2))
    x = torch.zeros(1, given.dim)
    for args in ((), (Y + 1,), ()):
        run(kernel, args=args)
        assert torch.equal(kernel.density(x), LogDensity(model, args or (Y,))(x))
    function = LogDensity.from_callable(lambda x: -0.5 * (x * x).sum(-1), 2)
    with pytest.raises(ValueError, match="takes no model arguments"):
        run(BoltzmannGenerator(function, flow=Affine(), pilot=SMALL))
