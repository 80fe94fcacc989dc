"""A small Gaussian mixture fit, for finding modes: EM, BIC, and merging of components that share one hill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from ppl_samplers.core.logspace import logsumexp

LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True)
class Mixture:
    """Gaussian mixture.

    Attributes:
        log_weights: ``(K,)``.
        means: ``(K, D)``.
        factors: Lower Cholesky factors of the covariances, ``(K, D, D)``.
        bic: Bayesian information criterion, smaller is better.
    """

    log_weights: np.ndarray
    means: np.ndarray
    factors: np.ndarray
    bic: float

    def log_joint(self, x: np.ndarray) -> np.ndarray:
        """``log(weight_k N(x | k))``, ``(N, D) -> (N, K)``."""
        dim = x.shape[1]
        out = np.empty((len(x), len(self.means)))
        for k, (mean, factor) in enumerate(zip(self.means, self.factors)):
            centred = x - mean
            scale = np.diag(factor)
            if np.count_nonzero(factor) == dim:
                z = centred / scale
            else:
                # einsum, here and below: threaded BLAS on such small matrices is many times slower on a busy machine.
                z = np.einsum("nj,ij->ni", centred, solve_triangular(factor, np.eye(dim), lower=True))
            out[:, k] = -0.5 * np.sum(z * z, axis=1) - np.log(scale).sum()
        return out + self.log_weights - 0.5 * dim * LOG_2PI

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """``(N, D) -> (N,)``."""
        return logsumexp(self.log_joint(x), axis=1)


def _spread_centres(x: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """k-means++ centres, improved by a few rounds of k-means."""
    centres = x[rng.integers(len(x))][None]
    while len(centres) < count:
        distance = np.min(((x[:, None] - centres) ** 2).sum(-1), axis=1)
        total = distance.sum()
        chosen = rng.choice(len(x), p=distance / total) if total > 0 else rng.integers(len(x))
        centres = np.vstack([centres, x[chosen]])
    for _ in range(10):
        labels = np.argmin(((x[:, None] - centres) ** 2).sum(-1), axis=1)
        centres = np.stack([x[labels == k].mean(0) if np.any(labels == k) else centres[k] for k in range(count)])
    return centres


def _factor(centred: np.ndarray, share: np.ndarray, mass: float, diagonal: bool) -> np.ndarray:
    """Cholesky factor of the weighted covariance of one component."""
    # A component on a few coinciding points must not collapse: the data have unit variance, a millionth is nothing.
    ridge = 1e-6
    weighted = share[:, None] * centred
    if diagonal:
        return np.diag(np.sqrt(np.sum(weighted * centred, axis=0) / mass + ridge))
    covariance = np.einsum("ni,nj->ij", weighted, centred) / mass
    return np.linalg.cholesky(covariance + ridge * np.eye(centred.shape[1]))


def fit(x: np.ndarray, count: int, rng: np.random.Generator, *, diagonal: bool, steps: int = 60) -> Mixture:
    """EM from k-means++ centres.

    Args:
        x: Whitened points, ``(N, D)``.
        count: Number of components.
        rng: Generator for the starting centres.
        diagonal: Diagonal covariances.
        steps: Most EM steps.
    """
    n, dim = x.shape
    centres = _spread_centres(x, count, rng)
    labels = np.argmin(((x[:, None] - centres) ** 2).sum(-1), axis=1)
    share = np.eye(count)[labels] * 0.98 + 0.02 / count
    last = -np.inf
    mixture = Mixture(np.zeros(1), x[:1], np.eye(dim)[None], np.inf)
    for _ in range(steps):
        mass = share.sum(0) + 1e-12
        means = np.einsum("nk,nd->kd", share, x) / mass[:, None]
        factors = np.empty((count, dim, dim))
        for k in range(count):
            factors[k] = _factor(x - means[k], share[:, k], float(mass[k]), diagonal)
        mixture = Mixture(np.log(mass / n), means, factors, np.inf)
        joint = mixture.log_joint(x)
        density = logsumexp(joint, axis=1)
        share = np.exp(joint - density[:, None])
        value = float(density.sum())
        if value - last < 1e-5 * n:
            break
        last = value
    covariance_size = dim if diagonal else dim * (dim + 1) // 2
    size = count * (1 + dim + covariance_size) - 1
    bic = -2 * float(density.sum()) + size * np.log(n)
    return Mixture(mixture.log_weights, mixture.means, mixture.factors, bic)


def best_fit(x: np.ndarray, max_components: int, rng: np.random.Generator, restarts: int = 2) -> Mixture:
    """Mixture with the smallest BIC over 1 to ``max_components``; stops after two sizes without an improvement.

    References:
        Gideon Schwarz, Estimating the dimension of a model, 1978.
    """
    n, dim = x.shape
    diagonal = dim > 1 and n < 10 * (1 + dim + dim * (dim + 1) // 2)
    best = fit(x, 1, rng, diagonal=diagonal)
    worse = 0
    for count in range(2, max_components + 1):
        # At least ten points per parameter of the means, or BIC has nothing to go by.
        if n < 10 * count * (1 + dim):
            break
        trial = min((fit(x, count, rng, diagonal=diagonal) for _ in range(restarts)), key=lambda m: m.bic)
        if trial.bic < best.bic - 1e-9:
            best, worse = trial, 0
        else:
            worse += 1
            if worse == 2:
                break
    return best


def merge_hills(mixture: Mixture, depth: float = 0.5, points: int = 41) -> np.ndarray:
    """Join components with no valley between them: ``(K,)`` mode index of each component.

    Between two Gaussian components every stationary point lies on the ridge ``x(a) = (a S1^-1 + (1-a) S2^-1)^-1
    (a S1^-1 m1 + (1-a) S2^-1 m2)``. The mixture density is followed along it; where it never falls below ``depth``
    times the lower of its two ends, the components are parts of one mode (a bent or skewed one, for example).

    References:
        Surajit Ray, Bruce Lindsay, The topography of multivariate normal mixtures, 2005; Christian Hennig, Methods for
        merging Gaussian mixture components, 2010.
    """
    count, dim = mixture.means.shape
    precision = [cho_solve((f, True), np.eye(dim)) for f in mixture.factors]
    parent = np.arange(count)
    for i in range(count):
        for j in range(i + 1, count):
            ridge = []
            for a in np.linspace(0, 1, points):
                matrix = (1 - a) * precision[i] + a * precision[j]
                vector = (1 - a) * precision[i] @ mixture.means[i] + a * precision[j] @ mixture.means[j]
                ridge.append(np.linalg.solve(matrix, vector))
            height = mixture.log_density(np.array(ridge))
            if height.min() > min(height[0], height[-1]) + np.log(depth):
                parent[parent == parent[j]] = parent[i]
    return np.unique(parent, return_inverse=True)[1]
