# relayd: a few words, each of which sets up all that it needs.
#
#   make demo     three simulated workers and relayd, traffic, a kill; shows what came of it
#   make test     checks and the whole suite
#   make build    virtual environment, dependencies, compiled core
#   make debug    the same with bounds checks and invariants in the compiled core
#   make check    ruff, mypy, cython-lint, generated pages
#   make bench    relayd beside nginx and a plain aiohttp proxy, in one run
#   make clean    takes all of it away again
#
# Needed beforehand: git, make, a C compiler, Python 3.11 or newer with venv and its headers.

# A distribution's Python is compiled with optimisations that a home-made one often lacks (12-20 % of a
# request here), so it is taken first if it is new enough and complete.
PYTHON ?= $(shell tools/find-python)
VENV := .venv
RUN := $(VENV)/bin/python

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# Where tools/promtool puts promtool when the system has none.
export PATH := $(PATH):$(CURDIR)/build/tools

.PHONY: demo test build debug check bench clean

demo: build
	$(VENV)/bin/relayd demo

test: check
	tools/promtool
	$(RUN) -m pytest
	tools/compile $(RUN) debug
	$(RUN) -m pytest tests/fast tests/phases tests/front tests/conformance tests/whole/test_failover.py
	tools/compile $(RUN) release

build: $(VENV)/ready
	tools/compile $(RUN) release

debug: $(VENV)/ready
	tools/compile $(RUN) debug

check: build
	$(VENV)/bin/ruff check --no-cache .
	$(RUN) -m mypy
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint relayd
	$(RUN) tools/pages --check

bench: build
	$(RUN) -m bench

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find relayd -name '*.so' -delete

$(VENV)/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet --require-hashes --only-binary :all: -r requirements.lock
	tools/compile $(RUN) release
	$(RUN) -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@
