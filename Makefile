# Commands of the repository. `make help` lists them; everything that needs .venv makes it first: with what a user
# needs for demo and serve, with the developers' tools for the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help install install-user demo serve test smoke test-k8s test-clients wheel images publish-images chart tools \
  publish-chart check verify manifests scan e2e bench bench-gpu campaign format clean

BIN := .venv/bin
TEST_WORKERS ?= $(shell n=$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2); echo $$(( n < 8 ? n : 8 )))
FILE ?= examples/tiny.yaml
PORT ?= 8000
ROLES ?= operator gateway worker-cuda
BUILDER ?= docker
PYTHON ?= python3
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# One compute thread per process: tests and workers scale by processes.
export OMP_NUM_THREADS ?= 1

help: ## List the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

install: .venv/.installed-dev ## Make or update .venv for developers (TORCH=cpu|cuda, PYTHON=…, TORCH_INDEX=… override)

install-user: .venv/.installed ## The same without tests, Kubernetes and GPU kernels: what demo and serve make first

PINS := pyproject.toml constraints.txt scripts/install.sh scripts/install_torch.py

.venv/.installed: $(PINS)
	@scripts/install.sh local

.venv/.installed-dev: $(PINS)
	@scripts/install.sh dev

demo: install-user ## Serve the tiny model, ask it a question, show what moved, stop
	@$(BIN)/baton demo -f $(FILE)

serve: install-user ## Serve FILE (examples/tiny.yaml) on PORT (8000) until Ctrl-C
	@$(BIN)/baton up -f $(FILE) --port $(PORT)

test: install ## Run the tests (PYTEST_ARGS=… is passed on)
	$(BIN)/pytest -n $(TEST_WORKERS) $(PYTEST_ARGS)

# What breaks most often when something is changed, in under two minutes on two cores.
SMOKE := tests/test_layout.py tests/test_docstring_openings.py tests/test_public_names.py tests/docs tests/control/spec \
  tests/control/sizing/test_slo.py tests/wire/test_handshake.py tests/gateway/reporting tests/engine/scheduling \
  tests/kv_transfer/prefill tests/kv_transfer/decode tests/operator/passes/test_deployment_status.py \
  tests/local/test_command_line.py tests/local/test_status.py tests/local/test_supervision.py tests/local/test_demo.py

smoke: install ## Run the tests of the inner loop (under two minutes on two cores)
	$(BIN)/pytest -q -n $(TEST_WORKERS) $(SMOKE) $(PYTEST_ARGS)

test-k8s: install ## Test the custom resources on a real API server (skips, saying how, without its binaries)
	@timeout 120 e2e/fetch_etcd.sh || true
	$(BIN)/pytest -q -rs e2e --ignore=e2e/pods --ignore=e2e/clients $(PYTEST_ARGS)

test-clients: install ## Run openai, anthropic, litellm, LangChain, agent frameworks, lm-eval and others against Baton
	$(BIN)/python e2e/clients/environment.py
	$(BIN)/pytest -q -rs e2e/clients $(PYTEST_ARGS)

scan: install ## Scan everything that Baton renders with checkov (fetches it into an environment of its own)
	$(BIN)/python scripts/scan.py

e2e: install ## Test real Pods: on KUBECONFIG's cluster, on kind where Docker is, else on a cluster made here (root)
	e2e/pods/run.sh $(PYTEST_ARGS)

check: install ## Formatting, lint, types, import contracts, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory verify

verify: install ## Generated files are what their sources say
	$(BIN)/python scripts/freeze.py --check
	$(BIN)/python scripts/openapi.py --check
	$(BIN)/python scripts/dashboards.py --check
	$(BIN)/python -m baton_operator.schema.reference --check docs/api.md
	$(BIN)/python -m baton_operator.schema.crd --check crds
	$(BIN)/python -m baton_operator.schema.crd --check charts/baton/files/crds
	$(BIN)/python scripts/render.py --check
	$(BIN)/python -m bench combinations --check

