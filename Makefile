# Geryon. `make run` serves a chat model, `make test` proves it; `make help` lists the rest.
#
#   CONFIG=release (default) | debug | asan | tsan     objects live in build/$(CONFIG)/
#   CUDA=1                                             build/geryon gets the CUDA backend (make cuda)
#   WERROR=1                                           warnings are errors
#   V=1                                                prints the commands
#
# Compiling the kernels takes nvcc minutes, so `make` leaves them out unless CUDA=1 asks for them.

CONFIG ?= release
B := build/$(CONFIG)
ifeq ($(origin CC),default)
CC := $(if $(filter fuzz,$(CONFIG)),clang,gcc)
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
PKGS := libmicrohttpd gnutls libuv jansson libpcre2-8 libutf8proc

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wundef -Wstrict-prototypes -Wmissing-prototypes \
        -Wpointer-arith -Wwrite-strings -Wformat=2
SANITIZE := -O1 -DGERYON_SLOW_CHECKS -fno-omit-frame-pointer
CFLAGS_release := -O2 -D_FORTIFY_SOURCE=2
CFLAGS_debug := -O1 -DGERYON_SLOW_CHECKS
CFLAGS_asan := $(SANITIZE) -fsanitize=address,undefined -fno-sanitize-recover=undefined
CFLAGS_tsan := $(SANITIZE) -fsanitize=thread
CFLAGS_cuda := $(CFLAGS_release)
CFLAGS_fuzz := $(SANITIZE) -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
CFLAGS := -std=c11 -g $(CFLAGS_$(CONFIG)) -D_GNU_SOURCE $(WARN) $(if $(WERROR),-Werror) -fno-common \
          -fstack-protector-strong -ffp-contract=off -I. -MMD -MP \
          $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
VERSION := $(shell sed -n 's/^\#define GERYON_VERSION "\(.*\)"/\1/p' kernels/base.h)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDLIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread -ldl
Q := $(if $(V),,@)
SUBMAKE := $(MAKE) --no-print-directory

