"""The table of engines and its command line, without any framework."""

import dataclasses
import subprocess
import sys

import pytest

import ppl_samplers
from ppl_samplers import registry


def test_importing_the_package_imports_no_framework():
    code = "import sys, ppl_samplers.diagnostics.record, ppl_samplers.core.evidence; ppl_samplers.list_engines(); "
    code += "print([m for m in ('jax', 'torch', 'numpyro', 'pyro') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_command_line_prints_the_table():
    done = subprocess.run([sys.executable, "-m", "ppl_samplers", "engines"], capture_output=True, text=True, check=True)
    assert "BoltzmannGenerator" in done.stdout and "numpyro, pyro" in done.stdout


def test_filters_and_registration(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    info = registry.list_engines()[0]
    other = dataclasses.replace(info, name="Other", kind="move", backends=("pyro",))
    assert ppl_samplers.register(other) is other
    assert ppl_samplers.register(other) is other
    assert other in ppl_samplers.list_engines("pyro", "move")
    assert other not in ppl_samplers.list_engines("numpyro")
    with pytest.raises(ValueError, match="registered already"):
        ppl_samplers.register(dataclasses.replace(other, summary="x"))
    with pytest.raises(ValueError, match="write one of"):
        ppl_samplers.register(dataclasses.replace(other, kind="engine"))
    with pytest.raises(ValueError, match="pyro"):
        other.load("numpyro")


def test_a_broken_plug_in_is_reported_and_leaves_the_others(monkeypatch):
    class Broken:
        name = "broken"

        def load(self):
            raise ImportError("no such thing")

    monkeypatch.setattr(registry, "entry_points", lambda group: [Broken()])
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    with pytest.warns(UserWarning, match="broken"):
        assert registry.list_engines()
