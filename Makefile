# Every task of the project; `make help` lists them. Set-up is a dependency of each task, so nothing has to be prepared by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Source that installing the checkout compiles; what was made of older source is not used.
CORE := $(wildcard policies/allocation/core/*.[ch] policies/allocation/core/build.py)
TRAIN_VENV := .venv-train
TRAIN_STAMP := $(TRAIN_VENV)/.installed
UV_COMPILE := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

.DEFAULT_GOAL := help
.PHONY: help install setup demo test explore e2e scale lint format bench lock generate testbed train train-test clean

help:  ## list the tasks
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.txt pyproject.toml $(CORE)
	@echo "== Python packages into $(VENV) (about two minutes on a first run)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "grfleet needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv $(VENV) || { echo "The venv module is missing: apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

install: $(STAMP)  ## the virtual environment alone: all that the gateway, the picker and the client library need

setup: $(STAMP)  ## the virtual environment and the Kubernetes binaries, nothing else
	@$(BIN)/grfleet testbed build

demo: $(STAMP)  ## a real API server, operator, 8 agents, 8 engines, a real trace: watch the split move
	@$(BIN)/grfleet demo $(DEMO_ARGS)

test: $(STAMP)  ## all tests that need no node, on a real Kubernetes control plane
	@$(BIN)/grfleet testbed build --kwok
	@$(BIN)/pytest -n 4 --dist loadscope --no-loadscope-reorder -m "not node" $(TEST_ARGS)

explore: $(STAMP)  ## the property tests with new random examples each time, for bugs that the fixed ones of `make test` do not show
	@$(BIN)/pytest -n 4 -m "hypothesis and not node" --hypothesis-profile explore $(EXPLORE_ARGS)

e2e: $(STAMP)  ## real pods on a real node of this machine (where it gives one: root): the chart's operator, pools, faults
	@$(BIN)/grfleet testbed build --node-if-possible
	@$(BIN)/pytest -p no:xdist -m node tests/testbed e2e --cluster local $(E2E_ARGS)

scale: $(STAMP)  ## the operator with 200 fake nodes and 800 pods, beside a bare watch of the same run
	@$(BIN)/grfleet testbed build --kwok
	@$(BIN)/python -m bench kwok $(SCALE_ARGS)

lint: $(STAMP)  ## ruff format, ruff lint, mypy strict
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(STAMP)  ## let ruff format and fix what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)  ## every benchmark; results under docs/results
	@$(BIN)/grfleet testbed build --kwok
	@$(BIN)/python -m bench all $(BENCH_ARGS)

generate: $(STAMP)  ## regenerate manifests, chart copies and reference docs from the models
	@$(BIN)/python -m crds.generate
	@$(BIN)/python -m charts.sync

lock: $(STAMP)  ## renew the pinned requirement files from pyproject.toml
	@$(UV_COMPILE) pyproject.toml -o requirements/runtime.txt
	@$(UV_COMPILE) -c requirements/runtime.txt --extra sim --extra gateway --extra test --extra lint --extra bench --extra dev pyproject.toml -o requirements/dev.txt
	@$(UV_COMPILE) -c requirements/dev.txt --extra gateway pyproject.toml -o requirements/gateway.txt
	@$(UV_COMPILE) -c requirements/dev.txt --extra train --extra test --extra dev pyproject.toml -o requirements/train.txt

testbed: $(STAMP)  ## start a Kubernetes control plane on this machine and print its KUBECONFIG
	@$(BIN)/grfleet testbed up

$(TRAIN_STAMP): requirements/train.txt pyproject.toml
	@echo "== Python packages for training into $(TRAIN_VENV): torch alone takes five gigabytes and a minute or two"
	@$(PYTHON) -m venv $(TRAIN_VENV) || { echo "The venv module is missing: apt-get install python3-venv"; exit 1; }
	@$(TRAIN_VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/train.txt
	@$(TRAIN_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(TRAIN_STAMP)

train: $(TRAIN_STAMP)  ## train the allocator of the split: out/model/split-1.safetensors and its card
	@$(TRAIN_VENV)/bin/grfleet train $(TRAIN_ARGS)

train-test: $(TRAIN_STAMP)  ## the tests that need torch, in the environment that has it
	@$(TRAIN_VENV)/bin/pytest -p no:xdist -m train tests/training $(TRAIN_TEST_ARGS)

clean:  ## remove the virtual environment, compiled loops and outputs (never the binaries in the cache)
	@rm -rf $(VENV) $(TRAIN_VENV) out policies/allocation/core/*.so .pytest_cache .mypy_cache .ruff_cache simulator/*/__pycache__
