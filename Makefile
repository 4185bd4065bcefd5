# Thin front door; everything real is in CMake and scripts/.
#
#   make demo     train a small MoE language model under muster, break it, watch it recover (~2 min)
#   make test     the whole test suite, sanitizers and browser included
#   make bench    one "claim NAME VALUE ± HALF" or "claim NAME noisy" line per claim
#   make build    release build in build/release
#   make docs     API pages of the public headers in build/docs/api
#   make format   clang-format the tree          make lint   clang-tidy, treated as errors
#   make mutate   change sources and see whether tests notice, ARGS="--module optimizer --count 50"
#   make coverage line coverage by module, from the unit tests
#   make fuzz     libFuzzer over the decoders with clang, SECONDS=60 for each
#   make clean    remove build/
#
# Options: make demo ARGS="--keep --data FILE"    make test TESTS=<ctest regex>
.PHONY: help build demo test sanitize bench coverage mutate fuzz docs format lint clean

RELEASE := build/release
# Tests wait for each other more than they compute.
JOBS ?= $(shell expr $$(nproc) + 1)

help:
	@sed -n '2,16s/^# \{0,1\}//p' Makefile

build:
	@scripts/setup.sh build
	@scripts/build.sh release

demo:
	@scripts/setup.sh build
	@scripts/build.sh release muster moe_lm
	@$(RELEASE)/bin/muster demo $(ARGS)

test:
	@scripts/setup.sh test
	@scripts/build.sh release all all_verify_interface_header_sets
	@$(if $(TESTS),true,scripts/gates.sh $(RELEASE))
	@ctest --test-dir $(RELEASE) --output-on-failure -j $(JOBS) $(if $(TESTS),-R '$(TESTS)')
	@$(if $(TESTS),true,$(MAKE) --no-print-directory sanitize)

sanitize:
	@scripts/sanitize.sh

bench:
	@scripts/setup.sh bench
	@scripts/build.sh release benchmarks
	@scripts/bench.sh $(RELEASE)

docs:
	@scripts/setup.sh docs
	@scripts/docs.sh

format:
	@scripts/setup.sh lint
	@scripts/format.sh

coverage:
	@scripts/setup.sh test
	@scripts/build.sh coverage
	@ctest --test-dir build/coverage -L unit -j $(JOBS) --output-on-failure
	@scripts/coverage.py build/coverage

mutate:
	@scripts/setup.sh test
	@scripts/build.sh release
	@scripts/mutate.py $(ARGS)

fuzz:
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh $(or $(SECONDS),60)

lint:
	@scripts/setup.sh lint
	@scripts/build.sh release
	@scripts/lint.sh $(RELEASE)

clean:
	@rm -rf build
