# make train   set up .venv and run the main job        make test    set up and run the tests
# make check   lint, types, unit tests                   make setup   .venv from locks/cpu.txt
# make test-deep        property tests with ten times as many examples, larger sizes, and long scenarios
# make test-benchmarks  the benchmarks' own code
# make test-trainers    the adapters with the own code of verl, OpenRLHF, TRL and verifiers (locks/trainers.txt)
# make test-browser     the reports and the site in Chromium (install it first: apt-get install chromium)
# make test-pii         names of persons with presidio and spaCy
# make test-tau2        dialogues of tau2-bench with its own package
# make test-launch      the images and the scripts of a cluster with hadolint and shellcheck
# make test-wheel       the built wheel in an environment of its own, which it downloads (4 GB)
# make docs    build the documentation site in site/     make lock    regenerate the lock files
# make audit   known vulnerabilities of the locked packages, from osv.dev (needs uv and network)
# make clean   remove .venv and caches
#
# ARGS goes to the command:  make train ARGS="experiment.seed=1"    make test ARGS="-k cascade"

VENV ?= .venv
# Where to look for the CPU build of torch if pip's own index has none.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ARGS ?=
UV ?= uv

export VENV TORCH_INDEX
ifdef PYTHON
export PYTHON
endif
# Kernels that compile at first use look for ninja on the PATH.
export PATH := $(abspath $(VENV))/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup train test test-deep test-benchmarks test-trainers test-browser test-pii test-tau2 test-launch test-wheel check docs lock audit clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^Where/,$$d'

setup:
	@scripts/setup.sh

train: setup
	@$(VENV)/bin/hamr train experiment=quickstart $(ARGS)

test: setup
	@scripts/test.sh $(VENV)/bin/python $(ARGS)

check: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check --quiet . || { echo "run: ruff format ." >&2; exit 1; }
	@$(VENV)/bin/mypy
	@$(VENV)/bin/python -m pytest tests/unit -q -n 2 -m "not slow" $(ARGS)

test-deep: setup
	@$(VENV)/bin/python -m pytest tests --ignore tests/browser --deep -n 2 --dist loadfile $(ARGS)

test-benchmarks: setup
	@$(VENV)/bin/python -m pytest tests/benchmarks -n 2 --dist loadfile $(ARGS)

# --no-deps: docs.txt, browser.txt, pii.txt, tau2.txt and launch.txt hold only what cpu.txt lacks. Nothing is downloaded where it is installed already.
docs: setup
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/docs.txt
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build -q
	@echo "site/index.html; with search: $(VENV)/bin/python -m http.server -d site"

test-browser: docs
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/browser.txt
	@$(VENV)/bin/python -m pytest tests/browser $(ARGS)

test-trainers: setup
	@scripts/test_trainers.sh $(ARGS)

test-pii: setup
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/pii.txt
	@$(VENV)/bin/python -m pytest tests/unit/data/test_names.py $(ARGS)

test-tau2: setup
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/tau2.txt
	@$(VENV)/bin/python -m pytest tests/unit/bench/tau2 tests/unit/apps/evaluate/tau2 $(ARGS)

test-launch: setup
	@$(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/launch.txt
	@$(VENV)/bin/python -m pytest tests/unit/launch tests/unit/apps/submit/test_launch_files.py $(ARGS)

test-wheel: setup
	@$(VENV)/bin/python -m pytest tests/wheel --timeout 3600 $(ARGS)

lock:
	@scripts/lock.sh

audit:
	@status=0; for lock in locks/*.txt; do echo "$$lock"; \
	$(UV) tool run pip-audit@2.10.1 -s osv --no-deps --disable-pip -r "$$lock" || status=1; done; exit $$status

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist site *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
