# Two commands do all the set-up: `make demo` and `make test`. Nothing outside .venv is touched, but that root gets
# chromium from apt-get for `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP = $(BIN)/.installed-$(1)-$(shell cksum pyproject.toml | cut -d' ' -f1)
# numba does not see edits in imported modules, so its cache is named by all of them
export NUMBA_CACHE_DIR ?= $(CURDIR)/.numba_cache/$(shell cat $$(find src -name '*.py' | sort) | cksum | cut -d' ' -f1)

.PHONY: help demo test test-slow test-torch test-cpus test-cpus-quick test-bounds browser lint format fuzz bench coverage docs \
  test-lowest release-check clean
help:
	@echo "make demo          set up and evaluate a policy from the built-in log; writes valuefit-report.html"
	@echo "make test          set up and run every test not marked slow"
	@echo "make test-slow     run all tests"
	@echo "make test-torch    run the tests of device problems on torch's CPU tensors, in an environment of its own"
	@echo "make test-cpus     run the numerical tests as four other processors would compute them"
	@echo "make test-bounds   run the numerical tests with the bounds of every index in compiled loops checked"
	@echo "make test-lowest   run the tests with the lowest supported version of each dependency, in an environment of its own"
	@echo "make lint          ruff and mypy"
	@echo "make fuzz          try mutated files and odd arguments on every reader and API entry, within 20 minutes"
	@echo "make bench         measure the numbers that the docs state, but for a GPU and other libraries (CONTRIBUTING.md)"
	@echo "make coverage      measure the coverage of intervals and calibrate the verdict; resumes where it stopped"
	@echo "make docs          set up and build the documentation into docs/_build/html; check spelling and links"
	@echo "make release-check build the sdist and the wheel, check them, and try the wheel in empty environments"

demo: $(call STAMP,demo)
	@$(BIN)/valuefit evaluate --report valuefit-report.html --force

test: $(call STAMP,dev) browser
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(call STAMP,dev) browser
	$(BIN)/python -m pytest

# Torch and Triton, whose interpreter runs the GPU kernels on the CPU, are large, so they are not in .venv.
TORCH := .venv-torch/bin
TORCH_STAMP = $(TORCH)/.installed-$(shell cksum pyproject.toml | cut -d' ' -f1)
test-torch: $(TORCH_STAMP)
	$(TORCH)/python -m pytest $(shell grep -rlE '^import torch|find_spec\("torch"\)' tests --include='test_*.py')

$(TORCH_STAMP):
	@echo "Installing valuefit with torch into .venv-torch ..."
	@$(PYTHON) -m venv .venv-torch
	@$(TORCH)/python -m pip install --quiet --disable-pip-version-check -e ".[all,dev]" torch==2.13.0 triton==3.8.0
	@rm -f $(TORCH)/.installed-*; touch $@

# The bounds of pyproject.toml as exact versions. They have wheels for Python 3.11; newer ones need newer versions.
LOWEST := .venv-lowest/bin
PYTHON_LOWEST ?= python3.11
LOWEST_STAMP = $(LOWEST)/.installed-$(shell cksum pyproject.toml | cut -d' ' -f1)
# TESTS=tests/data runs some of the tests.
test-lowest: $(LOWEST_STAMP)
	NUMBA_CACHE_DIR=$(NUMBA_CACHE_DIR)-lowest $(LOWEST)/python -m pytest -m "not slow" $(TESTS)

$(LOWEST_STAMP):
	@echo "Installing the lowest supported versions into .venv-lowest ..."
	@$(PYTHON_LOWEST) -m venv .venv-lowest
	@$(PYTHON_LOWEST) -m release.lowest > .venv-lowest/requirements.txt
	@$(LOWEST)/python -m pip install --quiet --disable-pip-version-check -r .venv-lowest/requirements.txt
	@$(LOWEST)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@rm -f $(LOWEST)/.installed-*; touch $@

