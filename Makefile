# Every target does its own set-up: a virtual environment in .venv, made once and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
RUN := env -u PYTHONPATH $(BIN)/python -m

.PHONY: demo test test-slow lint format bench clean

demo: .venv/demo.stamp
	$(BIN)/kdp demo

# Two processes, each with one thread; a file's tests stay together, for they share what its fixtures train. The slow tests
# go by the clock, and have the machine to themselves.
test: .venv/dev.stamp lint
	$(RUN) pytest --numprocesses 2 --dist loadfile

test-slow: .venv/dev.stamp
	$(RUN) pytest -m slow

lint: .venv/dev.stamp
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/demo.stamp
	$(BIN)/kdp bench fields

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

.venv/pip.stamp:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kdp needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/dev.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/pip install --quiet --editable '.[dev,peers,onnx,openvino]'
	touch $@ .venv/demo.stamp
