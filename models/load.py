"""Load a model of this folder: the functions, the data and the reference.

A model is the plain function ``model(**data)`` in ``<name>/numpyro_model.py`` and ``<name>/pyro_model.py``; both
have the same sites. ``<name>/data.json`` holds ``data``, the names of the ``inputs`` that the model takes, and
``reference`` (``parameters[NAME] = {mean, sd, q05, q50, q95}``, indices from 1, and where known ``log_evidence``,
``modes``). Neither framework is imported before it is asked for.

    from models.load import load
    entry = load("blr")
    entry.numpyro_model, entry.data              # model and NumPy arrays: model(**entry.data)
    entry.pyro_model, entry.torch_data()         # model and tensors of torch's default dtype
    entry.scalars(draws)                         # {"beta[1]": (S,), ..., "sigma": (S,)}
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_HERE = Path(__file__).resolve().parent
_PACKAGE = __package__ or "models"

POSTERIORDB = (
    "eight_schools_noncentered",
    "garch11",
    "lotka_volterra",
    "gp_regr",
    "blr",
    "arK",
    "low_dim_gauss_mix",
    "hmm_example",
    "hmm_drive_0",
)
EXTRA = ("mixture_unordered", "line_outliers", "sinusoid")


def names() -> tuple[str, ...]:
    """Names of all models that ``load`` knows."""
    return POSTERIORDB + EXTRA


class Entry:
    """One model with its data and reference.

    Attributes:
        name: name of the folder.
        data: keyword arguments of the model, float NumPy arrays (scalars have shape ``()``).
        reference: the reference as stored: ``parameters``, and where known ``log_evidence`` and ``modes``.
        source: where the data and the reference come from.
    """

    def __init__(self, name: str):
        path = _HERE / name / "data.json"
        if not path.is_file():
            raise ValueError(f"no model {name!r}; write one of: {', '.join(names())}")
        content = json.loads(path.read_text())
        self.name = name
        self.source: str = content["source"]
        self.data = {key: np.asarray(content["data"][key], dtype=float) for key in content["inputs"]}
        self.reference: dict[str, Any] = content["reference"]

    def __repr__(self) -> str:
        return f"Entry({self.name!r})"

    def _function(self, framework: str, name: str) -> Callable[..., None]:
        return getattr(importlib.import_module(f"{_PACKAGE}.{self.name}.{framework}_model"), name)

    @functools.cached_property
    def numpyro_model(self) -> Callable[..., None]:
        """The model in NumPyro; imports it now."""
        return self._function("numpyro", "model")

    @functools.cached_property
    def pyro_model(self) -> Callable[..., None]:
        """The model in Pyro; imports it now."""
        return self._function("pyro", "model")

    def alternative(self, framework: str, name: str = "constant_model") -> Callable[..., None]:
        """A rival model of the same data, to compare the evidence, from ``<framework>_model.py``."""
        return self._function(framework, name)

    def torch_data(self) -> dict[str, Any]:
        """``data`` as tensors of torch's default dtype."""
        import torch

        return {key: torch.as_tensor(value, dtype=torch.get_default_dtype()) for key, value in self.data.items()}

    def scalars(self, draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The scalar quantities of the reference.

        Args:
            draws: site name -> draws ``(..., *event shape)``; any leading shape, the same for all sites.

        Returns:
            dict: name in the reference -> float64 array of the leading shape. ``theta`` of
            ``eight_schools_noncentered`` is computed where it is missing; the labels of
            ``mixture_unordered`` are sorted by the means.

        Raises:
            KeyError: a site is missing.
        """
        sites = _DERIVED.get(self.name, dict)({k: np.asarray(v, dtype=float) for k, v in draws.items()})
        out = {}
        for name in self.reference["parameters"]:
            base, index = _split(name)
            if base not in sites:
                raise KeyError(f"draws of {self.name} lack the site {base!r}; they have {sorted(draws)}")
            out[name] = sites[base] if index is None else sites[base][..., index]
        return out


def _split(name: str) -> tuple[str, int | None]:
    """Split ``"beta[2]"`` into ``("beta", 1)`` and ``"sigma"`` into ``("sigma", None)``."""
    found = re.fullmatch(r"(.+)\[(\d+)\]", name)
    return (found[1], int(found[2]) - 1) if found else (name, None)


def _eight_schools(sites: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if "theta" in sites:
        return sites
    return {**sites, "theta": sites["mu"][..., None] + sites["tau"][..., None] * sites["z"]}


def _sort_labels(sites: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    swap = sites["mu"][..., 0] > sites["mu"][..., 1]
    flip = {name: np.where(swap[..., None], sites[name][..., ::-1], sites[name]) for name in ("mu", "sigma")}
    return {**flip, "theta": np.where(swap, 1.0 - sites["theta"], sites["theta"])}


_DERIVED = {"eight_schools_noncentered": _eight_schools, "mixture_unordered": _sort_labels}


def load(name: str) -> Entry:
    """Load one model by name; ``names()`` lists them.

    Raises:
        ValueError: there is no such model.
    """
    return Entry(name)
