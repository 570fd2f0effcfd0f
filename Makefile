# Every target sets up what it needs: a virtual environment beside this file, with the pinned versions. One environment
# can serve all: make parity PARITY_VENV=.venv-python3.
PYTHON ?= python3
NAME := $(notdir $(PYTHON))
VENV ?= .venv-$(NAME)
PARITY_VENV ?= .venv-parity-$(NAME)
NEWEST_VENV ?= .venv-newest-$(NAME)
DOCS_VENV ?= .venv-docs-$(NAME)
AGENTS_VENV ?= .venv-agents-$(NAME)
PACKAGE_VENV ?= .venv-package-$(NAME)
# Tests also wait, for processes and servers: a third worker keeps two cores busy.
WORKERS ?= 3
RUN = $(VENV)/bin/python
SHORT = $(RUN) benchmarks/run_papers.py --short --seeds 0,1
# Python compiles what it imports; compiling every installed file first takes longer than the rest.
NEWEST_PIP = -m pip install --quiet --quiet --disable-pip-version-check --no-compile
PIP = $(NEWEST_PIP) --constraint constraints.txt
TIERS = not parity and not agents and not real and not long and not hosts and not browser
PYTEST = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
FAST = $(PYTEST) --ignore=tests/parity -m "$(TIERS)"
# Left out: engine, learner, models, rollout, whole runs and servers over a model, whose programs take long to compile;
# evaluation, parallel, plan, agents and the commands, which start many processes; and every test marked slow.
QUICK = $(addprefix tests/,contracts core data judging prompting recipes reports retrieval store $(addprefix test_,$(addsuffix .py,config documentation mistakes path rooms)))

# Most of a test's time is compilation, which tests/xla_flags.py makes quicker for this Python. The pages, the wheel,
# several hosts and runs with faults use the defaults, as users do. Tests start many processes, so Python keeps the
# bytecode even where the environment forbids it.
quickly = PYTHONDONTWRITEBYTECODE= XLA_FLAGS="$$XLA_FLAGS $$($(1) tests/xla_flags.py)"

.PHONY: help quickstart real-model quick test test-newest browser long faults hosts parity agents real lint docs notebook package coverage bench gpu base papers papers-short papers-machines scale
help:  ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'PYTHON=python3.12 chooses the interpreter (3.11 or newer).'

$(VENV)/.ready: pyproject.toml setup.py constraints.txt tests/wheels.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python %d.%d is too old: ragrl_jax needs 3.11 or newer. Try make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "Setting up $(VENV) (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) $(PIP) --editable '.[dev]'
	@$(RUN) $(PIP) --no-deps --requirement tests/wheels.txt
	@touch $@

$(PARITY_VENV)/.ready-parity: pyproject.toml setup.py constraints.txt tests/wheels.txt
	@echo "Setting up $(PARITY_VENV), with torch (a few minutes, once)"
	@$(PYTHON) -m venv $(PARITY_VENV)
	@$(PARITY_VENV)/bin/python $(PIP) --editable '.[dev,parity]'
	@$(PARITY_VENV)/bin/python $(PIP) --no-deps --requirement tests/wheels.txt
	@touch $@

$(AGENTS_VENV)/.ready-agents: pyproject.toml setup.py constraints.txt
	@echo "Setting up $(AGENTS_VENV), with agent libraries and trackers (a few minutes, once)"
	@$(PYTHON) -m venv $(AGENTS_VENV)
	@$(AGENTS_VENV)/bin/python $(PIP) --editable '.[dev,agents]'
	@touch $@

$(DOCS_VENV)/.ready-docs: pyproject.toml setup.py constraints.txt
	@echo "Setting up $(DOCS_VENV) (a few minutes, once)"
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python $(PIP) --editable '.[docs]'
	@touch $@

$(PACKAGE_VENV)/.ready-package: pyproject.toml setup.py constraints.txt
	@echo "Setting up $(PACKAGE_VENV) (a few minutes, once)"
	@$(PYTHON) -m venv $(PACKAGE_VENV)
	@$(PACKAGE_VENV)/bin/python $(PIP) --editable '.[package]'
	@touch $@

