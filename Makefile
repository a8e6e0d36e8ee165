# Everything a newcomer needs: `make demo` and `make test` set up .venv by themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
DEMO_DIR := runs/demo

# Three processes share the files of tests out, the long ones first: real runs wait a lot.
TESTS := tests/multiprocess tests/chaos tests/contract tests/unit $(wildcard tests/test_*.py) tests/bench
PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -rs
# What samples are drawn from where they are drawn anew each time.
SEED := $(or $(HOLDFAST_SEED),$(shell date +%s))

.PHONY: install demo demo-cluster test test-all test-everything test-cluster test-device check docs refresh-docs bench chaos clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer, not " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,examples]'
	touch $(READY)

demo: $(READY)
	rm -rf $(DEMO_DIR)
	$(BIN)/holdfast demo $(DEMO_DIR)

# Four machines in namespaces, or four agents on loopback where those are not to be had.
demo-cluster: $(READY)
	$(BIN)/python tools/demo_cluster.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Always the same samples.
test: check
	env -u HOLDFAST_SEED $(PYTEST) -m 'not wide and not cluster' $(TESTS)

# What make test leaves out, with other samples each time; of long tests with real processes some.
WIDE = HOLDFAST_SEED=$(SEED) $(PYTEST) -m '(wide or hypothesis) and not cluster' --hypothesis-seed $(SEED) $(TESTS)
test-all: $(READY)
	@echo HOLDFAST_SEED=$(SEED)
	HOLDFAST_DRAW=1 $(WIDE)

# The same with all of them.
test-everything: $(READY)
	@echo HOLDFAST_SEED=$(SEED)
	$(WIDE)

# Several machines in namespaces, ssh, Slurm, Ray, a coordinator that dies: one test at a time.
test-cluster: .venv/ready-cluster
	@echo HOLDFAST_SEED=$(SEED)
	HOLDFAST_SEED=$(SEED) $(BIN)/pytest -rs -m cluster $(TESTS)

# Runs in threads once more, on a device that is not there, and the tests of devices.
test-device: $(READY)
	HOLDFAST_TEST_DEVICE=1 $(PYTEST) -m 'not cluster' tests/contract/device tests/contract/runtime tests/chaos

.venv/ready-cluster: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[ray]'
	touch $@

# The site, in an environment of its own: what tests and bits depend on stays as it is.
DOCS_BIN := .venv-docs/bin
docs: .venv-docs/ready
	$(DOCS_BIN)/mkdocs build --strict

.venv-docs/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	$(DOCS_BIN)/pip install --quiet --constraint constraints.txt $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	touch $@

# What pages show of plans, help texts, files and runs, written anew. Look at the diff.
refresh-docs: $(READY)
	HOLDFAST_REWRITE=1 $(BIN)/pytest tests/unit/observability/test_schema.py tests/unit/test_docs.py tests/unit/test_docs_facts.py tests/multiprocess/test_docs_sessions.py

bench: $(READY)
	$(BIN)/python bench/period.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/planner.py
	$(BIN)/python bench/simulate.py
	$(BIN)/python bench/failstop.py
	$(BIN)/python bench/recovery.py
	$(BIN)/python bench/detect.py
	$(BIN)/python bench/failslow.py
	$(BIN)/python bench/journal.py
	$(BIN)/python bench/events.py
	$(BIN)/python bench/tls.py
	$(BIN)/python bench/log_copies.py
	$(BIN)/python bench/data.py
	$(BIN)/python bench/worker_groups.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/peers_torchft.py
	$(BIN)/python bench/hunt.py --seeds 1000
	$(BIN)/python bench/simulate.py

chaos: export HOLDFAST_SEED = $(SEED)
chaos: $(READY)
	@echo HOLDFAST_SEED=$(SEED)
	HOLDFAST_SWEEP=100 $(BIN)/pytest tests/chaos --timeout 3600
	HOLDFAST_SOAK=600 $(BIN)/pytest tests/multiprocess/test_soak.py --timeout 3600
	$(BIN)/holdfast simulate --hunt 10000 --seed $(SEED) --jobs 2

clean:
	rm -rf .venv .venv-docs build dist runs .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
