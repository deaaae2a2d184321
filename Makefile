# Two commands for a fresh machine: `make serve` runs the demo, `make test` runs every test and check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := deploy/requirements.lock
COMPILED := $(wildcard gateway/*/*.pxd)

# Tests of what is compiled, which run a second time as Python. The source is one: what may differ is how C reads it.
PURE := $(patsubst %,tests/chat/test_%.py,events sse template) \
  $(patsubst %,tests/proxy/test_%.py,chunk_hooks chunks relay upstream) $(patsubst %,tests/whole/test_%.py,stream tiny_pieces) \
  $(patsubst %,tests/server/test_%.py,whole_request)

# In a variable of its own: a recipe that names $(MAKE) is run by `make -n`, too.
BESIDE := $(MAKE) --no-print-directory beside
PYTEST := $(BIN)/python -m pytest -p tests.parallel --processes 6

# Where this is set, every process compiles all modules again, which takes longer than all the rest of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve dev test suite beside test-pure coverage format clean

serve: $(VENV)/.serve
	$(BIN)/gateway serve --config config/demo.yaml

# What development needs: tests, checks, formatter.
dev: $(VENV)/.dev

# A folder, a file or a test, and nothing else: make test T=tests/proxy
ifeq ($(origin T),command line)
test: $(VENV)/.dev
	$(PYTEST) $(T)
else
# What runs beside the tests, which wait a third of their time, is shown after them. The count of instructions has the machine for
# itself: where a worker has to wait for a CPU, it counts more for a request, and less for an event.
test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BESIDE) > $(VENV)/beside.log 2>&1 & beside=$$!; \
	  echo "$(PYTEST)"; $(PYTEST); tests=$$?; \
	  wait $$beside; others=$$?; cat $(VENV)/beside.log; exit $$((tests | others))
	@command -v chromium chromium-browser google-chrome > /dev/null || echo "No page was tried in a browser: on Debian, \`apt install chromium\` gets one."
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || echo "The log was tried in SQLite alone: on Debian, \`apt install postgresql\` gets PostgreSQL."
	if command -v valgrind callgrind_control > /dev/null; then $(BIN)/python -m tests.bench.instructions; \
	  else echo "The instructions of a request and of an event are not counted: valgrind is not installed."; fi
endif

beside:
	nice $(BIN)/mypy
	if $(BIN)/gateway --version | grep -q 'by the compiled path'; then GATEWAY_PURE=1 nice $(BIN)/python -m pytest -q $(PURE); fi

# All tests, and nothing beside them: with another Python, `make suite PYTHON=python3.13 VENV=.venv-3.13`.
suite: $(VENV)/.dev
	$(PYTEST)

# All tests without the compiled path of events.
test-pure: $(VENV)/.dev
	GATEWAY_PURE=1 $(PYTEST)

# Which lines all tests run, in pure Python, whose lines are seen; takes half as long again. Coverage is not measured in the processes of tests/parallel.py.
coverage: $(VENV)/.dev
	GATEWAY_PURE=1 $(BIN)/python -m pytest -n 4 --dist worksteal --cov --cov-report=term

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Everything that runs comes from the lock file, exact and checked by hash; the project itself is installed in place. With a C
# compiler, its compiled modules are built, too. Of what only tests need, a module is compiled when it is imported first.
$(VENV)/.serve: $(LOCK) pyproject.toml deploy/hatch_build.py gateway/base/compiled.py $(COMPILED) $(COMPILED:.pxd=.py) $(wildcard gateway/*/*/*.pyx)
	@sh deploy/install.sh "$(PYTHON)" $(VENV) serve
	$(BIN)/gateway --version
	@touch $@

$(VENV)/.dev: deploy/requirements-dev.lock $(VENV)/.serve
	@sh deploy/install.sh "$(PYTHON)" $(VENV) dev
	@touch $@

clean:
	rm -rf $(VENV) gateway/_compiled
