# Needs Python >= 3.11 and make; everything else is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
FILE ?=
BIN := $(VENV)/bin
WORKERS ?= auto
# Options of faults: --seeds 3000 --first 0 --processes N --json FILE, or --seed N for one history; --help has all of them
FAULTS ?=
# How long each half of soak lasts
MINUTES ?= 60
# More options of soak: --rounds N --seed N --keep FOLDER --json FILE
# Options of soak-jobs: --minutes 5 --jobs 500 --workers 3 --every 2 --seed N --keep FOLDER
SOAK ?=
# Options of faults-honest: --only NAME …, --tier all, --jobs 2
PLANTED ?=

.PHONY: help demo test check format audit bench bench-http faults faults-honest soak soak-jobs lock clean

help:
	@echo "make demo [FILE=records.jsonl]   the whole main job on an emulated AWS and a real PostgreSQL"
	@echo "make test                        every test"
	@echo "make check                       linters, types, import contracts"
	@echo "make bench                       what is measured, on this machine"
	@echo "make bench-http                  how long POST /jobs takes under load"
	@echo "make faults                      thousands of simulated histories in which things go wrong, minutes"
	@echo "make faults-honest               plants a hundred bugs, one at a time, and sees which test catches each"
	@echo "make soak [MINUTES=60]           the simulation for so long, then real processes that are killed, paused and cut off"
	@echo "make soak-jobs                   five minutes of jobs over HTTP while their workers are killed"

demo: $(VENV)/.runtime
	@$(BIN)/dispatch-ledger demo $(if $(FILE),"$(FILE)")

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

audit: $(VENV)/.dev
	$(BIN)/pip-audit --skip-editable

bench: $(VENV)/.dev
	$(BIN)/python -m bench

bench-http: $(VENV)/.dev
	$(BIN)/python -m bench.http

faults: $(VENV)/.dev
	$(BIN)/python -m tests.fault.sim $(FAULTS)

faults-honest: $(VENV)/.dev
	$(BIN)/python -m tests.fault.planted $(PLANTED)

soak: $(VENV)/.dev
	$(BIN)/python -m tests.fault.sim --no-boundaries --first 1000000 --minutes $(MINUTES) $(FAULTS)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK)

soak-jobs: $(VENV)/.dev
	$(BIN)/python -m tests.soak.jobs $(SOAK)

# A virtual environment of the pinned versions. Each stamp is made anew when what it was made from has changed.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@touch $@

# The locks hold for every supported Python and platform; uv resolves them.
lock:
	$(PYTHON) -m venv $(VENV)/lock && $(VENV)/lock/bin/python -m pip install --quiet uv
	$(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade pyproject.toml -o requirements.lock
	$(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --extra dev --extra bench -c requirements.lock pyproject.toml -o requirements-dev.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