KERNELS := $(wildcard kernels/*.c kernels/cpu/*.c)
# The CUDA backend, or in a build without it the file that says so.
NO_CUDA := kernels/cuda/absent.c
CUDA_HOST := $(filter-out $(NO_CUDA),$(wildcard kernels/cuda/*.c))
CUDA_KERNELS := $(wildcard kernels/cuda/*.cu)
GPU_TESTS := $(wildcard tests/gpu/test_*.cpp)
ENGINE := $(wildcard engine/*.c engine/*/*.c)
PROTO := $(wildcard proto/*.c)
SERVER := $(wildcard server/*.c)
SCRIPTED := $(wildcard tests/scripted/*.c)
UNIT := $(wildcard tests/unit/test_*.c) $(wildcard tests/prop/prop_*.c)
FUZZ := $(wildcard tests/fuzz/fuzz_*.c)
obj = $(patsubst %.c,$(B)/%.o,$(1))

# The product's objects, without the loader's entry points, which the scripted model replaces.
LOADER := engine/load/model.c engine/load/inspect.c engine/load/synthetic.c
CORE := $(filter-out $(LOADER),$(KERNELS) $(ENGINE) $(PROTO))

# ---- the product --------------------------------------------------------------------------------

.PHONY: all
all: $(B)/geryon $(if $(filter release,$(CONFIG)),build/geryon) ## build/geryon (the default); CUDA=1 with the CUDA backend

# Not by age: with and without CUDA=1 another file is the newer one.
COPY = $(Q)cmp -s $< $@ || { mkdir -p $(@D) && cp -f $< $@.tmp && mv -f $@.tmp $@; }
.PHONY: always
build/geryon: $(if $(filter 1,$(CUDA)),build/cuda/geryon,build/release/geryon) always
	$(COPY)
build/geryon-scripted: build/release/geryon-scripted
	$(COPY)
ifneq ($(CONFIG),cuda)
build/cuda/geryon: always
	@$(SUBMAKE) CONFIG=cuda $@
endif

# -rdynamic: the program's own MHD_queue_response must be found by libmicrohttpd (server/http.c).
ifneq ($(CONFIG),cuda)
$(B)/geryon: $(call obj,$(CORE) $(LOADER) $(SERVER) $(NO_CUDA))
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LDLIBS)
endif
$(B)/geryon-scripted: $(call obj,$(CORE) $(SCRIPTED) $(SERVER) $(NO_CUDA))
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LDLIBS)

# Instruction sets are chosen at start, so only the files that hold them get their flags.
%_avx2.o: EXTRA := -mavx2 -mfma -mf16c
AVX512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
# gcc before 13 lays a 64-byte vector into ASan's fake stack at 32 bytes (gcc bug 110027): no fake
# stack in these files.
AVX512 += $(if $(filter asan,$(CONFIG)),$(if $(findstring gcc,$(CC)),--param asan-use-after-return=0))
%_avx512.o: EXTRA := $(AVX512)
%_avx512_vnni.o: EXTRA := $(AVX512) -mavx512vnni
%_amx.o: EXTRA := $(AVX512) -mavx512vnni -mavx512bf16

# What tells its commit is compiled again when there is a new one.
TELLERS := $(B)/server/main.o $(B)/server/routes.o $(B)/server/bench_report.o
$(TELLERS): EXTRA := -DGERYON_COMMIT='"$(COMMIT)"'
$(TELLERS): $(B)/commit
.PHONY: always
$(B)/commit: always
	@mkdir -p $(@D)
	@echo "$(COMMIT)" | cmp -s - $@ || echo "$(COMMIT)" > $@

$(B)/%.o: %.c Makefile | packages
	@mkdir -p $(@D)
	@echo "  CC   $<"
	$(Q)$(CC) $(CFLAGS) $(EXTRA) -c -o $@ $<

.PHONY: packages
packages:
	@pkg-config --exists $(PKGS) 2>/dev/null && command -v $(CC) >/dev/null || \
	    { echo "packages are missing: run tests/tools/deps.sh build"; exit 1; }

.PHONY: run
run: ## serve the default chat model on a fresh machine: MODEL=PATH PORT=N
	@tests/tools/deps.sh run
	@$(SUBMAKE) -j2 all
	@$(if $(MODEL),,models/get-smollm2.sh)
	@tests/tools/serve.sh "$(or $(MODEL),models/SmolLM2-135M-Instruct.Q4_1.gguf)" "$(or $(PORT),8080)"

PREFIX ?= /usr/local
.PHONY: install
install: all ## PREFIX=/usr/local DESTDIR=
	install -D -m 755 build/geryon $(DESTDIR)$(PREFIX)/bin/geryon
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/geryon README.md CHANGELOG.md LICENSE SECURITY.md

# ---- tests --------------------------------------------------------------------------------------

# C tests link the whole product but main.c. Property tests, the scripted model's own and the engine's
# link that model in place of the loader.
TESTLIB := $(B)/libgeryon-test.a
TESTLINK = $(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LDLIBS) -lcmocka
$(TESTLIB): $(call obj,$(CORE) $(filter-out server/main.c,$(SERVER)) tests/harness.c $(NO_CUDA))
	$(Q)rm -f $@ && ar rcs $@ $^
$(B)/tests/unit/test_%: $(B)/tests/unit/test_%.o $(call obj,$(LOADER)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)
$(B)/tests/unit/test_scripted $(B)/tests/unit/test_engine: $(B)/tests/unit/test_%: $(B)/tests/unit/test_%.o $(call obj,$(SCRIPTED)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)
$(B)/tests/prop/prop_invariance: $(B)/tests/prop/prop_invariance.o $(B)/tests/prop/watch.o $(call obj,$(LOADER)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)
$(B)/tests/prop/prop_%: $(B)/tests/prop/prop_%.o $(call obj,$(SCRIPTED)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)
# A fuzz target with the plain driver, which replays and bends its corpus; needs no clang.
$(B)/tests/fuzz/fuzz_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/driver.o $(call obj,$(LOADER)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)

# The GPU simulator: kernels (.cu) as C++ with one fibre a thread, and tests of its own. It is itself
# never compiled with a sanitizer: it switches stacks and touches what kernels must not.
# -fdata-sections: gpusim.ld gathers the kernels' shared arrays by their names.
GPUSIM := fibres warp memory runtime blas
GPUSIM_KERNELS := $(wildcard tests/gpusim/kernels/*.cu)
GPUSIM_TESTS := $(wildcard tests/gpusim/test_*.cpp)
GPUSIM_WARN := -Wall -Wextra -Wundef -Wpointer-arith -Wwrite-strings -Wformat=2 $(if $(WERROR),-Werror)
GPUSIM_FLAGS = -std=c++17 -g -D_GNU_SOURCE -DGERYON_GPUSIM $(GPUSIM_WARN) -ffp-contract=off -fdata-sections \
               -I. -Itests/gpusim -Itests/gpusim/include -MMD -MP
gpusim_obj = $(patsubst %,$(B)/%.o,$(1))
.SECONDARY: $(call gpusim_obj,$(GPUSIM_KERNELS) $(GPUSIM_TESTS))
$(patsubst %,$(B)/tests/gpusim/%.o,$(GPUSIM)): $(B)/%.o: %.cpp Makefile
	@mkdir -p $(@D)
	@echo "  CXX  $<"
	$(Q)$(CXX) $(GPUSIM_FLAGS) -O2 -c -o $@ $<
ifneq ($(CONFIG),cuda)
$(B)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "  CXX  $<"
	$(Q)$(CXX) -x c++ $(GPUSIM_FLAGS) $(CFLAGS_$(CONFIG)) -c -o $@ $<
$(B)/%.cpp.o: %.cpp Makefile
	@mkdir -p $(@D)
	@echo "  CXX  $<"
	$(Q)$(CXX) $(GPUSIM_FLAGS) $(CFLAGS_$(CONFIG)) -c -o $@ $<
endif
GPUSIM_LIB := $(B)/tests/gpusim/libgpusim.a
$(GPUSIM_LIB): $(patsubst %,$(B)/tests/gpusim/%.o,$(GPUSIM))
	$(Q)rm -f $@ && ar rcs $@ $^
$(B)/tests/gpusim/test_%: $(B)/tests/gpusim/test_%.cpp.o $(call gpusim_obj,$(GPUSIM_KERNELS)) $(call obj,tests/harness.c kernels/base.c) $(GPUSIM_LIB) tests/gpusim/gpusim.ld
	@echo "  LINK $@"
	$(Q)$(CXX) $(CFLAGS_$(CONFIG)) -o $@ $(filter %.o %.a,$^) -Wl,-T,tests/gpusim/gpusim.ld -lcmocka -lm -lpthread

# The CUDA backend on the simulator: its kernels (.cu) by the rules above, its host part as C. Tests of
# kernels (tests/gpu) run here, and on a device by make check-gpu.
ifneq ($(CONFIG),cuda)
$(call obj,$(CUDA_HOST)): EXTRA := -DGERYON_GPUSIM -Itests/gpusim/include
CUDA_SIM := $(B)/kernels/cuda/libcuda-sim.a
$(CUDA_SIM): $(call obj,$(CUDA_HOST)) $(call gpusim_obj,$(CUDA_KERNELS))
	$(Q)rm -f $@ && ar rcs $@ $^
SIMLINK = $(CXX) $(CFLAGS_$(CONFIG)) -rdynamic -o $@ $(filter %.o,$^) $(filter-out $(GPUSIM_LIB),$(filter %.a,$^)) \
          $(GPUSIM_LIB) -Wl,-T,tests/gpusim/gpusim.ld $(LDLIBS)
.SECONDARY: $(call gpusim_obj,$(CUDA_KERNELS) $(GPU_TESTS)) $(B)/tests/sim/cuda_peek.o
$(B)/tests/gpu/test_%: $(B)/tests/gpu/test_%.cpp.o $(call obj,$(KERNELS) tests/harness.c) $(CUDA_SIM) $(GPUSIM_LIB) tests/gpusim/gpusim.ld
	@echo "  LINK $@"
	$(Q)$(SIMLINK) -lcmocka
endif
$(B)/geryon-gpusim: $(call obj,$(CORE) $(LOADER) $(SERVER)) $(CUDA_SIM) $(GPUSIM_LIB) tests/gpusim/gpusim.ld
	@echo "  LINK $@"
	$(Q)$(SIMLINK)

# C tests that know the CUDA table (they ask tables_are_cuda) once more, with it in place of absent.c.
SIM_TESTS := $(patsubst %.c,$(B)/tests/sim/%,$(notdir $(shell grep -l tables_are_cuda $(UNIT))))
$(B)/tests/sim/%.o: EXTRA := -DGERYON_GPUSIM -Itests/gpusim/include
SIM_DEPS = $(B)/tests/sim/cuda_peek.o $(call obj,$(LOADER)) $(CUDA_SIM) $(TESTLIB) $(GPUSIM_LIB) tests/gpusim/gpusim.ld
$(B)/tests/sim/test_%: $(B)/tests/unit/test_%.o $(SIM_DEPS)
	@echo "  LINK $@"
	$(Q)$(SIMLINK) -lcmocka
$(B)/tests/sim/prop_%: $(B)/tests/prop/prop_%.o $(B)/tests/prop/watch.o $(SIM_DEPS)
	@echo "  LINK $@"
	$(Q)$(SIMLINK) -lcmocka

# The tile unit (AMX) in software, on processors with AVX-512: C tests that walk over the CPU tables once
# more, with the files that use it compiled for tests/amx/tiles.c. That is itself compiled without a
# sanitizer, for speed: it moves memory by memcpy, which sanitizers see all the same.
AMX_FILES := $(filter %_amx.c,$(KERNELS)) kernels/cpu/tables.c
AMX_OBJECTS := $(patsubst %.c,$(B)/amx/%.o,$(AMX_FILES)) $(B)/tests/amx/tiles.o
AMX_TESTS := $(patsubst %.c,$(B)/tests/amx/%,$(notdir $(shell grep -lE 'tables_find|kernels_amx' $(UNIT)))) \
             $(patsubst %.c,$(B)/%,$(wildcard tests/amx/test_*.c))
AMX_TRIALS := $(B)/tests/amx/trial_amx.o $(B)/amx/tests/amx/trial_amx.o
$(filter %_amx.o,$(AMX_OBJECTS) $(B)/amx/tests/amx/trial_amx.o): EXTRA := $(AVX512) -mavx512vnni -DGERYON_AMX_EMULATED -Itests/amx
$(B)/amx/kernels/cpu/tables.o: EXTRA := -DGERYON_AMX_EMULATED
$(B)/tests/amx/tiles.o: EXTRA := $(AVX512) -O2
$(B)/tests/amx/tiles.o: CFLAGS := $(filter-out -fsanitize% -fno-sanitize%,$(CFLAGS))
$(B)/amx/%.o: %.c Makefile | packages
	@mkdir -p $(@D)
	@echo "  CC   $< (tiles in software)"
	$(Q)$(CC) $(CFLAGS) $(EXTRA) -c -o $@ $<
$(B)/tests/amx/test_%: $(B)/tests/unit/test_%.o $(AMX_OBJECTS) $(call obj,$(LOADER)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)
$(B)/tests/amx/prop_%: $(B)/tests/prop/prop_%.o $(B)/tests/prop/watch.o $(AMX_OBJECTS) $(call obj,$(LOADER)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)
$(B)/tests/amx/test_table $(B)/tests/amx/test_golden: %: %.o $(AMX_OBJECTS) $(call obj,$(LOADER)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)
# The software beside the processor's own unit: without the tables of AMX_OBJECTS.
$(B)/tests/amx/test_tiles: $(B)/tests/amx/test_tiles.o $(AMX_TRIALS) $(B)/tests/amx/tiles.o $(call obj,$(LOADER)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(TESTLINK)

build/gpusim/geryon: build/release/geryon-gpusim
	$(COPY)

.PHONY: gpusim
gpusim: $(B)/geryon-gpusim $(if $(filter release,$(CONFIG)),build/gpusim/geryon) $(patsubst %.cpp,$(B)/%,$(GPUSIM_TESTS) $(GPU_TESTS)) $(SIM_TESTS) ## build/gpusim/geryon: the product, its CUDA backend on the GPU simulator

.PHONY: unit fuzz-replay
unit: $(patsubst %.c,$(B)/%,$(UNIT)) $(AMX_TESTS) ## build the C tests of CONFIG
fuzz-replay: $(patsubst %.c,$(B)/%,$(FUZZ))

build/venv/.ready: tests/requirements.txt
	@[ -x build/venv/bin/pip ] || python3 -m venv build/venv
	build/venv/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

.PHONY: test test-built
test: ## everything, on a fresh machine too; ends "N passed, N failed, N skipped"
	@tests/tools/deps.sh test
	@$(SUBMAKE) -j2 all build/venv/.ready
	@$(SUBMAKE) test-built
# What test does once the packages are there. CONFIG=asan runs all of it under the sanitizers.
test-built: build/venv/.ready
	@$(SUBMAKE) -j2 all $(B)/geryon-scripted unit gpusim $(B)/tests/bench/kernels
	@$(SUBMAKE) -j2 CONFIG=asan fuzz-replay gpusim
	@-models/get-smollm2.sh
	build/venv/bin/python tests/run.py --build $(B) --fuzz-build build/asan $(TESTFLAGS)

.PHONY: asan tsan lint format format-check fuzz check
# Not with TSan: the arithmetic of a real model and of benches takes hours, on the same threads.
tsan: ## the suite under ThreadSanitizer (build/tsan), but the tests of the real model and of bench
	@$(SUBMAKE) CONFIG=tsan TESTFLAGS="--slow 6 --skip test_smollm2 --skip test_bench $(TESTFLAGS)" test-built
asan: ## the whole suite under ASan and UBSan (build/asan)
	@$(SUBMAKE) CONFIG=asan TESTFLAGS="--slow 4 $(TESTFLAGS)" test-built

lint: ## include arrows between rooms, banned calls, open ends
	@python3 tests/tools/lint.py

FORMATTED := git ls-files '*.c' '*.h' '*.cpp' '*.cu'
format: ## clang-format all sources in place
	@$(FORMATTED) | xargs clang-format -i
format-check:
	@$(FORMATTED) | xargs clang-format --dry-run -Werror

# libFuzzer targets: build/fuzz/fuzz_NAME tests/fuzz/corpus/NAME
build/fuzz/fuzz_%: build/fuzz/tests/fuzz/fuzz_%.o $(call obj,$(LOADER)) $(TESTLIB)
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -fsanitize=fuzzer -rdynamic -o $@ $^ $(LDLIBS) -lcmocka
FUZZERS := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(FUZZ))
.PHONY: fuzzers
fuzzers: $(FUZZERS)
fuzz: ## build/fuzz/fuzz_PARSER for each parser of outside bytes (clang); FUZZ_SECONDS=N also runs them
	@command -v clang >/dev/null || tests/tools/deps.sh check
	@$(SUBMAKE) -j2 CONFIG=fuzz fuzzers
	@for target in $(if $(FUZZ_SECONDS),$(FUZZERS)); do name=$${target##*/fuzz_}; \
	    mkdir -p build/fuzz/corpus/$$name; \
	    $$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
	        -print_final_stats=0 -artifact_prefix=build/fuzz/$$name- build/fuzz/corpus/$$name \
	        tests/fuzz/corpus/$$name || exit 1; \
	done

