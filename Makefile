# Two commands for a fresh machine: `make serve` runs the demo, `make test` runs every test and check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := deploy/requirements.lock

# Tests of streams, which run a second time without the compiled path of events.
STREAMS := tests/chat tests/proxy $(addprefix tests/whole/test_,stream.py stream_end.py tiny_pieces.py upstream_tls.py)

# Where this is set, every process compiles all modules again, which takes longer than all the rest of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-pure coverage format clean

serve: $(VENV)/.serve
	$(BIN)/gateway serve --config config/demo.yaml

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 4
	if $(BIN)/gateway --version | grep -q 'by the compiled path'; then GATEWAY_PURE=1 $(BIN)/python -m pytest -n 4 $(STREAMS); fi
	if command -v valgrind callgrind_control > /dev/null; then $(BIN)/python -m tests.bench.instructions; \
	  else echo "The instructions of a request and of an event are not counted: valgrind is not installed."; fi

# All tests without the compiled path of events.
test-pure: $(VENV)/.dev
	GATEWAY_PURE=1 $(BIN)/python -m pytest -n 4

# Which lines all tests run; takes half as long again.
coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 --cov --cov-report=term

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Everything that runs comes from the lock file, exact and checked by hash; the project itself is installed in place. With a C
# compiler, its compiled modules are built, too. Of what only tests need, a module is compiled when it is imported first.
$(VENV)/.serve: $(LOCK) pyproject.toml hatch_build.py gateway/chat/_plain.pxd $(wildcard gateway/*/_*.pyx gateway/*/*/_*.pyx)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r $(LOCK)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/gateway --version
	touch $@

$(VENV)/.dev: deploy/requirements-dev.lock $(VENV)/.serve
	$(BIN)/pip install --quiet --no-deps --no-compile --require-hashes -r deploy/requirements-dev.lock
	touch $@

clean:
	rm -rf $(VENV) $(wildcard gateway/*/_*.so gateway/*/*/_*.so)