# A build environment of its own: the developers' one has 2.8 GB, hatchling and its requirements have 2 MB.
.build-env/.installed: pyproject.toml
	$(PYTHON) -m venv .build-env
	.build-env/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling
	@touch $@

wheel: .build-env/.installed ## Build dist/baton_serving-….whl, as a user installs it (seconds; PYTHON=…)
	.build-env/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls -1 dist/baton_serving-$(VERSION)-*.whl

images: ## Build the images: BASE=…/python@sha256:… REGISTRY=HOST/PATH (ROLES="operator gateway worker-cuda", BUILDER=docker)
	@test -n "$(BASE)" -a -n "$(REGISTRY)" || { echo 'make images: BASE=…/python@sha256:… and REGISTRY=HOST/PATH are needed' >&2; exit 2; }
	@command -v $(BUILDER) >/dev/null || { echo "make images: there is no $(BUILDER); name another with BUILDER=…" >&2; exit 2; }
	for role in $(ROLES); do \
	  $(BUILDER) build -f images/Dockerfile --target $$role --build-arg BASE=$(BASE) \
	    --build-arg TORCH_INDEX=$(TORCH_INDEX) --build-arg TORCH_HASH="$(TORCH_HASH)" \
	    -t $(REGISTRY)/$$role:$(VERSION) . || exit 1; done

publish-images: images ## Build the images, push them to REGISTRY, and print their digests as Helm values
	for role in $(ROLES); do $(BUILDER) push --quiet $(REGISTRY)/$$role:$(VERSION) >/dev/null || exit 1; done
	@for role in $(ROLES); do \
	  digest=$$($(BUILDER) inspect --format '{{index .RepoDigests 0}}' $(REGISTRY)/$$role:$(VERSION)) || exit 1; \
	  echo "--set images.$${role%%-*}=$$digest"; done

chart: install ## Package the Helm chart into dist/ (needs Helm, or fetches it)
	$$($(BIN)/python scripts/find_helm.py) package charts/baton --destination dist

publish-chart: chart ## Push the chart to oci://REGISTRY (needs Helm, or fetches it)
	@test -n "$(REGISTRY)" || { echo 'make publish-chart: REGISTRY=HOST/PATH is needed' >&2; exit 2; }
	$$($(BIN)/python scripts/find_helm.py) push dist/baton-$(VERSION).tgz oci://$(REGISTRY)

tools: install ## Fetch what some tests skip without, into the cache: Helm, a Lua, Prometheus, schemas of other projects
	-$(BIN)/python scripts/find_helm.py
	-$(BIN)/python scripts/find_lua.py
	-$(BIN)/python scripts/find_prometheus.py
	-$(BIN)/python scripts/find_crd_schemas.py

manifests: install ## Write charts/manifests from the chart (needs Helm, or fetches it)
	$(BIN)/python scripts/render.py

bench: install ## Measure on this machine (BENCH_ARGS=--list names the benches, BENCH_ARGS="NAME …" runs one)
	$(BIN)/python -m bench $(BENCH_ARGS)

bench-gpu: install ## Measure the engine on this machine's GPU beside the targets (BENCH_ARGS=decode|prefill|timeline|kernels|models)
	BATON_COMMIT=$$(git rev-parse --short HEAD) $(BIN)/python -m bench gpu $(BENCH_ARGS)

campaign: install ## Run a campaign of tests: RUN="simulation --seeds 2000", faults, chaos, neighbours, hang_ups, …
	PYTHONPATH=tests:tests/support $(BIN)/python -m campaigns.$(RUN)

format: install ## Format, fix what can be fixed, write generated files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python scripts/openapi.py
	$(BIN)/python -m baton_operator.schema.reference docs/api.md
	$(BIN)/python -m baton_operator.schema.crd crds
	$(BIN)/python -m baton_operator.schema.crd charts/baton/files/crds

clean: ## Remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
