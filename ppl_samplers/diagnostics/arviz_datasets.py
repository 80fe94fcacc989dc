"""The pieces of a converted run: arrays as ``xarray`` datasets, and attributes that a netCDF file can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ppl_samplers.diagnostics.evidence import Evidence, evidence_from_record
from ppl_samplers.diagnostics.record import Arrays, RunRecord


def dataset(arrays: Arrays, lead: tuple[str, ...], dims: Mapping[str, list[str]] | None = None) -> Any:
    """A Dataset with integer coordinates; event dimensions by the model's names where they fit, else ``site_dim_i``."""
    import xarray as xr

    lengths: dict[str, int] = {}
    variables = {}
    for site, value in arrays.items():
        array = np.asarray(value)
        name = site.replace("/", ".")
        event = array.shape[len(lead) :]
        named = [d for d in (dims or {}).get(site, []) if d is not None]
        fits = len(named) == len(event) and len(set(named)) == len(named)
        if not fits or any(lengths.get(d, n) != n or d in lead for d, n in zip(named, event)):
            named = [f"{name}_dim_{i}" for i in range(len(event))]
        all_dims = (*lead, *named)
        lengths.update(zip(all_dims, array.shape))
        variables[name] = (all_dims, array)
    return xr.Dataset(variables, coords={d: np.arange(n) for d, n in lengths.items()})


def by_chain(name: str, value: Any, chains: int, draws: int) -> np.ndarray:
    """Predictive draws as ``(C, S, *shape)``, from that shape or from ``(C * S, *shape)``."""
    array = np.asarray(value)
    if array.shape[:2] == (chains, draws):
        return array
    if array.shape[:1] == (chains * draws,):
        return array.reshape(chains, draws, *array.shape[1:])
    raise ValueError(
        f"posterior_predictive['{name}'] has shape {array.shape}: it must begin with ({chains}, {draws}) or "
        f"({chains * draws},), one predictive draw per posterior draw."
    )


def run_attrs(record: RunRecord) -> dict[str, Any]:
    """Costs, notes and evidence of a run, by name."""
    attrs: dict[str, Any] = {
        "engine": record.engine,
        "num_engines": record.num_engines,
        "evidence_kind": record.evidence_kind,
        **record.counts,
    }
    if record.evidence_reason:
        attrs["evidence_reason"] = record.evidence_reason
    if record.notes:
        attrs["notes"] = "\n".join(record.notes)
    if record.evidence_sums[:, 2].sum() > 0:
        attrs.update(evidence_attrs(evidence_from_record(record, force=True)))
    return attrs


def evidence_attrs(evidence: Evidence) -> dict[str, Any]:
    """The evidence as plain attributes; without the number itself where it is undefined."""
    attrs = {
        "pareto_k": evidence.pareto_k,
        "weight_ess": evidence.ess,
        "num_proposals": evidence.num_proposals,
        "evidence_verdict": evidence.verdict,
        "evidence_reliable": evidence.reliable,
    }
    if evidence.kind != "undefined":
        attrs |= {
            "log_evidence": evidence.log_z,
            "log_evidence_se": evidence.standard_error,
            "evidence_message": evidence.message,
        }
    return attrs


def plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that a netCDF file can hold: float, int, str. No ``None``, no bool, nothing nested."""
    out: dict[str, Any] = {}
    for name, value in attrs.items():
        if value is None:
            continue
        if isinstance(value, (bool, np.bool_, int, np.integer)):
            out[name] = int(value)
        elif isinstance(value, (float, np.floating)) or getattr(value, "shape", None) == ():
            out[name] = float(value)
        else:
            out[name] = value if isinstance(value, str) else str(value)
    return out
