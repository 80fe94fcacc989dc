"""Write data.json: seeded data, and a reference by exact integration.

Given the period and the noise scale, a, b and the offset are normal with a closed-form evidence. What is left is an
integral over two dimensions, done here on a dense grid (midpoint rule). Run:
python models/sinusoid/make_data.py
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
from scipy.signal import argrelmax
from scipy.special import logsumexp
from scipy.stats import norm

PERIODS = (2.0, 12.0)
PRIOR_SD = 2.0  # of a, b and the offset
SEED = 107


def make_data():
    """Thirty points in three visits; the gaps between the visits leave several periods open."""
    rng = np.random.default_rng(SEED)
    t = np.sort((np.array([0.0, 4.0, 9.0])[:, None] + rng.uniform(0.0, 0.8, (3, 10))).ravel())
    phase = 2.0 * math.pi * t / 4.4
    y = 0.4 + 0.9 * np.cos(phase) - 0.5 * np.sin(phase) + 0.45 * rng.standard_normal(len(t))
    return np.round(t, 3), np.round(y, 3)


def conditional(design, y, log_sigma):
    """Log evidence, mean and variance of the coefficients given ``design`` (P, n, k) and ``log_sigma`` (S,).

    Shapes of the results: (P, S), (P, S, k), (P, S, k). Bishop, Pattern Recognition and Machine Learning (2006), 3.3.
    """
    n, k = design.shape[-2:]
    gram = np.einsum("pni,pnj->pij", design, design)
    moment = np.einsum("pni,n->pi", design, y)
    inv_var = np.exp(-2.0 * log_sigma)[None, :, None]
    precision = gram[:, None] * inv_var[..., None] + np.eye(k) / PRIOR_SD**2
    cov = np.linalg.inv(precision)
    mean = np.einsum("psij,psj->psi", cov, moment[:, None] * inv_var)
    log_det = np.linalg.slogdet(precision)[1] + 2.0 * k * math.log(PRIOR_SD) + 2.0 * n * log_sigma
    quadratic = (y @ y) * inv_var[..., 0] - np.einsum("psi,psi->ps", mean, moment[:, None] * inv_var)
    log_z = -0.5 * (n * math.log(2.0 * math.pi) + log_det + quadratic)
    return log_z, mean, np.diagonal(cov, axis1=-2, axis2=-1)


def integrate(t, y, num_periods=30_000, num_sigma=120, chunk=1000):
    """Grid over (log period, log sigma): ``grid``, log masses (P,), and moments of everything given the period."""
    edges = np.linspace(math.log(PERIODS[0]), math.log(PERIODS[1]), num_periods + 1)
    grid = 0.5 * (edges[1:] + edges[:-1])
    log_sigma = np.linspace(-2.5, 2.5, num_sigma)
    log_weight = norm.logpdf(log_sigma) + math.log(log_sigma[1] - log_sigma[0]) - math.log(num_periods)
    log_mass, first, second = [], [], []
    for part in np.split(grid, range(chunk, num_periods, chunk)):
        phase = 2.0 * math.pi * t * np.exp(-part)[:, None]
        design = np.stack([np.cos(phase), np.sin(phase), np.ones_like(phase)], -1)
        log_z, mean, var = conditional(design, y, log_sigma)
        log_z = log_z + log_weight
        total = logsumexp(log_z, axis=1)
        w = np.exp(log_z - total[:, None])
        sigma = np.broadcast_to(np.exp(log_sigma), w.shape)
        values = np.concatenate([mean, sigma[..., None]], -1)
        squares = np.concatenate([var + mean**2, sigma[..., None] ** 2], -1)
        log_mass.append(total)
        first.append(np.einsum("ps,psk->pk", w, values))
        second.append(np.einsum("ps,psk->pk", w, squares))
    return grid, np.concatenate(log_mass), np.concatenate(first), np.concatenate(second)


def find_modes(grid, mass, smallest=0.005):
    """Split the posterior of log period at its minima; keep the parts that hold at least ``smallest``."""
    density = mass / mass.sum()
    tops = argrelmax(density, order=5)[0]
    tops = tops[density[tops] > 1e-4 * density.max()]
    cuts = [0, *(a + int(np.argmin(density[a:b])) for a, b in itertools.pairwise(tops)), len(grid)]
    modes = []
    for top, low, high in zip(tops, cuts[:-1], cuts[1:]):
        w = density[low:high]
        if w.sum() < smallest:
            continue
        mean = float(w @ grid[low:high] / w.sum())
        sd = math.sqrt(float(w @ (grid[low:high] - mean) ** 2 / w.sum()))
        modes.append(
            {
                "period": float(np.exp(grid[top])),
                "weight": float(w.sum()),
                "log_period": {"mean": mean, "sd": sd},
                "interval": [float(np.exp(grid[low])), float(np.exp(grid[high - 1]))],
            }
        )
    return sorted(modes, key=lambda m: -m["weight"])


def reference(t, y, **sizes):
    """Moments, modes and the evidence of both models."""
    grid, log_mass, first, second = integrate(t, y, **sizes)
    log_z = float(logsumexp(log_mass))
    w = np.exp(log_mass - log_z)
    means, squares = w @ first, w @ second
    moments = {name: (means[i], math.sqrt(squares[i] - means[i] ** 2)) for i, name in enumerate("abcd")}
    names = {"a": "a", "b": "b", "c": "offset", "d": "sigma"}
    parameters = {names[k]: {"mean": float(m), "sd": float(s)} for k, (m, s) in moments.items()}
    mean = float(w @ grid)
    quantiles = np.interp([0.05, 0.5, 0.95], np.cumsum(w), grid)
    parameters["log_period"] = {"mean": mean, "sd": math.sqrt(float(w @ (grid - mean) ** 2))}
    parameters["log_period"] |= dict(zip(("q05", "q50", "q95"), map(float, quantiles)))

    log_sigma = np.linspace(-2.5, 2.5, 2001)
    constant, _, _ = conditional(np.ones((1, len(t), 1)), y, log_sigma)
    step = math.log(log_sigma[1] - log_sigma[0])
    log_z_constant = float(logsumexp(constant[0] + norm.logpdf(log_sigma) + step))
    return {
        "method": "a, b, offset in closed form; grid over log period and log sigma",
        "parameters": parameters,
        "log_evidence": log_z,
        "log_evidence_constant_model": log_z_constant,
        "modes": find_modes(grid, w),
    }


def main():
    t, y = make_data()
    content = {
        "source": f"models/sinusoid/make_data.py, seed {SEED}",
        "inputs": ["t", "y"],
        "data": {"t": t.tolist(), "y": y.tolist()},
        "reference": reference(t, y),
    }
    Path(__file__).with_name("data.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
