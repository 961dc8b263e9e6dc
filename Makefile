# Each command sets up what it needs; see tools/setup_env.py.
PYTHON ?= python3
# onedl: the maintained forks. openmmlab: the original packages, in an environment of their own.
STACK ?= onedl
VENV := $(if $(filter openmmlab,$(STACK)),.venv-openmmlab,.venv)

.PHONY: setup demo test lint

setup:
	@$(PYTHON) tools/setup_env.py --stack $(STACK)

demo: setup
	$(VENV)/bin/python tools/demo.py

lint: setup
	$(VENV)/bin/python -m ruff check .

test: lint
	@$(PYTHON) tools/setup_env.py --stack $(STACK) --for-tests
	$(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(PYTEST_ARGS)
