# Daybreak: everything a person runs. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

AIRFLOW_PORT ?= 8080
MLFLOW_PORT ?= 5000
SERVING_PORT ?= 8000
PAGES_PORT ?= 8010
UP_WITHIN_S ?= 180
PYTHON ?= python3.11
TORCH ?= torch==2.13.0
# auto: the build for the GPU that is seen, else the one without CUDA; uv pip install --help lists the others
TORCH_BACKEND ?= auto
UV := uv pip install --python .venv/bin/python --compile-bytecode
HASHED := --require-hashes --no-deps --no-build-isolation
WITHOUT_TORCH := sed -E '/^torch==/,/[^\\]$$/d' hashes.txt

comma := ,
# No proxy is asked for what runs here.
UNPROXIED := $(or $(no_proxy),$(NO_PROXY))
export no_proxy := $(if $(filter *,$(UNPROXIED)),$(UNPROXIED),$(addsuffix $(comma),$(UNPROXIED))localhost,127.0.0.1,::1)
export NO_PROXY := $(no_proxy)

# Airflow and MLflow are configured here and nowhere else.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export DAYBREAK_HOME ?= $(CURDIR)
VAR := $(DAYBREAK_HOME)/var
export AIRFLOW_HOME ?= $(VAR)/airflow
export AIRFLOW__CORE__DAGS_FOLDER := $(CURDIR)/dags
export AIRFLOW__CORE__PLUGINS_FOLDER := $(CURDIR)/dags/plugins
export AIRFLOW__CORE__LOAD_EXAMPLES := False
export AIRFLOW__CORE__PARALLELISM := 4
export AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION := False
export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS := admin:admin
export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE := $(AIRFLOW_HOME)/passwords.json
export AIRFLOW__API__HOST := 127.0.0.1
export AIRFLOW__API__PORT := $(AIRFLOW_PORT)
export AIRFLOW__API__BASE_URL := http://127.0.0.1:$(AIRFLOW_PORT)
export AIRFLOW__CORE__EXECUTION_API_SERVER_URL := http://127.0.0.1:$(AIRFLOW_PORT)/execution/
export AIRFLOW__API__WORKERS := 1
export AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL := 1
export AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT := 120
export MLFLOW_UI := http://127.0.0.1:$(MLFLOW_PORT)
export NIGHTS_UI := http://127.0.0.1:$(PAGES_PORT)
export MLFLOW_DISABLE_TELEMETRY := true
export MLFLOW_SERVER_ENABLE_JOB_EXECUTION := false
export DO_NOT_TRACK := 1
export GX_ANALYTICS_ENABLED := false

.PHONY: help setup night nights up down test test-rest test-all matrix check bench report docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready $(AIRFLOW_HOME)/ready ## virtual environment and Airflow database; the others do it by themselves

# What is installed has the hash that PyPI had for it when its version was pinned, what builds two of the packages
# among it, and needs nothing else. Only torch has none, nor has CUDA: they are of the index for the device.
.venv/ready: pyproject.toml hashes.txt
	@[ -w . ] || { echo "$(CURDIR) may not be written to, and its .venv is missing or older than hashes.txt or pyproject.toml;" \
	  "run make setup while it may be"; exit 1; }
	@echo "Setting up .venv, a few minutes the first time"
	$(PYTHON) -m venv .venv
	python -m pip install --require-hashes --no-deps -r <(sed -nE '/^(pip|setuptools|uv)==/,/[^\\]$$/p' hashes.txt)
	$(UV) $(HASHED) -r <($(WITHOUT_TORCH)) || python -m pip install $(HASHED) -r <($(WITHOUT_TORCH))
	@$(UV) --torch-backend=$(TORCH_BACKEND) $(TORCH) \
	  || { [ $(TORCH_BACKEND) = auto ] && echo "Taking torch as pip finds it instead, perhaps with gigabytes of CUDA" \
	  && python -m pip install $(TORCH); }
	@python -c 'from importlib.metadata import version; print("torch", version("torch"), "is installed; for another:", \
	  "make clean, then make setup TORCH_BACKEND=cu128")'
	$(UV) --no-deps --no-build-isolation -e . || python -m pip install --no-deps --no-build-isolation -e .
	uv pip check --python .venv/bin/python
	touch $@

