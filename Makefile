# Everything runs from .venv, which is made when missing and renewed when the lock changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Each with one engine of other people's, for its tests alone.
ENGINES := $(CURDIR)/.engines
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/prefixd
MODEL  ?= $(CACHE)/SmolLM2-135M-Instruct

# Torch, and what else computes here, uses the cores this process may use.
export OMP_NUM_THREADS ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
export TOKENIZERS_PARALLELISM ?= false
# Nothing here is fetched from a model hub.
export HF_HUB_OFFLINE ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-engines test-vllm lint format bench lock clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 14

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

test-engines: test-vllm  ## run the tests with other people's engines

test-vllm: setup $(ENGINES)/vllm/.ready  ## ... with vLLM for CPUs
	PREFIXD_VLLM_PYTHON=$(ENGINES)/vllm/bin/python $(BIN)/python -m pytest --timeout 900 tests/engines/vllm

$(ENGINES)/vllm/.ready: tests/engines/vllm/install.py
	rm -rf $(@D)
	$(PYTHON) $< $(@D)

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
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
