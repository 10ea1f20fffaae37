# Two commands do everything on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

.PHONY: demo test test-fast lint docs bench clean

demo: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/crcl demo -o demo

test: .venv/ready
	$(PYTEST)

test-fast: .venv/ready
	$(PYTEST) -m 'not slow'

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'The site is in site/; read it with: $(BIN)/mkdocs serve'

bench: .venv/ready
	$(BIN)/python benchmarks/speed.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf .venv demo site
