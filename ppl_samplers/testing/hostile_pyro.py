"""Hostile but ordinary Pyro models, with what a density must make of each.

Every entry is a model as users write them. ``expect`` is one of

* ``"vmap"``: evaluated in batches;
* ``"loop"``: falls back to a Python loop with one warning;
* ``"lost"``: the same, and a warning that the gradient through a latent is lost;
* ``"refused"``: refused at set-up, with ``match`` in the message.

Example:
    >>> from ppl_samplers.testing.hostile_pyro import HOSTILE
    >>> [case.name for case in HOSTILE][:2]
    ['eight_schools', 'logistic_matmul']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ppl_samplers.testing import hostile_pyro_models as models


@dataclass(frozen=True)
class HostileModel:
    """One row of the table.

    Attributes:
        number: Number of the row; the open cases go on after 22.
        name: Short name.
        make: Makes the model.
        args: Positional arguments of the model.
        kwargs: Keyword arguments of the model.
        expect: What must happen, see the module.
        match: Words of the refusal.
        dim: Unconstrained dimensions.
        plates: Sizes of the plates, for the batch sizes that a careless vectorisation would confuse with them.
        reference: Whether Pyro's own potential is a correct reference for the density.
    """

    number: int
    name: str
    make: Callable[[], Callable[..., Any]]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    expect: str = "vmap"
    match: str = ""
    dim: int | None = None
    plates: tuple[int, ...] = ()
    reference: bool = True


def _data(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


_SCHOOLS_Y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
_SCHOOLS_SIGMA = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
_X = _data(1, 40, 4)
_LABELS = (_data(2, 40) > 0).float()
_Y20 = _data(3, 20)


_HOLES = torch.where(torch.arange(20) % 5 == 0, torch.nan, _Y20)

HOSTILE: tuple[HostileModel, ...] = (
    HostileModel(1, "eight_schools", lambda: models.eight_schools, (_SCHOOLS_Y, _SCHOOLS_SIGMA), dim=10, plates=(8,)),
    HostileModel(2, "logistic_matmul", lambda: models.logistic_matmul, (_X, _LABELS), dim=5, plates=(40,)),
    HostileModel(3, "enumerated_mixture", lambda: models.enumerated_mixture, (_data(4, 30),), dim=8, plates=(3, 30)),
    HostileModel(4, "ode_loop", lambda: models.ode_loop, (20 + 3 * _data(5, 20, 2),), dim=7),
    HostileModel(5, "python_if", lambda: models.python_if, expect="loop", match="torch.where", dim=2),
    HostileModel(6, "babylonian_while", lambda: models.babylonian_while, expect="loop", match="torch.where", dim=1),
    HostileModel(7, "item_inside", lambda: models.item_inside, expect="lost", match="item", dim=1),
    HostileModel(8, "tensor_of_latents", lambda: models.tensor_of_latents, expect="lost", match="item", dim=2),
    HostileModel(
        9, "fresh_assignment", lambda: models.fresh_assignment, (_Y20,), expect="loop", match="torch.cat", dim=1
    ),
    HostileModel(10, "derived_assignment", lambda: models.derived_assignment, (_Y20,), dim=1, plates=(20,)),
    HostileModel(11, "subsampled", lambda: models.subsampled, (_Y20,), expect="refused", match="'data'.*subsample"),
    HostileModel(12, "noise_inside", lambda: models.noise_inside, expect="refused", match="random"),
    HostileModel(13, "unused_linear", lambda: models.unused_linear, expect="loop", match="random", dim=1),
    HostileModel(13, "random_linear", lambda: models.random_linear, expect="refused", match="random"),
    HostileModel(14, "gaussian_process", lambda: models.gaussian_process, (_Y20,), dim=2),
    HostileModel(15, "correlation", lambda: models.correlation, (_data(6, 12, 3),), dim=6, plates=(12,)),
    HostileModel(16, "dirichlet_weights", lambda: models.dirichlet_weights, (torch.tensor([3.0, 5.0, 2.0]),), dim=2),
    HostileModel(17, "latent_bounds", lambda: models.latent_bounds, dim=2, reference=False),
    HostileModel(18, "factor_ring", lambda: models.factor_ring, dim=2),
    HostileModel(19, "masked_and_scaled", lambda: models.masked_and_scaled, (_HOLES,), dim=1, plates=(20,)),
    HostileModel(20, "enumerated_hmm", lambda: models.enumerated_hmm, (_data(7, 10),), dim=4, plates=(2,)),
    HostileModel(21, "poisson_latent", lambda: models.poisson_latent, expect="refused", match="'n'.*Poisson"),
    HostileModel(22, "circular", lambda: models.circular, dim=1, reference=False),
    HostileModel(23, "with_param", lambda: models.with_param, dim=1),
    HostileModel(
        24, "no_latent", lambda: models.no_latent, (_Y20,), expect="refused", match="no continuous latent site"
    ),
    HostileModel(25, "one_scalar", lambda: models.one_scalar, dim=1),
    HostileModel(
        26, "double_data", lambda: models.logistic_matmul, (_X.double(), _LABELS.double()), dim=5, plates=(40,)
    ),
    HostileModel(27, "dotted_names", lambda: models.dotted_names, (_Y20,), dim=2),
    HostileModel(28, "keyword_data", lambda: models.keyword_data, (), {"x": _X, "y": _LABELS}, dim=5, plates=(40,)),
    HostileModel(29, "pyro_module", models.BayesianLinear, (_X, _LABELS), dim=5, plates=(40,)),
    HostileModel(30, "nan_data", lambda: models.nan_data, (_HOLES,), expect="refused", match="'y' contain NaN"),
    HostileModel(31, "improper", lambda: models.improper, (_Y20,), dim=1, plates=(20,), reference=False),
)
