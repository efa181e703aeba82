# loqal: `make help` lists the targets. One Makefile, no configure step: what is on the machine is
# found by compiling and linking a three-line program, and `make` says what it found.

CXX      ?= g++
PYTHON   ?= /usr/bin/python3
MODE     ?= release
JOBS     ?= $(shell nproc)
BUILD    := build/$(MODE)
MAKEFLAGS += --no-builtin-rules

# g++ 12's -Wrestrict and -Wmaybe-uninitialized report std::string and nlohmann-json themselves (GCC bug 105651).
WARNINGS := -Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-restrict -Wno-maybe-uninitialized
ifneq ($(findstring clang,$(CXX))$(filter cuda-tsan,$(MODE)),)
  WARNINGS += -Wno-unknown-warning-option
endif
# Never -ffast-math: NaN checks, resume and parity depend on IEEE arithmetic (design.md, Precision).
CXXFLAGS := -std=c++20 $(WARNINGS) -I. -march=native -fno-strict-aliasing -fno-math-errno -pthread
LDLIBS   := -lz -lpcre2-8 -pthread
GTEST    := -lgtest -lgtest_main
# DEPS=build/deps, made by `make bundle` on another machine: for one without these packages.
ifdef DEPS
  CXXFLAGS += -isystem $(DEPS)/include
  LDLIBS   := -L$(DEPS)/lib $(LDLIBS)
  GTEST    := build/$(MODE)/gtest-all.o build/$(MODE)/gtest_main.o
endif

ifeq ($(MODE),release)
  CXXFLAGS += -O3 -g1
else ifeq ($(MODE),asan)
  CXXFLAGS += -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
  # The rest compiles in half the time without, and waits for the ops: -O1 is five times slower than -O2.
  OPS_FLAGS := -O2
else ifeq ($(MODE),tsan)
  CXXFLAGS += -O1 -g1 -fsanitize=thread
  WITH_DNNL := 0
else ifeq ($(MODE),cuda-tsan)  # kernels under TSan; g++ 12 would report races in its own guards
  CXX := clang++
  CXXFLAGS += -O1 -g1 -fsanitize=thread -DLOQAL_EMULATION_TSAN
  WITH_DNNL := 0
else ifeq ($(MODE),builtin)
  CXXFLAGS += -O3
  WITH_DNNL := 0
else
  $(error MODE=$(MODE): choose release, asan, tsan, cuda-tsan or builtin)
endif

# ---- optional libraries: found if a program that uses them compiles and links -----------------
HASH := \#
comma := ,
probe = $(shell printf '$(HASH)include <$(1)>\nint main(){return 0;}\n' | \
          $(CXX) -std=c++20 -x c++ - -o /dev/null $(2) 2>/dev/null && echo 1 || echo 0)
ifneq ($(filter-out help clean quickstart bundle gpu-check test test-long sanitize bench bench-data bench-local-sgd bench-loqt format,$(or $(MAKECMDGOALS),all)),)
  ifndef WITH_DNNL
    WITH_DNNL := $(call probe,dnnl.hpp,-ldnnl -fopenmp)
  endif
  ifndef WITH_SENTENCEPIECE
    WITH_SENTENCEPIECE := $(call probe,sentencepiece_trainer.h,-lsentencepiece -lsentencepiece_train)
  endif
endif
CXXFLAGS += -DLOQAL_DNNL=$(WITH_DNNL) -DLOQAL_SENTENCEPIECE=$(WITH_SENTENCEPIECE)
ifeq ($(WITH_DNNL),1)
  LDLIBS += -ldnnl -fopenmp
endif
ifeq ($(WITH_SENTENCEPIECE),1)
  LDLIBS += -lsentencepiece -lsentencepiece_train
endif

# ---- CUDA: nvcc for the GPU; its headers are enough for the tests, which run kernels on the CPU -----
# CUDA_ARCH: 90, "80 90", all; default: the GPU in this machine, or else 80. PTX of the last one is
# added, so that newer GPUs run it as well. Sanitizer builds leave the GPU out.
CUDA_HOME    ?= $(or $(patsubst %/bin/nvcc,%,$(realpath $(or $(NVCC),$(shell command -v nvcc)))),/usr/local/cuda)
CUDA_HEADERS := $(if $(wildcard $(CUDA_HOME)/include/cublasLt.h),1,0)
ifndef NVCC
  NVCC := $(if $(filter release,$(MODE)),$(or $(shell command -v nvcc),$(wildcard $(CUDA_HOME)/bin/nvcc)))
