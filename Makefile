# What a newcomer types.  Everything runs in .venv, which is made on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# pytest's options, such as PYTEST="-x -k pingpong"
PYTEST ?=
# folders, not ".": ruff would also format the examples in Markdown pages, which line their comments up
SOURCES := vhca firmware acceptance tests guest-tests museum --exclude '*.md'
FAST   := tests/unit tests/wire tests/scenario tests/native tests/prop tests/fuzz

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-guest check lint format types imports spelling links pages formats imports-page docs check-native bench bench-page bench-engine bench-cores bench-breakdown bench-boot bench-memory bench-doorbells bench-ipoib bench-fairness bench-opensm bench-sweep fuzz soak soak-subnet mutants conformance ucx upper faults debug-kernel museum adversary bench-guests validate ci-job coverage \
        doctor fetch install clean

help: ## this list
	@echo "make TARGET, where TARGET is one of:"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

demo: $(STAMP) ## two guests exchange RDMA: the whole thing in one go
	@$(BIN)/vhca demo

test: $(STAMP) ## all tests: without guests first, then those that boot guests
	@$(BIN)/vhca fetch || echo "guests cannot be booted here; their tests will be skipped, with this reason"
	$(BIN)/pytest $(FAST) --cov --cov-report=term $(PYTEST)
	$(BIN)/pytest tests/guest $(PYTEST)

test-fast: $(STAMP) ## the tests that boot no guest (no root, network or KVM)
	$(BIN)/pytest $(FAST) $(PYTEST)

test-guest: $(STAMP) ## the tests that boot guests
	$(BIN)/pytest tests/guest $(PYTEST)

coverage: $(STAMP) ## branch coverage of firmware/ by the tests without guests, line by line
	$(BIN)/pytest $(FAST) --cov --cov-report=term-missing $(PYTEST)

check: lint types imports spelling links pages ## all checks below, no tests

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check $(SOURCES)

format: $(STAMP) ## rewrite the sources in ruff's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format $(SOURCES)

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy

imports: $(STAMP) ## which package may import which (import-linter)
	$(BIN)/lint-imports

spelling: $(STAMP) ## codespell
	$(BIN)/codespell

links: $(STAMP) ## links between the pages of the documentation
	$(BIN)/python tests/check_docs.py

pages: $(STAMP) ## docs/formats, docs/imports.md, docs/qp-states.md and docs/counters.md are what the code says; docs/speed.md what a run said
	$(BIN)/python -m vhca.layout.pages vhca.wire docs/formats --check
	$(BIN)/python -m tests.import_graph docs/imports.md --check
	$(BIN)/python -m tests.lifecycle_page docs/qp-states.md --check
	$(BIN)/python -m tests.counters_page docs/counters.md --check
	$(BIN)/python -m tests.docs.trace_picture docs/images/trace.svg --check
	$(BIN)/python -m acceptance.museum.page docs/museum.md --check
	$(BIN)/python -m tests.bench.page docs/speed.json docs --check

imports-page: $(STAMP) ## write docs/imports.md anew
	$(BIN)/python -m tests.import_graph docs/imports.md

formats: $(STAMP) ## write docs/formats, docs/qp-states.md, docs/counters.md, docs/museum.md and docs/images/trace.svg anew
	$(BIN)/python -m vhca.layout.pages vhca.wire docs/formats
	$(BIN)/python -m tests.lifecycle_page docs/qp-states.md
	$(BIN)/python -m tests.counters_page docs/counters.md
	$(BIN)/python -m tests.docs.trace_picture docs/images/trace.svg
	$(BIN)/python -m acceptance.museum.page docs/museum.md