check: ## test with -Werror, lint, format, the suite under ASan+UBSan and TSan, 30 s of fuzzing a parser, kernels by nvcc
	@tests/tools/deps.sh check
	@$(SUBMAKE) lint format-check
	@GERYON_SCENARIOS=2000 GERYON_LAWS=all $(SUBMAKE) WERROR=1 test
	@$(SUBMAKE) WERROR=1 asan
	@$(SUBMAKE) WERROR=1 tsan
	@$(SUBMAKE) fuzz FUZZ_SECONDS=30
	@$(if $(NVCC),$(SUBMAKE) -j2 WERROR=1 cuda cuda-resources,echo "make $@: no nvcc here, the kernels are not compiled by it")
	@python3 tests/gpu/check_gpu.py --simulate
	@echo "make check: later parts add the simulation, other clients and clusters; make test-deploy runs the image"

# ---- benchmarks ---------------------------------------------------------------------------------

.PHONY: bench bench-kernels llamacpp
llamacpp: ## build/llamacpp: the llama.cpp of PyPI's llama-cpp-python, for bench LLAMACPP_DIR=build/llamacpp; JOBS=N
	@tests/tools/deps.sh peer
	@JOBS="$(JOBS)" tests/bench/get-llamacpp.sh
bench: ## build/bench/: speed offline and over HTTP; LLAMACPP_DIR=PATH beside llama.cpp; MODEL=PATH BENCHFLAGS=..
	@tests/tools/deps.sh run
	@$(SUBMAKE) -j2 all
	@$(if $(MODEL),,models/get-smollm2.sh)
	@python3 tests/bench/bench.py --model "$(or $(MODEL),models/SmolLM2-135M-Instruct.Q4_1.gguf)" \
	    $(if $(LLAMACPP_DIR),--llamacpp "$(LLAMACPP_DIR)") $(BENCHFLAGS)

