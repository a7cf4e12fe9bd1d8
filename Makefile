# Two commands do all the set-up: `make run` (the main job on this machine) and `make test` (every test).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORK ?= run
MODEL ?= 10M
STEPS ?= 12

.PHONY: run test coverage dev lint types layers secrets check matrix audit clean

$(VENV)/.installed: pyproject.toml constraints-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-dev.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-dev.txt --editable . --group dev
	touch $@

# Flower pins older releases of what this project uses: its own environment, which finds torch in the first. None for
# Python 3.10, which Flower no longer takes.
$(VENV)/.installed-flower: $(VENV)/.installed-dev
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		$(PYTHON) -m venv $(VENV)/flower && \
		$(VENV)/flower/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^flwr==' constraints-dev.txt)" && \
		$(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' \
			>"$$($(VENV)/flower/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/first.pth"; \
	fi
	touch $@

dev: $(VENV)/.installed-dev $(VENV)/.installed-flower

# probe -> recommend -> run-config, on this machine.
run: $(VENV)/.installed
	mkdir -p $(WORK)
	$(BIN)/stratadvisor probe --output $(WORK)/cluster.json
	$(BIN)/stratadvisor recommend --model-size $(MODEL) --cluster $(WORK)/cluster.json --output $(WORK)/bundle --force
	$(BIN)/stratadvisor run-config $(WORK)/bundle --steps $(STEPS)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev
	$(BIN)/mypy

layers: dev
	$(BIN)/lint-imports

# Every tracked file (all files where git does not answer); .secrets.baseline holds what was looked at and is none.
secrets: dev
	@git ls-files -z >$(VENV)/tracked 2>/dev/null || \
		find . -type f -not -path './.*' -not -path './run/*' -not -path './build/*' -printf '%P\0' >$(VENV)/tracked
	@test -s $(VENV)/tracked
	xargs -0 -n 2000 $(BIN)/detect-secrets-hook --baseline .secrets.baseline <$(VENV)/tracked

check: lint types layers secrets

# A test that fails is run again (twice if it starts processes) and every run is reported: machines are shared, ports
# get taken. "rerun" in the last line says that it happened; a rerun is a fault to look into, not a pass.
test: check
	@failed=0; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not process" --reruns 1 -r fERs $(PYTEST_ARGS) || failed=1; \
	$(BIN)/python -m pytest -m process --reruns 2 --reruns-delay 3 -r fERs $(PYTEST_ARGS) || failed=1; \
	exit $$failed

# Lines and branches of what models and decides, by the tests that run in this process; fails under 90 %.
COVERING := $(addprefix tests/,costs planner strategies derive rules_engine catalog schema properties cases emit lint \
	backtest cli hostile test_conditions.py test_units.py test_resources.py test_pipeline.py \
	test_old_documents.py test_comparison.py test_large_profiles.py test_store.py)
coverage: dev
	mkdir -p build/coverage
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not process and not gpu" --cov --cov-report= --no-cov-on-fail \
		$(COVERING) $(PYTEST_ARGS)
	$(BIN)/coverage json -q -o build/coverage/found.json
	$(BIN)/python -m benchmarks.covered build/coverage/found.json docs/coverage.md

# The supported Pythons with the newest dependencies, the earliest with the lowest: docs/development.md.
# MATRIX_ARGS="--python 3.13" runs one, and fails where it is not installed.
matrix: dev
	$(BIN)/python -m benchmarks.supported --folder $(VENV)/matrix $(MATRIX_ARGS)

$(VENV)/.installed-audit: $(VENV)/.installed-dev
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^pip-audit==' constraints-dev.txt)"
	touch $@

# Known advisories of what is installed; AUDIT_ARGS=--where-reachable ends well where the service does not answer.
audit: $(VENV)/.installed-audit
	$(BIN)/python -m benchmarks.audit $(VENV)/audit/bin/pip-audit $(AUDIT_ARGS)

clean:
	rm -rf $(VENV) run dist build
