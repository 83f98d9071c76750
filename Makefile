# `make help` lists the targets. Overridable: VENV (the environment's folder), PYTHON (the
# interpreter that creates it), PYTEST_ARGS (more arguments for pytest), JOBS (tests at a time that
# start no processes), GOLDEN (--compare says what differs; names of cases may follow), FLOWER (a
# version of Flower, such as 1.41, for an environment of its own), COMPILE (no: when imported).

VENV ?= .venv
PYTEST_ARGS ?=
JOBS ?= 2
GOLDEN ?= --write
export FLOWER ?=
export COMPILE ?= yes
# What a second version of Python need not say again: pages, wheels, searches, damage, processes of their own, every
# algorithm's promises. With another version of Flower its projects are tested.
QUICK := $(addprefix --ignore=tests/,docs/test_docs_code.py docs/test_docs_contributing.py docs/test_docs_operate.py docs/test_docs_site.py \
	examples packaging sim cli testing $(if $(FLOWER),,foreign) \
	agents/test_agents_habits.py analyses/test_analyses_small_cells.py data/test_data_table_public.py \
	kernel/test_kernel_sensitivity_search.py kernel/test_kernel_update.py redteam/test_hostile_accounts.py \
	redteam/test_journal_kills.py redteam/test_sums_after_restarts.py rounds/test_rounds_no_better.py \
	rounds/test_rounds_odd_sites.py rounds/test_rounds_robust.py rounds/test_rounds_spending.py \
	server_apps/test_server_apps_model_export.py server_apps/test_server_apps_outlasting.py \
	server_apps/test_server_apps_peers_mixer.py server_apps/test_server_apps_peers_run.py \
	server_apps/test_server_apps_report_chromium.py server_apps/test_server_apps_report_damage.py \
	server_apps/test_server_apps_run_folder.py server_apps/test_server_apps_verification.py \
	strategies/test_strategies_half.py)
# The files with tests that start processes: reading all the others takes as long as some of these tests.
PROCESSES = $(shell grep -rlE --include='test_*.py' 'mark\.(ray|deployment)' tests)
BIN := $(VENV)/bin
PARALLEL := -n $(JOBS) --dist worksteal
ENTRIES := $(basename $(wildcard flower_server.py flower_client.py))

DEV := $(VENV)/.installed-dev$(FLOWER:%=-flwr-%)
RUN := $(VENV)/.installed-run

# One BLAS thread: the engines are bit-identical only then, and the agents share the cores anyway.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv run test test-papers test-quick test-all keys golden lint imports types docs facts format wheel bundle clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(DEV) ## create or update the environment for development

# The stamps hold a digest of the dependencies; the times only say when to look whether it changed.
INSTALLS := pyproject.toml papers/pyproject.toml scripts/venv.sh scripts/dependencies.py
$(DEV): $(INSTALLS)
	@scripts/venv.sh "$(VENV)" simulation,plots,dev "$@" "$(RUN)"

# The development environment contains the run environment, so either stamp serves `make run`.
$(RUN): $(INSTALLS)
	@scripts/venv.sh "$(VENV)" simulation,plots "$@"

run: $(RUN) ## train Fed-PLT over 10 agents in Flower's simulation
	@PYTHONPATH=tests $(BIN)/python scripts/simulate.py

# The report is looked at in Chromium, where there is one: apt-get install chromium. Tests of
# databases start a PostgreSQL: apt-get install postgresql. Tests that start processes want the cores for themselves.
test: lint ## lint, types and every test that is not slow, without those of papers/
	$(BIN)/pytest $(PARALLEL) -m "not slow and not ray and not deployment" $(PYTEST_ARGS)
	$(BIN)/pytest -m "not slow and (ray or deployment)" $(PROCESSES) $(PYTEST_ARGS)

test-papers: $(DEV) ## the tests of papers/ that are not slow
	$(BIN)/pytest papers/tests $(PARALLEL) -m "not slow" $(PYTEST_ARGS)

# Five minutes: no other processes, no wheels and pages.
test-quick: $(DEV) ## the tests of one version of Python besides the first: VENV=.venv-3.13
	@$(BIN)/python -c 'import sys, flwr; print("Python", sys.version, "Flower", flwr.__version__)'
	$(BIN)/pytest -m "not slow and not ray and not deployment" $(QUICK) $(PYTEST_ARGS)

test-all: lint ## lint, types and every test
	$(BIN)/pytest tests papers/tests $(PARALLEL) -m "not ray and not deployment" $(PYTEST_ARGS)
	$(BIN)/pytest -m "ray or deployment" $(PROCESSES) papers/tests $(PYTEST_ARGS)

keys: $(DEV) ## write the run-config keys into pyproject.toml and the strategies' constructors
	@$(BIN)/python scripts/keys.py

golden: $(DEV) ## record anew what runs of every algorithm give, or compare: GOLDEN=--compare
	@PYTHONPATH=tests $(BIN)/python -m golden_record $(GOLDEN)

lint: $(DEV) ## style, formatting, import contracts, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory imports
	@$(MAKE) --no-print-directory types

imports: $(DEV)
	$(BIN)/lint-imports --no-logo

types: $(DEV)
	$(BIN)/mypy -p privet -p benchmarks -p studies $(ENTRIES:%=-m %)

docs: $(DEV) ## build the documentation into build/site, warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

facts: $(DEV) ## print measures: owners of a fact, import circles, lines
	@$(BIN)/python scripts/facts.py

format: $(DEV) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(DEV) ## build dist/*.tar.gz and, from it, dist/*.whl
	$(BIN)/python -m build --no-isolation --outdir dist .

bundle: $(DEV) ## build dist/*.fab, this repository as a Flower app
	@mkdir -p dist && cd dist && rm -f *.fab && ../$(BIN)/flwr build --app ..

clean: ## remove what the other targets made, except run folders
	rm -rf "$(VENV)" build dist src/*.egg-info papers/src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src strategies client_apps server_apps sim tests papers -name __pycache__ -type d -prune -exec rm -rf {} +
