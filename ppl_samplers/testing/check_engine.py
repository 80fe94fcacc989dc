"""The public conformance checker: what every transport engine must do, in either framework.

Third parties run it on their own engine::

    from ppl_samplers.testing import check_engine
    check_engine(lambda model=None, **options: MyEngine(model, budget="small", **options), "numpyro")
"""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ppl_samplers.testing.harness import Harness, harness

# Four standard errors: a false alarm in 16000 per comparison of a normal statistic.
SIGMAS = 4.0


def check_engine(
    factory: Callable[..., Any], backend: str, *, only: Sequence[str] | None = None, num_warmup: int = 20
) -> list[str]:
    """Runs the checks on one engine.

    Args:
        factory: ``factory(model=None, *, log_density=None, **options) -> kernel``, with a small budget; it must
            pass ``options`` (``num_engines``, ``trained``, ...) on.
        backend: ``"numpyro"`` or ``"pyro"``.
        only: Names of checks to run; all by default (:data:`CHECKS`).
        num_warmup: Units of training per run.

    Returns:
        The names of the checks that passed.

    Raises:
        AssertionError: A check failed; the message starts with its name.
        ValueError: An unknown check or backend.
    """
    unknown = set(only or ()) - set(CHECKS)
    if unknown:
        raise ValueError(f"unknown checks {sorted(unknown)}: write some of {', '.join(CHECKS)}")
    tools = harness(backend)
    passed = []
    for name in only or CHECKS:
        with warnings.catch_warnings():
            # Small budgets earn honest warnings about weights; what counts here are the numbers.
            warnings.simplefilter("ignore", UserWarning)
            try:
                CHECKS[name](factory, tools, num_warmup)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
        passed.append(name)
    return passed


def _close(what: str, value: float, truth: float, error: float) -> None:
    assert abs(value - truth) <= SIGMAS * error, f"{what} is {value:.4f}, exact {truth:.4f}, standard error {error:.4f}"


def _moments(record: Any, tools: Harness) -> None:
    """Mean and sd of the conjugate posterior, with the Monte Carlo error from the chains' effective sample size."""
    import arviz as az

    draws = np.asarray(record.posterior["mu"], float)
    size = max(float(np.asarray(az.ess(draws))), 4.0)
    mean, sd = tools.exact_mean, tools.exact_sd
    _close("the posterior mean", draws.mean(), mean, sd / math.sqrt(size))
    _close("the posterior sd", draws.std(), sd, sd / math.sqrt(2 * size) * 1.5)


def _conjugate(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """Draws, shapes and evidence on a conjugate model."""
    mcmc = tools.run(factory(tools.model), units, 500, data=tools.data)
    record = tools.record(mcmc)
    chains = tools.num_chains
    assert record.posterior["mu"].shape == (chains, 500), f"draws have shape {record.posterior['mu'].shape}"
    for name in ("lp", "acceptance_rate", "accepted", "log_weight", "prop_log_weight", "engine"):
        assert name in record.sample_stats, f"sample_stats lacks {name!r}"
        shape = np.shape(record.sample_stats[name])
        assert shape == (chains, 500), f"sample_stats[{name!r}] has shape {shape}"
    _moments(record, tools)
    evidence = tools.evidence(mcmc)
    _close("log Z", evidence.log_z, tools.exact_log_z, max(evidence.standard_error, 1e-3))
    assert evidence.standard_error < 0.1, f"the standard error of log Z is {evidence.standard_error}"


def _bad_proposal(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """An engine trained on other data is a bad proposal; the corrected draws are still right."""
    trained = tools.fit(factory(tools.model), units, data=tools.other_data)
    mcmc = tools.run(factory(tools.model, trained=trained), 0, 2000, data=tools.data)
    record = tools.record(mcmc)
    assert np.mean(record.sample_stats["accepted"]) < 0.9, "the proposal was not bad: this check shows nothing"
    _moments(record, tools)


def _seeds(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """Equal seeds give equal draws, different seeds others."""
    first, again, other = (
        np.asarray(tools.record(tools.run(factory(tools.model), 3, 20, data=tools.data, seed=seed)).posterior["mu"])
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again), "equal seeds gave different draws"
    assert not np.array_equal(first, other), "different seeds gave equal draws"


def _half_space(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """A density that is zero on half of the space: half-normal, log Z = log(1/2), no draw outside."""
    mcmc = tools.run(factory(log_density=tools.half_normal()), units, 500)
    record = tools.record(mcmc)
    x = np.asarray(record.unconstrained)[..., 0]
    assert np.all(x > 0), "draws where the density is zero"
    evidence = tools.evidence(mcmc)
    _close("log Z", evidence.log_z, -math.log(2), max(evidence.standard_error, 1e-3))


def _untrained(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """No warm-up and nothing trained: an error that says so."""
    try:
        tools.run(factory(tools.model), 0, 10, data=tools.data)
    except ValueError as error:
        assert "trained" in str(error), f"the message does not name trained=: {error}"
    else:
        raise AssertionError("zero warm-up without a trained engine went through in silence")


def _new_data(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """A second run with other data on the same objects forgets the first."""
    mcmc = tools.mcmc(factory(tools.model), units, 300)
    tools.go(mcmc, data=tools.other_data, seed=0)
    tools.go(mcmc, data=tools.data, seed=1)
    _moments(tools.record(mcmc), tools)


def _pickle(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """Kernels travel to other processes."""
    kernel = pickle.loads(pickle.dumps(factory(tools.model)))
    record = tools.record(tools.run(kernel, 3, 10, data=tools.data))
    assert np.all(np.isfinite(record.posterior["mu"])), "the unpickled kernel gave draws that are not finite"


def _single_engine(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """One engine cannot vouch for itself."""
    evidence = tools.evidence(tools.run(factory(tools.model, num_engines=1), units, 100, data=tools.data))
    assert evidence.verdict == "unknown" and not evidence.reliable, f"one engine is called {evidence.verdict!r}"


def _arviz(factory: Callable[..., Any], tools: Harness, units: int) -> None:
    """Conversion with log likelihood and training curve."""
    from ppl_samplers.diagnostics import arviz

    data = tools.to_arviz(tools.run(factory(tools.model), 3, 20, data=tools.data))
    for name in ("posterior", "sample_stats", "log_likelihood", "observed_data", "sampler_training"):
        assert arviz.has_group(data, name), f"the ArviZ object lacks the group {name!r}"


CHECKS: dict[str, Callable[[Callable[..., Any], Harness, int], None]] = {
    "conjugate": _conjugate,
    "bad_proposal": _bad_proposal,
    "seeds": _seeds,
    "half_space": _half_space,
    "untrained": _untrained,
    "new_data": _new_data,
    "pickle": _pickle,
    "single_engine": _single_engine,
    "arviz": _arviz,
}
