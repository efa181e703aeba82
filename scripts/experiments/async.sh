#!/usr/bin/env bash
# Does asynchronous Local-SGD keep up with DiLoCo? The comparison of Liu et al. 2024 (arXiv 2401.09135) on a
# small Llama and the King James Bible: one pretraining, then five methods on four workers with equal
# ("none") and very unequal ("very") devices, three seeds each. The outer learning rate of each method is
# the best of short runs. doc/async.md shows what came out.
#
#   BUDGET=MINUTES     stop after so long   [none]; the same command goes on where it was
#   EXPERIMENT=DIR     where everything goes   [experiments/async]
#   STEPS=N            local steps of a run    [12800]
#   WIDTH=N            of the model            [64: 0.2 million parameters; 128: 0.5 million]
#   SEEDS, LEVELS, METHODS, RATES              ["1 2 3", "very none", all, "0.05 0.1 0.2 0.3 0.5 0.7 1.0";
#                      one rate: no tuning]
#   THREADS=N          [1]
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${EXPERIMENT:-experiments/async}
steps=${STEPS:-12800} width=${WIDTH:-64}
read -ra seeds <<<"${SEEDS:-1 2 3}"
read -ra levels <<<"${LEVELS:-very none}"
read -ra methods <<<"${METHODS:-sync nesterov dn_dylu dn buffer}"
read -ra rates <<<"${RATES:-0.05 0.1 0.2 0.3 0.5 0.7 1.0}"
source scripts/experiments/common.sh
always=(--batch-size 8 --lr 1e-3 --threads "${THREADS:-1}")

# Options of a method. A push of per-push Nesterov weighs 1/4, so that four of them are one mean; with
# DyLU a grace of 2.4 s (29.0 - 26.64 s, one round) lets the workers of "very" push together.
options() {
  case $1 in
  sync) echo --sync ;;
  nesterov) echo --outer nesterov --push-weight constant:0.25 ;;
  buffer) echo --outer buffer ;;
  dn) echo --outer dn ;;
  dn_dylu) echo --outer dn --dylu --grace 2.4 ;;
  *) echo "async.sh: unknown method $1" >&2 && exit 2 ;;
  esac
}

# One run of Local-SGD from the pretrained model: OUT METHOD LEVEL SEED RATE STEPS
local_sgd() {
  [ -e "$1/done" ] && return
  # shellcheck disable=SC2046
  train "$1" --init "$dir/pretrained" --workers 4 --heterogeneity "$3" --seed "$4" \
    $(options "$2") --outer-lr "$5" --steps "$6" --inner-steps 50 --min-lr 1e-5 --warmup 0 "${always[@]}" \
    --eval-every 800 --save-every 4000 --keep 1
  finished "$1"
}

prepare_text 512
if [ ! -e "$dir/pretrained" ]; then
  train "$dir/pretraining" --model llama-9M --layers 2 --width "$width" --heads 2 --seq-len 64 "${always[@]}" \
    --steps 1000 --lr-schedule constant --export "$dir/pretrained"
  echo "$dir/pretraining: $(last_loss "$dir/pretraining")"
fi

# The best rate of a method, from runs of an eighth of the steps, in DIR/rate_METHOD.
tune() {
  [ -e "$dir/rate_$1" ] && return
  local losses=""
  for rate in "${rates[@]}"; do
    [ ${#rates[@]} = 1 ] || local_sgd "$dir/tuning/$1/$rate" "$1" very 100 "$rate" $((steps / 8))
    losses+="$(last_loss "$dir/tuning/$1/$rate") $rate"$'\n'
  done
  sort -g <<<"${losses%$'\n'}" | head -n 1 | awk '{ print $NF }' >"$dir/rate.tmp"
  mv "$dir/rate.tmp" "$dir/rate_$1"
}

for method in "${methods[@]}"; do tune "$method"; done
for level in "${levels[@]}"; do
  for seed in "${seeds[@]}"; do
    for method in "${methods[@]}"; do
      local_sgd "$dir/$level/$method/$seed" "$method" "$level" "$seed" "$(cat "$dir/rate_$method")" "$steps"
    done
  done
done
scripts/experiments/async_table.py "$dir"
