# Everything a newcomer needs: `make demo` and `make test` set up .venv by themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
DEMO_DIR := runs/demo

.PHONY: install demo test test-all test-processes test-others check bench chaos clean

install: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer, not " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,examples]'
	touch $(READY)

demo: $(READY)
	rm -rf $(DEMO_DIR)
	$(BIN)/python examples/demo.py $(DEMO_DIR)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Side by side: tests of real processes mostly wait for them to start.
test: check
	$(MAKE) --no-print-directory --jobs 2 test-processes test-others

test-processes: $(READY)
	$(BIN)/pytest tests/multiprocess -p no:cacheprovider -m 'not wide'

test-others: $(READY)
	$(BIN)/pytest --ignore tests/multiprocess -m 'not wide'

# What make test leaves out; .ci/run calls it after make test.
test-all: $(READY)
	$(BIN)/pytest -m wide --timeout 1800

bench: $(READY)
	$(BIN)/python bench/period.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/planner.py
	$(BIN)/python bench/failstop.py
	$(BIN)/python bench/recovery.py
	$(BIN)/python bench/detect.py
	$(BIN)/python bench/failslow.py
	$(BIN)/python bench/peers_torchft.py

chaos: $(READY)
	HOLDFAST_SWEEP=100 $(BIN)/pytest tests/chaos --timeout 3600
	HOLDFAST_SOAK=600 $(BIN)/pytest tests/multiprocess/test_soak.py --timeout 3600

clean:
	rm -rf .venv build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
