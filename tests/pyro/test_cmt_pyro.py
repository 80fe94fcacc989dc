"""Constrained mass transport in Pyro against exact targets."""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest
import torch

from ppl_samplers.core import weights
from ppl_samplers.pyro import CMT, MCMC, BoltzmannGenerator, LogDensity, SplineCoupling, Trained, record
from ppl_samplers.testing import targets

FLOW = SplineCoupling(layers=2)
SMALL = dict(flow=FLOW, buffer_size=4096, grad_steps=60, num_engines=1, probe=None, local_move=None)


def density(target, scale):
    prior = lambda n: scale * torch.randn(n, target.dim)  # noqa: E731
    return LogDensity.from_callable(target.log_density, target.dim, sample_prior=prior)


def fit(kernel, num_warmup=20, seed=0, **options):
    torch.manual_seed(seed)
    return kernel.fit(num_warmup=num_warmup, progress=False, **options)


def shares(target, x, log_w):
    """Log evidence, relative ESS, and weighted share of each mode."""
    log_w = np.asarray(log_w, float)
    w = np.exp(log_w - log_w.max())
    labels = target.mode_labels(np.asarray(x, float))
    share = np.bincount(labels, weights=w, minlength=len(target.mode_weights)) / w.sum()
    return np.logaddexp.reduce(log_w) - np.log(len(w)), w.sum() ** 2 / (w @ w) / len(w), share


@pytest.fixture(scope="module")
def two():
    target = targets.two_gaussians(1)
    there = density(target, 6.0)
    kernel = CMT(log_density=there, **SMALL)
    return target, there, kernel, fit(kernel)


def test_both_modes_and_the_evidence(two):
    target, _, _, trained = two
    log_z, ess, share = shares(target, *trained.propose(20_000))
    # Four standard errors at this ESS are 0.02.
    assert ess > 0.7
    assert abs(log_z - target.log_z) < 0.02
    np.testing.assert_allclose(share, target.mode_weights, atol=0.02)


def test_curves_tell_the_path(two):
    rows = two[3].history[0]
    history = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    assert np.isnan(history["status"][0])  # the first unit fits the prior
    last = np.flatnonzero(history["status"] == 0)[0]
    assert np.all(np.diff(history["beta"][1 : last + 1]) > -1e-6)
    assert history["beta"][last] == pytest.approx(1)
    assert history["alpha"][last] == pytest.approx(1)
    held = history["status"][1:last] > 0
    assert np.all(history["kl"][1:last][held] <= 1.05)
    assert np.all(history["entropy_decay_nominal"][1:last] <= history["eps_ent"][1:last] + 0.05)


def test_it_ends_early_and_can_be_polished_further(two):
    _, there, _, trained = two
    assert trained.states[0].unit < 20
    again = fit(CMT(log_density=there, trained=trained, probe=None, local_move=None), 2)
    assert again.states[0].reached
    assert 0 < again.states[0].num_evals - trained.states[0].num_evals <= 2 * 4096 + 20_000
    restless = CMT(log_density=there, **{**SMALL, "stop_ess": 1.0})
    short = fit(restless, 3)
    assert short.states[0].unit == 3
    assert short.states[0].num_evals == 2 * 4096


def test_the_anchor_draws_what_the_flow_has_lost(two):
    """A flow on one mode alone: with the anchor's draws in the buffer, weights by the mixture see both."""
    target, there, kernel, _ = two
    transport = kernel.transport
    torch.manual_seed(0)
    state = transport.init(there, 20)
    broad = deepcopy(state.flow)
    state.flow.standardise(torch.tensor([4.0]), torch.tensor([[1.0]]))
    x, log_p, log_q, own = (v.double().numpy() for v in transport.draw(state, there))
    assert abs(np.logaddexp.reduce(log_p - log_q) - np.log(len(x)) - target.log_z + np.log(2)) < 0.01
    np.testing.assert_allclose(own, log_p - log_q)
    state.anchor = broad
    x, log_p, log_q, own = (v.double().numpy() for v in transport.draw(state, there))
    log_z, _, share = shares(target, x, log_p - log_q)
    # The anchor's 512 draws hit the lost mode about 120 times: four standard errors are 0.2 of its share.
    assert abs(log_z - target.log_z) < 0.2
    np.testing.assert_allclose(share, target.mode_weights, atol=0.1)
    assert np.isinf(own).mean() == 1 / 8
    # Points of both kinds are among those that are held out.
    assert 0.05 < np.isinf(own[: transport.held]).mean() < 0.25
    # The mixture's density, by hand.
    sd = float(broad.scale_tril[0, 0])
    normal = lambda m, s: -0.5 * ((x[:, 0] - m) / s) ** 2 - np.log(s * np.sqrt(2 * np.pi))  # noqa: E731
    by_hand = np.logaddexp(np.log(7 / 8) + normal(4.0, 1.0), np.log(1 / 8) + normal(float(broad.loc[0]), sd))
    np.testing.assert_allclose(log_q, by_hand, atol=1e-4)


