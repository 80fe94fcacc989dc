"""One converter and a thin layer over both generations of ArviZ (0.23 ``InferenceData``, 1.x ``xarray.DataTree``)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ppl_samplers.diagnostics.arviz_datasets import by_chain, dataset, plain, run_attrs
from ppl_samplers.diagnostics.psis import arviz, arviz_major, psis
from ppl_samplers.diagnostics.record import Arrays, RunRecord


def __getattr__(name: str) -> Any:
    # Late, so that importing the diagnostics does not import ArviZ (and, with it, matplotlib).
    if name == "ARVIZ_MAJOR":
        return arviz_major()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def to_arviz(
    record: RunRecord,
    *,
    log_likelihood: bool = True,
    log_prior: bool = False,
    prior: Arrays | None = None,
    posterior_predictive: Arrays | None = None,
) -> Any:
    """Convert a run to ``InferenceData`` (ArviZ 0.23) or ``DataTree`` (ArviZ 1.x).

    Groups: ``posterior`` (equally weighted draws), ``sample_stats`` (its attributes hold evidence and costs),
    ``log_likelihood``, ``log_prior`` (on request), ``observed_data``, ``prior``, ``prior_predictive``,
    ``posterior_predictive``, and two of its own: ``sampler_training`` with dims ``(engine, step)`` and ``proposal``
    with the fresh log weights, raw and Pareto-smoothed, with dims ``(chain, draw)`` where chain is the engine. A ``/``
    in a site's name, which a file cannot hold, becomes a ``.``.

    Args:
        record: The run.
        log_likelihood: Compute the pointwise log likelihood (needed by :func:`loo`).
        log_prior: Compute the log prior of each latent site (needed by ``power_scaling``).
        prior: Prior draws, each ``(n, *shape)``; observed sites among them go to ``prior_predictive``.
        posterior_predictive: Predictive draws, each ``(C, S, *shape)`` or ``(C * S, *shape)``.

    Returns:
        ``arviz.InferenceData`` or ``xarray.DataTree``.

    Raises:
        ValueError: A predictive array has neither of the two leading shapes.

    Warns:
        UserWarning: Terms that a model does not have (discrete sites are summed out) are left out.
    """
    import xarray as xr

    chains, draws = record.unconstrained.shape[:2]
    lead = ("chain", "draw")
    groups: dict[str, xr.Dataset] = {"posterior": dataset(record.posterior, lead, record.dims)}
    groups["sample_stats"] = dataset(record.sample_stats, lead)
    for name, wanted in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
        if wanted and (terms := getattr(record, name)) is not None:
            try:
                groups[name] = dataset(terms(), lead, record.dims if name == "log_likelihood" else None)
            except NotImplementedError as error:
                warnings.warn(f"the group {name} is left out: {error}", UserWarning, stacklevel=3)
    if posterior_predictive is not None:
        shaped = {name: by_chain(name, value, chains, draws) for name, value in posterior_predictive.items()}
        groups["posterior_predictive"] = dataset(shaped, lead, record.dims)
    if prior is not None:
        rows = {name: np.asarray(value)[None] for name, value in prior.items()}
        latent = {name: value for name, value in rows.items() if name not in record.observed}
        predictive = {name: value for name, value in rows.items() if name in record.observed}
        groups["prior"] = dataset(latent, lead, record.dims)
        if predictive:
            groups["prior_predictive"] = dataset(predictive, lead, record.dims)
    if record.observed:
        groups["observed_data"] = dataset(record.observed, (), record.dims)
    if record.training:
        groups["sampler_training"] = dataset(record.training, ("engine", "step"))
    fresh = np.atleast_2d(np.asarray(record.fresh_log_weights, dtype=np.float64))
    if fresh.size:
        smoothed = np.full_like(fresh, np.nan)
        for r, row in enumerate(fresh):
            kept = ~np.isnan(row)
            smoothed[r, kept] = psis(row[kept])[0]
        groups["proposal"] = dataset({"log_weight": fresh, "log_weight_psis": smoothed}, lead)
    groups["posterior"].attrs.update(plain({"inference_library": "ppl_samplers", "backend": record.backend}))
    groups["sample_stats"].attrs.update(plain(run_attrs(record)))
    return container(groups)


def container(groups: Mapping[str, Any]) -> Any:
    """Datasets by group as ``InferenceData`` or ``DataTree``, whichever the installed ArviZ has."""
    az = arviz()
    if arviz_major() >= 1:
        import xarray as xr

        return xr.DataTree.from_dict(dict(groups))
    with _quiet():
        return az.InferenceData(**groups)


@contextmanager
def _quiet() -> Iterator[None]:
    """ArviZ's announcements and small-sample remarks; findings are reported by this package in its own words."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def has_group(data: Any, name: str) -> bool:
    """Whether the container has the group ``name``."""
    return name in (data.children if arviz_major() >= 1 else data.groups())


