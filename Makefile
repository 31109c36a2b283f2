# LongCA's workspace. It needs make and Python 3.11 or newer, and nothing else beforehand.
#
#   make bench     install what measuring needs, then measure what this machine can run in a few minutes
#   make test      install what tests need, then lint, type check and test
#   make test-all  the same with exhaustive tests, and with torchtitan, Megatron and the oldest transformers
#   make install   a virtual environment in .venv with every distribution, editable, and the tools of `make test`
#   make lint      ruff and mypy alone
#   make docs      the documentation, in docs/_build, with a report of the records; a warning is an error
#   make wheels    every distribution's wheel, in dist/
#   make index     install each distribution alone from a local index; TORCH=2.9.1 takes another PyTorch than the pinned
#   make release   what a release of all distributions would change; VERSION=0.2.0, and WRITE=1 to change it
#   make clean     remove what was built, and caches; .venv stays

PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install --constraint constraints.txt
# An installation is in three levels, each on top of the one before. A stamp stands for each.
BENCH := .venv/.bench
TEST := .venv/.test
TEST_ALL := .venv/.test-all

PROJECTS := $(wildcard core/pyproject.toml longca_*/pyproject.toml plugins/*/pyproject.toml)
DISTRIBUTIONS := $(PROJECTS:%/pyproject.toml=./%)
# Measuring needs neither transformers nor the core's extras.
MEASURING := $(filter-out ./plugins/longca_transformers,$(DISTRIBUTIONS))
CORE := ./core[corpus,new-plugin,parquet,report]
editable = --no-build-isolation $(foreach distribution,$(1),--editable '$(distribution)')
# The oldest release of transformers that longca-transformers takes, with what only it needs. Its tests run in a process
# of their own.
OLDEST := transformers==4.56.2 huggingface_hub==0.36.2 tokenizers==0.22.2
# torchtitan and megatron-core with what their modules import. They have a folder of their own, because their pins would
# replace packages of others. Where they do not install, their tests are skipped.
TRAINERS := torchtitan==0.3.0 megatron-core==0.16.1 spmd_types==0.2.3 tyro==1.0.17 docstring_parser==0.18.0 \
  typeguard==4.6.0 einops==0.8.2 torchdata==0.11.0 torch_checkpointing==0.1.1 datasets==4.7.0 dill==0.4.1 \
  xxhash==4.1.0 multiprocess==0.70.19 tensorboard==2.21.0 protobuf==7.36.2 absl-py==2.5.1 grpcio==1.85.1 \
  httpx==0.28.1 httpcore==1.0.9 h11==0.16.0 anyio==4.16.0 sniffio==1.3.1
# The runs of the HTML report that `make docs` writes.
REPORTED := $(addprefix results/,$(addprefix h200/,dense dense/loaded sparse cudnn distributed) \
  $(addprefix h100/,dense sparse distributed))

.PHONY: install bench test test-all lint docs wheels index release clean

install: $(TEST)

$(BENCH): Makefile constraints.txt $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit("LongCA needs Python 3.11 or newer: make PYTHON=python3.11 ..." \
	  if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) torch==2.13.0 hatchling editables
	$(PIP_INSTALL) $(call editable,$(MEASURING))
	@touch $@

$(TEST): $(BENCH) requirements-dev.txt
	$(PIP_INSTALL) --requirement requirements-dev.txt
	$(PIP_INSTALL) $(call editable,$(patsubst ./core,$(CORE),$(DISTRIBUTIONS)))
	@touch $@

$(TEST_ALL): $(TEST)
	$(PIP) install --no-deps --target .venv/oldest-transformers $(OLDEST)
	-$(PIP) install --no-deps --target .venv/trainers $(TRAINERS)
	@touch $@

bench: $(BENCH)
	OMP_NUM_THREADS=1 $(BIN)/longca run quick

# One thread a worker: torch's threads spin while they wait, and several processes' on the same cores take ten times
# as long. Tests of one group share what is slow to make, so they stay on one worker.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup

test-all: lint $(TEST_ALL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup -m ""

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	$(BIN)/longca report $(REPORTED) --format html --out docs/_build/records.html
	@echo docs/_build/index.html

wheels: install
	for distribution in $(DISTRIBUTIONS); do \
	  $(BIN)/python -m build --wheel --no-isolation --outdir dist "$$distribution" || exit 1; \
	done

index: install
	LONGCA_TEST_TORCH=$(or $(TORCH),2.13.0) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_wheels.py

release: install
	$(BIN)/python docs/release.py $(VERSION) $(if $(REPOSITORY),--repository $(REPOSITORY)) $(if $(WRITE),--write)

clean:
	rm -rf dist build docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -print | xargs rm -rf