def test_moments_move_only_where_held_out_points_gain(two):
    """Matched blindly, a change of the modes' weights would drag both modes from where the flow has them."""
    _, there, kernel, trained = two
    torch.manual_seed(3)
    transport, state = kernel.transport, deepcopy(trained.states[0])
    state.anchor = None
    x = transport.draw(state, there)[0]
    loc, scale = state.flow.loc.clone(), state.flow.scale_tril.clone()
    uneven = torch.where(x[:, 0] < 0, math.log(0.97), math.log(0.03))
    transport._moments(state, x, weights.log_normalize(uneven))
    assert torch.equal(state.flow.loc, loc) and torch.equal(state.flow.scale_tril, scale)
    # One mode that has moved and narrowed: here the move is all gain.
    start = transport.init(there, 20)
    x, _, log_q, _ = transport.draw(start, there)
    narrow = -0.5 * ((x[:, 0] - 1.0) / 0.5) ** 2 - log_q
    transport._moments(start, x, weights.log_normalize(narrow))
    np.testing.assert_allclose(start.flow.loc, 1.0, atol=0.15)
    np.testing.assert_allclose(start.flow.scale_tril, 0.5, atol=0.15)


def test_save_and_load_give_the_same_weights(two, tmp_path):
    _, there, kernel, trained = two
    trained.save(tmp_path / "cmt.npz")
    again = Trained.load(tmp_path / "cmt.npz", CMT(log_density=there, **SMALL))
    x, _ = trained.propose(50)
    same = kernel.transport.log_weight(trained.states[0], there, x)
    torch.testing.assert_close(kernel.transport.log_weight(again.states[0], there, x), same, rtol=0, atol=0)
    assert (again.states[0].anchor is None) == (trained.states[0].anchor is None)
    assert again.states[0].reached and again.states[0].unit == trained.states[0].unit


def test_a_path_that_was_cut_short_is_walked_to_its_end(two, tmp_path):
    """As after an interruption: the file has a flow halfway, and the resumed training takes no leap to the target."""
    target, there, _, _ = two
    half = fit(CMT(log_density=there, **{**SMALL, "eps_tr": 0.3}), 3)
    half.save(tmp_path / "half.npz")
    assert not half.states[0].reached
    half = Trained.load(tmp_path / "half.npz", CMT(log_density=there, **{**SMALL, "eps_tr": 0.3}))
    assert not half.states[0].reached
    whole = fit(CMT(log_density=there, trained=half, probe=None, local_move=None), 17)
    assert whole.states[0].reached
    log_z, ess, share = shares(target, *whole.propose(20_000))
    assert ess > 0.7
    assert abs(log_z - target.log_z) < 0.02
    np.testing.assert_allclose(share, target.mode_weights, atol=0.02)


