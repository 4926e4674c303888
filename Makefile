# Everything a developer or CI does. `make` lists the targets. Each needs only what `make setup` makes.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
TINY := checkpoints/tiny
CANVAS := small
SOURCES := python_backends client build_engines tests model_repository .ci
SOAK_SECONDS ?= 1800
H3 := .venv/bin/h3
PROFILE ?= tiny
ACCEPT ?= out/accept
PYTEST := $(PY) -m pytest
# Tests that measure the time of answers get the cores for themselves; the others share them. The
# servers come first: their tests wait a lot, and the many small files fill the cores to the end.
SHARED := tests/server tests/gpu tests/unit tests/contract
JUNIT := out/junit-shared.xml out/junit-quiet.xml

.PHONY: help setup lock checkpoint demo eval accept test test-unit soak lint format render docs bench bench-gpu loadtest clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: ## create .venv with the locked packages (fast when nothing changed)
	@requirements/install.sh

lock: setup ## resolve all packages anew into requirements/lock.txt
	@requirements/lock.sh
	@requirements/install.sh

checkpoint: setup ## write the tiny random checkpoint (small canvas), unless this version's is there
	@made=$$( (cat build_engines/tiny_*.py; echo $(CANVAS)) | sha256sum); \
	[ "$$(cat $(TINY)/.made-by 2>/dev/null)" = "$$made" ] || { \
	  rm -rf $(TINY) $(TINY).part; \
	  $(PY) -m build_engines tiny $(TINY).part --canvas $(CANVAS) && echo "$$made" >$(TINY).part/.made-by \
	    && mv $(TINY).part $(TINY); }

demo: setup ## one clip from nothing: server, h3 generate, h3 check, server stopped
	@exec $(PY) -m h3_client.demo --checkpoint $(or $(CHECKPOINT),checkpoints/h3-tiny)

eval: setup ## judge a checkpoint on 100 fixed prompts; CHECKPOINT=dir POINTS=20 AGAINST="points=10"
	@exec $(H3) eval --checkpoint $(or $(CHECKPOINT),checkpoints/h3-tiny) --points $(or $(POINTS),20) \
	  $(if $(AGAINST),--against "$(AGAINST)") --output out/eval

accept: checkpoint ## all tasks with real files; ADDRESS=host:port PROFILE=released SET="seed=7" SERVE="--device cpu"
	@exec $(PY) -m h3_client.accept --checkpoint $(or $(CHECKPOINT),$(TINY)) --profile "$(PROFILE)" \
	  $(if $(CHECKPOINT),,--random-weights) $(if $(ADDRESS),--url "$(ADDRESS)") --set '$(SET)' --serve '$(SERVE)' --output "$(ACCEPT)" \
	  $(if $(MIN_PSNR),--min-keyframe-psnr "$(MIN_PSNR)")

test: setup ## all tests that this machine can run, with the reasons of skips counted
	@mkdir -p out; rm -f $(JUNIT); status=0; \
	$(PYTEST) $(SHARED) -m "not quiet" -n $$(( $$(nproc) + 1 )) --maxprocesses=8 --dist=loadfile \
	  --no-loadscope-reorder --junitxml=$(word 1,$(JUNIT)) || status=$$?; \
	$(PYTEST) tests/server -m quiet --junitxml=$(word 2,$(JUNIT)) || status=$$?; \
	$(PY) .ci/skips.py $(JUNIT); exit $$status

test-unit: setup ## unit tests only
	@$(PYTEST) tests/unit

soak: setup ## long mixed traffic; `make test` runs a minute of it
	@$(PYTEST) tests -m soak --soak-seconds=$(SOAK_SECONDS)

lint: setup ## ruff, mypy (each model.py in its own call) and the import layers
	@$(PY) -m ruff check $(SOURCES)
	@$(PY) -m ruff format --check $(SOURCES)
	@$(PY) -m mypy
	@for file in model_repository/*/1/model.py; do $(PY) -m mypy --no-error-summary "$$file"; done
	@.venv/bin/lint-imports

format: setup ## let ruff format and fix what it can
	@$(PY) -m ruff check --fix $(SOURCES)
	@$(PY) -m ruff format $(SOURCES)

render: setup ## write config.pbtxt of every model from core/contracts.py
	@$(PY) -m minimax_h3.triton_io.render model_repository

docs: setup ## write docs/requests.md from the tables of the request contract
	@$(PY) -m minimax_h3.core.request_page docs/requests.md

bench: setup ## benchmarks of tests/benchmarks on a tiny checkpoint of the released canvas, as JSON
	@rm -rf out/tiny; $(PY) -m build_engines tiny out/tiny
	@shopt -s nullglob; for file in tests/benchmarks/bench_*.py; do \
	  [[ $$file != *bench_load.py ]] || continue; \
	  module=$${file%.py}; $(PY) -m "$${module//\//.}" out/tiny; done

bench-gpu: setup ## time the DiT at the released size on a Hopper GPU, into out/bench (12 minutes)
	@$(H3) bench equality --model released_on_small_canvas --attention auto cudnn \
	  --row-ops fused fused_exact --json out/bench/equality.json
	@$(H3) bench operators --frames 124 192 362 --attention all \
	  --row-ops reference fused fused_exact --json out/bench/operators.json
	@$(H3) bench block --frames 124 192 362 --row-ops fused --profile \
	  --against diffusers compiled --json out/bench/block.json
	@$(H3) bench forward --frames 192 --row-ops fused --against diffusers compiled \
	  --json out/bench/forward.json
	@$(H3) bench session --frames 124 --row-ops fused --forwards 49 --json out/bench/session.json

loadtest: checkpoint ## perf_analyzer at 1, 2, 4, 8 at once, then ten times the capacity, as JSON
	@requirements/perf_analyzer.sh
	@mkdir -p out
	@$(PY) -m tests.benchmarks.bench_load $(TINY) --perf-analyzer .perf_analyzer/run --json out/load.json

clean: ## remove what the other targets made, except .venv
	rm -rf run out build dist $(TINY) $(TINY).part .venv-lock .perf_analyzer
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
