# Each target installs what it needs into venvs of its own: .venv for the project, build/venvs for engines.
# ARGS passes options on, e.g. make demo ARGS=--quick
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SGLANG ?= 0.5.18
ARGS ?=

FUZZ_SECONDS ?= 600
FAULT_SECONDS ?= 3600

.PHONY: help demo test check fmt unit engine e2e faults matrix stress release bench fuzz machines orders clean

help:
	@echo "make demo    the stock sglang pair without and with pd-sidecar: one table, build/demo.json"
	@echo "make test    lint, types, import contracts, all tests that need no engine pair"
	@echo "make e2e     the tests on real engine pairs, and the fault scenes on processes without an engine"
	@echo "make faults  random faults for FAULT_SECONDS=3600 with a fixed seed, and the fault scenes in their long form"
	@echo "make matrix  prefill and decode of different sglang versions, with the plugin and without: docs/matrix.md"
	@echo "make stress  30 minutes of mixed traffic and aborts on a TP 2 pair: nothing hangs, leaks or is wrong"
	@echo "make release wheel, sdist and SBOM into build/dist"
	@echo "make bench   figures into build/bench.json"
	@echo "make fuzz    coverage-guided fuzzing of every parser of outside bytes, FUZZ_SECONDS=600"
	@echo "make machines  the core against its naive model: 2,000 examples of 100 steps"
	@echo "make orders  10,000 random orders of handshake, refusal, abort and reuse of a room"
	@echo "make fmt     rewrite the sources as the formatter wants them"

$(VENV)/.stamp: pyproject.toml
	@echo "== installing the project's venv"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[service,otel,dev]'
	touch $@

demo: $(VENV)/.stamp
	$(BIN)/python -m tests.demo $(ARGS)

test: check unit engine

check: $(VENV)/.stamp
	@echo "== lint, types, import contracts"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: $(VENV)/.stamp
	@mkdir -p build
	@echo "== tests without an engine; those that mostly wait (shell, wheels) beside the others"
	$(BIN)/python -m pytest tests/shell tests/drift tests/matrix tests/deploy tests/monitoring tests/release tests/docs -p no:cacheprovider $(ARGS) > build/shell-tests.log 2>&1 & shell=$$!; \
	$(BIN)/coverage run -m pytest tests/core tests/wire tests/fuzz $(ARGS) && rest=0 || rest=1; \
	$(BIN)/python -m pytest tests/sglang_hooks tests/orders -p no:cacheprovider $(ARGS) || rest=1; \
	wait $$shell || rest=1; tail -n 40 build/shell-tests.log; exit $$rest
	$(BIN)/coverage report

engine: $(VENV)/.stamp
	@echo "== tests on sglang's own classes, inside the engine's venv"
	$(BIN)/python -m tests.engine $(SGLANG) $(ARGS)

e2e: $(VENV)/.stamp
	@echo "== tests on real engine pairs"
	$(BIN)/python -m pytest tests/e2e tests/faults --verbose --capture=no $(ARGS)

faults: $(VENV)/.stamp
	@echo "== faults without an engine: the scenes, then $(FAULT_SECONDS) seconds of random ones"
	PD_SIDECAR_LONG=1 $(BIN)/python -m pytest tests/faults --verbose --capture=no
	$(BIN)/python -m tests.faults --seconds $(FAULT_SECONDS) $(ARGS)

matrix: $(VENV)/.stamp
	@mkdir -p build
	$(BIN)/python -m tests.matrix $(ARGS)

stress: $(VENV)/.stamp
	$(BIN)/python -m tests.stress $(ARGS)

$(VENV)/.release: $(VENV)/.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[release]'
	touch $@

# Reproducible: the same commit and the same hatchling give the same bytes. The SBOM is of what the wheel with its extras
# resolves to here.
release: $(VENV)/.release
	@echo "== wheel, sdist and SBOM into build/dist"
	@git diff --quiet HEAD || echo "== the working tree is not what is committed: nothing to publish"
	mkdir -p build && rm -rf build/dist build/release-venv
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir build/dist . > build/release.log
	$(PYTHON) -m venv --without-pip build/release-venv
	wheel=$$(echo build/dist/*.whl) && $(BIN)/python -m pip --python build/release-venv/bin/python install --quiet --disable-pip-version-check "$$wheel[service,otel]"
	$(BIN)/python -m cyclonedx_py environment build/release-venv/bin/python --pyproject pyproject.toml --mc-type application \
	  --short-PURLs --output-reproducible --output-format JSON --output-file build/dist/pd-sidecar.cdx.json
	cd build/dist && sha256sum *.whl *.tar.gz *.json | tee SHA256SUMS

bench: $(VENV)/.stamp
	$(BIN)/python -m bench $(ARGS)

$(VENV)/.fuzz: $(VENV)/.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	touch $@

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

machines: $(VENV)/.stamp
	PD_SIDECAR_LONG=1 $(BIN)/python -m pytest tests/core/test_notifier_machine.py tests/core/test_bounded_machine.py --verbose --durations=0 $(ARGS)

orders: $(VENV)/.stamp
	PD_SIDECAR_LONG=1 $(BIN)/python -m pytest tests/orders --verbose --durations=0 $(ARGS)

clean:
	rm -rf build/demo.json build/bench.json build/logs
