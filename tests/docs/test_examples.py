"""The examples in the docstrings run and print what they say; a module is one test."""

import doctest
import importlib
import importlib.util
import pkgutil
import warnings

import pytest

import ppl_samplers

HAVE = {name for name in ("jax", "numpyro", "torch", "pyro") if importlib.util.find_spec(name)}

# Before the tests: NumPyro's import draws from NumPy's global generator.
for _name in HAVE:
    importlib.import_module(_name)


def _needs(name):
    """Frameworks that a module imports, by its place or its name."""
    parts = name.replace(".", "_").split("_")
    return {"numpyro", "jax"} & set(parts) or {"pyro", "torch"} & set(parts)


MODULES = [
    module.name
    for module in pkgutil.walk_packages(ppl_samplers.__path__, "ppl_samplers.", onerror=lambda name: None)
    if not module.name.endswith("__main__")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if not _needs(name) <= HAVE:
        pytest.skip(f"{name} needs {', '.join(sorted(_needs(name) - HAVE))}")
    module = importlib.import_module(name)
    tests = [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]
    if not tests:
        return
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in tests:
        if "pyro" in HAVE:
            # Examples share Pyro's global parameters and random numbers, which a reader's session does not.
            import pyro
            import torch

            pyro.clear_param_store()
            torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
