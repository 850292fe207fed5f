# All work in .venv, made from PYTHON on first use and remade when the requirements change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: help test lint coverage profile about report clean
.DEFAULT_GOAL := help

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: lint  ## lint, type-check and test, on all processors
	$(BIN)/pytest -n auto --dist worksteal

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

coverage: $(STAMP)  ## test with branch coverage, into htmlcov; ARGS='...' goes to pytest
	$(BIN)/pytest -n auto --dist worksteal --cov --cov-report=term --cov-report=html $(ARGS)

profile: about $(STAMP)  ## measure einsum on this machine, into profiles/reports; ARGS='...' goes to the profiler
	$(BIN)/python -m einops_fast.profiles $(ARGS)

report: $(STAMP)  ## make the tables of README, the reference, plots and a page from kept results and docstrings
	$(BIN)/python -m einops_fast.profiles.reporting.documents

about:
	@echo "Times einsum against fast_einsum on every framework found: some 15 minutes on 2 cores; fewer rounds with ARGS=--quick."
	@echo "Writes to profiles/reports, which git ignores, or where ARGS='--out DIR' says."
	@test -e $(STAMP) || echo "First it makes $(VENV), and downloads torch, Triton, MXNet and others, several GB."

# MXNet has wheels for some platforms and Pythons only: without one its tests skip themselves.
$(STAMP): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) -e '.[torch,triton,profile,hf,dev]'
	$(PIP) -e '.[mxnet]' || echo 'MXNet cannot be installed here: going on without it'
	touch $@

clean:  ## remove everything that these made
	rm -rf $(VENV) build dist htmlcov .coverage* profiles/reports *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
