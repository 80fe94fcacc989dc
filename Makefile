# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make .venv first.

# Python 3.11 is the main leg (torch and JAX); with a newer Python only the NumPyro side is installed, unless EXTRAS=all is given.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
IS_311 := $(shell $(PYTHON) -c 'import sys; print(int(sys.version_info[:2] == (3, 11)))')
EXTRAS ?= $(if $(filter 1,$(IS_311)),all,numpyro)
VENV   ?= .venv
# Test processes side by side; each takes up to 5 GiB of memory.
JOBS   ?= 1
PYTEST  = $(BIN)/python -m pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist worksteal)
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(EXTRAS)
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export MPLBACKEND ?= Agg
# Small matrices: threads that wait for each other cost far more than they bring, above all on a busy machine.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test test-slow test-tutorials test-second test-full accept lint docs bench bench-peers clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.11 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS),dev]'
	@touch $@

demo: $(STAMP)  ## the sinusoid of models/ end to end in both frameworks, beside NUTS; writes out/
	$(BIN)/python -m benchmarks.demo --out out

test: $(STAMP)  ## what a newcomer runs: under ten minutes on two cores
	$(PYTEST)

test-slow: $(STAMP)  ## statistical and end-to-end tests
	$(PYTEST) -m "slow and not full" --ignore tests/tutorials

test-tutorials: $(STAMP)  ## every tutorial from its first line to its last; minutes each
	$(PYTEST) -m slow tests/tutorials

test-second: $(STAMP)  ## the leg without torch, with ArviZ 1.x: core, diagnostics, smoke
	$(BIN)/python -m pytest tests/core tests/diagnostics tests/numpyro/test_smoke_numpyro.py

test-full: $(STAMP)  ## every engine on every hostile model
	$(PYTEST) -m full

accept: $(STAMP)  ## the acceptance figures: all models, both frameworks
	$(BIN)/python -m benchmarks.accept

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(STAMP)  ## the links and the examples of the documentation
	$(BIN)/python -m pytest -q tests/docs

bench: $(STAMP)  ## ratios, side by side in one run; machine otherwise idle
	$(BIN)/python -m benchmarks.run

bench-peers: $(STAMP) .venv-peers/.installed  ## our engines beside other samplers; hours
	$(BIN)/python -m benchmarks.peers --peers .venv-peers/bin/python

.venv-peers/.installed: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install -q -r benchmarks/peers/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) .cache out build *.egg-info