# XLA's CPU programs allocate new memory at every call. With huge pages this costs a tenth less. Other systems ignore it.
quickstart real-model bench: export GLIBC_TUNABLES = glibc.malloc.hugetlb=1

quickstart: $(VENV)/.ready  ## train a small model to search, in minutes, on this machine
	$(RUN) -m ragrl_jax quickstart --workdir out/quickstart
	@echo 'ragrl is in $(VENV): source $(VENV)/bin/activate'

real-model: $(VENV)/.ready  ## train a real 135M model on real questions (55 minutes on 2 cores): SYSTEM=arena; goes on after a kill
	$(RUN) benchmarks/real_model/run.py --workdir out/real_model --system $(or $(SYSTEM),arena) --seed $(or $(SEED),0)
	@echo 'ragrl is in $(VENV): source $(VENV)/bin/activate'

quick: $(VENV)/.ready  ## a first look in about a minute: texts, rewards, recipes, retrieval, files; neither models nor runs
	$(call quickly,$(RUN)) $(RUN) -m pytest $(PYTEST) $(QUICK) -m "not slow and $(TIERS)"

test: $(VENV)/.ready  ## the tests that need neither torch nor real data, in minutes
	$(call quickly,$(RUN)) $(RUN) -m pytest $(FAST)

test-newest:  ## the same tests and the quickstart with the newest versions, without constraints.txt
	@$(PYTHON) -m venv $(NEWEST_VENV)
	@$(NEWEST_VENV)/bin/python $(NEWEST_PIP) --upgrade --upgrade-strategy eager --editable '.[dev]'
	@$(NEWEST_VENV)/bin/python $(NEWEST_PIP) --no-deps --requirement tests/wheels.txt
	@$(NEWEST_VENV)/bin/python --version
	@$(NEWEST_VENV)/bin/python -m pip list --format freeze --disable-pip-version-check | tr '\n' ' '; echo
	$(call quickly,$(NEWEST_VENV)/bin/python) $(NEWEST_VENV)/bin/python -m pytest $(FAST)
	$(NEWEST_VENV)/bin/python -m ragrl_jax quickstart --workdir out/quickstart-newest

browser: $(VENV)/.ready  ## the pages in Chromium, which is installed if possible; screenshots in out/browser/
	@chromium=$$(.ci/chromium) || { echo "no browser: the page was not opened"; exit 0; }; \
	CHROMIUM="$$chromium" $(RUN) -m pytest -m browser tests/evaluation && echo "Pictures of the page: out/browser/"

long: $(VENV)/.ready  ## whole runs, several hosts, a hundred thousand transcripts per recipe; SKIP="a or b" leaves tests out
	$(call quickly,$(RUN)) $(RUN) -m pytest --numprocesses $(WORKERS) --dist worksteal -m long $(if $(SKIP),-k "not ($(SKIP))")

hosts: $(VENV)/.ready  ## four processes train like one; needs an otherwise idle machine
	$(RUN) -m pytest -m hosts

faults: $(VENV)/.ready  ## runs with seeded faults end like undisturbed ones: PLANS=100 FIRST=0; then a long run (SOAK=0: none)
	PYTHONPATH=tests/kits $(RUN) tests/faults/run.py --plans $(or $(PLANS),100) --first $(or $(FIRST),0) --soak=$(or $(SOAK),1)

parity: $(PARITY_VENV)/.ready-parity  ## agreement with transformers and torch, in an environment of its own
	$(call quickly,$(PARITY_VENV)/bin/python) $(PARITY_VENV)/bin/python -m pytest $(PYTEST) -m parity tests/parity

agents: $(AGENTS_VENV)/.ready-agents  ## public agent libraries, MCP servers and experiment trackers, in an environment of their own
	$(call quickly,$(AGENTS_VENV)/bin/python) $(AGENTS_VENV)/bin/python -m pytest -m agents

