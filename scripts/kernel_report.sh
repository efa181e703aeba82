#!/usr/bin/env bash
# Registers, shared memory and spills of every kernel in ops/cuda/, by ptxas: needs nvcc, no GPU.
# Exits 1 if a kernel spills registers to memory. CUB's own kernels (sort.cu) are left out.
#
#   scripts/kernel_report.sh [ARCH]...      [80 90]
set -euo pipefail
cd "$(dirname "$0")/.."

nvcc=${NVCC:-$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")}
[ -x "$nvcc" ] || {
  echo "kernel_report.sh: there is no nvcc here (looked in PATH and at $nvcc)" >&2
  exit 1
}
[ $# -gt 0 ] || set -- 80 90
log=$(mktemp -d) || exit 1
trap 'rm -rf "$log"' EXIT

for arch in "$@"; do
  for file in ops/cuda/*.cu; do
    case $file in */sort.cu | */cublaslt.cu) ;; *) echo "$arch $file" ;; esac
  done
done | xargs -P 2 -L 1 bash -c '
  "$0" -std=c++20 -O3 -I. -arch="sm_$2" -Xptxas -v -cubin -o /dev/null "$3" 2>"$1/$2_$(basename "$3").txt" ||
    { cat "$1/$2_$(basename "$3").txt" >&2; exit 255; }' "$nvcc" "$log"

printf '%-5s %9s %8s %8s  %s\n' arch registers shared spilled kernel
cat "$log"/*.txt | c++filt | awk '
  /Compiling entry function/ {
    arch = $0; sub(/.* for .sm_/, "", arch); sub(/[^0-9].*/, "", arch)
    name = $0; sub(/.*entry function ./, "", name); sub(/. for .sm_.*/, "", name)
    sub(/^void /, "", name); gsub(/loqal::cuda::/, "", name)
    gsub(/\(anonymous namespace\)::/, "", name); gsub(/__nv_bfloat16/, "bf16", name)
    gsub(/\(int\)|\(bool\)/, "", name); sub(/\(.*/, "", name)
  }
  /bytes spill stores/ { for (i = 1; i < NF; i++) if ($(i + 2) ~ /^spill/ && $i ~ /^[0-9]+$/) spilled += $i }
  /Used [0-9]+ registers/ {
    registers = $0; sub(/.*Used /, "", registers); sub(/ .*/, "", registers)
    shared = 0
    if ($0 ~ /bytes smem/) { shared = $0; sub(/ bytes smem.*/, "", shared); sub(/.* /, "", shared) }
    printf "%-5s %9d %8d %8d  %s\n", arch, registers, shared, spilled, name
    if (spilled > 0) bad++
    spilled = 0
  }
  END {
    if (bad > 0) { print "kernel_report.sh: " bad " kernels spill" > "/dev/stderr"; exit 1 }
  }' | sort -k5,5 -k1,1n