$(B)/tests/bench/kernels: $(call obj,$(wildcard tests/bench/*.c) $(KERNELS) $(NO_CUDA))
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -o $@ $^ -lm -lpthread
bench-kernels: $(B)/tests/bench/kernels ## microseconds of each CPU kernel, and its share of the limit: KERNELFLAGS="--groups gemm --rows 1,8"
	@$< $(KERNELFLAGS)

# ---- containers -----------------------------------------------------------------------------------

IMAGE ?= geryon:latest
BASE ?= docker.io/library/debian:bookworm-slim
.PHONY: image test-deploy
image: ## container image by docker, podman or buildah: IMAGE=geryon:latest BASE=debian:bookworm-slim BUILDER=
	@BUILDER="$(BUILDER)" IMAGE_FLAGS="$(IMAGE_FLAGS)" docker/build.sh "$(IMAGE)" "$(BASE)" "$(VERSION)" "$(COMMIT)"

test-deploy: ## the image for real, without Docker, and the server behind nginx (root, buildah, debootstrap)
	@tests/tools/deps.sh deploy
	@$(SUBMAKE) build/venv/.ready
	@models/get-smollm2.sh
	@tests/deploy/image.sh
	build/venv/bin/python tests/run.py --kind deploy --jobs 1 $(TESTFLAGS)

# ---- CUDA ---------------------------------------------------------------------------------------

# Needs the toolkit (nvcc, cuBLAS) and no GPU: `make cuda` is CONFIG=cuda, whose objects are in build/cuda.
# There %.cu and the tests of kernels (%.cpp) are compiled by nvcc, and the host's part sees its headers.
NVCC ?= $(firstword $(wildcard $(addsuffix /nvcc,$(subst :, ,$(PATH)) /usr/local/cuda/bin)))
GPU_ARCHS ?= 80 90 100
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
NVCC_FLAGS := -std=c++17 -O3 -lineinfo --Werror all-warnings -Xptxas -v -I. -D_GNU_SOURCE \
              $(foreach arch,$(GPU_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
              $(foreach arch,$(lastword $(GPU_ARCHS)),-gencode arch=compute_$(arch),code=compute_$(arch))
# What ptxas says of each kernel stays beside its object, for cuda-resources.
NVCC_COMPILE = $(Q)$(NVCC) $(NVCC_FLAGS) -MD -MP -MF $(@:.o=.d) -MT $@ -c -o $@ $(1) $< 2>$(@:.o=.ptxas) || \
               { cat $(@:.o=.ptxas) >&2; exit 1; }
# cudart is within; cuBLAS is found beside the binary (check-gpu's bundle) or where it was linked.
CUDALINK = $(Q)$(CXX) -rdynamic -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -L$(CUDA_HOME)/lib64 -lcublas \
           -lcudart_static -lrt -Wl,-rpath,'$$ORIGIN/lib:$$ORIGIN/../lib:$$ORIGIN/../../lib' -Wl,-rpath,$(CUDA_HOME)/lib64
CUDA_LIB := $(B)/kernels/cuda/libcuda.a
CUDA_TESTS := $(patsubst %.cpp,$(B)/%,$(GPU_TESTS) tests/gpusim/test_kernels.cpp)
ifeq ($(CONFIG),cuda)
$(B)/archs: always
	@mkdir -p $(@D) && echo "$(GPU_ARCHS)" | cmp -s - $@ || echo "$(GPU_ARCHS)" >$@
$(B)/%.cu.o: %.cu Makefile $(B)/archs
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	$(call NVCC_COMPILE,)
$(B)/%.cpp.o: %.cpp Makefile $(B)/archs
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	$(call NVCC_COMPILE,-x cu)
$(call obj,$(CUDA_HOST)): EXTRA := -isystem $(CUDA_HOME)/include
$(CUDA_LIB): $(call obj,$(CUDA_HOST)) $(call gpusim_obj,$(CUDA_KERNELS))
	$(Q)rm -f $@ && ar rcs $@ $^
$(B)/geryon: $(call obj,$(CORE) $(LOADER) $(SERVER)) $(CUDA_LIB)
	@echo "  LINK $@"
	$(CUDALINK)
$(B)/tests/gpu/test_%: $(B)/tests/gpu/test_%.cpp.o $(call obj,$(KERNELS) tests/harness.c) $(CUDA_LIB)
	@echo "  LINK $@"
	$(CUDALINK) -lcmocka
$(B)/tests/gpusim/test_kernels: $(call gpusim_obj,tests/gpusim/test_kernels.cpp $(GPUSIM_KERNELS)) $(call obj,tests/harness.c kernels/base.c)
	@echo "  LINK $@"
	$(CUDALINK) -lcmocka
# The simulator's runtime and cuBLAS against the toolkit's own headers: the signatures are the same.
$(B)/headers/%.o: tests/gpusim/%.cpp Makefile
	@mkdir -p $(@D)
	@echo "  CXX  $< (the toolkit's headers)"
	$(Q)$(CXX) -std=c++17 -D_GNU_SOURCE $(GPUSIM_WARN) -Werror -I. -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<
endif

.PHONY: cuda cuda-all cuda-resources cuda-bundle check-gpu
cuda-all: $(B)/geryon $(CUDA_TESTS) $(B)/headers/runtime.o $(B)/headers/blas.o
cuda: ## build/cuda/geryon and its tests, by nvcc (no GPU needed): GPU_ARCHS="80 90 100" NVCC=PATH
	@$(if $(NVCC),,echo "make $@: no nvcc in PATH or /usr/local/cuda/bin; NVCC=PATH names it"; exit 1)
	@$(SUBMAKE) CONFIG=cuda cuda-all
cuda-resources: cuda ## registers, shared memory and spills of each kernel and architecture; fails on spills not listed
	@python3 tests/tools/cuda_resources.py build/cuda $(RESOURCEFLAGS)
cuda-bundle: ## build/cuda-bundle/: what check-gpu needs on a machine without compiler and packages
	@$(SUBMAKE) cuda
	@python3 tests/gpu/check_gpu.py --bundle build/cuda-bundle
check-gpu: ## build for the GPU at hand, test and measure on it: CHECKGPUFLAGS="--dry-run" | --simulate | --binaries DIR
	@python3 tests/gpu/check_gpu.py $(CHECKGPUFLAGS)

# ---- what later parts bring ---------------------------------------------------------------------

.PHONY: sim test-clients
sim: WAITS := the deterministic simulation (build/geryon-sim)
test-clients: WAITS := the suite of other clients and load generators
sim test-clients:
	@echo "make $@: not in this version, waits for $(WAITS)" && exit 1

.PHONY: clean help
clean: ## remove build/
	rm -rf build
help: ## this list
	@echo "make TARGET [CONFIG=release|debug|asan|tsan] [CUDA=1] [WERROR=1] [V=1]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16
	@echo "  later parts:  sim test-clients"

-include $(shell find build \( -path build/deploy -o -path build/venv -o -path build/llamacpp \) -prune -o -name '*.d' -print 2>/dev/null)
