PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-all lint types imports check format snapshots picture reference docs overhead nightly bench-ingest bench-rules bench-fixers bench-kernels accuracy sickbay safety mutation matrix clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: $(VENV)/ready-to-run ## find, fix and re-measure a slow program that ships with the package
	$(BIN)/diagnose demo

test: $(VENV)/ready-to-test ## run the tests that start no programs: some minutes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" tests/unit tests/property tests/contracts

test-all: $(VENV)/ready-to-test ## run all tests but the further cases of `make nightly`
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not nightly"

nightly: $(VENV)/ready-to-test ## run the further cases: every hook failing in turn, the demo to its end, each launcher
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m nightly

lint: $(VENV)/ready-to-test ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready-to-test ## check types
	$(BIN)/mypy

imports: $(VENV)/ready-to-test ## check that the arrows point down
	$(BIN)/lint-imports

check: lint types imports test-all ## style, types, arrows, all tests: what must be green

format: $(VENV)/ready-to-test ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

snapshots: $(VENV)/ready-to-test ## make the pictures of the screens again; look at them before you commit them
	$(BIN)/python -m pytest tests/unit/tui/test_tui_snapshots.py --snapshot-update

picture: $(VENV)/ready-to-test ## make the README's picture of the screen again; look at it before you commit it
	$(BIN)/python -m diagnose.cli.screen_picture sample_traces/h200_naive_gpt docs/screen.svg --size 120x36

reference: $(VENV)/ready-to-test ## write the reference anew: rules, fixers, commands, Python, JSON
	$(BIN)/diagnose explain --markdown > docs/rules-and-fixers.md
	$(BIN)/python -m diagnose.cli.reference_files docs/reference
	$(BIN)/python -m diagnose.cli.threshold_page docs/thresholds.md

docs: $(VENV)/ready-for-docs ## build the documentation as a site, in build/site
	$(BIN)/mkdocs build --strict

overhead: $(VENV)/ready-to-test ## measure what watching costs
	$(BIN)/python benchmarks/overhead.py

bench-ingest: $(VENV)/ready-to-test ## measure how fast traces are read and diagnosed; HTA_PYTHON=… to compare with HTA
	$(BIN)/python benchmarks/ingest.py $(if $(HTA_PYTHON),--hta-python $(HTA_PYTHON))

bench-rules: $(VENV)/ready-to-test ## measure what each rule costs; fails if one takes more than 10 %
	$(BIN)/python benchmarks/rule_costs.py

bench-fixers: $(VENV)/ready-to-test ## measure how long all fixers take to look at programs; PROGRAMS="folder folder"
	$(BIN)/python benchmarks/fixer_costs.py $(PROGRAMS)

bench-kernels: $(VENV)/ready-to-test ## time the fused kernels beside eager code, torch's own, torch.compile and Liger-Kernel; needs a GPU
	$(BIN)/python benchmarks/kernels.py --out build/kernels

accuracy: $(VENV)/ready-to-test ## say how often the diagnosis is right: on programs that run here, and on what was recorded
	$(BIN)/python benchmarks/accuracy.py record build/accuracy --device cpu
	$(BIN)/python benchmarks/accuracy.py score build/accuracy
	if [ -d benchmarks/recorded ]; then \
	  $(BIN)/python benchmarks/accuracy.py unpack benchmarks/recorded build/accuracy-recorded && \
	  $(BIN)/python benchmarks/accuracy.py score build/accuracy-recorded; fi

sickbay: $(VENV)/ready-to-test ## fix the programs of the sick bay and time them beside an expert's; needs a GPU
	$(BIN)/python benchmarks/sickbay_fix.py build/sickbay

safety: $(VENV)/ready-to-test ## run every edit that the fixers propose for the adversarial suite, and ask the gates about wrong ones; takes hours
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/safety.py build/safety
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/wrong_edits.py build/safety

mutation: $(VENV)/ready-to-test ## say what share of small errors in the code that decides the fast tests notice; half an hour
	$(BIN)/python benchmarks/mutation_sample.py build/mutation

matrix: $(VENV)/ready-to-test ## try other versions of Python, torch and the dependencies, an environment of some GB each
	$(BIN)/python benchmarks/matrix.py build/matrix

clean: ## remove what was installed and cached
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready-to-run: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[train]'
	touch $@

$(VENV)/ready-for-docs: $(VENV)/ready-to-run
	$(PIP) -e '.[docs]'
	touch $@

$(VENV)/ready-to-test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/ready-to-run