$(AIRFLOW_HOME)/ready: .venv/ready
	@echo "Setting up the databases of Airflow and MLflow"
	mkdir -p $(AIRFLOW_HOME) $(VAR)
	airflow db migrate > $(VAR)/setup.log 2>&1 || { tail -5 $(VAR)/setup.log; exit 1; }
	python -c 'from daybreak.storage import home, mlflow_client; mlflow_client.create(home.Home.here())' >> $(VAR)/setup.log 2>&1 \
	  || { tail -5 $(VAR)/setup.log; exit 1; }
	touch $@

# Made here, readable by its owner alone, since Airflow would write the one that it makes into its log as well.
$(AIRFLOW_HOME)/passwords.json:
	@mkdir -p $(@D)
	@umask 077; python3 -c 'import json, secrets; print(json.dumps({"admin": secrets.token_urlsafe(16)}))' > $@

night: setup ## one night through Airflow, in this terminal: [DAY=2026-11-20]
	@! (exec 3<>/dev/tcp/127.0.0.1/$(AIRFLOW_PORT)) 2> /dev/null || { echo "Airflow is up on port $(AIRFLOW_PORT) and" \
	  "would run the tasks a second time; trigger the night there, or make down first"; exit 1; }
	@echo "One night; the whole log is in $(VAR)/night.log"
	@trap 'python -c "$$DOWN"; exit 130' INT TERM; \
	DAYBREAK_UP="$(DAYBREAK_HOME)" DAY=$(DAY) python dags/retrain.py make night 2>&1 | tee $(VAR)/night.log | awk "$$PROGRESS" \
	  || { echo "The night failed; the reason stands above, all of it in $(VAR)/night.log"; exit 1; }
	@COLUMNS=$${COLUMNS:-140} daybreak status --last 5
	@echo "Look further: make report opens the board, make up starts Airflow and MLflow, git log nights -- is the ledger"

# Of Airflow's log: which stage runs, and what it says to a person; the end of the log where nothing was said.
define PROGRESS
{ ends[NR % 10] = $$0 }
/Running command: .* -m daybreak [a-z]+/ {
  sub(/.* -m daybreak /, ""); sub(/[^a-z].*/, ""); if ($$0 != stage) { said = stage = $$0; print; fflush() }; next }
