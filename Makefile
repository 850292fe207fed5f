# All work in .venv, made from PYTHON on first use and remade when the requirements change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: help test lint coverage profile about report docs release clean
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
	@echo "Times einsum against fast_einsum on every framework found: some 6 minutes on 2 cores; fewer rounds with ARGS=--quick."
	@echo "Writes to profiles/reports, which git ignores, or where ARGS='--out DIR' says."
	@test -e $(STAMP) || echo "First it makes $(VENV), and downloads torch, Triton, MXNet and others, several GB; pip shows a bar."

# A folder of links, so that links between documents hold in the site too.
docs: $(STAMP)  ## build README, docs, examples and kept results as a site, build/site; a broken link is an error
	$(PIP) --quiet -e '.[docs]'
	mkdir -p build/site-source
	for name in README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs examples profiles; do \
		ln -sfn ../../$$name build/site-source/$$name; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --config-file docs/mkdocs.yml

release: $(STAMP)  ## build, check and tag a release, publishing nothing; ARGS='...' goes to .ci/release.py
	$(BIN)/python .ci/release.py $(ARGS)

# MXNet has wheels for some platforms and Pythons only: without one its tests skip themselves.
$(STAMP): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) -e '.[torch,triton,profile,hf,dev,docs]'
	$(PIP) -e '.[mxnet]' || echo 'MXNet cannot be installed here: going on without it'
	touch $@

clean:  ## remove everything that these made
	rm -rf $(VENV) build dist htmlcov .coverage* profiles/reports *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
