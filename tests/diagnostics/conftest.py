"""Records of runs whose proposals and targets are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from ppl_samplers.core.evidence import sums_of
from ppl_samplers.diagnostics.record import RunRecord
from ppl_samplers.testing import targets


def _build(
    target, proposals, *, chains=4, draws=500, fresh=4000, probe=0, seed=0, posterior=None, chain_draws=None, **fields
):
    """Record of engines that propose from ``proposals`` (normalised Targets).

    The chains are exact: an engine's proposals thinned by rejection against its own largest weight.
    """
    rng = np.random.default_rng(seed)
    engines = len(proposals)

    def log_weight_at(r, x):
        return target.log_density(np.asarray(x)) - proposals[r].log_density(np.asarray(x))

    points = [q.sample(rng, fresh) for q in proposals]
    weights = np.stack([log_weight_at(r, x) for r, x in enumerate(points)])
    owner = np.arange(chains) * engines // chains
    x = np.empty((chains, draws, target.dim))
    for c, r in enumerate(owner):
        if chain_draws is not None:
            x[c] = chain_draws(rng, r, draws)
            continue
        pool = proposals[r].sample(rng, 20 * draws)
        log_w = log_weight_at(r, pool)
        kept = pool[np.log(rng.random(len(pool))) < log_w - log_w.max()]
        x[c] = kept[np.arange(draws) % len(kept)]
    lp = target.log_density(x.reshape(-1, target.dim)).reshape(chains, draws)
    stats = {
        "lp": lp,
        "acceptance_rate": np.full((chains, draws), 0.8),
        "accepted": np.ones((chains, draws), dtype=bool),
        "engine": np.broadcast_to(owner[:, None], (chains, draws)).copy(),
        "log_weight": np.stack([log_weight_at(r, xs) for r, xs in zip(owner, x)]),
    }
    if probe:
        at = target.sample(rng, probe)
        fields.setdefault("probe_log_density", target.log_density(at))
        fields.setdefault("probe_log_weights", np.stack([log_weight_at(r, at) for r in range(engines)]))
    history = np.linspace(5, 1, 20) + np.arange(engines)[:, None]
    fields.setdefault("training", {"loss": history, "num_evals": np.cumsum(np.full((engines, 20), 100.0), axis=1)})
    fields.setdefault("log_weight_at", log_weight_at)
    fields.setdefault("counts", {"num_energy_evaluations": 10_000, "train_seconds": 2.0, "sample_seconds": 1.0})
    return RunRecord(
        backend="numpyro",
        engine="BoltzmannGenerator",
        posterior={"x": x[..., 0], "vector": x} if posterior is None else posterior(x),
        unconstrained=x,
        sample_stats=stats,
        evidence_sums=np.stack([sums_of(w) for w in weights]),
        fresh_log_weights=weights,
        **fields,
    )


def normal(mean, scale=1.0, dim=1):
    """One round Gaussian at ``mean`` in the first coordinate."""
    centre = np.zeros((1, dim))
    centre[0, 0] = mean
    return targets.gaussian_mixture(centre, np.array([scale]), np.ones(1))


def pair(weight=0.5, scale=1.0):
    """Two Gaussians at -4 and 4 with mass ``weight`` on the left."""
    return targets.gaussian_mixture(np.array([[-4.0], [4.0]]), np.array([scale, scale]), np.array([weight, 1 - weight]))


@pytest.fixture
def build():
    return _build


@pytest.fixture
def proposals():
    """Named proposals for the target of two equal Gaussians."""
    return {
        "left": normal(-4.0),
        "right": normal(4.0),
        "both": pair(),
        "uneven": pair(0.8),
        "wide": pair(0.5, 1.2),
        "normal": normal,
    }


@pytest.fixture
def two():
    return targets.two_gaussians()


@pytest.fixture
def good(build, proposals, two):
    """Two engines that both cover both modes."""
    return build(two, [proposals["wide"], proposals["both"]], probe=50)


@pytest.fixture
def split(build, proposals, two):
    """Two engines with one mode each: equal evidence, different draws."""
    return build(two, [proposals["left"], proposals["right"]])