def test_a_black_box_without_gradients():
    target, seen = targets.two_gaussians(1), []

    def by_numpy(x):
        seen.append((type(x), x.dtype, len(x)))
        return target.log_density(x)

    box = LogDensity.from_callable(by_numpy, 1, sample_prior=lambda n: 6.0 * torch.randn(n, 1), gradient=False)
    assert box.how == "black box"
    with pytest.raises(ValueError, match="BoltzmannGenerator needs the gradient"):
        BoltzmannGenerator(log_density=box)
    with pytest.raises(ValueError, match="gradient=False"):
        box.value_and_grad(torch.zeros(3, 1))
    torch.manual_seed(0)
    kernel = CMT(log_density=box, flow=FLOW, buffer_size=4096, grad_steps=60)
    mcmc = MCMC(kernel, num_samples=200, warmup_steps=20, num_chains=4, disable_progbar=True)
    mcmc.run()
    assert {kind for kind, _, _ in seen} == {np.ndarray}
    assert {dtype for _, dtype, _ in seen} == {np.dtype(np.float64)}
    assert max(size for _, _, size in seen) == 4096
    assert any("no gradient" in note for note in record(mcmc).notes)
    trained = fit(CMT(log_density=box, **SMALL))
    log_z, _, share = shares(target, *trained.propose(20_000))
    assert abs(log_z - target.log_z) < 0.02
    np.testing.assert_allclose(share, target.mode_weights, atol=0.02)


@pytest.mark.parametrize("variant", ["geometric-linear", "tabg"])
def test_a_fixed_ladder_is_climbed_rung_by_rung(two, variant):
    target, there, _, _ = two
    trained = fit(CMT(log_density=there, variant=variant, **SMALL), 8)
    history = {name: np.array([row[name] for row in trained.history[0]]) for name in ("status", "beta", "alpha")}
    np.testing.assert_array_equal(history["status"][1:6], [4, 4, 4, 4, 0])  # the last two of the eight units polish
    ladder = np.arange(1, 6) / 5 if variant == "geometric-linear" else 30.0 ** np.arange(-1, 0.1, 0.25)
    path = [ladder, np.ones(5)] if variant == "geometric-linear" else [np.ones(5), ladder]
    np.testing.assert_allclose([history["beta"][1:6], history["alpha"][1:6]], path, rtol=1e-5)
    log_z, ess, share = shares(target, *trained.propose(20_000))
    # Four standard errors at this ESS are 0.02.
    assert ess > 0.7
    assert abs(log_z - target.log_z) < 0.02
    np.testing.assert_allclose(share, target.mode_weights, atol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "all"}, "variant='all'; write one of 'both', 'kl'"),
        ({"eps_tr": 0}, "eps_tr=0; write a positive number"),
        ({"eps_ent": "none"}, 'eps_ent=.none.; write a positive number or "auto"'),
        ({"buffer_size": 10}, "buffer_size=10; write 256 or more"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CMT(lambda: None, **options)
    with pytest.raises(TypeError, match="CMT has no option 'eps_t'; did you mean eps_tr"):
        CMT(lambda: None, eps_t=1.0)


@pytest.mark.slow
def test_many_well_keeps_all_wells():
    target = targets.many_well(8)
    trained = fit(CMT(log_density=density(target, 2.0), num_engines=1), 40)
    x, log_w = trained.propose(40_000)
    log_z, ess, _ = shares(target, x, log_w)
    w = np.exp(np.asarray(log_w, float) - float(log_w.max()))
    left = (w[:, None] * (np.asarray(x)[:, 0::2] < 0)).sum(0) / w.sum()
    assert ess > 0.8
    assert abs(log_z - target.log_z) < 0.02
    # Four standard errors of a share of 0.156 at this ESS are 0.009.
    np.testing.assert_allclose(left, 0.15569, atol=0.009)


@pytest.mark.slow
def test_a_minor_mode_of_three_percent_is_kept():
    # Narrow and of little mass: the moments of the whole must not drag it away.
    target = targets.gaussian_mixture(np.array([[-3.0], [3.0]]), np.array([0.5, 0.5]), np.array([0.03, 0.97]))
    found = []
    for seed in range(3):
        trained = fit(CMT(log_density=density(target, 6.0), num_engines=1), 40, seed)
        log_z, _, share = shares(target, *trained.propose(40_000))
        found.append((log_z, share[0]))
    # Four standard errors: 0.02 of the evidence, 0.004 of the share.
    np.testing.assert_allclose([z for z, _ in found], target.log_z, atol=0.02)
    np.testing.assert_allclose([s for _, s in found], 0.03, atol=0.004)
