# A thin front for CMake: every target is one or two lines that you could type yourself.
#   make demo     installs what is missing, builds, explains a sentence
#   make test     installs what is missing, builds, runs the tests
# CMAKE_ARGS=-DATTN_WERROR=ON and the like go to the configure step.

JOBS := $(shell nproc 2>/dev/null || echo 1)
SENTENCE := Life is short, eat dessert last
PREFIX ?= /usr/local

.DEFAULT_GOAL := help
.PHONY: help deps build quiet-build debug demo demo-model lessons test quick lint test-peers install format asan tsan recipes fuzz profile bisect-speed bench bench-peers bench-weak bench-growth bench-scaling pictures trained-heads clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

deps: ## install the packages that building needs
	tools/install-deps.sh build

build: ## build/: libattn.so, libattn.a, attn
	cmake --preset release -DATTN_BUILD_TESTS=OFF $(CMAKE_ARGS)
	cmake --build --preset release -j $(JOBS)

debug: ## build-debug/: for a debugger; warnings are errors
	cmake --preset debug $(CMAKE_ARGS)
	cmake --build --preset debug -j $(JOBS)

# `build` with its output in build/log, for targets whose own output is what a reader wants.
quiet-build: deps
	@echo "building (about a minute)..."; mkdir -p build
	@$(MAKE) --no-print-directory build >build/log 2>&1 || { cat build/log; exit 1; }
	@sed -n '/^attn: /p' build/log

demo: quiet-build ## attn explain, on a sentence
	build/attn explain "$(SENTENCE)"

lessons: build ## the lessons' programs in plain C: examples/lessons/*.c
	tools/lessons.sh build

demo-model: quiet-build ## the attention of a small trained model, which pip installs (83 MB)
	@tools/demo-model.sh

test: ## every test that needs only Debian packages
	tools/install-deps.sh test
	cmake --preset release -DATTN_BUILD_TESTS=ON $(CMAKE_ARGS)
	cmake --build --preset release -j $(JOBS)
	ctest --preset release -j $(JOBS)

quick: ## the fast tests: less than a minute on two cores
	tools/install-deps.sh test
	cmake --preset release -DATTN_BUILD_TESTS=ON $(CMAKE_ARGS)
	cmake --build --preset release -j $(JOBS)
	ctest --preset release -L quick -j $(JOBS)

lint: ## formatting, sizes, layers, comments, replaced names, promises, shell scripts
	tools/install-deps.sh ci
	tools/check-format.sh
	tools/check-sizes.sh
	tools/check-deps.sh
	tools/check-comments.sh
	tools/check-names.sh
	tools/check-promises.sh
	git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck

test-peers: build ## what needs PyPI: PyTorch, transformers, ONNX and others beside it
	tools/install-deps.sh bench
	tests/peers/run.py

asan tsan: ## the tests of `make test` under sanitizers (make asan, make tsan)
	tools/install-deps.sh test
	cmake --preset $@ $(CMAKE_ARGS)
	cmake --build --preset $@ -j $(JOBS)
	ctest --preset $@ -j $(JOBS)

recipes: ## the recipes of docs/ADDING.md, each followed in a copy of the tree
	tools/install-deps.sh test
	@JOBS=$(JOBS) tools/recipes.sh

fuzz: ## one fuzz target for a while: make fuzz T=npy SECONDS=60 (without T: the list)
	@JOBS=$(JOBS) tools/fuzz.sh "$(T)" "$(SECONDS)"

profile: ## the functions in which a case spends its time: make profile CASE=decode:bf16
	@JOBS=$(JOBS) tools/profile.sh "$(CASE)" "$(SECONDS)"

bisect-speed: ## the commit that made a case slower: make bisect-speed CASE=decode GOOD=commit
	@JOBS=$(JOBS) tools/bisect-speed.sh "$(CASE)" "$(GOOD)" "$(BAD)"

install: build ## into PREFIX (/usr/local), below DESTDIR
	cmake --install build --prefix $(PREFIX)

bench: build ## how fast this machine is, beside what it could do
	build/attn bench

bench-peers: build ## beside PyTorch, ONNX Runtime and OpenVINO; rewrites docs/BENCHMARKS.md
	tools/install-deps.sh bench
	bench/peers.py --markdown docs/BENCHMARKS.md

bench-weak: build ## cells in which 0.1 was slower than others, and cliffs: losing ones first
	tools/install-deps.sh bench
	bench/weak.py --markdown docs/BENCHMARKS.md

bench-growth: build ## time over one size, in steps of 1: docs/growth.svg
	tools/install-deps.sh bench
	bench/growth.py --dtype f32 --svg docs/growth.svg

bench-scaling: build ## 1 to 16 threads: a simulation from the times of tasks
	build/bench-scaling

pictures: build ## docs/heatmap.png, docs/speed.svg, docs/scale.svg and, with chromium, docs/page.png, docs/story.png
	bench/chart.py docs/BENCHMARKS.md docs/speed.svg
	bench/ranks.py --svg docs/scale.svg
	build/attn explain "$(SENTENCE)" -o docs/heatmap.png >/dev/null
	build/attn explain --causal --scale 0.02 --query eat "$(SENTENCE)" -o build/page.html >/dev/null
	/usr/bin/python3 tools/page-pictures.py build/page.html docs

trained-heads: build ## trains the heads that attn explain ends with (a minute or two; needs NumPy)
	tools/trained-heads.py

format: ## format every C file
	tools/check-format.sh --fix

clean: ## remove what was built
	rm -rf build build-*
