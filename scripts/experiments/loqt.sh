#!/usr/bin/env bash
# What does LoQT cost in quality, and what does it save? Methods on the same text, tokens and seeds: a Llama of 4
# layers x 256, vocabulary 4,096, 2,048 tokens a step, rank 64, on the King James Bible. The learning rate of each
# method, one for all tensors, is the best of short runs (a quarter of the steps): from the middle of RATES downhill, until both
# neighbours are worse. doc/loqt.md shows what came out.
#
#   BUDGET=MINUTES     stop after so long   [none]; the same command goes on where it was
#   EXPERIMENT=DIR     where everything goes   [experiments/loqt]
#   STEPS, WIDTH, LAYERS, RANK, VOCAB          [2000, 256, 4, width / 4, 4096]
#   SEEDS, SEEDS_ONE, METHODS     ["1 2 3" of full, galore, int8 and svd, which is int8 with the exact decomposition
#                      in place of the sketch, at int8's rate; "1" of the rest; all]
#   RATES              [2.5e-4 5e-4 1e-3 2e-3 4e-3 8e-3 1.6e-2 3.2e-2; one: no tuning]
#   THREADS=N PRECISION=fp32|bf16   [0: all, bf16]
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${EXPERIMENT:-experiments/loqt}
steps=${STEPS:-2000} width=${WIDTH:-256} layers=${LAYERS:-4} vocab=${VOCAB:-4096}
rank=${RANK:-$((width / 4))}
read -ra seeds <<<"${SEEDS:-1 2 3}"
read -ra seeds_one <<<"${SEEDS_ONE:-1}"
read -ra methods <<<"${METHODS:-full int8 galore nf4 svd nq lora relora}"
read -ra rates <<<"${RATES:-2.5e-4 5e-4 1e-3 2e-3 4e-3 8e-3 1.6e-2 3.2e-2}"
source scripts/experiments/common.sh

# Options of method $1 in a run of $2 steps. LoQT has GaLore's scale: with one rate for all tensors it is what the matrices'
# is to that of embeddings and head.
options() {
  case $1 in
  full) echo --method full ;;
  int8 | nf4) echo --method loqt --quant "$1" --rank "$rank" --scale 0.25 ;;
  svd) echo --method loqt --quant int8 --rank "$rank" --scale 0.25 --subspace svd ;;
  nq) echo --method loqt --quant none --rank "$rank" --scale 0.25 ;;
  galore) echo --method galore --rank "$rank" --scale 0.25 ;;
  lora) echo --method lora --rank "$rank" ;;
  relora) echo --method relora --rank "$rank" --interval $(($2 / 4)) ;;
  *) echo "loqt.sh: unknown method $1" >&2 && exit 2 ;;
  esac
}

# One run: OUT METHOD SEED RATE STEPS
one() {
  [ -e "$1/done" ] && return
  # shellcheck disable=SC2046
  train "$1" --model llama-9M --layers "$layers" --width "$width" --heads 4 --seq-len 128 --batch-size 16 \
    --threads "${THREADS:-0}" --precision "${PRECISION:-bf16}" --seed "$3" $(options "$2" "$5") --lr "$4" --steps "$5" --warmup $(($5 / 10)) \
    --eval-every $(($5 / 4)) --save-every 500 --keep 1
  finished "$1"
}

prepare_text "$vocab"

# The loss of the short run of method $1 with the I-th rate, $2; 99 beyond the ends. In $loss.
short_run() {
  loss=99
  if [ "$2" -lt 0 ] || [ "$2" -ge ${#rates[@]} ]; then return; fi
  one "$dir/tuning/$1/${rates[$2]}" "$1" 100 "${rates[$2]}" $((steps / 4))
  loss=$(last_loss "$dir/tuning/$1/${rates[$2]}")
}
below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }

# The best rate of a method, in DIR/rate_METHOD.
tune() {
  [ -e "$dir/rate_$1" ] && return
  local best=$((${#rates[@]} / 2)) least=98 i loss
  if [ "$1" = svd ]; then
    tune int8
    cp "$dir/rate_int8" "$dir/rate_svd"
    return
  fi
  if [ ${#rates[@]} -gt 1 ]; then
    short_run "$1" $best
    least=$loss
    for direction in -1 1; do
      for ((i = best + direction; ; i += direction)); do
        short_run "$1" $i
        below "$loss" "$least" || break
        best=$i least=$loss
      done
    done
    if [ $best = 0 ] || [ $best = $((${#rates[@]} - 1)) ]; then
      echo "loqt.sh: warning: the best rate of $1 is at the end of RATES, ${rates[$best]}: widen them" >&2
    fi
  fi
  echo "${rates[$best]}" >"$dir/rate.tmp"
  mv "$dir/rate.tmp" "$dir/rate_$1"
}

for method in "${methods[@]}"; do
  tune "$method"
  case $method in full | galore | int8 | svd) chosen=("${seeds[@]}") ;; *) chosen=("${seeds_one[@]}") ;; esac
  for seed in "${chosen[@]}"; do
    one "$dir/runs/$method/$seed" "$method" "$seed" "$(cat "$dir/rate_$method")" "$steps"
  done
done
for method in "${methods[@]}"; do # the step times of the table: nothing else should run now
  one "$dir/timing/$method" "$method" 1 "$(cat "$dir/rate_$method")" 60
done
scripts/experiments/loqt_table.py "$dir" --picture "$dir/loqt.png"
