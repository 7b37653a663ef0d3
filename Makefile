# `make help` lists what there is.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GO_BUILD := go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'

# The tests find the probe here, and their PostgreSQL through withpg.
export CATALOGD_PROBE := $(CURDIR)/bin/catalogd-probe
GO_TEST := go run ./internal/testdb/withpg -- go test -json -count=1 -timeout=25m
REPORT := go run ./internal/testreport

# All that links GDAL; the rest builds and is tested without cgo.
PROBE := ./internal/writer/probe ./cmd/catalogd-probe
PURE = $(shell go list -f '{{if .GoFiles}}{{.ImportPath}}{{end}}' ./... | grep -vxE 'catalogd/(internal/writer/probe|cmd/catalogd-probe)')
# Packages whose tests ask for a database.
DB = $(shell go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | awk '/catalogd\/internal\/testdb/ {print $$1}')
# Packages whose tests ask for an S3 gateway.
S3 = $(shell go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | awk '/catalogd\/internal\/s3gateway/ {print $$1}')
# Packages where things happen at once and are shared. Minutes more, and as well now and
# then: make test-race RACE='./internal/httpapi ./internal/writer ./internal/storage/s3'
RACE = $(shell go list ./... | grep -E '^catalogd/internal/(batch|jobs|postgres|reconcile|storage|upsert)(/|$$)' | grep -vx 'catalogd/internal/storage/s3')

GOLANGCI_VERSION := v2.15.0
GOLANGCI := .cache/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint

DATA ?= .data
STORE ?=
ARGS ?=

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: deps build ## the main job on real rasters, with a worker, the server and PostgreSQL killed in the middle: start here; STORE=s3 on an S3 gateway of its own
	$(if $(filter s3,$(STORE)),go run ./internal/s3gateway/withs3 $(if $(filter --keep,$(ARGS)),-keep) -- bin/catalogd demo --store {store},bin/catalogd demo $(if $(STORE),--store '$(STORE)')) $(ARGS)

.PHONY: run
run: deps build ## a server on 127.0.0.1:8080 with everything of its own under DATA=.data
	bin/catalogd serve --dev --data $(DATA) $(ARGS)

.PHONY: test
test: deps build vet test-all test-race ## every test, none skipped, and again with the race detector where things happen at once

.PHONY: test-all
test-all: build
	$(GO_TEST) ./... | $(REPORT)

.PHONY: test-pure
test-pure: ## without cgo, GDAL or a database
	CGO_ENABLED=0 go build -trimpath $(PURE)
	CGO_ENABLED=0 go test -json -count=1 -timeout=25m $(filter-out $(DB),$(PURE)) | $(REPORT)

.PHONY: test-db
test-db: build ## what needs PostgreSQL
	$(GO_TEST) $(DB) | $(REPORT)

.PHONY: test-s3
test-s3: build ## what needs an S3 gateway
	$(GO_TEST) $(S3) | $(REPORT)

.PHONY: test-python
test-python: build ## the Python client: against servers on a directory and on S3, with rasterio
	$(GO_TEST) ./clients/python | $(REPORT)

.PHONY: test-probe
test-probe: ## what needs GDAL
	go test -json -count=1 -timeout=25m $(PROBE) | $(REPORT)

.PHONY: test-kills
test-kills: ## N=100 kills of each of GDAL's writers, at random moments (SEED=2026): what they leave is never taken unless it is whole; half an hour
	CATALOGD_TEST_KILLS=$(or $(N),100) CATALOGD_TEST_SEED=$(SEED) go test -count=1 -timeout=3h -v -run TestKilledWriters ./internal/writer/probe

.PHONY: test-hostile
test-hostile: build ## N=1000 hostile files of SEED=1 through the pool, and what became of them
	CATALOGD_HOSTILE=$(or $(N),1000) CATALOGD_HOSTILE_SEED=$(or $(SEED),1) go test -v -count=1 -timeout=4h -run '^TestHostile$$' ./internal/writer

TIME ?= 30s

.PHONY: test-soak
test-soak: build ## N=100000 registrations, with all that can happen to them, while reconciliation runs in a loop: no false finding, and all true ones
	CATALOGD_SOAK=$(or $(N),100000) go run ./internal/testdb/withpg -- go test -count=1 -timeout=6h -v -run '^TestNoFalseFindings$$' ./internal/reconcile | grep -v level=

.PHONY: fuzz
fuzz: ## every fuzz target for TIME=30s; what it finds stays as a seed under testdata/fuzz
	@git grep -E '^func Fuzz' -- '*_test.go' | sed -nE 's|^(.*)/[^/]*:func (Fuzz[A-Za-z0-9]*).*|\1 \2|p' | while read -r package target; do \
	  echo "=== $$package $$target"; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime=$(TIME) "./$$package"; done

.PHONY: test-crash
test-crash: build ## the server killed at every step, and attempts interleaved in every order that matters
	$(GO_TEST) -run '(?i)crash|sigkill|interleav' $(DB) ./internal/pgcluster | $(REPORT)

.PHONY: test-race
test-race: build ## concurrency, under the race detector; what runs on both stores, on the disk
	$(GO_TEST) -race -skip '/^s3$$' $(RACE) | $(REPORT)

.PHONY: bench
bench: build ## benchmarks that match BENCH=., each against the same done by hand in the same run; a quarter of an hour
	go run ./internal/testdb/withpg -- go test -run '^$$' -bench '$(or $(BENCH),.)' -benchmem -timeout=2h $(ARGS) ./...

.PHONY: vet
vet: ## what every commit must pass: gofmt, go vet, shellcheck where it is installed, the cgo rule
	@files=$$(git ls-files -co --exclude-standard '*.go' | xargs -r ls 2>/dev/null | xargs -r gofmt -l); test -z "$$files" || { echo "gofmt -w" $$files; exit 1; }
	go vet ./...
	@if command -v shellcheck >/dev/null; then shellcheck scripts/*.sh .ci/run; fi
	CGO_ENABLED=0 go build -trimpath $(PURE)

.PHONY: lint
lint: $(GOLANGCI) ## golangci-lint, and with it who may import whom; takes minutes the first time
	$(GOLANGCI) run

$(GOLANGCI):
	GOBIN=$(abspath $(@D)) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

.PHONY: generate
generate: ## code from api/openapi.yaml
	go generate ./...

.PHONY: verify
verify: generate ## generate again: fails if that changes anything
	git diff --exit-code

.PHONY: build
build: ## bin/catalogd (static) and bin/catalogd-probe (GDAL)
	CGO_ENABLED=0 $(GO_BUILD) -o bin/catalogd ./cmd/catalogd
	CGO_ENABLED=1 $(GO_BUILD) -o bin/catalogd-probe ./cmd/catalogd-probe

.PHONY: deps
deps: ## install what is missing, through apt
	@scripts/deps.sh

.PHONY: clean
clean: ## remove what was built; not DATA
	rm -rf bin .cache
