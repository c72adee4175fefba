# Every target that needs the environment brings it up to date first; when it is, that takes a fraction of a second.
#
#   PYTHON=/path/to/python3.x   the Python to make .venv with (default: the first of 3.10 to 3.13 that works,
#                               or one that is at least 1.25 times as fast)
#   GPU=1                       TensorFlow with its CUDA packages, Horovod with NCCL, GPU kernels; GPU=0 goes back
#   TF=2.21                     TensorFlow 2.21 instead of 2.20, on CPUs
#   NCCL=0                      with GPU=1: Horovod without NCCL, where there is no CUDA toolkit
#   OPS=0                       without the fused ops, and without Bazel
#   CHROMIUM=1                  with Chromium (as root, with apt), for the test that looks at the reports of tftrain.bench
#   MODEL=gpt                   with `make train`: a small GPT, or modernbert, instead of a small BERT
#   UPGRADE=1                   with `make lock`: newer versions, not only what pyproject.toml now asks for

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
MODEL := bert
$(if $(filter bert gpt modernbert,$(MODEL)),,$(error MODEL=$(MODEL): expected bert, gpt or modernbert))
QUICKSTART := quickstart$(if $(filter-out bert,$(MODEL)),_$(MODEL))
RANKS := 2
# Tests wait for the processes that they start: with two more than cores, these are busy (96% of two, 86% with one more).
WORKERS := $(shell expr $$(nproc) + 2)
# Every process of the tests imports tftrain: compile it once.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder

# XLA's own passes run, and LLVM's do not: a third of the time to compile. `make test-all` has both.
QUICK_XLA := --xla_backend_optimization_level=0

.PHONY: help setup train finetune figures test test-all test-fast test-quiet test-gpu lint format wheel lock hooks clean clean-all

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv: locked packages, Horovod, the project itself, the fused ops
	@PYTHON="$(PYTHON)" GPU="$(GPU)" NCCL="$(NCCL)" TF="$(TF)" OPS="$(OPS)" sh tools/setup.sh

train: setup build/$(QUICKSTART)/data/manifest.json ## Train a small BERT (or GPT, or ModernBERT) on two ranks, then evaluate it
	$(BIN)/python -m tftrain.launch -np $(RANKS) --flagfile=configs/$(QUICKSTART).flags
	$(BIN)/python -m tftrain.run --flagfile=configs/$(QUICKSTART).flags --mode=evaluate

finetune: setup build/quickstart/data/manifest.json ## Fine-tune a pre-trained small BERT and a random one, and compare them
	$(BIN)/python -m tftrain.launch -np $(RANKS) --flagfile=configs/quickstart.flags --max_steps=12000 --eval_every=2000 \
		--log_every=500 --output_dir=build/finetune/pretrained
	$(BIN)/python tools/finetune.py

figures: setup ## Run the commands of the pages again, in build/figures, and write their figures into the pages
	$(BIN)/python tools/figures.py

build/$(QUICKSTART)/data/manifest.json: | setup
	$(BIN)/python -m tftrain.prepare --flagfile=configs/$(QUICKSTART)_data.flags

test: lint ## Run lint and every test except the nightly ones
	tools/bazel test //custom_ops/...
	XLA_FLAGS=$(QUICK_XLA) $(PYTEST) --durations=15 -m "not nightly"

test-all: lint ## Run lint and every test
	tools/bazel test //custom_ops/...
	$(PYTEST) --durations=60

test-fast: setup ## Run the tests that are neither slow nor nightly
	XLA_FLAGS=$(QUICK_XLA) $(PYTEST) -m "not slow and not nightly"

test-quiet: setup ## Compare plans with seconds measured here, in half an hour in which the machine must do nothing else
	$(BIN)/python -m pytest -m quiet -s tests/plan

# A copy, because Bazel and .venv have one kind of build in a checkout. What was built there stays.
test-gpu: ## Set up GPU=1 in build/gpu, and look for the GPU kernels of a step; needs nvcc, but no GPU
	mkdir -p build/gpu
	find build/gpu -mindepth 1 -maxdepth 1 ! -name .venv ! -name build ! -name 'bazel-*' -exec rm -rf {} +
	git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from=- | tar -x -C build/gpu
	$(MAKE) -C build/gpu setup GPU=1
	cd build/gpu && $(BIN)/python -m pytest -m gpu_build tests/gpu

lint: setup ## Check style, formatting and which module imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

format: setup ## Rewrite the files as lint wants them, where a tool can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: setup ## Build wheels of tftrain, with the fused ops, and of Horovod into dist/
	$(BIN)/python tools/build_wheel.py $(if $(filter 0,$(OPS)),--without-ops)

LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
	--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) pyproject.toml \
	$(addprefix --extra ,horovod dev onnx sources beam near ray trackers)

lock: setup ## Write the lock files again from pyproject.toml
	$(LOCK) --extra tf220 --output-file requirements.lock
	for other in gpu tf2.21; do cp requirements.lock requirements-$$other.lock; done # the same versions in all
	$(LOCK) --extra tf220 --extra gpu --output-file requirements-gpu.lock
	$(LOCK) --extra tf221 --output-file requirements-tf2.21.lock

hooks: setup ## Install the pre-commit hooks into this clone
	$(BIN)/pre-commit install

clean: ## Delete what was built, trained and cached here
	rm -rf build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## Delete .venv too
	rm -rf .venv
