"""Modes are counted right, not invented, and those that an engine missed are named."""

from __future__ import annotations

import numpy as np
import pytest

from ppl_samplers.diagnostics import mode_table
from ppl_samplers.testing import targets


@pytest.mark.parametrize("name", ["two_gaussians", "two_modes"])
def test_two_modes_and_their_masses(name):
    target = targets.TARGETS[name]()
    x = target.sample(np.random.default_rng(0), 2000).reshape(4, 500, -1)
    table = mode_table(x)
    assert len(table) == 2
    exact = np.sort(target.mode_weights)[::-1]
    error = np.sqrt(exact * (1 - exact) / 2000)
    assert np.all(np.abs(table.mass - exact) < 4 * error)
    np.testing.assert_allclose(table.standard_error, error, rtol=0.25)
    truth = target.mode_labels(x.reshape(-1, target.dim)).reshape(4, 500)
    same = (table.labels == truth).mean()
    assert max(same, 1 - same) > 0.995
    assert np.all(table.switches > 100) and np.all(table.rhat < 1.02) and not table.flags
    assert np.isclose(table.per_chain.sum(1), 1).all()


def test_four_modes_of_the_many_well():
    target = targets.many_well(4)
    x = target.sample(np.random.default_rng(1), 4000).reshape(4, 1000, 4)
    table = mode_table(x)
    assert len(table) == 4
    exact = np.sort(target.mode_weights)[::-1]
    assert np.all(np.abs(table.mass - exact) < 4 * np.sqrt(exact * (1 - exact) / 4000) + 0.003)
    assert np.all(np.abs(np.abs(table.centres[0, ::2]) - 1.7) < 0.1)


@pytest.mark.parametrize("shape", ["normal", "correlated", "banana", "skewed", "wide"])
def test_one_mode_is_one_mode(shape):
    rng = np.random.default_rng(2)
    dim = 30 if shape == "wide" else 3
    x = rng.standard_normal((4, 500, dim))
    if shape == "correlated":
        x = x @ np.linalg.cholesky(np.full((3, 3), 0.98) + 0.02 * np.eye(3)).T * np.array([1, 1e3, 1e-3]) + 100
    if shape == "banana":
        x[..., 1] = 0.3 * x[..., 1] + x[..., 0] ** 2
    if shape == "skewed":
        x = np.log(rng.gamma(2.0, size=x.shape))
    table = mode_table(x)
    assert len(table) == 1 and table.mass[0] == 1.0 and not table.flags


def test_engines_with_one_mode_each_are_flagged(split):
    table = mode_table(split)
    assert len(table) == 2
    np.testing.assert_allclose(sorted(table.per_engine[:, 0]), [0.0, 1.0], atol=0.005)
    assert np.all(table.switches <= 4) and np.all(table.rhat > 1.5)
    text = " ".join(table.flags)
    assert "visited by engine 0" in text and "visited by engine 1" in text and "effective visits" in text
    assert "never visited" in str(table) and "engine 1" in str(table)


def test_rare_mode_is_flagged():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 400, 1))
    x[0, 100:110] += 40
    table = mode_table(x, labels=lambda points: points[:, 0] > 20)
    assert table.mass.shape == (2,) and any("effective visits" in f for f in table.flags)


def test_user_labels(good):
    table = mode_table(good, labels=np.asarray(good.unconstrained[..., 0] > 0))
    assert len(table) == 2
    np.testing.assert_array_equal(
        np.sort(table.mass), np.sort([(good.unconstrained > 0).mean(), (good.unconstrained <= 0).mean()])
    )
    with pytest.raises(ValueError, match="one per draw"):
        mode_table(good, labels=np.zeros(3))
    with pytest.raises(ValueError, match="chains, draws"):
        mode_table(np.zeros((3, 3)))


def test_engine_of_chains_for_plain_arrays():
    x = np.random.default_rng(0).standard_normal((4, 300, 1))
    x[2:] += 50
    table = mode_table(x, engine=np.array([0, 0, 1, 1]))
    assert table.per_engine.shape == (2, 2) and set(table.per_engine.ravel()) == {0.0, 1.0}


def test_degenerate_draws():
    constant = np.ones((2, 50, 2))
    assert len(mode_table(constant)) == 1
    x = np.random.default_rng(0).standard_normal((2, 50, 2))
    x[0, 0] = np.nan
    x[..., 1] = x[..., 0]
    assert len(mode_table(x)) == 1
    assert len(mode_table(np.random.default_rng(0).standard_normal((1, 3, 1)))) == 1
    one_chain = np.concatenate([np.full((1, 60, 1), -5.0), np.full((1, 60, 1), 5.0)], axis=1)
    one_chain += 0.1 * np.random.default_rng(0).standard_normal(one_chain.shape)
    table = mode_table(one_chain)
    assert len(table) == 2 and np.isnan(table.rhat).all() and table.flags


def test_same_seed_same_table(good):
    a, b = mode_table(good, seed=4), mode_table(good, seed=4)
    np.testing.assert_array_equal(a.labels, b.labels)
