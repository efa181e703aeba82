#!/usr/bin/env bash
# Checks who includes whom (design.md, section 1), where CUDA headers are used, and file sizes.
# Prints "file:line: what" for each violation and exits 1; a long file is only a warning, because
# sometimes splitting would hurt. Takes the root of the tree; default: the repository.
#
#   core <- ops <- quant <- optim <- model <- async <- train.cu
#   data includes core only; async and train.cu may use data; test/ may include everything
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

folders=()
for folder in core ops data quant optim model async test; do
  [ ! -d $folder ] || folders+=("$folder")
done

{
  find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \)
  find . -maxdepth 1 -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -printf '%f\n'
} | sort | xargs awk '
  BEGIN {
    may["core"] = "core"
    may["ops"] = "core ops"
    may["data"] = "core data"
    may["quant"] = "core ops quant"
    may["optim"] = "core ops quant optim"
    may["model"] = "core ops quant optim model"
    may["async"] = "core ops quant optim model data async"
    may["."] = may["async"]  # train.cu
    may["test"] = may["async"] " test"
  }
  function violation(what) {
    print FILENAME ":" FNR ": " what
    violations++
  }
  FNR == 1 {
    folder = "."
    if (FILENAME ~ /\//) { folder = FILENAME; sub(/\/.*/, "", folder) }
  }
  FNR == 401 { print FILENAME ": warning: more than 400 lines" > "/dev/stderr" }
  /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    quoted = $0 ~ /^[^<]*"/
    header = $0
    sub(/^[^<"]*[<"]/, "", header)
    sub(/[>"].*/, "", header)
    top = header
    sub(/\/.*/, "", top)
    if (quoted && (header ~ /^\.\.?\// || header !~ /\//))
      violation("include \"" header "\" is not relative to the root")
    else if (quoted && top in may && index(" " may[folder] " ", " " top " ") == 0)
      violation((folder == "." ? "the root" : folder "/") " must not include " top \
                "/ (\"" header "\")")
    else if (quoted && !(top in may) && folder != "test")
      violation("no folder of the design holds \"" header "\"; a library is included with <>")
    if (header ~ /^(cuda|cublas|cub\/|cudnn|curand|nccl|nvtx|mma\.h)/ &&
        FILENAME !~ /^(ops\/cuda|test\/cuda_emulation)\//)
      violation("CUDA headers appear in ops/cuda/ only (" header ")")
  }
  END { exit violations > 0 }' || exit 1
echo "includes: ok"
