"""The scripts of the documentation's pictures run, and show what the text under them says."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"


@pytest.fixture(scope="module")
def teleportation():
    spec = importlib.util.spec_from_file_location("teleportation", PICTURES / "teleportation.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["teleportation"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["teleportation"]


def test_the_right_mode_gets_its_mass_late_or_early(teleportation):
    held, least = {}, {}
    for title, kind in teleportation.PATHS.items():
        rows = teleportation.path(kind)
        np.testing.assert_allclose(rows[-1].masses, teleportation.WEIGHTS, atol=1e-4)
        # Mass of the right mode when it is a third wider than in the end: from the last width above.
        held[title] = max(row.masses[2] for row in rows if row.width > 0.4)
        least[title] = min(row.ess for row in rows)
    assert held["geometric ladder, fixed"] < 0.03 and held["trust region alone"] < 0.03
    assert held["CMT: both constraints"] > 0.2 and held["temperature ladder, fixed"] > 0.2
    assert least["temperature ladder, fixed"] < 0.005 < 0.5 < least["CMT: both constraints"]


def test_it_can_be_drawn(teleportation, tmp_path):
    teleportation.draw().savefig(tmp_path / "teleportation.png", dpi=20)
    assert teleportation.IMAGE.exists()
