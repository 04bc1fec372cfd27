# What a newcomer needs: `make demo` and `make test`. Everything else: `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test test-engines test-page test-clients test-install check format bench fuzz mutants accuracy papers parameters docs docs-serve lock clean
help:             ## list the recipes
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

setup: $(READY)   ## make .venv from the lock file
$(READY): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Discreet needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "setting up $(VENV) (once, a minute or two)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)    ## make a reading log of a million rows, release counts from it, draw them
	@$(BIN)/python examples/demo.py

test: $(READY)    ## the whole suite
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal

test-engines: $(VENV)/.servers  ## one suite over PostgreSQL, Spark, Trino and Pinot, installed and started here; the service behind nginx
	@$(BIN)/python -m pytest -n 2 tests/servers
$(VENV)/.servers: requirements/servers.lock $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/servers.lock
	@touch $@

test-page: $(VENV)/.page  ## both journeys through the web page, in Chromium; draws its pictures again (needs npm)
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/page
$(VENV)/.page: requirements/page.lock requirements/package-lock.json $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/page.lock
	@cd requirements && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

CLIENTS := .venv-clients
test-clients: $(CLIENTS)/notebook/.ready $(CLIENTS)/superset/.ready $(CLIENTS)/dbt/.ready $(VENV)/.page  ## JDBC, the Trino CLI, pandas, notebooks, Superset and dbt against a service; draws their pictures again
	@rm -rf build/wheels
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheels .
	@$(CLIENTS)/notebook/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheels/*.whl
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/clients
$(CLIENTS)/%/.ready: requirements/%.lock $(READY)
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

test-install: $(READY)  ## every line of the README in a clean environment that has pip and no npm
	@$(BIN)/python -m pytest tests/install

check: $(READY)   ## format, lint, types, layers, docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy tests/typing/api.py
	@$(BIN)/lint-imports
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

format: $(READY)  ## rewrite the files as `make check` wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY)   ## speed and memory as ratios, printed as tables
	@$(BIN)/python -m benchmarks

fuzz: $(READY)    ## look for rows that change an outcome, and for answers that the API does not describe
	@$(BIN)/python -m benchmarks fuzz contract

mutants: $(VENV)/.mutants  ## change the code and see whether a test notices; MODULES="noise/bits ..." for some of it
	@nice $(BIN)/python -m benchmarks.mutants $(MODULES)
$(VENV)/.mutants: requirements/mutants.lock $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/mutants.lock
	@touch $@

accuracy: $(READY) ## how many counts a release has beside other methods, into docs/accuracy.md
	@$(BIN)/python -m benchmarks.accuracy

papers: $(READY)  ## regenerate every table and figure of the papers, in build/papers/pages
	@$(BIN)/python -m papers

parameters: $(READY)  ## the curves and numbers behind the page about choosing parameters
	@$(BIN)/python -m papers parameters-bounds parameters-accuracy dr19-figure-1 linkedin-section-8-3 linkedin-table-2

docs: $(READY)    ## build the documentation into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

docs-serve: $(READY)  ## read the documentation while you write it
	@$(BIN)/mkdocs serve

lock:             ## pin the newest versions the project allows (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --group dev --upgrade --quiet \
	  --custom-compile-command "make lock" -o requirements/dev.lock pyproject.toml
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --group servers --upgrade --quiet --constraints requirements/dev.lock \
	  --custom-compile-command "make lock" -o requirements/servers.lock pyproject.toml
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --group page --upgrade --quiet --constraints requirements/dev.lock \
	  --custom-compile-command "make lock" -o requirements/page.lock pyproject.toml
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --group mutants --upgrade --quiet --constraints requirements/dev.lock \
	  --custom-compile-command "make lock" -o requirements/mutants.lock pyproject.toml
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --extra client --extra pandas --extra plots --group notebook \
	  --upgrade --quiet --custom-compile-command "make lock" -o requirements/notebook.lock pyproject.toml
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --group superset \
	  --upgrade --quiet --custom-compile-command "make lock" -o requirements/superset.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-annotate --no-strip-extras --group dbt \
	  --upgrade --quiet --custom-compile-command "make lock" -o requirements/dbt.lock

clean:            ## remove everything that was built
	rm -rf $(VENV) $(CLIENTS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
