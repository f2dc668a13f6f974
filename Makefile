# The doors of the project. Every target works from a clean clone; `make venv` comes first by itself.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -m "not long"
RUN := $(BIN)/compat-hvdrun

export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo venv native test test-single test-parallel test-node-split test-launched sanitize test-long lint wheel test-matrix test-horovod clean

demo: native
	TF_ENABLE_ONEDNN_OPTS=0 $(RUN) -np 2 -- $(BIN)/python legacy_examples/mnist_session.py

venv: $(VENV)/ready

$(VENV)/ready: setup.py pyproject.toml requirements-dev.txt requirements-dev-no-deps.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt --editable .
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-dev-no-deps.txt
	touch $@

# The compiler is asked every time; it compiles only what changed.
native: venv
	$(BIN)/python setup.py --quiet build_ext --inplace

test: test-single test-parallel test-node-split test-launched

test-single: native
	$(PYTEST) tests --ignore tests/parallel --ignore tests/launched

test-parallel: $(addprefix test-parallel-,1 2 3 4)

test-parallel-%: native
	$(RUN) -np $* --no-tag -- $(PYTEST) tests/parallel

test-node-split: $(addprefix test-node-split-,2,2 1,3)

test-node-split-%: native
	COMPAT_HVD_NODE_SPLIT=$* $(RUN) -np 4 --no-tag -- $(BIN)/python -m pytest -m "node_split and not long" tests/parallel

test-launched: native
	$(PYTEST) tests/launched

# The engine's C++ tests under the sanitizers; part of test-long.
sanitize: native
	$(BIN)/python -m pytest -m long tests/engine

test-long: native test-long-3 test-long-4 test-node-split-1,1,1,1
	$(BIN)/python -m pytest -m long tests

test-long-%: native
	$(RUN) -np $* --no-tag -- $(BIN)/python -m pytest -m long tests/parallel

lint: native
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cc' '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

wheel: venv
	.ci/check-wheel $(BIN)/python

# ROWS="3.8 3.11" runs only the rows of these Pythons.
test-matrix: venv
	$(BIN)/python .ci/test-matrix $(ROWS)

# Horovod's own parallel tests, from a checkout: make test-horovod SUITE=DIR [RANKS="2 3"] [LIMIT=seconds] [KERAS=2]
test-horovod: native
	$(BIN)/python .ci/test-horovod $(SUITE) $(if $(RANKS),--ranks $(RANKS)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(KERAS),--keras $(KERAS))

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache compat_hvd/*.so
	find compat_hvd tests legacy_examples setup.py -name __pycache__ -prune -exec rm -rf {} +
