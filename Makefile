# offramp: `make` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test pytest check fmt conformance benchmark dist test-wheel test-minimums clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv with pinned versions (the other targets do this themselves)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "offramp needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation setuptools wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(READY) ## fine-tune a real encoder, make it faster without labels, show where sentences exit
	$(BIN)/python examples/demo.py

test: $(READY) ## what CI runs: ruff, strict mypy, pytest, golden cases
	@$(MAKE) --no-print-directory --jobs 2 check pytest

pytest: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY) ## ruff and mypy only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(READY) ## format and apply ruff's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## the documentation site in build/site, built strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Wrote build/site/index.html"

conformance: $(READY) ## check every golden case, one line per check
	$(BIN)/python tests/conformance.py tests/golden

benchmark: $(READY) ## measure exit overhead and training throughput (about twenty minutes)
	$(BIN)/python benchmarks/exit_efficiency.py
	$(BIN)/python benchmarks/training_throughput.py
	$(BIN)/python benchmarks/write_page.py

dist: $(READY) ## build sdist and wheel in dist, and check them
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

test-wheel: dist ## install the wheel of dist into clean environments, bare and with each extra, and use it (slow)
	$(BIN)/python tests/wheels.py dist/*.whl

test-minimums: dist ## the same with the lowest versions that pyproject.toml allows (slow)
	$(BIN)/python tests/wheels.py dist/*.whl --minimums

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
