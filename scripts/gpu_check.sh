#!/usr/bin/env bash
# Checks and measures loqal on a machine with an NVIDIA GPU, the CUDA toolkit and g++, in less than 8 minutes:
# builds, runs the op suite and training runs on the GPU, compute-sanitizer on a reduced suite, and the benchmark of
# whole steps beside PyTorch where it is installed. Ends with a table; build/gpu_check/ keeps logs and JSON.
# Without network and packages: `make bundle` on another machine, then carry build/deps along.
#
#   scripts/gpu_check.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

out=build/gpu_check
mkdir -p "$out"
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
[ -d build/deps ] && export DEPS=build/deps
PYTHON=${PYTHON:-python3}
: >"$out/table"
failed=0

# step NAME SECONDS COMMAND...: its output to a log, one line to the table.
step() {
  local name=$1 limit=$2 start=$SECONDS rc
  shift 2
  echo "== $name"
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  rc=$?
  local passed verdict=ok
  passed=$(sed -n 's/.*\[  PASSED  \] \(.*\)\./\1 passed/p' "$out/$name.log" | tail -n 1)
  case $passed in "0 tests"*) rc=99 ;; esac  # a filter or a driver left nothing to run
  [ $rc -eq 0 ] || verdict="FAILED (exit code $rc)"
  [ $rc -ne 124 ] || verdict="not finished in $limit s"
  [ $rc -eq 0 ] || { failed=1 && tail -n 15 "$out/$name.log"; }
  printf '%-22s %-26s %4d s  %s\n' "$name" "$verdict" $((SECONDS - start)) "$passed" | tee -a "$out/table"
  return $rc
}

command -v nvidia-smi >/dev/null || { echo "gpu_check.sh: there is no nvidia-smi here, so no NVIDIA driver" >&2; exit 1; }
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader | head -n 1)
echo "$gpu"
step build 200 make -j"$(nproc)" all build/release/run_tests build/release/run_cuda_tests build/release/step_bench || exit 1
step op-suite 60 build/release/run_tests --gtest_brief=1 --gtest_filter='*CUDA*'
# The tests of run_cuda_tests that start ./train, here with the one that uses the GPU.
step training 40 env LOQAL_BIN_DIR=. build/release/run_cuda_tests --gtest_brief=1 \
  --gtest_filter='CudaTraining.*Agree*:CudaTraining.TheSameRun*'
# Every kernel, at small sizes: these tools slow a kernel down by 10 to 100 times.
reduced='Ops/AdamWTest*CUDA*:Ops/NormTest*CUDA*:Ops/EmbeddingTest*CUDA*:Ops/ActivationTest*CUDA*'
reduced=$reduced:'Ops/Quantize*CUDA*:Ops/AdamW8Test*CUDA*'
reduced=$reduced:'Ops/LossTest*CUDA*:Ops/AttentionTest.*CUDA*:Ops/MatmulTest.BiasBackward*CUDA*:Ops/TensorTest.*CUDA*'
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step "$tool" 40 compute-sanitizer --tool $tool --error-exitcode 9 build/release/run_tests --gtest_brief=1 \
      --gtest_filter="$reduced"
  done
else
  echo "compute-sanitizer      MISSING (looked in PATH and in CUDA's bin)" | tee -a "$out/table"
  failed=1
fi
left=$((470 - SECONDS))  # of the 8 minutes
step benchmark $((left > 30 ? left : 30)) "$PYTHON" test/bench/compare.py --device cuda --bench build/release/step_bench --rounds 1 --steps 10 \
  --out "$out/bench.json"
grep -v '^numbers:' "$out/benchmark.log"
echo
echo "$gpu"
cat "$out/table"
awk '$2 ~ /^(type|fp32|bf16)$/' "$out/benchmark.log"
"$PYTHON" - "$gpu" "$out" <<'PY' || failed=1
import json, os, sys
gpu, out = sys.argv[1:]
bench = os.path.join(out, "bench.json")
with open(os.path.join(out, "table")) as table, open(os.path.join(out, "gpu_check.json"), "w") as file:
    json.dump({"gpu": gpu, "steps": table.read().splitlines(),
               "benchmark": json.load(open(bench)) if os.path.exists(bench) else None}, file, indent=1)
PY
echo "numbers: $out/gpu_check.json, logs beside it; $SECONDS s"
exit $failed
