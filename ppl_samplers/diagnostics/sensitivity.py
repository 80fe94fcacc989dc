"""Does the posterior hang on the prior? Power scaling of prior and likelihood, by ArviZ, in one table."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_samplers.diagnostics.arviz import _quiet, group, has_group
from ppl_samplers.diagnostics.psis import arviz, arviz_major
from ppl_samplers.diagnostics.record import elements

CONFLICT = "prior and data may disagree"
STRONG_PRIOR = "strong prior or weak data"


def power_scaling(
    data: Any, var_names: list[str] | None = None, *, prior_sites: list[str] | None = None, threshold: float = 0.05
) -> Any:
    """Sensitivity of each posterior to a power-scaled prior and likelihood.

    The prior (then the likelihood) is raised to powers close to 1 and the draws are reweighted, without a new run. A
    posterior that moves with both is pulled in two directions; one that moves with the prior alone is not informed by
    the data.

    Args:
        data: A run converted by ``to_arviz(mcmc, log_prior=True)``.
        var_names: Sites to show; all of the posterior by default.
        prior_sites: Sites whose prior is scaled; all by default. In a hierarchical model name the top ones: the levels
            below are a part of the model more than of the prior.
        threshold: Sensitivity from which on a posterior counts as sensitive.

    Returns:
        ``pandas.DataFrame``, a row per scalar, with the columns ``prior`` and ``likelihood`` (distance per doubling of
        the power, no units) and ``diagnosis``, a sentence or empty.

    Raises:
        ValueError: The groups ``log_prior`` or ``log_likelihood`` are missing (the message says how to get them), or
            ``prior_sites`` names a site without a prior.

    References:
        Noa Kallioinen, Topi Paananen, Paul-Christian Bürkner, Aki Vehtari, Detecting and diagnosing prior and
        likelihood sensitivity with power-scaling, 2024.

    Example:
        >>> import numpy as np
        >>> from ppl_samplers.diagnostics.arviz import container
        >>> from ppl_samplers.diagnostics.arviz_datasets import dataset
        >>> draws = np.random.default_rng(0).standard_normal((4, 500))
        >>> groups = {"posterior": draws, "log_prior": -draws**2 / 2, "log_likelihood": 0 * draws}
        >>> data = container({k: dataset({"mu": v}, ("chain", "draw")) for k, v in groups.items()})
        >>> power_scaling(data)["diagnosis"].tolist()
        ['strong prior or weak data']
    """
    import pandas as pd

    for name in ("log_prior", "log_likelihood"):
        if not has_group(data, name):
            raise ValueError(
                f"power scaling needs the group {name}: convert with to_arviz(..., log_prior=True) a model that has an "
                "observed site (obs=...) and no discrete sites that are summed out"
            )
    names = list(group(data, "posterior").data_vars) if var_names is None else list(var_names)
    unknown = sorted(set(prior_sites or ()) - set(group(data, "log_prior").data_vars))
    if unknown:
        raise ValueError(
            f"prior_sites names {unknown}; the sites with a prior: {list(group(data, 'log_prior').data_vars)}"
        )
    columns = {
        "prior": _sensitivity(data, "prior", names, prior_sites),
        "likelihood": _sensitivity(data, "likelihood", names, None),
    }
    table = pd.DataFrame({part: pd.Series(values) for part, values in columns.items()})
    prior, likelihood = table["prior"] >= threshold, table["likelihood"] >= threshold
    table["diagnosis"] = np.select([prior & likelihood, prior], [CONFLICT, STRONG_PRIOR], "")
    return table


def _sensitivity(data: Any, part: str, names: list[str], scaled: list[str] | None) -> dict[str, float]:
    az, terms, posterior = arviz(), group(data, f"log_{part}"), group(data, "posterior")
    chosen = [terms[name] for name in (scaled or terms.data_vars)]
    if all(np.ptp(np.asarray(term), axis=(0, 1)).max(initial=0.0) == 0 for term in chosen):
        # Nothing to scale, as with flat priors; ArviZ 1.x fits a tail to the weights and cannot.
        found: Any = {name: np.zeros(posterior[name].shape[2:]) for name in names}
    else:
        with _quiet():
            if arviz_major() >= 1:
                found = az.psense(data, var_names=names, group=part, group_var_names=scaled)
            else:
                found = az.psens(data, component=part, var_names=names, component_var_names=scaled)
        if not hasattr(found, "data_vars"):
            # A single variable comes back on its own.
            found = {names[0]: found}
    return {label: float(value) for label, value in elements({name: found[name] for name in names}, 0)}
