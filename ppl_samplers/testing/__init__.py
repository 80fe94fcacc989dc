"""For tests of engines: exact targets, and the checks that every engine has to pass."""

from ppl_samplers.testing import targets
from ppl_samplers.testing.check_engine import CHECKS, check_engine

__all__ = ["CHECKS", "check_engine", "targets"]
