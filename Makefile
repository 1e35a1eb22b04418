# Bare `make` lists what there is to run. The texts are the ## comments.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := /usr/local/go/bin:$(PATH)

IMAGE   ?= micro
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
PACKAGE := github.com/outcrop-cloud/outcrop
LDFLAGS := -s -w -X $(PACKAGE)/internal/cli.version=$(VERSION)

.PHONY: help
help: ## print this list
	@echo "Outcrop turns your own machines into a private compute cloud. Targets:"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "demo, test and deps install Debian packages that are missing, as root."

.PHONY: build
build: ## build bin/outcrop and bin/outcrop-guest, static programs
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: demo
demo: ## the whole way on a real VM; IMAGE=debian does it with cloud-init
	@scripts/demo.sh $(IMAGE)

.PHONY: test
test: ## the whole suite, with real VMs and PostgreSQL where root allows them
	@scripts/test.sh

.PHONY: check
check: ## gofmt, vet, staticcheck, import rules, tests with the race detector
	@scripts/check.sh

.PHONY: contract
contract: ## list the contract's rows that no test names
	@scripts/contract.sh

.PHONY: bench
bench: ## measure; one JSON line per benchmark
	@go run ./test/bench

.PHONY: deps
deps: ## install the Debian packages that all of the above need
	@scripts/deps.sh test
