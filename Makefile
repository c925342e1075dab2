# Everything runs from .venv, which is made when missing and renewed when the lock changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/prefixd
MODEL  ?= $(CACHE)/SmolLM2-135M-Instruct
# Engines that the adapters are tried in; each has a folder in tests/engines with its pins and its tests.
ENGINES := lmcache sglang vllm

# Torch, and what else computes here, uses the cores this process may use.
export OMP_NUM_THREADS ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
export TOKENIZERS_PARALLELISM ?= false
# Nothing here is fetched from a model hub.
export HF_HUB_OFFLINE ?= 1

.DEFAULT_GOAL := help
ENGINE_TESTS := $(ENGINES:%=test-%)

.PHONY: help setup demo test test-engines $(ENGINE_TESTS) lint format bench lock clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(READY)  ## set up .venv from requirements.lock

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "prefixd needs Python 3.11 or later: make PYTHON=/path/to/it")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# pip picks the build of torch that suits this machine, with its CUDA packages if any; uv leaves it alone.
	@grep -E '^(torch|uv)==' requirements.lock > $(VENV)/first.txt
	$(BIN)/python -m pip install --disable-pip-version-check -r $(VENV)/first.txt -c requirements.lock
	$(BIN)/uv pip install --python $(BIN)/python --no-deps -r requirements.lock
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## see a real model answer from cached prefixes
	$(BIN)/prefixd demo

test: setup  ## run all tests
	$(BIN)/python -m pytest

test-engines: $(ENGINE_TESTS)  ## try the adapters in the engines themselves, each in an environment of its own

$(ENGINE_TESTS): test-%: .engines/%/.ready
	.engines/$*/bin/python -m pytest --confcutdir=tests/engines tests/engines/$*

# Torch and its kin first and by pip, as above; all else is what the file names, so that an engine's pins are kept.
.engines/%/.ready: tests/engines/%/requirements.txt | setup
	@test -x .engines/$*/bin/python || $(PYTHON) -m venv .engines/$*
	@grep -E '^torch(vision|audio)?==' $< > .engines/$*/first.txt
	@{ .engines/$*/bin/python -m pip install --disable-pip-version-check -r .engines/$*/first.txt -c $< && \
		$(BIN)/uv pip install --python .engines/$*/bin/python --no-deps -r $<; } || \
		{ echo "prefixd: $* IS NOT TESTED: the packages named in $< cannot be installed here" >&2; exit 1; }
	@touch $@

lint: setup  ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## put the source in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup $(MODEL)/config.json  ## measure the engine and the tiers; MODEL=folder for your own model
	$(BIN)/prefixd bench engine --model $(MODEL)
	$(BIN)/prefixd bench tiers

$(CACHE)/SmolLM2-135M-Instruct/config.json: | setup
	$(BIN)/python -c 'from api.folders import cache_folder; from engine_adapter.engine.convert import smollm2_folder; \
		smollm2_folder(cache_folder())'

lock: setup  ## pin the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile pyproject.toml --output-file requirements.lock --upgrade --quiet \
		--universal --python-version 3.11 --extra engine --extra constrained --extra service --extra redis --extra plot --group dev \
		--no-annotate --custom-compile-command 'make lock'

clean:  ## remove .venv and everything made
	rm -rf $(VENV) .engines build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
