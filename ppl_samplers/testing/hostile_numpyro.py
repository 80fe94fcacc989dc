"""Thirty kinds of ordinary NumPyro models that break samplers, with what must hold for each.

Every entry of :data:`HOSTILE` is a small record; a kernel, a guide or a density is tested by a loop::

    for case in HOSTILE:
        model, args, kwargs = case.make(), case.args, case.kwargs
        if case.expect == "error":
            with pytest.raises(case.error, match=case.fragment):
                LogDensity(model, args, kwargs)

Data are small NumPy arrays from fixed seeds. Some numbers have several variants (``5a``, ``5b``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import numpyro
from jax import random
from numpyro.handlers import reparam
from numpyro.infer.reparam import CircularReparam, LocScaleReparam, NeuTraReparam

from ppl_samplers.testing import hostile_numpyro_models as models


@dataclass(frozen=True)
class Hostile:
    """One hostile model.

    Attributes:
        id: Number in the table and variant, for example ``"5b"``.
        name: The model in a few words.
        make: Function of no argument that returns the model.
        args: Positional arguments of the model.
        kwargs: Keyword arguments of the model.
        must_hold: What must hold, in words.
        expect: ``"ok"``, ``"error"`` (at set-up of the density) or ``"warns"`` (works, with a warning at set-up).
        error: Exception or warning type for the last two.
        fragment: Regular expression that the message must match.
        dim: Number of unconstrained dimensions, ``None`` where there is an error.
        evidence_kind: Kind of the evidence.
        has_prior: Whether prior draws exist.
        covers_all: Whether the density is finite at all points of (-2, 2)^D.
    """

    id: str
    name: str
    make: Callable[[], Callable]
    args: tuple = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    must_hold: str = ""
    expect: str = "ok"
    error: type | None = None
    fragment: str = ""
    dim: int | None = None
    evidence_kind: str = "absolute"
    has_prior: bool = True
    covers_all: bool = True


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


REGRESSION_X = _normal(0, 40, 4)
REGRESSION_Y = REGRESSION_X @ np.array([1.0, -2.0, 0.5, 0.0], np.float32) + np.float32(0.5) * _normal(1, 40)
#: Exact log evidence of the model ``regression`` with these data.
REGRESSION_LOG_Z = -39.6948
SMALL = _normal(2, 12)


def _neutra():
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoDiagonalNormal

    guide = AutoDiagonalNormal(models.unsorted_sites)
    svi = SVI(models.unsorted_sites, guide, numpyro.optim.Adam(0.1), Trace_ELBO())
    return NeuTraReparam(guide, svi.get_params(svi.init(random.key(0), SMALL))).reparam(models.unsorted_sites)


_NAN = np.where(np.arange(12) % 4 == 0, np.nan, SMALL).astype(np.float32)
_Y8 = np.array([28.0, 8, -3, 7, -1, 1, 18, 12], np.float32)
_S8 = np.array([15.0, 10, 16, 11, 9, 11, 10, 18], np.float32)
_ANGLES = np.array([3.1, -3.1, 3.0, -3.05, 3.14], np.float32)
_ORDINAL = np.arange(12) % 4
_COLUMNS = {"left": SMALL[:6], "right": SMALL[6:]}


def _frame() -> Any:
    """The same columns as a pandas frame where pandas is installed."""
    try:
        import pandas
    except ImportError:
        return _COLUMNS
    return pandas.DataFrame(_COLUMNS)


def _case(id: str, name: str, model: Callable, args: tuple, must_hold: str, **rest: Any) -> Hostile:
    return Hostile(id, name, lambda: model, args, must_hold=must_hold, **rest)


def _fails(id: str, name: str, model: Callable, args: tuple, error: type, fragment: str) -> Hostile:
    return Hostile(
        id, name, lambda: model, args, must_hold="clear error", expect="error", error=error, fragment=fragment
    )


_KWARGS = {"link": "log", "prior": {"loc": 0.0, "scale": np.float32(2.0)}, "columns": ["left", "right"]}

HOSTILE: tuple[Hostile, ...] = (
    _case("1", "dotted site name", models.dotted_name, (SMALL,), "samples, summary and exclusion work", dim=2),
    _case("2", "unsorted sites", models.unsorted_sites, (SMALL,), "the site-to-slice map is right", dim=7),
    _case("3", "LKJ and scales", models.lkj, (_normal(3, 10, 3),), "matrices valid", dim=6),
    _case(
        "4",
        "ordered cut points",
        models.ordered_logistic,
        (SMALL, _ORDINAL),
        "order kept, evidence refused",
        dim=4,
        evidence_kind="undefined",
        has_prior=False,
    ),
    _case("5a", "Dirichlet", models.dirichlet, (_ORDINAL,), "sums to 1", dim=3),
    _case("5b", "table of simplexes", models.dirichlet_table, (_ORDINAL % 2,), "sums to 1, slice shape (2, 1)", dim=2),
    _case(
        "6",
        "von Mises at pi",
        models.von_mises,
        (_ANGLES,),
        "two lobes, both found",
        dim=1,
        expect="warns",
        error=UserWarning,
        fragment="CircularReparam",
    ),
    _case(
        "7a",
        "flat on reals",
        models.flat_real,
        (SMALL,),
        "no prior draws, evidence refused",
        dim=1,
        evidence_kind="undefined",
        has_prior=False,
    ),
    _case(
        "7b",
        "flat on positives",
        models.flat_positive,
        (SMALL,),
        "no prior draws, evidence refused",
        dim=2,
        evidence_kind="undefined",
        has_prior=False,
    ),
    _case("8", "bound is latent", models.latent_bound, (SMALL,), "supports respected, replay used", dim=2),
    _fails("9a", "plate of size 0", models.empty_plate, (), AssertionError, "size"),
    _case("9b", "latent of shape (0,)", models.empty_latent, (SMALL,), "ignored", dim=1),
    _fails("10a", "no latent", models.no_latent, (SMALL,), ValueError, "no continuous latent site.*'obs'"),
    _fails("10b", "latent Delta", models.latent_delta, (SMALL,), ValueError, "'fixed'.*numpyro.deterministic"),
    _case(
        "11",
        "int, bool and list data",
        models.mixed_observations,
        (np.arange(5, dtype=np.int64), np.array([True, False, True]), [0.5, 1.5]),
        "taken as arrays",
        dim=1,
    ),
    _case("12", "masked NaN", models.masked_nan, (_NAN,), "finite", dim=1, evidence_kind="relative"),
    _fails("12b", "unmasked NaN", models.open_nan, (_NAN,), ValueError, "'obs' holds 3 NaN of 12"),
    _case(
        "13",
        "-inf half space",
        models.half_space,
        (SMALL,),
        "training survives, weight 0, valid start",
        dim=1,
        evidence_kind="relative",
        covers_all=False,
    ),
    _case("14", "NaN gradient", models.nan_gradient, (SMALL,), "gradient zeroed", dim=1),
    _case("15", "heavy tails", models.heavy_tails, (SMALL,), "k-hat reported, no NaN", dim=51),
    _case("16", "enumerated mixture", models.mixture, (SMALL,), "both labelings", dim=3),
    _case("17a", "enumerated HMM in scan", models.hidden_markov, (SMALL,), "D = 4", dim=4),
    _case("17b", "random walk in scan", models.random_walk, (SMALL,), "D = 1 + T", dim=13),
    _fails("18", "subsampled plate", models.subsampled, (SMALL,), ValueError, "plate 'rows' is subsampled .4 of 12."),
    _case(
        "19",
        "param and mutable",
        models.param_and_mutable,
        (SMALL,),
        "frozen at the initial value",
        dim=1,
        expect="warns",
        error=UserWarning,
        fragment="'width' .param., 'count' .mutable.",
    ),
    _case(
        "20a",
        "deterministic of another shape",
        models.deterministic_table,
        (SMALL,),
        "returned, not in the summary",
        dim=3,
    ),
    _case(
        "20b",
        "LocScaleReparam",
        reparam(models.eight_schools, config={"theta": LocScaleReparam(0)}),
        (_Y8, _S8),
        "replayed once per draw",
        dim=10,
    ),
    _case(
        "20c",
        "CircularReparam",
        reparam(models.von_mises, config={"loc": CircularReparam()}),
        (_ANGLES,),
        "replayed once per draw; the unwrapped angle repeats for ever",
        dim=1,
        evidence_kind="undefined",
        has_prior=False,
    ),
    Hostile(
        "20d",
        "NeuTra",
        _neutra,
        (SMALL,),
        must_hold="replayed once per draw",
        dim=7,
        evidence_kind="relative",
        has_prior=False,
    ),
    Hostile(
        "21", "data as kwarg", lambda: models.optional_data, (SMALL,), {"y": SMALL}, "predictive shapes right", dim=1
    ),
    Hostile("22a", "string, dict, list", lambda: models.many_kwargs, (_frame(),), _KWARGS, "runs", dim=1),
    _case("22b", "arrays only", models.regression, (REGRESSION_X, REGRESSION_Y), "jit_model_args=True works", dim=4),
    _fails("23", "Python if", models.python_if, (SMALL,), ValueError, "'a' in Python control flow.*jnp.where.*cond"),
    _case("24a", "prng_key in the model", models.own_randomness, (SMALL,), "deterministic density", dim=3),
    _case("24b", "cond with sites", models.branches, (SMALL,), "runs", dim=2),
    _fails(
        "25",
        "Poisson latent",
        models.poisson_latent,
        (SMALL,),
        RuntimeError,
        "Poisson distribution at site n does not have",
    ),
    _fails(
        "26", "projected normal", models.projected_normal, (SMALL,), ValueError, "'direction'.*ProjectedNormalReparam"
    ),
    _case("27a", "one dimension", models.one_dimension, (SMALL,), "no squeezed axes", dim=1),
    _case("27b", "200 dimensions", models.large_hierarchy, (_normal(4, 198),), "seconds", dim=200),
    _case(
        "28",
        "sharp likelihood",
        models.sharp,
        (np.float32(0.7) + np.float32(0.01) * _normal(5, 100_000),),
        "float32 loss of precision noticed",
        dim=2,
    ),
    _case("29", "keys of any form", models.regression, (REGRESSION_X, REGRESSION_Y), "same path", dim=4),
    _case("30", "run twice, new data, pickle", models.regression, (REGRESSION_X, REGRESSION_Y), "nothing stale", dim=4),
)


def by_id(id: str) -> Hostile:
    """The entry with this number and variant."""
    return next(case for case in HOSTILE if case.id == id)


def runnable() -> tuple[Hostile, ...]:
    """All entries whose density can be built."""
    return tuple(case for case in HOSTILE if case.expect != "error")


def other_data(case: Hostile) -> tuple:
    """The same arguments with other values: floating-point arrays shrunk by a tenth, which no support forbids."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f":
            return leaf * leaf.dtype.type(0.9)
        return leaf

    return jax.tree.map(move, case.args)
