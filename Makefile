# offramp: `make` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test check fmt conformance benchmark clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## a virtual environment with exact versions (the others call it by themselves)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "offramp needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation setuptools wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(READY) ## a real encoder from pip, fine-tuned, made faster without labels; ten sentences and where they leave
	$(BIN)/python examples/demo.py

test: check ## what CI runs: ruff, strict mypy, pytest, the golden cases of the originals
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY) ## ruff and mypy alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(READY) ## format, and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

conformance: $(READY) ## every golden case, a line per check
	$(BIN)/python tests/conformance.py tests/golden

benchmark: $(READY) ## measured against computed speedup, training against a loop by hand (about twenty minutes)
	$(BIN)/python benchmarks/exit_efficiency.py
	$(BIN)/python benchmarks/training_throughput.py
	$(BIN)/python benchmarks/write_page.py

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