endif
ifneq ($(NVCC),)
  ifndef CUDA_ARCH
    CUDA_ARCH := $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .),80)
  endif
  ARCHS     := $(if $(filter all,$(CUDA_ARCH)),80 86 89 90 100 120,$(CUDA_ARCH))
  NVCCFLAGS := -std=c++20 -O3 -I. -Werror all-warnings \
    -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-fno-strict-aliasing,-fno-math-errno \
    $(foreach a,$(ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
    -gencode arch=compute_$(lastword $(ARCHS)),code=compute_$(lastword $(ARCHS))
  CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
endif

# ---- what is built -----------------------------------------------------------------------------
LIB_SRC  := $(filter-out %_main.cc,$(wildcard core/*.cc ops/*.cc ops/cpu/*.cc data/*.cc quant/*.cc optim/*.cc \
              model/*.cc async/*.cc))
TEST_SRC := $(filter-out test/cuda_emulation/%,$(wildcard test/*/*_test.cc))
ifeq ($(MODE),tsan)  # what starts threads, one step of each model, Local-SGD
  LIB_SRC  := $(filter-out $(addprefix async/,commands.cc dry_schedule.cc plain_training.cc run_lock.cc training_run.cc),$(LIB_SRC))
  TEST_SRC := test/core/threads_test.cc test/core/in_order_test.cc $(wildcard test/ops/*_test.cc) test/model/parity_test.cc \
    $(addprefix test/async/,engine_test.cc toy_test.cc coverage_test.cc local_sgd_work_test.cc)
endif
ifeq ($(MODE),cuda-tsan)
  LIB_SRC  := $(filter core/% ops/%,$(LIB_SRC))
  TEST_SRC := $(wildcard test/ops/*_test.cc)
endif
LIB_OBJ  := $(filter-out %/no_cuda.o,$(LIB_SRC:%.cc=$(BUILD)/%.o))
CUDA_OBJ := $(if $(NVCC),$(patsubst %.cu,$(BUILD)/%.o,$(wildcard ops/cuda/*.cu)),$(BUILD)/ops/no_cuda.o)
TEST_OBJ := $(TEST_SRC:%.cc=$(BUILD)/%.o)
DEP_FILES := $(LIB_OBJ:.o=.d) $(CUDA_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(BUILD)/train.d $(BUILD)/data/tokenize_main.d $(wildcard $(BUILD)/test/bench/*.d)
# The release programs stand where the user types them; other modes keep theirs in their folder.
BIN      := $(if $(filter release,$(MODE)),.,$(BUILD))

.PHONY: FORCE all test-programs test test-long quickstart bundle gpu-check bench bench-data bench-local-sgd bench-loqt lint format sanitize clean help summary
.DELETE_ON_ERROR:

all: $(BIN)/train $(BIN)/tokenize summary  ## build ./train and ./tokenize

$(BIN)/train: $(BUILD)/train.o $(LIB_OBJ) $(CUDA_OBJ)
	$(CXX) $(CXXFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)

$(BIN)/tokenize: $(BUILD)/data/tokenize_main.o $(LIB_OBJ) $(BUILD)/ops/no_cuda.o
	$(CXX) $(CXXFLAGS) $^ -o $@ $(LDLIBS)

$(BUILD)/run_tests: $(TEST_OBJ) $(LIB_OBJ) $(CUDA_OBJ) $(filter %.o,$(GTEST))
	$(CXX) $(CXXFLAGS) $(filter-out %/gtest-all.o %/gtest_main.o,$^) -o $@ $(GTEST) $(LDLIBS) $(CUDA_LIBS)

# The op suite, that of quant/, and what is in test/cuda_emulation/, over the kernels of ops/cuda/ on the CPU.
# sort.cu (CUB) and cublaslt.cu (the library) have other definitions there.
EMULATED_SRC := $(filter-out ops/cuda/sort.cu ops/cuda/cublaslt.cu,$(wildcard ops/cuda/*.cu)) $(wildcard test/cuda_emulation/*.cc)
ifeq ($(MODE),cuda-tsan)
  EMULATED_SRC := $(filter-out %/training_test.cc,$(EMULATED_SRC))
endif
EMULATED_OBJ := $(patsubst %,$(BUILD)/emulated/%.o,$(basename $(EMULATED_SRC)))
SUITE_OBJ    := $(filter $(BUILD)/test/ops/% $(BUILD)/test/quant/%,$(filter-out %/present_ops_test.o,$(TEST_OBJ)))
DEP_FILES    += $(EMULATED_OBJ:.o=.d)
EMULATED_LIB := $(filter-out %_test.o %/present_ops.o,$(EMULATED_OBJ)) $(LIB_OBJ)
$(BUILD)/run_cuda_tests: $(EMULATED_OBJ) $(SUITE_OBJ) $(EMULATED_LIB) $(filter %.o,$(GTEST))
	$(CXX) $(CXXFLAGS) $(sort $(filter-out %/gtest-all.o %/gtest_main.o,$^)) -o $@ $(GTEST) $(LDLIBS)
$(BUILD)/gtest%.o: $(DEPS)/googletest/src/gtest%.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -pthread -isystem $(DEPS)/include -I$(DEPS)/googletest -c $< -o $@
$(BUILD)/emulated/train: $(BUILD)/train.o $(EMULATED_LIB)
	$(CXX) $(CXXFLAGS) $^ -o $@ $(LDLIBS)

# -O2: -O3 takes twice as long to compile and is no faster here.
EMULATION := $(if $(filter release,$(MODE)),-O2,-O1) -isystem $(CUDA_HOME)/include -include test/cuda_emulation/cuda_emulation.h
$(BUILD)/emulated/%.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $(EMULATION) $(FLAGS_$(basename $(notdir $<)).cc) -MMD -MP -x c++ -c $< -o $@
$(BUILD)/emulated/%.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $(EMULATION) $(if $(filter %_test.cc,$<),,$(RUNTIME_FLAGS)) -MMD -MP -c $< -o $@
# TSan is told what the emulated threads do; what the emulation does to run them is not its business.
RUNTIME_FLAGS := $(if $(filter cuda-tsan,$(MODE)),-fno-sanitize=thread)

$(BUILD)/%_bench: $(BUILD)/test/bench/%_bench.o $(LIB_OBJ) $(CUDA_OBJ)
	$(CXX) $(CXXFLAGS) $^ -o $@ $(LDLIBS) $(CUDA_LIBS)

# Rewritten only when the flags change, a newly installed library among them: then all is compiled again.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(CXXFLAGS) $(LDLIBS) $(TEST_FLAGS) $(OPS_FLAGS)' | cmp -s - $@ || \
	  echo '$(CXX) $(CXXFLAGS) $(LDLIBS) $(TEST_FLAGS) $(OPS_FLAGS)' > $@

$(BUILD)/%.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $(FLAGS_$(notdir $<)) $(if $(filter test/%,$<),$(TEST_FLAGS)) \
	  $(if $(filter ops/%,$<),$(OPS_FLAGS)) -MMD -MP -c $< -o $@

$(BUILD)/nvcc_flags: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCCFLAGS)' | cmp -s - $@ || echo '$(NVCC) $(NVCCFLAGS)' > $@
$(BUILD)/ops/cuda/%.o: ops/cuda/%.cu $(BUILD)/nvcc_flags
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) $(FLAGS_$(notdir $<)) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# It holds no kernels and is plain C++.
$(BUILD)/train.o: train.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -MMD -MP -x c++ -c $< -o $@

# Tests compile in half the time without the optimizer's long passes, and are as fast.
TEST_FLAGS := $(if $(filter release,$(MODE)),-O1)
# For omp_set_num_threads alone: oneDNN must not start threads of its own.
FLAGS_gemm_dnnl.cc := -fopenmp
# g++ 12's own AVX-512 header, below Eigen, at -O1 (GCC bug 105593).
FLAGS_subspace.cc := -Wno-uninitialized
# Quantizers give the same bytes on all devices (ops/block_codec.h).
NO_FMA := quantize optimizer8 moments block_codec
$(foreach f,$(NO_FMA),$(eval FLAGS_$(f).cc := -ffp-contract=off))
$(foreach f,$(NO_FMA),$(eval FLAGS_$(f).cu := $(if $(NVCC),--fmad=false)))

EMULATED := $(if $(filter 1,$(CUDA_HEADERS)),$(BUILD)/run_cuda_tests $(if $(filter release,$(MODE)),$(BUILD)/emulated/train))
test-programs: $(BIN)/train $(BIN)/tokenize $(BUILD)/run_tests $(EMULATED)

summary:
	@echo "built ./train ./tokenize with $$($(CXX) --version | head -n 1)"
	@[ "$(WITH_DNNL)" = 1 ] || echo "left out: oneDNN (libdnnl-dev); CPUs with AVX-512 multiply matrices faster with it, and bf16 natively"
	@[ "$(WITH_SENTENCEPIECE)" = 1 ] || echo "left out: SentencePiece (libsentencepiece-dev); ./tokenize knows GPT-2's BPE only"
	@echo "devices: CPU$(if $(NVCC),$(comma) NVIDIA GPU (CUDA_ARCH=$(CUDA_ARCH)),. GPU: left out$(comma) there is no nvcc)"

# ---- set-up, tests, checks ---------------------------------------------------------------------
# These install what is missing, then call make again: what was installed is found by the new probe.
quickstart:           ## install what is missing, build, train a small Llama on real text (3 minutes)
	@scripts/install_deps.sh quickstart
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@scripts/quickstart.sh

test:                 ## install what is missing, build, run all tests
	@scripts/install_deps.sh test
	@$(MAKE) --no-print-directory -j$(JOBS) test-programs
	scripts/check_includes.sh
	LOQAL_BIN_DIR=$(BIN) $(BUILD)/run_tests --gtest_brief=1
	$(if $(EMULATED),LOQAL_BIN_DIR=$(BUILD)/emulated $(BUILD)/run_cuda_tests --gtest_brief=1,@echo $(NO_HEADERS))

NO_HEADERS := "left out: the CUDA kernels on the CPU (no CUDA headers in $(CUDA_HOME)/include)"

sanitize:             ## the tests under ASan+UBSan, threads and kernels under TSan, the built-in GEMM
	@scripts/install_deps.sh test
	@$(MAKE) --no-print-directory -j$(JOBS) MODE=asan test-programs
	LOQAL_BIN_DIR=build/asan build/asan/run_tests --gtest_brief=1 --gtest_filter='$(ASAN_TESTS)'
	$(if $(EMULATED),build/asan/run_cuda_tests --gtest_brief=1 --gtest_filter='-CudaTraining*:*RepeatTest*',@echo $(NO_HEADERS))
	@$(MAKE) --no-print-directory -j$(JOBS) MODE=tsan build/tsan/run_tests
	build/tsan/run_tests --gtest_brief=1 --gtest_filter='$(TSAN_TESTS)'
	@if ! command -v clang++ >/dev/null; then echo "left out: the CUDA kernels under TSan (no clang++)"; \
	elif [ -n "$(EMULATED)" ]; then $(MAKE) --no-print-directory -j$(JOBS) MODE=cuda-tsan build/cuda-tsan/run_cuda_tests && \
	  build/cuda-tsan/run_cuda_tests --gtest_brief=1 --gtest_filter='Ops/*:Planted*'; fi
# Left out: what needs minutes there and adds no code (golden trajectories and texts, repetitions, threads: TSan has them), or is about the release programs.
ASAN_TESTS := *-ReferenceTest*:SharedSpm*:*ReferenceStories:*SignalsLeaveNoTrace:*AtAnyMoment*:Memory*:*Toy*:*CPU2*:*RepeatTest*:ThreadsTest*:*KilledTwenty*:*KillAtRandom*:*LocalSgdResume*:Learning*:CheckIncludes*:Plot*:InstallDeps*:Readme*:Documents*:Quickstart*:C4*
TSAN_TESTS := ThreadPool*:InOrder*:Threads*:*Parity*:Engine*:*EngineMethods*:Coverage*:*LocalSgdWork*dn_dylu

bench:                ## training steps against PyTorch (OpenBLAS), as ratios; build/bench.json
	@scripts/install_deps.sh bench
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/step_bench
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(PYTHON) test/bench/compare.py --bench $(BUILD)/step_bench --out build/bench.json

bench-local-sgd:      ## what Local-SGD costs beside its local steps
	@$(MAKE) --no-print-directory -j$(JOBS) $(BIN)/train
	@$(PYTHON) test/bench/local_sgd_overhead.py --train $(BIN)/train

bench-loqt:           ## step time of LoQT as a ratio of full AdamW's, and what a refresh costs
	@$(MAKE) --no-print-directory -j$(JOBS) $(BIN)/train
	@$(PYTHON) test/bench/loqt_speed.py --train $(BIN)/train

bench-data:           ## ./tokenize against a Python pipeline and the bare SentencePiece library
	@scripts/install_deps.sh bench
	@$(MAKE) --no-print-directory -j$(JOBS) $(BIN)/tokenize $(BUILD)/spm_bench
	@$(PYTHON) test/bench/tokenize_compare.py --bench $(BUILD)/spm_bench

bundle:               ## build/deps: packages for a machine without them, which builds with DEPS=build/deps
	@scripts/install_deps.sh test
	scripts/bundle.sh

gpu-check:            ## on a machine with a GPU: tests, sanitizer, benchmark; below 8 minutes
	scripts/gpu_check.sh

test-long:            ## minutes: a 1 GiB input in bounded memory, the readers under libFuzzer (needs clang)
	@scripts/install_deps.sh long
	@$(MAKE) --no-print-directory -j$(JOBS) $(BIN)/tokenize
	$(PYTHON) test/long/tokenize_memory.py
	@if command -v $(CLANG) >/dev/null; then $(MAKE) --no-print-directory $(FUZZERS:%=run_%); \
	  else echo "left out: fuzzing needs $(CLANG) with libFuzzer (apt install clang)"; fi
CLANG    := clang++
FUZZERS  := fuzz_text fuzz_json fuzz_shard
FUZZ_SRC := $(addprefix data/,byte_source.cc json_text.cc sha256.cc shard.cc sniff.cc text_reader.cc) core/file.cc

build/fuzz/fuzz_%: test/fuzz/fuzz_%.cc $(FUZZ_SRC) $(wildcard core/*.h data/*.h)
	@mkdir -p $(@D)
	$(CLANG) -std=c++20 -I. -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $(filter %.cc,$^) -o $@ -lz
run_fuzz_%: build/fuzz/fuzz_%
	@$(PYTHON) test/fuzz/seeds.py build/fuzz/seeds && mkdir -p build/fuzz/corpus_$*
	build/fuzz/fuzz_$* -max_total_time=60 -print_final_stats=1 -verbosity=0 -close_fd_mask=1 \
	  -artifact_prefix=build/fuzz/ build/fuzz/corpus_$* build/fuzz/seeds/fuzz_$*

lint:                 ## clang-tidy and cppcheck
	@scripts/install_deps.sh lint
	clang-tidy --quiet $(filter-out %gemm_dnnl.cc,$(LIB_SRC)) -- $(filter-out -march=native,$(CXXFLAGS))
	cppcheck --quiet --std=c++20 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
	  --suppress=normalCheckLevelMaxBranches -I. -DLOQAL_DNNL=0 -DLOQAL_SENTENCEPIECE=1 $(LIB_SRC)

format:               ## clang-format all sources
	clang-format -i $(wildcard core/*.h core/*.cc ops/*.h ops/*.cc ops/cpu/*.h ops/cpu/*.cc ops/cuda/*.h ops/cuda/*.cuh ops/cuda/*.cu data/*.h data/*.cc quant/*.h quant/*.cc \
	  optim/*.h optim/*.cc model/*.h model/*.cc async/*.h async/*.cc test/*/*.h test/*/*.cc train.cu)

help:                 ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

clean:                ## remove everything that was built
	rm -rf build train tokenize

-include $(DEP_FILES)