real: $(PARITY_VENV)/.ready-parity  ## real questions and corpora (RAGRL_DATA, or ../shared/data), the papers' tables: MINUTES=60 for a part
	$(PARITY_VENV)/bin/python -m pytest -m real
	$(PARITY_VENV)/bin/python benchmarks/answer_rule.py
	$(PARITY_VENV)/bin/python benchmarks/real_retrieval.py
	$(PARITY_VENV)/bin/python benchmarks/real_audit.py
	$(PARITY_VENV)/bin/python benchmarks/real_tables.py --docs --minutes $(or $(MINUTES),0)

lint: $(VENV)/.ready  ## style, and types in the rooms that pyproject.toml lists
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(VENV)/bin/basedpyright --pythonpath $(RUN)

docs: $(DOCS_VENV)/.ready-docs  ## the documentation site, in out/docs/: fails on a symbol without a docstring, a dead link or a warning
	$(DOCS_VENV)/bin/python docs/site/build.py

notebook: $(DOCS_VENV)/.ready-docs  ## runs the notebooks, each in about a minute
	$(call quickly,$(DOCS_VENV)/bin/python) $(DOCS_VENV)/bin/jupyter-execute notebooks/*.ipynb --timeout=300

package: $(PACKAGE_VENV)/.ready-package  ## builds and checks archive and wheel, in out/package/; the wheel trains in an empty environment
	.ci/package $(PACKAGE_VENV)/bin/python

coverage: $(VENV)/.ready  ## lines of each room that the fast tests run; TESTS=tests/core for a part
	$(call quickly,$(RUN)) $(RUN) -m pytest $(FAST) --cov --cov-report= $(TESTS)
	$(RUN) -m coverage json --quiet -o out/coverage.json
	$(if $(TESTS),-)$(RUN) tests/coverage_by_room.py out/coverage.json

bench: $(VENV)/.ready $(PARITY_VENV)/.ready-parity  ## speed, as ratios to other libraries in the same run
	$(PARITY_VENV)/bin/python benchmarks/rollout.py
	$(PARITY_VENV)/bin/python benchmarks/learner.py $(if $(TUNIX_PYTHON),--tunix_python $(TUNIX_PYTHON))
	$(VENV)/bin/python benchmarks/schedule.py
	$(VENV)/bin/python benchmarks/sampling.py
	$(VENV)/bin/python benchmarks/quickstart_seeds.py
	$(VENV)/bin/python benchmarks/quotes.py
	$(VENV)/bin/python benchmarks/scoring.py

gpu: $(VENV)/.ready  ## speed on a GPU (pip install jax[cuda13] into the environment): writes docs/performance.md
	$(RUN) benchmarks/gpu.py $(if $(TORCH_PYTHON),--python_torch $(TORCH_PYTHON))

base: $(VENV)/.ready  ## the small reader with which all miniatures begin: under an hour, once; goes on after a kill
	$(RUN) benchmarks/base_reader.py

papers: $(VENV)/.ready  ## five papers' claims in miniature, after make base: takes hours; MINUTES=60 for a part
	$(RUN) benchmarks/run_papers.py --docs --minutes $(or $(MINUTES),0)

papers-short: $(VENV)/.ready  ## one claim a paper, after make base: a quarter of an hour on 2 cores; fails if one misses its stated difference
	$(SHORT) --out out/papers_short/1_thread

papers-machines: papers-short  ## papers-short again, with 2 threads a run and with AVX2 instructions: the same verdicts
	$(SHORT) --out out/papers_short/2_threads --threads 2
	XLA_FLAGS="$$XLA_FLAGS --xla_cpu_max_isa=AVX2" $(SHORT) --out out/papers_short/AVX2

scale: $(PARITY_VENV)/.ready-parity  ## the best plan for every TPU slice, with a lower bound of its step time: half an hour; MINUTES=3 for a part
	$(PARITY_VENV)/bin/python benchmarks/scale/run.py --docs --minutes $(or $(MINUTES),0)
