"""Long NUTS runs of the NumPyro models meet the stored reference: the models are those of the reference."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))
from models.load import load

jax = pytest.importorskip("jax")
pytest.importorskip("numpyro")

from models.make_reference import run_nuts  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eight_schools_noncentered", "garch11", "hmm_example"])
def test_nuts_meets_the_reference(name):
    entry = load(name)
    with jax.enable_x64(True):
        draws, _ = run_nuts(entry.numpyro_model, entry.data, num_samples=1500, num_warmup=600)
    for key, value in entry.scalars(draws).items():
        ref = entry.reference["parameters"][key]
        assert abs(value.mean() - ref["mean"]) < 0.1 * ref["sd"], key
        assert 0.9 < value.std() / ref["sd"] < 1.1, key