# OpenBLAS chooses its kernels by processor and numba compiles for it, so the last bits of results differ between
# machines. These repeat the numerical tests as other machines would compute them: BLAS kernels of other processors,
# code without vector extensions, one and two threads. SkylakeX needs AVX-512 and is left out where there is none.
CPUS = Prescott:1 Sandybridge:2 Haswell:1 $(if $(shell grep -sl avx512f /proc/cpuinfo),SkylakeX:2,Haswell:2)
NUMERICAL = OPENBLAS_CORETYPE=$(1) OPENBLAS_NUM_THREADS=$(2) NUMBA_NUM_THREADS=$(2) NUMBA_CPU_NAME=generic \
  $(BIN)/python -m pytest -m "numerical and not slow"

test-cpus: $(call STAMP,dev)
	@set -e; for cpu in $(CPUS); do \
	  echo "Numerical tests with $${cpu%:*} kernels and $${cpu#*:} threads"; \
	  $(call NUMERICAL,$${cpu%:*},$${cpu#*:}); \
	done

# Every index of a kernel is checked: slow, and without it an index beyond an array reads or writes other memory.
test-bounds: $(call STAMP,dev)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(NUMBA_CACHE_DIR)-bounds $(BIN)/python -m pytest -m "numerical and not slow"

test-cpus-quick: $(call STAMP,dev)
	$(call NUMERICAL,Haswell,1)

# The report is tested in a real browser. Without one the run ends with a line that names the skipped tests; with
# CI=true they fail.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing chromium, in which the report is tested ..."; \
	    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium; } \
	      >/dev/null 2>&1 || echo "apt-get could not install chromium."; \
	  fi

lint: $(call STAMP,dev)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(call STAMP,dev)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# SEED=7 tries other cases.
SEED ?= 0
fuzz: $(call STAMP,dev)
	$(BIN)/python -m fuzz --seed $(SEED)

# The grid is last: it takes longest, and goes on where it was interrupted.
bench: $(call STAMP,dev)
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.checks
	$(BIN)/python -m benchmarks.floors
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.cluster
	$(BIN)/python -m benchmarks.wide
	OPENBLAS_NUM_THREADS=2 NUMBA_NUM_THREADS=2 $(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.costs
	$(BIN)/python -m benchmarks.grid

# JOBS=8 uses more processes.
JOBS ?= 2
coverage: $(call STAMP,dev)
	$(BIN)/python -m coverage_study --jobs $(JOBS) || test $$? = 1
	$(BIN)/python -m coverage_study.verdict --jobs $(JOBS)

# Tries python3.11, python3.12 and python3.13 where they are found, or those named: PYTHONS="path/to/python3.13 ...".
release-check: $(call STAMP,dev)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[release]"
	$(BIN)/python -m release.check $(PYTHONS)

# Spelling is checked with codespell's dictionary of misspellings and our own one of American forms.
SPELLED = README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md RELEASING.md VISION.md docs/*.md docs/*/*.md
docs: $(call STAMP,docs)
	$(BIN)/codespell -D - -D docs/british.txt $(SPELLED)
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html
	@echo "Built docs/_build/html/index.html"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "valuefit needs Python 3.11 or newer, and $(PYTHON) is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv .venv || \
	  { rm -rf .venv; echo "$(PYTHON) cannot make virtual environments. On Debian: apt-get install python3-venv"; exit 1; }

# What is installed more widely serves the narrower need too.
$(call STAMP,dev): | $(BIN)/python
	@echo "Installing valuefit with its test tools into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[all,dev]"
	@rm -f $(BIN)/.installed-*; touch $@ $(call STAMP,demo)

$(call STAMP,demo): | $(BIN)/python
	@echo "Installing valuefit into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[plot]"
	@touch $@

$(call STAMP,docs): | $(BIN)/python
	@echo "Installing valuefit and Sphinx into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $@

clean:
	rm -rf docs/_build .venv .venv-peers .venv-torch .venv-lowest dist .numba_cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
