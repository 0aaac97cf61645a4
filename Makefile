# make setup   .venv with pinned versions and the compiled kernels
# make demo    generate a graph, partition it, train on it with 2 workers; leaves runs/demo
# make test    the whole test suite
# make lint    format, lint, types
# make sanitize  the kernels' tests with AddressSanitizer and UndefinedBehaviorSanitizer
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

# Apart from .venv, whose own build is found through its site module: hence -S and PYTHONPATH.
SANITIZED := build/sanitize
SITE := $(SANITIZED)/site
# They start processes without all that, look at the allocator, or are too long for it.
NOT_SANITIZED := $(patsubst %,--ignore=tests/kernels/test_%.py,runtime memory large_dropout)
SANITIZERS = $(foreach library,asan ubsan,$(shell $(CXX) -print-file-name=lib$(library).so))

.PHONY: setup demo test lint sanitize clean

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

sanitize: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -Wno-dev \
	  -DCMAKE_BUILD_TYPE=None -DFULLGRAPH_SANITIZE=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)"
	$(BIN)/cmake --build $(SANITIZED)
	rm -rf $(SITE) && cp -r src $(SITE) && cp $(SANITIZED)/_native.* $(SITE)/fullgraph/kernels/
	packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  LD_PRELOAD="$(SANITIZERS)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  PYTHONPATH="$(CURDIR)/$(SITE):$$packages" PYTHONDONTWRITEBYTECODE=1 \
	  $(BIN)/python -S -m pytest --capture=sys -p no:cacheprovider tests/kernels $(NOT_SANITIZED)

clean:
	rm -rf $(VENV) build demo runs .pytest_cache .mypy_cache .ruff_cache
