# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests run side by side, file by file in the order that tests/conftest.py puts them in: a process a core and
# one more, since a quarter of the time they wait for processes that they start. Those that cannot share the
# machine follow alone.
PYTEST := $(BIN)/python -m pytest
PROCESSES := $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')
BESIDE := --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-slow lint lint-workflows hooks docs bench release-check clean
.DEFAULT_GOAL := test

# torch first, pinned, so that nothing else can pull in another build of it.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	touch $@

$(VENV)/.rekindle: $(VENV)/.torch pyproject.toml
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[dev]'
	touch $@

# The demo compares with torchvision's transforms, which Rekindle itself does not need.
$(VENV)/.demo: $(VENV)/.rekindle
	$(PIP) --editable '.[bench]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python -m demo.train $(if $(DATA),--data '$(DATA)')

test: $(VENV)/.dev
	$(PYTEST) $(BESIDE) -m 'not slow and not alone'
	$(PYTEST) -m 'not slow' tests/alone

test-slow: $(VENV)/.dev
	$(PYTEST) $(BESIDE) -m 'not alone'
	$(PYTEST) tests/alone

lint: $(VENV)/.dev lint-workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs docs/_build/html
	@echo docs/_build/html/index.html

lint-workflows: $(VENV)/.dev
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms \
		$(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/pre-commit validate-config

hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

# DIST=folder keeps what was built.
release-check: $(VENV)/.dev
	.ci/check_release $(if $(DIST),'$(DIST)')

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(if $(DATA),--data '$(DATA)')

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis docs/_build docs/reference
