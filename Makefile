# Needs make and Python >= 3.11, nothing else: every target that runs something makes .venv first.
# Pass options with ARGS: make verify ARGS="vla --quick"; make test ARGS="-k causality".
# make's own status is 2 when a recipe fails; the recipe's status (README, "Exit codes") is in its last line.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

# Where the CPU build of torch is, for machines whose default index has only the CUDA build.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# The two pins chosen by hand; `make constraints` derives every other one from these and pyproject.toml.
HELD := torch==2.13.0 triton==3.9.0
EXTRAS := all,test,dev

.PHONY: help verify prove claims nightly test check lint types gpu bench dashboard report constraints clean

help:
	@echo "verify  compare every operator with its oracle      test   the test suite"
	@echo "nightly  every input in every dtype, and long fuzzing"
	@echo "prove   every statement that a machine checks         claims  every verdict on the papers, with its page"
	@echo "check   lint, formatting and types                  clean  remove what the targets made"
	@echo "gpu, bench, report, dashboard   measurements        constraints   renew constraints.txt"

verify: .venv/.ready
	$(BIN)/linattest verify $(ARGS)

# Exit code 3 where a tool is missing: what was not checked is no pass.
prove: .venv/.ready
	@command -v coqc >/dev/null || echo "no Coq: apt-get install coq libcoq-mathcomp-algebra libcoq-mathcomp-algebra-tactics" >&2
	$(BIN)/linattest prove $(ARGS)

# What the papers claim: each verdict computed anew, and one offline page of them, whose exit code is that of the
# verdicts: 1 where one differs.
claims: .venv/.ready
	@mkdir -p .cache && rm -f .cache/claims.json
	$(BIN)/linattest claims --output .cache/claims.json $(ARGS) || [ -s .cache/claims.json ]
	$(BIN)/linattest report --claims .cache/claims.json --html linattest-claims.html

# Everything, for hours when nobody waits.
nightly: .venv/.ready
	$(BIN)/linattest verify --full $(ARGS)
	LINATTEST_PROFILE=nightly $(BIN)/python -m pytest -n 2 tests/test_fuzz.py

# Two runs: on two workers, then what must have the machine to itself. pytest's 5 means that ARGS selected nothing.
test: .venv/.ready
	@run() { $(BIN)/python -m pytest "$$@" $(ARGS); status=$$?; [ $$status -eq 5 ] || [ $$status -eq 0 ] || exit $$status; }; \
	run -n 2 -m 'not serial'; first=$$status; \
	run -m serial; \
	[ $$first -eq 0 ] || [ $$status -eq 0 ] || { echo "no test selected by: $(ARGS)" >&2; exit 5; }

check: lint types

lint: .venv/.ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.ready
	$(BIN)/pyright --pythonpath $(BIN)/python

# The campaign of kernels on this machine's GPU: errors, gradients, properties, drift up to T = 131 072, and memory and
# races where NVIDIA's compute-sanitizer is installed (3 says that it is not, or sees nothing); JSON in .cache/gpu.
# Nothing was measured, which is exit code 3, where there is no GPU. A failure does not stop the rest.
gpu: .venv/.ready
	@mkdir -p .cache/gpu; status=0; \
	$(BIN)/linattest verify --device cuda --variant triton --variant triton-step --output .cache/gpu/verify.json \
	  --records .cache/gpu/records.jsonl --resume $(ARGS) || status=$$?; \
	[ $$status -ge 2 ] || $(BIN)/linattest drift --device cuda --output .cache/gpu/drift.json || status=$$?; \
	[ $$status -ge 2 ] || $(BIN)/linattest sanitize --quick --output .cache/gpu/sanitize.json || [ $$? -eq 3 ] || status=1; \
	exit $$status

# Speed and its correctness, filed under this commit: on a GPU in benchmarks/results, on a CPU a small part in .cache.
bench: .venv/.ready
	$(BIN)/linattest bench run $(ARGS)

# What is committed in benchmarks/results, as pages in .asv/html, and README's figure of it.
dashboard: .venv/.ready
	$(BIN)/linattest bench publish $(ARGS)
	$(BIN)/linattest bench crossover --newest --svg benchmarks/crossover.svg

# One offline page of a campaign, of drift and of the claims. What the same sources measured before is not measured
# again; a failure does not keep the page from being written, and is the exit code in the end.
report: .venv/.ready .cache/report/drift.json .cache/report/claims.json
	$(BIN)/linattest verify --records .cache/report/records.jsonl --resume $(ARGS) || [ $$? -eq 1 ]
	$(BIN)/linattest report --records .cache/report/records.jsonl --drift .cache/report/drift.json \
	  --claims .cache/report/claims.json --html linattest-report.html

.cache/report/drift.json: verify/drift.py $(wildcard impls/*.py verify/operators/*.py) | .venv/.ready
	@mkdir -p .cache/report
	$(BIN)/linattest drift --output $@ || [ $$? -eq 1 ]

# Verdicts that differ, or say less without Coq, are on the page, whose exit code says it.
.cache/report/claims.json: $(wildcard impls/*.py verify/operators/*.py verify/claims/* verify/data/witnesses/* proofs_checks/* proofs_checks/*/* verify/*.py verify/search/*.py verify/properties/*.py) | .venv/.ready
	@mkdir -p .cache/report && rm -f $@
	$(BIN)/linattest claims --output $@ || [ -s $@ ]

# PyPI's CUDA build of torch asks for another Triton than the one pinned here, and the resolver refuses that pair
# before it downloads either; the second attempt adds the index of CPU builds, which ask for none.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit(f"linattest needs Python >= 3.11; $(PYTHON) is {v}. Name another: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[$(EXTRAS)]' || { \
	  echo "Trying again with $(TORCH_INDEX) (set TORCH_INDEX to choose another)." >&2; \
	  $(BIN)/pip install -q --extra-index-url $(TORCH_INDEX) -c constraints.txt -e '.[$(EXTRAS)]'; }
	touch $@

# Install without pins in an environment of its own, and write down what came. A CPU build's "+cpu" is dropped so that
# the pin fits the machines where the same release has no such suffix.
constraints:
	rm -rf .cache/constraints
	$(PYTHON) -m venv .cache/constraints
	.cache/constraints/bin/pip install -q $(HELD) -e '.[$(EXTRAS)]'
	.cache/constraints/bin/pip freeze --all --exclude-editable --exclude pip > .cache/constraints/freeze
	{ echo "# Every package of the CPU environment, made by \`make constraints\`; do not edit."; \
	  sed 's/+cpu$$//' .cache/constraints/freeze; } > constraints.txt
	rm -rf .cache/constraints

# Keeps what is slow or evidence: .cache (oracle values), .hypothesis (found examples), linattest-failures.
clean:
	rm -rf .venv build dist src/linattest.egg-info .pytest_cache .ruff_cache .benchmarks .cache/constraints
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
