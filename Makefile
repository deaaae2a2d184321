# Two commands for a fresh machine: `make serve` runs the demo, `make test` runs every test and check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := deploy/requirements.lock

.PHONY: serve test check format clean

serve: $(VENV)/.serve
	$(BIN)/gateway serve --config config/demo.yaml

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 3 --cov --cov-report=term

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Everything that runs comes from the lock file, exact and checked by hash; the project itself is installed in place.
$(VENV)/.serve: $(LOCK) pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r $(LOCK)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: deploy/requirements-dev.lock $(VENV)/.serve
	$(BIN)/pip install --quiet --require-hashes -r deploy/requirements-dev.lock
	touch $@

clean:
	rm -rf $(VENV)
