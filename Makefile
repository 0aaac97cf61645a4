# make setup   .venv with pinned versions and the compiled kernels
# make demo    generate a graph, partition it, train on it with 2 workers; leaves runs/demo
# make test    the whole test suite
# make lint    format, lint, types
#
# Needs python3 (3.10 or newer, with venv), g++ and make; everything else comes with pip. Versions
# are those of constraints.txt; pip's own settings (such as PIP_EXTRA_INDEX_URL, for an index with
# CPU builds of torch) hold as usual.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMP := $(VENV)/.fullgraph-installed
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt \
                $(wildcard src/fullgraph/kernels/csrc/*)

DEMO_GRAPH := planted:nodes=100000,edges=1000000,features=32,mix=0.4
DEMO_TRAIN := --model sage --layers 2 --hidden 64 --norm batch --epochs 60 --workers 2

.PHONY: setup demo test lint clean

setup: $(STAMP)

# torch is installed before the package: nothing that pip resolves later can replace it. The build
# itself has no use for it, and takes its tools from the same .venv.
$(STAMP): $(BUILD_INPUTS)
	@command -v $(PYTHON) >/dev/null || { echo "make setup: needs $(PYTHON), 3.10 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make setup: needs Python 3.10 or newer, $(PYTHON) is $$($(PYTHON) -V)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "make setup: $(PYTHON) lacks venv (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || \
	  { echo "make setup: needs a C++17 compiler, g++ (Debian, Ubuntu: apt-get install g++)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) scikit-build-core nanobind cmake ninja
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/fullgraph partition '$(DEMO_GRAPH)' --parts 2 --out demo/graph --overwrite
	$(BIN)/fullgraph train demo/graph $(DEMO_TRAIN) --out runs/demo --overwrite
	@echo "curves:  runs/demo/curves.png"
	@echo "results: runs/demo/result.json"

test: setup
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build demo runs .pytest_cache .mypy_cache .ruff_cache
