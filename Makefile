# Every action a developer takes; `make demo` and `make test` make what they need.
SHELL := /bin/bash
PYTHON ?= $(shell for p in /usr/bin/python3 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
RUNS := .venv/.runs
ENVIRONMENT := .venv/.complete

.PHONY: help demo quick test test-rest test-all test-busy test-slurms check bless lab lab-down lab-shell bench images pictures reference docs site versions locks release clean

help:            ## show this list
	@grep -E '^[a-z-]+: .*##' Makefile | sed 's/:.*##/\t/' | expand -t 14

# The demo's share. What a run imports is compiled then: pip would compile all, for longer than all else takes.
$(RUNS): pyproject.toml
	@PYTHON="$(PYTHON)" tests/setup_environment.sh local --no-compile
	@touch $@

$(ENVIRONMENT): pyproject.toml
	@PYTHON="$(PYTHON)" tests/setup_environment.sh local,test,image,ucx,jupyter,polars,sweep
	@touch $(RUNS) $@

demo: $(RUNS)    ## run k-means on this machine and show where the picture is
	$(BIN)/hpcml submit --site local --wait jobs/kmeans.py --k 5
	@$(BIN)/hpcml status last | sed -n 's/^directory  *\(.*\)/The picture: \1\/out\/kmeans.png/p'

quick: $(ENVIRONMENT)  ## what to run before each commit: units, the command line and a run on this machine
	@$(BIN)/python tests/run_tiers.py unit cli one-run

test: $(ENVIRONMENT)  ## the tests to wait for (8 minutes): of every tier that this machine can run; says why not for the others
	@$(BIN)/python tests/run_tiers.py $(MUST_RUN)

test-rest: $(ENVIRONMENT)  ## the tests that make test leaves out
	@$(BIN)/python tests/run_tiers.py --part rest $(MUST_RUN)

test-all: $(ENVIRONMENT)  ## both at once
	@$(BIN)/python tests/run_tiers.py --part all $(MUST_RUN)

test-busy: $(ENVIRONMENT)  ## make test-all beside four busy loops, as on a slow machine; its figures go into docs/benchmarks/suite.json
	$(BIN)/python bench/suite.py all --busy 4

test-slurms: $(ENVIRONMENT)  ## the core scenarios of the lab on each version of Slurm that it has (root)
	@$(BIN)/python tests/run_tiers.py slurm-own slurm-24.11 slurm-26.05

check: $(ENVIRONMENT)  ## ruff, mypy, the import contracts, words that are out, and the planted faults' lines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_architecture.py tests/unit/test_tiers.py::test_tests_quote_few_long_texts
	$(BIN)/python tests/faults/mutations.py check .

bless: $(ENVIRONMENT)  ## rewrite the golden scripts and the page of all error messages
	$(BIN)/pytest -q tests/golden --bless

lab:             ## start a four-node Slurm on this machine (root)
	@$(PYTHON) tests/lab/lab.py install && $(PYTHON) tests/lab/lab.py up && $(PYTHON) tests/lab/lab.py env
	@$(PYTHON) tests/lab/lab.py image || true  # all but containers works without

lab-shell:       ## a shell on the lab's login node
	@$(PYTHON) tests/lab/lab.py shell

lab-down:        ## end the lab
	@$(PYTHON) tests/lab/lab.py down

bench: $(ENVIRONMENT)  ## bring-up against the hand-written script and dask-jobqueue, on the lab
	$(PYTHON) bench/bringup.py

images: $(ENVIRONMENT)  ## build the images of wheels and write how that went (an hour; IMAGES is their folder, UCX a release of OpenUCX)
	@test -n "$(IMAGES)" -a -n "$(UCX)" || { echo "make images IMAGES=FOLDER UCX=ucx-RELEASE.tar.gz"; exit 2; }
	$(BIN)/python bench/image_wheels.py cpu-wheels $(IMAGES)/cpu-wheels.sif --json docs/benchmarks/image-wheels.json
	for cuda in 12 13; do $(BIN)/python bench/image_wheels.py rapids-cu$$cuda-wheels $(IMAGES)/rapids-cu$$cuda-wheels.sif \
		--build-arg UCX_SOURCE=$(UCX) --json docs/benchmarks/image-wheels.json || exit; done
	$(BIN)/python bench/tables.py

pictures: $(ENVIRONMENT)  ## make the pictures of the documentation again, from real runs on the lab (root, Chromium)
	$(PYTHON) tests/lab/lab.py env && $(PYTHON) tests/lab/apart.py 2 $(BIN)/python tests/pictures/make.py

reference: $(ENVIRONMENT)  ## write the pages of all options and of all keys again, from the parsers and the schema
	@$(BIN)/python tests/site/reference.py

docs: $(ENVIRONMENT)  ## check that the documentation's commands and links hold
	$(BIN)/python bench/tables.py --check
	$(BIN)/python bench/gpu/table.py --check
	$(BIN)/python bench/gpu/limits.py --check
	$(BIN)/pytest -q tests/test_docs.py tests/test_docs_run.py

# Its extra is installed when it is first wanted; mkdocs.yml says what the site is.
site: $(ENVIRONMENT)  ## build the documentation as a site, in site/
	@$(BIN)/python -c 'import material' 2>/dev/null || PYTHON="$(PYTHON)" tests/setup_environment.sh docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@if command -v node >/dev/null; then node tests/site/search.js; fi
	@echo 'The site: site/index.html (search needs a server: python3 -m http.server -d site)'

versions:        ## write down the newest packages that the extras allow (Python of .venv); then make test-all
	rm -rf .venv
	@NEWEST=1 PYTHON="$(PYTHON)" tests/setup_environment.sh local,test,image,ucx,jupyter,polars,sweep,docs,lock
	@$(BIN)/python -m pip freeze --disable-pip-version-check --exclude hpcml \
		> tests/versions-$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt
	@touch $(RUNS) $(ENVIRONMENT)
	@$(MAKE) --no-print-directory locks

# Its extra is installed when it is first wanted.
locks: $(ENVIRONMENT)  ## write down the wheels of images and nodes, with their hashes, in containers/locks (a package index)
	@test -x $(BIN)/uv || PYTHON="$(PYTHON)" tests/setup_environment.sh lock
	$(BIN)/python -m tests.locks

release: $(ENVIRONMENT)  ## build wheel and source distribution into dist/, and run the first page with each outside the checkout (a package index)
	tests/try_release.sh

clean:           ## remove what the other targets made here
	rm -rf .venv dist build site .pytest_cache .mypy_cache .ruff_cache
