"""The few calls in which the frameworks differ, for tests that run the same check in both."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

# One unknown mean with a normal prior: the posterior, its evidence and everything else in closed form.
PRIOR_SD, NOISE_SD = 2.0, 1.0


class Harness:
    """Runs kernels of one framework on the conjugate model ``mu ~ N(0, 2)``, ``y ~ N(mu, 1)``.

    Attributes:
        data: Observations; ``other_data`` are far from them.
        exact_mean: Posterior mean of ``mu`` given ``data``; likewise ``exact_sd``, ``exact_log_z``.
    """

    num_chains = 4
    data = np.array([1.2, 0.3, 1.9, 0.8, 1.1])
    other_data = np.array([0.1, -0.9, 0.4, -0.2, 0.6])
    backend = ""

    def __init__(self) -> None:
        self.door = importlib.import_module(f"ppl_samplers.{self.backend}")
        n, total = len(self.data), float(self.data.sum())
        precision = n / NOISE_SD**2 + 1 / PRIOR_SD**2
        self.exact_mean, self.exact_sd = total / NOISE_SD**2 / precision, precision**-0.5
        covariance = np.eye(n) * NOISE_SD**2 + PRIOR_SD**2
        quadratic = self.data @ np.linalg.solve(covariance, self.data)
        self.exact_log_z = -0.5 * (n * math.log(2 * math.pi) + np.linalg.slogdet(covariance)[1] + quadratic)

    def model(self, y: Any) -> None:
        """The conjugate model."""
        raise NotImplementedError

    def half_normal(self) -> Any:
        """Log density of a half normal, ``-inf`` below zero, ``log Z = -log 2``."""
        raise NotImplementedError

    def mcmc(self, kernel: Any, num_warmup: int, num_samples: int) -> Any:
        """An MCMC object that is not run yet."""
        return self.door.MCMC(
            kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=self.num_chains, **self.quiet
        )

    def go(self, mcmc: Any, data: np.ndarray | None = None, seed: int = 0) -> None:
        """Runs it."""
        raise NotImplementedError

    def run(self, kernel: Any, num_warmup: int, num_samples: int, data: Any = None, seed: int = 0) -> Any:
        """A finished run."""
        mcmc = self.mcmc(kernel, num_warmup, num_samples)
        self.go(mcmc, data, seed)
        return mcmc

    def fit(self, kernel: Any, num_warmup: int, data: np.ndarray, seed: int = 0) -> Any:
        """A trained engine."""
        raise NotImplementedError

    def record(self, mcmc: Any) -> Any:
        """The run's record."""
        return self.door.record(mcmc)

    def evidence(self, mcmc: Any) -> Any:
        """The run's evidence."""
        return self.door.log_evidence(mcmc)

    def to_arviz(self, mcmc: Any) -> Any:
        """The run's ArviZ object."""
        return self.door.to_arviz(mcmc)

    quiet: dict[str, Any] = {}


class NumPyroHarness(Harness):
    """NumPyro's side."""

    backend = "numpyro"
    quiet = {"progress_bar": False}

    @staticmethod
    def model(y: Any) -> None:
        """The conjugate model."""
        import numpyro
        import numpyro.distributions as dist

        mu = numpyro.sample("mu", dist.Normal(0.0, PRIOR_SD))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, NOISE_SD), obs=y)

    def half_normal(self) -> Any:
        """Half normal, ``-inf`` below zero."""
        import jax.numpy as jnp

        def log_density(x: Any) -> Any:
            return jnp.where(x[:, 0] > 0, -0.5 * x[:, 0] ** 2 - 0.5 * math.log(2 * math.pi), -jnp.inf)

        return self.door.LogDensity.from_callable(log_density, 1)

    def _arguments(self, data: np.ndarray | None) -> tuple:
        import jax.numpy as jnp

        return () if data is None else (jnp.asarray(data, jnp.float32),)

    def go(self, mcmc: Any, data: np.ndarray | None = None, seed: int = 0) -> None:
        """Runs it."""
        import jax

        mcmc.run(jax.random.key(seed), *self._arguments(data))

    def fit(self, kernel: Any, num_warmup: int, data: np.ndarray, seed: int = 0) -> Any:
        """A trained engine."""
        import jax

        return kernel.fit(jax.random.key(seed), *self._arguments(data), num_warmup=num_warmup, progress=False)


class PyroHarness(Harness):
    """Pyro's side."""

    backend = "pyro"
    quiet = {"disable_progbar": True}

    @staticmethod
    def model(y: Any) -> None:
        """The conjugate model."""
        import pyro
        import pyro.distributions as dist

        mu = pyro.sample("mu", dist.Normal(0.0, PRIOR_SD))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, NOISE_SD), obs=y)

    def half_normal(self) -> Any:
        """Half normal, ``-inf`` below zero."""
        import torch

        def log_density(x: Any) -> Any:
            inside = -0.5 * x[:, 0] ** 2 - 0.5 * math.log(2 * math.pi)
            return torch.where(x[:, 0] > 0, inside, torch.full_like(inside, -math.inf))

        return self.door.LogDensity.from_callable(log_density, 1)

    def _arguments(self, data: np.ndarray | None) -> tuple:
        import torch

        return () if data is None else (torch.as_tensor(data, dtype=torch.get_default_dtype()),)

    def go(self, mcmc: Any, data: np.ndarray | None = None, seed: int = 0) -> None:
        """Runs it."""
        import pyro

        pyro.set_rng_seed(seed)
        mcmc.run(*self._arguments(data))

    def fit(self, kernel: Any, num_warmup: int, data: np.ndarray, seed: int = 0) -> Any:
        """A trained engine."""
        import pyro

        pyro.set_rng_seed(seed)
        return kernel.fit(*self._arguments(data), num_warmup=num_warmup, progress=False)


def harness(backend: str) -> Harness:
    """The harness of a framework.

    Raises:
        ValueError: An unknown framework.
    """
    found = {"numpyro": NumPyroHarness, "pyro": PyroHarness}
    if backend not in found:
        raise ValueError(f"backend={backend!r}: write one of {', '.join(found)}")
    return found[backend]()