def group(data: Any, name: str) -> Any:
    """The group ``name`` as an ``xarray.Dataset``, or ``None``."""
    if not has_group(data, name):
        return None
    return data[name].to_dataset() if arviz_major() >= 1 else data[name]


def set_attrs(data: Any, name: str, attrs: Mapping[str, Any]) -> None:
    """Add attributes to a group, made safe for netCDF (numbers and strings; ``None`` is left out)."""
    data[name].attrs.update(plain(attrs))


def set_group(data: Any, name: str, dataset: Any) -> None:
    """Add or replace a group."""
    if arviz_major() >= 1:
        import xarray as xr

        data[name] = xr.DataTree(dataset)
        return
    if has_group(data, name):
        del data[name]
    with _quiet():
        data.add_groups({name: dataset})


def loo(data: Any, var_name: str | None = None, **kwargs: Any) -> Any:
    """PSIS leave-one-out, ``arviz.loo``, always as an expected log predictive density.

    Raises:
        ValueError: There is no ``log_likelihood`` group.
    """
    _need_likelihood(data, "this run")
    if arviz_major() < 1:
        kwargs.setdefault("scale", "log")
    with _quiet():
        return arviz().loo(data, var_name=var_name, **kwargs)


def compare(models: Mapping[str, Any], **kwargs: Any) -> Any:
    """``arviz.compare`` of converted runs by leave-one-out, as expected log predictive densities."""
    for name, data in models.items():
        if hasattr(data, "children") or hasattr(data, "groups"):
            _need_likelihood(data, f"model '{name}'")
    if arviz_major() < 1:
        kwargs = {"ic": "loo", "scale": "log", **kwargs}
    with _quiet():
        return arviz().compare(dict(models), **kwargs)


def _need_likelihood(data: Any, who: str) -> None:
    if not has_group(data, "log_likelihood"):
        raise ValueError(
            f"Leave-one-out needs the pointwise log likelihood and {who} has none: convert with "
            "to_arviz(..., log_likelihood=True) a model that has an observed site (obs=...)."
        )


def summary(data: Any, var_names: list[str] | None = None, *, ci_prob: float = 0.94, ci_kind: str = "hdi") -> Any:
    """``arviz.summary`` with the same, numeric columns in both generations.

    Columns: ``mean, sd, hdi_lb, hdi_ub`` (or ``eti_lb, eti_ub``), ``mcse_mean, mcse_sd, ess_bulk, ess_tail, r_hat``.

    Args:
        data: A converted run.
        var_names: Sites to show; all by default.
        ci_prob: Probability of the interval.
        ci_kind: ``"hdi"`` or ``"eti"``.
    """
    az = arviz()
    with _quiet():
        if arviz_major() >= 1:
            table = az.summary(data, var_names=var_names, ci_kind=ci_kind, ci_prob=ci_prob, round_to="none")
        else:
            focus = {"stat_focus": "mean", "round_to": "none", "hdi_prob": ci_prob}
            table = az.summary(data, var_names=var_names, **focus)
            if ci_kind == "eti":
                tail = (1 - ci_prob) / 2
                posterior = data.posterior if var_names is None else data.posterior[var_names]
                for column, q in zip(_interval_columns(table), (tail, 1 - tail)):
                    flat = [_by_row(posterior[v].quantile(q, ("chain", "draw"))) for v in posterior.data_vars]
                    table[column] = np.concatenate(flat)
    lower, upper = _interval_columns(table)
    table = table.rename(columns={lower: f"{ci_kind}_lb", upper: f"{ci_kind}_ub"})
    order = ["mean", "sd", f"{ci_kind}_lb", f"{ci_kind}_ub", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"]
    return table[order].astype(float)


def _interval_columns(table: Any) -> tuple[str, str]:
    found = [c for c in table.columns if c.startswith(("hdi", "eti"))]
    return found[0], found[1]


def _by_row(values: Any) -> np.ndarray:
    return np.asarray(values).reshape(-1)


def save(data: Any, path: str | Path) -> Path:
    """Write a converted run to a netCDF file.

    Raises:
        ImportError: No netCDF backend is installed.
    """
    path = Path(path)
    _need_backend()
    with _quiet():
        data.to_netcdf(str(path), engine="h5netcdf")
    return path


def load(path: str | Path) -> Any:
    """Read a file written by :func:`save`, by either generation of ArviZ; everything is read into memory."""
    import xarray as xr

    _need_backend()
    with _quiet(), xr.open_datatree(str(path), engine="h5netcdf") as tree:
        groups = {name: node.to_dataset().load() for name, node in tree.children.items()}
    return container(groups)


def _need_backend() -> None:
    try:
        import h5netcdf  # noqa: F401
        import h5py  # noqa: F401  (h5netcdf installs without it, and then cannot write)
    except ImportError as error:
        raise ImportError("netCDF files need two packages: pip install h5netcdf h5py") from error
