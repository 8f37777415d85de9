# Set-up, demo, tests and checks. Every target does only what is not done yet; `make clean` starts over.
#   PYTHON=python3.12   the interpreter (>= 3.11)        VENV=.venv   where the environment goes
#   PROMPT="..."        the question of `make demo`      ARGS="..."   more arguments for pytest in `make test`

PYTHON ?= python3
VENV ?= .venv
PROMPT ?= Why is the sky blue? Answer in two sentences.
ARGS ?=
export PROMPT

BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install --constraint constraints.txt --build-constraint constraints.txt
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE \
	$(shell find src csrc -type f ! -name '*.pyc' ! -name '*.md' 2>/dev/null)

.PHONY: demo test lint types wheel-test check constraints clean

demo: $(STAMPS)/installed
	@$(BIN)/hotloop pull smollm2-135m >/dev/null
	@$(BIN)/hotloop run smollm2-135m "$$PROMPT"

test: $(STAMPS)/installed $(STAMPS)/test-tools
	@$(BIN)/hotloop pull smollm2-135m >/dev/null || \
		echo "no registry in reach: tests that need the real model will be skipped" >&2
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMPS)/lint-tools
	$(BIN)/python -m ruff check .

types: $(STAMPS)/installed $(STAMPS)/lint-tools
	$(BIN)/python -m mypy

wheel-test: $(STAMPS)/venv
	rm -rf dist $(VENV)-wheel
	$(PIP) wheel --no-deps --build-constraint constraints.txt --wheel-dir dist .
	$(PYTHON) -m venv $(VENV)-wheel
	$(BIN)/python -m pip --python $(VENV)-wheel/bin/python --disable-pip-version-check --quiet \
		install --constraint constraints.txt dist/*.whl
	tools/smoke_test.sh $(VENV)-wheel/bin

check:
	@PYTHON="$(PYTHON)" sh tools/check_setup.sh

constraints:
	PYTHON="$(PYTHON)" tools/update_constraints.sh

clean:
	rm -rf $(VENV) $(VENV)-wheel build dist

$(STAMPS)/venv: constraints.txt
	@PYTHON="$(PYTHON)" sh tools/check_setup.sh
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade --constraint constraints.txt pip
	@mkdir -p $(STAMPS) && touch $@

# cmake and ninja need not be there: the build backend fetches them where they are missing.
$(STAMPS)/installed: $(STAMPS)/venv $(SOURCES)
	$(INSTALL) .
	@touch $@

$(STAMPS)/test-tools: $(STAMPS)/venv pyproject.toml
	$(INSTALL) --group test
	@touch $@

$(STAMPS)/lint-tools: $(STAMPS)/venv pyproject.toml
	$(INSTALL) --group lint
	@touch $@
