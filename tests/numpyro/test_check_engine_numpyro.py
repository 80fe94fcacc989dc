"""The public conformance checker on every registered transport, in NumPyro."""

import pytest

from ppl_samplers.numpyro import Affine, Pilot, SplineCoupling
from ppl_samplers.registry import list_engines
from ppl_samplers.testing import CHECKS, check_engine

ENGINES = {info.name: info.load("numpyro") for info in list_engines("numpyro", "transport")}


# Small budgets: what is checked is exactness, not efficiency.
CHEAP = {
    "BoltzmannGenerator": {"flow": Affine(), "pilot": Pilot(num_particles=256)},
    "CMT": {"flow": SplineCoupling(layers=2), "buffer_size": 2048, "grad_steps": 40},
}


def factory(engine):
    def make(model=None, **options):
        return engine(model, **CHEAP[engine.__name__], **options)

    return make


# Compilation makes each check cost a minute: those of exactness run in the slow suite, the others by make test-full.
EXACTNESS = {"conjugate", "bad_proposal", "half_space", "single_engine"}


def checks():
    return [pytest.param(c, marks=pytest.mark.slow if c in EXACTNESS else pytest.mark.full) for c in CHECKS]


@pytest.mark.parametrize("check", checks())
@pytest.mark.parametrize("engine", ENGINES)
def test_engine_conforms(engine, check):
    assert check_engine(factory(ENGINES[engine]), "numpyro", only=[check]) == [check]


def test_unknown_checks_and_backends_are_named():
    with pytest.raises(ValueError, match="unknown checks"):
        check_engine(factory(ENGINES["BoltzmannGenerator"]), "numpyro", only=["nonsense"])
    with pytest.raises(ValueError, match="write one of"):
        check_engine(factory(ENGINES["BoltzmannGenerator"]), "tensorflow")
