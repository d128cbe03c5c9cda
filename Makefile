# Two commands do everything on a machine with Python 3.11+, git and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
COMPILER := .compiler/.installed
HARNESS := .harness/.installed
DOCS := .docs/.installed
# The slice that a TPU host is, for test-tpu.
HARDWARE ?=
UV_VERSION := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/cpu.txt)
TORCH_VERSION := $(shell sed -n 's/^torch==\([0-9.]*\)$$/\1/p' requirements/overrides-cpu.txt)
# Test files run side by side in so many processes; a file stays in one. Units run last, so that no process ends alone.
TEST_JOBS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder
PLATFORM := x86_64-manylinux_2_31
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --no-header --generate-hashes --python-platform $(PLATFORM) \
	--override requirements/overrides.txt

.DEFAULT_GOAL := help
.PHONY: help install tools browser demo compiler harness check docs test test-full canary test-gpu test-tpu lint format lock ui clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20

demo: install tools ## Fine-tune SmolLM2 on PyTorch and JAX, serve, evaluate and compare
	$(BIN)/python jobs/pipeline.py experiment=demo

test: install tools ## Unit and integration tests, at most 15 minutes on 2 cores
	$(PYTEST) -m "not full and not gpu and not tpu"

compiler: install $(COMPILER) ## Fetch libtpu, with which plans compile for TPUs (700 MB on disk, Google's licence)

# In a folder of its own: beside it in .venv, vLLM would take this machine for a TPU.
$(COMPILER): requirements/plan-tpu.txt
	rm -rf .compiler
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target .compiler --no-deps --require-hashes -r requirements/plan-tpu.txt
	@touch $@

harness: install $(HARNESS) ## Fetch lm-evaluation-harness into an environment of its own

$(HARNESS): requirements/lm-eval.txt
	rm -rf .harness
	$(PYTHON) -m venv .harness
	$(BIN)/uv pip install --quiet --python .harness/bin/python --no-deps --require-hashes --compile-bytecode -r requirements/lm-eval.txt
	@touch $@

check: lint ## Style, types, floors and unit tests: before every commit, at most 3 minutes on 2 cores
	$(PYTEST) -q tests/unit -m "not full and not gpu and not tpu"

docs: install $(DOCS) ## Build the documentation into site/, which opens from disk; warnings are errors
	.docs/bin/python -m mkdocs build --quiet --strict

# Beside .venv: jobs need none of it.
$(DOCS): requirements/docs.txt
	rm -rf .docs
	$(PYTHON) -m venv .docs
	$(BIN)/uv pip install --quiet --python .docs/bin/python --no-deps --require-hashes --compile-bytecode -r requirements/docs.txt
	@touch $@

test-full: install tools browser compiler harness $(DOCS) ## Everything: also faults, sweeps and redeploys, at most 60 minutes on 2 cores
	$(PYTEST) -m "not gpu and not tpu"

canary: install ## Try the private parts of other libraries that we touch on their newest releases
	$(BIN)/python tests/canary/newest.py $(LIBRARIES)

test-gpu: install .gpu/.installed ## Tests that need an NVIDIA GPU of this machine
	CROSSMESH_PYTHON_TRAIN_TORCH="$${CROSSMESH_PYTHON_TRAIN_TORCH:-$(CURDIR)/.gpu/bin/python}" $(BIN)/python -m pytest -m gpu tests/hardware

test-tpu: install .tpu/.installed ## Tests that need the TPUs of this machine: make test-tpu HARDWARE=tpu_v5p_8
	HARDWARE=$(HARDWARE) CROSSMESH_PYTHON_TRAIN_JAX="$${CROSSMESH_PYTHON_TRAIN_JAX:-$(CURDIR)/.tpu/bin/python}" \
		$(BIN)/python -m pytest -m tpu tests/hardware

# What computes on a chip, beside .venv, where pytest runs.
.gpu/.installed: requirements/gpu.txt
.tpu/.installed: requirements/tpu-train.txt
.gpu/.installed .tpu/.installed:
	rm -rf $(@D)
	$(BIN)/uv venv --quiet --python 3.12 $(@D)
	$(BIN)/uv pip install --quiet --python $(@D)/bin/python --no-deps --require-hashes -r $<
	@touch $@

lint: install ## Style, types, the floors and the Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=platform $(BIN)/lint-imports
	$(BIN)/hadolint conf/cluster/Dockerfile

format: install ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ui: install ## Open MLflow on localhost with the runs of the default storage
	$(BIN)/python jobs/ui.py

install: $(INSTALLED) ## Create .venv from requirements/cpu.txt

# torch comes first and alone: pip takes the build that the index offers, and a CPU build is enough.
# Compiled here once: where Python may write no .pyc (PYTHONDONTWRITEBYTECODE), each of Ray's processes would compile its imports again.
$(INSTALLED): requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "crossmesh needs Python 3.11 or newer; $$($(PYTHON) --version) was found. Try: make PYTHON=python3.11 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==$(TORCH_VERSION) uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --compile-bytecode -r requirements/cpu.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

tools: ## Install iverilog and bubblewrap through apt when that needs no password
	@$(call apt,iverilog:iverilog bwrap:bubblewrap)

browser: ## Install Chromium in the same way, for the browser tests
	@$(call apt,chromium:chromium)

# Installs through apt what is missing of a list of command:package.
define apt
missing=""; \
for pair in $(1); do command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; done; \
[ -z "$$missing" ] && exit 0; \
if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then as=""; \
elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then as="sudo -n"; \
else echo "Missing:$$missing. Install with: sudo apt-get update && sudo apt-get install -y$$missing" >&2; exit 2; fi; \
$$as apt-get update -qq && $$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null
endef

lock: install ## Compile requirements/*.txt again from pyproject.toml
	$(COMPILE) --extra cpu --extra dev --override requirements/overrides-cpu.txt --python-version 3.11 --no-emit-package torch \
		-o requirements/cpu.txt
	$(COMPILE) --python-version 3.12 -o requirements/head.txt
	for kind in gpu gpu-jax tpu-train tpu-serve; do \
		$(COMPILE) --extra $$kind --python-version 3.12 -o requirements/$$kind.txt || exit 1; done
	sed -n 's/^lm-eval = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(BIN)/uv pip compile - --quiet --no-header --generate-hashes \
		--python-platform $(PLATFORM) --python-version 3.11 --constraint requirements/cpu.txt -o requirements/lm-eval.txt
	sed -n 's/^docs = \[\(.*\)\]$$/\1/p' pyproject.toml | tr -d '",' | tr ' ' '\n' | $(BIN)/uv pip compile - --quiet --no-header --generate-hashes \
		--python-platform $(PLATFORM) --python-version 3.11 -o requirements/docs.txt
	sed -n 's/^plan-tpu = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(BIN)/uv pip compile - --quiet --no-header --generate-hashes --no-deps \
		--python-platform $(PLATFORM) --python-version 3.11 -o requirements/plan-tpu.txt

clean: ## Remove the environment, the compiler and what this checkout wrote (not the storage root)
	rm -rf .venv .compiler .harness .canary .docs .gpu .tpu outputs site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
