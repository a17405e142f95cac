# Everything runs in a virtual environment of its own, .venv, made on first use.
# Needed: make, and Python 3.11 to 3.14 with venv. Another Python: PYTHON=python3.12 make tour
# To start afresh, with another Python too: make clean

PYTHON ?= python3
BIN := .venv/bin

# Once more for a processor without AVX2: the kernels have portable forms.
PORTABLE := $(patsubst %,tests/test_%.py,simd tiles kernels packing row_kernels activations cached_attention)

.PHONY: tour test lab notebooks bench clean
.NOTPARALLEL:

tour: .venv/core.done  # the course's main job on the tiny model
	$(BIN)/llambda tour

test: .venv/test.done  # all that CI runs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -n 2
	NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= $(BIN)/pytest -n 2 $(PORTABLE)

lab: .venv/course.done  # the lessons, in JupyterLab
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks

notebooks: .venv/test.done  # records the lessons anew, or some: make notebooks LESSON="04 05"
	$(BIN)/python notebooks/build.py $(LESSON)

bench: .venv/bench.done  # the goals for speed, beside llama.cpp: 20 minutes of a quiet computer
	$(BIN)/llambda fetch smollm2
	$(BIN)/python benchmarks/goals.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Not --constraint, which the environment that builds this package does not see. pip before 25.3
# takes the first for both, and later ones take the second for that environment.
PINNED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt

# pip runs only when a .done file is older than what it depends on.
.venv/core.done:   WHAT = .
.venv/course.done: WHAT = .[course]
.venv/test.done:   WHAT = .[test]
.venv/bench.done:  WHAT = .[bench]
.venv/course.done: INCLUDES = .venv/core.done
.venv/test.done:   INCLUDES = .venv/core.done .venv/course.done
.venv/bench.done:  INCLUDES = .venv/core.done .venv/course.done
.venv/%.done: $(BIN)/pip pyproject.toml constraints.txt
	$(PINNED) $(BIN)/python -m pip install --editable '$(WHAT)'
	@touch $(INCLUDES) $@

# Debian's python3 refuses pip outside a venv (PEP 668) and has venv in a package of its own.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v < (3, 15) or sys.exit("llambda needs Python 3.11 to 3.14, and $(PYTHON) is %d.%d. Name another: PYTHON=python3.12 make tour" % v)'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) comes without venv. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