/^make night: / { said = sub(/^make night: /, "          "); print; fflush() }
/Tmp dir root|Output:|Temporary script|Running command|exited with|Return code|new reschedule|Poking/ { next }
/\] loc=(subprocess|bash|command_sensor)\.py/ {
  sub(/^[^ ]* \[[a-z ]*\] /, ""); sub(/ *\[airflow\.task.*/, ""); if (!/^{/) { print "          " $$0; fflush() } }
END { if (!said) for (n = NR - 9; n <= NR; n++) if (n > 0) print "          " ends[n % 10] }
endef
export PROGRESS

nights: setup ## nights in a row without Airflow: FROM=2011-09-01 TO=2011-09-30 [SOURCE='{use: module:Class, ...}']
	daybreak nights --first $(FROM) --last $(TO) $(if $(SOURCE),--set 'source=$(SOURCE)')

up: setup $(AIRFLOW_HOME)/passwords.json ## start, and keep up, Airflow (schedule, trigger form), MLflow, the pages of nights and the router, on loopback
	@python -c 'import socket; socket.create_server(("127.0.0.1", 0))' 2> /dev/null || { \
	  echo "127.0.0.1 is no address of this machine, and make up listens there: ip address add 127.0.0.1/8 dev lo"; exit 1; }
	@for port in $(AIRFLOW_PORT) $(MLFLOW_PORT) $(SERVING_PORT) $(PAGES_PORT); do \
	  ! (exec 3<>/dev/tcp/127.0.0.1/$$port) 2> /dev/null || { \
	    echo "port $$port is taken; stop what listens there (make down), or choose others:" \
	      "make up AIRFLOW_PORT=8081 MLFLOW_PORT=5001 SERVING_PORT=8001 PAGES_PORT=8011"; exit 1; }; done
	@mkdir -p $(VAR)/artifacts
	@[ ! -f $(DAYBREAK_HOME)/fleet.yaml ] || { cd $(DAYBREAK_HOME) && daybreak fleet || \
	  echo "the fleet is not whole, as said above; going on with the rest of it"; }
	@trap 'echo; python -c "$$DOWN"; exit 130' INT TERM; \
	DAYBREAK_UP="$(DAYBREAK_HOME)" DAYBREAK_UP_AT="$$(date -u +%Y-%m-%dT%H:%M:%S+00:00)" MLFLOW_PORT=$(MLFLOW_PORT) SERVING_PORT=$(SERVING_PORT) PAGES_PORT=$(PAGES_PORT) \
	  ARTIFACTS="$${MLFLOW_ARTIFACTS_DESTINATION:-$(VAR)/artifacts}" supervisord -c $(CURDIR)/supervisord.conf; \
	give_up() { echo " $$1"; echo "Started, each with the last line of its log in $(VAR):"; \
	  for name in scheduler dag-processor triggerer api-server mlflow pages serving; do \
	    echo "  $$name: $$(tail -qn 1 $(VAR)/$$name.log 2> /dev/null | cut -c -160)"; done; \
	  python -c "$$DOWN"; exit 1; }; \
	printf "Starting Airflow, MLflow, pages and serving, about a minute "; \
	for ((second = 0; second < $(UP_WITHIN_S); second++)); do sleep 1; printf .; \
	  if (exec 3<>/dev/tcp/127.0.0.1/$(AIRFLOW_PORT) 4<>/dev/tcp/127.0.0.1/$(MLFLOW_PORT)) 2> /dev/null; then \
	    python -m daybreak.airflow_health --wait 60 || give_up "not all of it is alive after a minute"; \
	    echo " up"; \
	    echo "Airflow  http://127.0.0.1:$(AIRFLOW_PORT)/dags/retrain  (the button Trigger opens the form)"; \
	    echo "         user admin, password in $(AIRFLOW_HOME)/passwords.json"; \
	    echo "MLflow   http://127.0.0.1:$(MLFLOW_PORT)  (the versions; no login: whoever is on this machine may write)"; \
	    echo "Nights   http://127.0.0.1:$(PAGES_PORT)/nights  (the board, and what runs now)"; \
	    if (exec 3<>/dev/tcp/127.0.0.1/$(SERVING_PORT)) 2> /dev/null; then \
	      echo "Serving  http://127.0.0.1:$(SERVING_PORT)/docs  (what the router answers; /health says which version)"; \
	    else echo "Serving  is not up: $$(tail -1 $(VAR)/serving.log)"; fi; \
	    echo "What dies is started again; stop all with make down"; exit 0; fi; done; \
	give_up "not up after $(UP_WITHIN_S) s: Airflow or MLflow does not listen on its port"

down: ## stop what make up started, and all that came of it
	@[ ! -x .venv/bin/python ] || python -c "$$DOWN"

# What supervisord runs stays in the session that it made; stages and training jobs leave it, but
# carry its mark in their environment. Each is asked once to end, and killed after 20 seconds.
define DOWN
import contextlib, os, pathlib, psutil, time
mark, asked, began = os.environ['DAYBREAK_HOME'], set(), time.monotonic()
pids = [path for path in pathlib.Path(mark, 'var').glob('*.pid') if path.stat().st_mtime > psutil.boot_time()]
sessions = {int(path.read_text()) for path in pids}
def mark_of(process):
    with contextlib.suppress(psutil.Error, OSError):  # some are another user's, or hide it
        return process.environ().get('DAYBREAK_UP', '')
def session_of(process):
    with contextlib.suppress(psutil.Error, OSError):
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else None
def is_here(where):  # or by a link
    return where == mark or bool(where) and os.path.exists(where) and os.path.samefile(where, mark)
# A copy of a home has its files too; a home that was moved has the mark of where it was.
others = {session_of(each) for each in psutil.process_iter() if (where := mark_of(each)) and os.path.exists(where)
          and not is_here(where)}
def ours(process):
    session = session_of(process)
    return session is not None and (session in sessions - others or is_here(mark_of(process)))
while found := [process for process in psutil.process_iter() if ours(process)]:
    for process in found:
        with contextlib.suppress(psutil.Error):
            if time.monotonic() - began > 20:
                process.kill()
            elif process not in asked:
                process.terminate()
    asked.update(found)
    time.sleep(0.2)
for path in pids:
    path.unlink(missing_ok=True)  # supervisord removes its own
print(f'Down: {len(asked)} processes ended' if asked else 'Nothing is up')
endef
export DOWN

PYTEST := python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=10
QUICK_TIER := promise or not slow
# An environment of the lowest versions. Their warnings of newer packages are no errors; images have the pinned versions.
LOWEST := $(CURDIR)/var/lowest

test: setup ## the quick tier: the fast tests, and of the slow ones those that stand for a promise
	$(PYTEST) -m 'not (gpu or matrix) and ($(QUICK_TIER))'

test-rest: setup # what test-all has besides
	$(PYTEST) -m 'not (gpu or matrix or $(QUICK_TIER))'

test-all: setup ## the whole test suite
	$(PYTEST)

matrix: setup ## tests with other versions of packages, fetched from the package registry; the quick tier on the lowest
	$(PYTEST) -m matrix
	for version in 3.12 3.13; do mypy --python-version $$version; done
	uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --resolution lowest-direct --extra all \
	  pyproject.toml | grep -Ev '^(torch|nvidia-.*|cuda-.*|triton)==' > $(LOWEST).txt
	$(PYTHON) -m venv --clear $(LOWEST)
	uv pip install --python $(LOWEST)/bin/python --torch-backend=$(TORCH_BACKEND) $(TORCH) \
	  || $(LOWEST)/bin/python -m pip install $(TORCH)
	uv pip install --python $(LOWEST)/bin/python -c $(LOWEST).txt -e '.[dev]'
	PATH=$(LOWEST)/bin:$(PATH) $(PYTEST) -m 'not (gpu or matrix) and ($(QUICK_TIER))' -W default --ignore=tests/test_image.py

check: .venv/ready ## lint and types
	ruff check .
	ruff format --check .
	mypy
	git ls-files '*Dockerfile*' | xargs hadolint

bench: setup ## all benchmarks, or NAME=night; QUICK=1 for less work, RECORD=1 to keep the figures
	@ls benchmarks/bench_$(or $(NAME),*).py > /dev/null 2>&1 || { echo "no benchmark is named $(NAME); there are:" \
	  $(sort $(patsubst benchmarks/bench_%.py,%,$(wildcard benchmarks/bench_*.py))); exit 1; }
	@failed=0; for file in benchmarks/bench_$(or $(NAME),*).py; do \
	  echo "== $$file"; PYTHONPATH=. python $$file || failed=1; done; exit $$failed

report: .venv/ready ## open the board over all nights, and say where the newest night's report is
	@daybreak report --open

docs: .venv/ready ## write docs/params.md, docs/cli.md, docs/glossary.md and the text in docs/profile.md anew from the code, and the site of all pages into site/
	@python -m tests.docs
	@NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
	@echo "Open site/index.html; its search needs no server"

clean: down ## remove the environment and the caches; nights, registry and ledger stay
	rm -rf .venv $(LOWEST) site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis $(AIRFLOW_HOME)/ready