docs: $(STAMP) ## build/docs: these pages and the library's reference as a site; a broken link is an error
	@$(BIN)/python -c 'import furo, myst_parser, sphinx' 2> /dev/null || \
	  $(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[docs]'
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -c docs/site -d build/doctrees . build/docs
	@echo "build/docs/index.html"

bench: $(STAMP) ## speed: goals and what was reached, and a page with plots, in a quarter of an hour; BENCH=quick in two minutes
	$(BIN)/python -m tests.bench $(if $(filter quick,$(BENCH)),--quick)

bench-page: $(STAMP) ## docs/speed.md and its pictures from the last `make bench`
	$(BIN)/python -m tests.bench.page build/bench/results.json docs

bench-engine: $(STAMP) ## the engine alone, against memory copy
	$(BIN)/python -m tests.bench.bench_engine

bench-cores: $(STAMP) ## pairs of cards side by side, on all cores, against one pair
	$(BIN)/python -m tests.bench.bench_cores

bench-breakdown: $(STAMP) ## where the time of a small WRITE between two guests goes (needs a C compiler)
	$(BIN)/python -m tests.bench.bench_breakdown

bench-boot: $(STAMP) ## from the command to two guests that can be used, and where the time goes
	$(BIN)/python -m tests.bench.bench_boot

bench-fairness: $(STAMP) ## how long an idle card's register access waits while another card works
	$(BIN)/python -m tests.bench.bench_fairness

bench-sweep: $(STAMP) ## how long the subnet manager takes for 100, 1,000 and 5,000 simulated hosts
	$(BIN)/python -m tests.bench.bench_sweep

bench-rates: $(STAMP) ## how close two guests come to the rate and latency that a cable was given
	$(BIN)/python -m tests.bench.bench_rates

bench-trunk: $(STAMP) ## two guests on one rack and on two, and a sweep in one rack and in two (two minutes)
	$(BIN)/python -m tests.bench.bench_trunk

bench-opensm: $(STAMP) ## how long OpenSM takes for 100, 1,000 and 5,000 simulated hosts, over our socket and over ibsim's
	$(BIN)/python -m tests.bench.bench_opensm

bench-doorbells: $(STAMP) ## what a doorbell costs by message and in mapped memory, in guests (needs a C compiler)
	$(BIN)/python -m tests.bench.bench_doorbells

bench-ipoib: $(STAMP) ## one TCP stream over IPoIB, with and without offloads, and over virtio-net in the same guests
	$(BIN)/python -m tests.bench.bench_ipoib

bench-guests: $(STAMP) ## 16 guests on one fabric: boot, memory, and an exchange of all with all; GUESTS=8
	$(BIN)/python -m tests.bench.bench_guests $(if $(GUESTS),--guests $(GUESTS))

bench-memory: $(STAMP) ## memory before and after 100,000 rounds of create, send and destroy (two minutes)
	$(BIN)/python -m tests.bench.bench_memory --rounds 100000

soak: $(STAMP) ## 500 driver reloads, 100 machine resets on one rack: memory, descriptors, objects stay flat; LOOPS="--reloads 20 --resets 5"
	$(BIN)/python -m tests.soak $(LOOPS)

soak-subnet: $(STAMP) ## half an hour of mixed traffic in four guests while cables and subnet managers change; MINUTES=5
	$(BIN)/python -m tests.soak.subnet $(if $(MINUTES),--minutes $(MINUTES))

conformance: $(STAMP) ## rdma-core's own tests in a guest; writes docs/conformance
	$(BIN)/python -m acceptance.conformance

ucx: $(STAMP) ## UCX's performance test in guests: every transport, operation and size
	VHCA_UCX=all $(BIN)/pytest tests/guest/test_ucx.py $(PYTEST)

upper: $(STAMP) ## NFS, NVMe, iSER, SRP, RDS, RDMA CM, IPoIB and MPI between guests, also what takes long, and a short soak
	VHCA_UPPER=all $(BIN)/pytest --timeout 400 $(wildcard $(addprefix tests/guest/test_,$(addsuffix .py,storage rdma_cm rds ipoib bonding mpi soak))) $(PYTEST)

faults: $(STAMP) ## faults inside cards, also what takes the driver minutes
	VHCA_FAULTS=all $(BIN)/pytest --timeout 400 tests/guest/test_card_faults.py $(PYTEST)

ci-job: $(STAMP) ## the recipes of `vhca ci`, run as jobs, and what one takes (five minutes)
	VHCA_CI=all $(BIN)/pytest tests/guest/test_ci_recipes.py $(PYTEST)
	$(BIN)/python -m tests.ci_job

museum: $(STAMP) ## the exhibits of docs/museum.md: known faults of drivers and libraries, and their absence (half an hour)
	VHCA_MUSEUM=all $(BIN)/pytest --timeout 400 tests/guest/test_museum.py $(PYTEST)

adversary: $(STAMP) ## a card that answers its driver badly, and what the kernel makes of it; SEED=7 BUDGET=600 (docs/adversary.md)
	$(BIN)/vhca adversary --seed $(if $(SEED),$(SEED),1) --budget $(if $(BUDGET),$(BUDGET),60)

debug-kernel: $(STAMP) ## build Linux 6.19 with KASAN, lockdep and DMA-API debugging (a quarter of an hour, once), and traffic on it
	VHCA_DEBUG_KERNEL=build $(BIN)/pytest --timeout 3600 tests/guest/test_debug_kernel.py $(PYTEST)

validate: $(STAMP) ## the claims about RDMA on Linux 6.19, in guests; writes docs/validation
	$(BIN)/vhca validate --source

fuzz: $(STAMP) ## two cards, hostile hosts, a hostile cable; SEED=7 SECONDS=3600 (docs/fuzzing.md)
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

mutants: $(STAMP) ## change the transport a little: does a test notice?  SEED=2 COUNT=400 FILES=... (docs/mutants.md)
	$(BIN)/python -m tests.mutants $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(FILES),--files '$(FILES)')

check-native: $(STAMP) ## what is in C under ASan, UBSan and TSan, with random trains and SMPs; SEED=7 ROUNDS=1000000
	$(BIN)/python -m tests.native $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS))
	CC="gcc -fsanitize=address,undefined -fno-sanitize-recover=all" ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD=$$(gcc -print-file-name=libasan.so) $(BIN)/pytest -q tests/unit/fabric/test_swift.py

doctor: $(STAMP) ## what is there, what is missing, how to get it
	@$(BIN)/vhca doctor

fetch: $(STAMP) ## fill the cache (QEMU, kernel, guest), for working without a network
	@$(BIN)/vhca fetch

install: $(STAMP) ## the virtual environment alone

clean: ## remove the virtual environment and what tools left; the cache of fetched parts stays
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "vhca needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "  -> install one (Debian 12 and 13: apt install python3 python3-venv), or name it: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is not complete here." >&2; \
	  echo "  -> apt install python3-venv" >&2; \
	  exit 1; }
	@echo "making $(VENV) and installing vhca and its tools (once, about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[dev]' || { \
	  echo "pip could not install the tools." >&2; \
	  echo "  -> look at pip's message above; pip uses the package index that this host is configured for" >&2; \
	  exit 1; }
	@touch $@
