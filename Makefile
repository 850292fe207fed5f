# make test     lint, type-check and test
# make coverage test with branch coverage, into htmlcov; ARGS='...' goes to pytest
# make profile  measure einsum on this machine; ARGS='...' goes to the profiler
# make report   make the tables of README, the reference, the plots and a page from kept results and docstrings
# make docs     build README, docs, examples and kept results as a site, build/site; a broken link is an error
# make release  build, check and tag the version of _version.py, without publishing it; ARGS='...' goes to .ci/release.py
# make clean    remove everything that these made
#
# All work in .venv, made from PYTHON on first use and remade when the requirements change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: test lint coverage profile report docs release clean

test: lint
	$(BIN)/pytest -n auto --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

coverage: $(STAMP)
	$(BIN)/pytest -n auto --dist worksteal --cov --cov-report=term --cov-report=html $(ARGS)

profile: $(STAMP)
	$(BIN)/python -m einops_fast.profiles $(ARGS)

report: $(STAMP)
	$(BIN)/python -m einops_fast.profiles.reporting.documents

# A folder of links, so that links between documents hold in the site too.
docs: $(STAMP)
	$(PIP) -e '.[docs]'
	mkdir -p build/site-source
	for name in README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs examples profiles; do \
		ln -sfn ../../$$name build/site-source/$$name; done
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --config-file docs/mkdocs.yml

release: $(STAMP)
	$(BIN)/python .ci/release.py $(ARGS)

# MXNet has wheels for some platforms and Pythons only: without one its tests skip themselves.
$(STAMP): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) -e '.[torch,triton,profile,hf,dev]'
	$(PIP) -e '.[mxnet]' || echo 'MXNet cannot be installed here: going on without it'
	touch $@

clean:
	rm -rf $(VENV) build dist htmlcov .coverage* profiles/reports *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
