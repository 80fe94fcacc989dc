"""Guards: a test that changes a global setting of a framework fails, and the setting is put back."""

import gc
import os
import sys
from pathlib import Path

# Both must be set before JAX is imported. Compilation dominates small tests; the cache makes a second run cheap.
ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("MPLBACKEND", "Agg")
# Small matrices on a busy machine: threads that wait for each other were measured to cost a factor of thirty.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(ROOT))  # models/, benchmarks/ and tutorials/ stand beside the package

import importlib.util  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402

# Without a framework its tests are not collected at all: they could not even be imported.
HAS = {name: importlib.util.find_spec(name) is not None for name in ("numpyro", "pyro")}
collect_ignore = [name for name in ("numpyro", "pyro") if not HAS[name]]


def _settings() -> dict:
    state = {}
    if "jax" in sys.modules:
        state["jax_enable_x64"] = bool(sys.modules["jax"].config.jax_enable_x64)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        state["torch default dtype"] = torch.get_default_dtype()
        state["torch validation"] = torch.distributions.Distribution._validate_args
        state["torch gradients"] = torch.is_grad_enabled()
    return state


@pytest.fixture(autouse=True)
def forget_compiled_programs():
    """Drops JAX's compiled programs before their memory maps reach the kernel's limit (65530), which aborts Python."""
    yield
    maps = Path("/proc/self/maps")
    if "jax" in sys.modules and maps.exists() and maps.read_bytes().count(b"\n") > 30_000:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def guard_globals():
    """Framework settings and NumPy's global generator are the same after a test as before it."""
    before, generator = _settings(), np.random.get_state()[1].copy()  # noqa: NPY002
    yield
    after = _settings()
    changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    if "jax_enable_x64" in changed:
        sys.modules["jax"].config.update("jax_enable_x64", before["jax_enable_x64"])
    if "torch" in sys.modules and "torch default dtype" in changed:
        sys.modules["torch"].set_default_dtype(before["torch default dtype"])
    if "torch" in sys.modules and "torch validation" in changed:
        sys.modules["torch"].distributions.Distribution.set_default_validate_args(before["torch validation"])
    if "pyro" in sys.modules and hasattr(sys.modules["pyro"], "clear_param_store"):
        sys.modules["pyro"].clear_param_store()
    assert not changed, f"the test changed global settings: {changed}"
    assert np.array_equal(generator, np.random.get_state()[1]), (  # noqa: NPY002
        "the test drew from NumPy's global generator"
    )
