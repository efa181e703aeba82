# What the experiments' scripts share; to be sourced with `dir` set, where everything goes: the King James Bible
# as tokens, ./train within BUDGET minutes, the last loss of a run. SC2154: set by who sources this.
# shellcheck shell=bash disable=SC2154
start=$SECONDS

# The text, 19 of 20 verses for training, and its tokens in a vocabulary of $1.
prepare_text() {
  mkdir -p "$dir/tokens" "$dir/text"
  if [ ! -e "$dir/text/train.json" ]; then
    scripts/bible.sh |
      awk -v train="$dir/text/train.tmp" -v val="$dir/text/val.json" '{ print > (NR % 20 ? train : val) }'
    mv "$dir/text/train.tmp" "$dir/text/train.json"
  fi
  [ -e "$dir/spm.model" ] ||
    ./tokenize --train-spm --vocab "$1" --out "$dir/spm" "$dir/text/train.json" >"$dir/output.txt"
  local part
  for part in val train; do
    [ -e "$dir/tokens/$part.json" ] ||
      ./tokenize --tokenizer "$dir/spm.model" --out "$dir/tokens/$part" "$dir/text/$part.json" >>"$dir/output.txt"
  done
}

# ./train --out $1 ... with what is left of the budget; at its end a Ctrl-C, which saves. A run that diverges is an
# answer, not an error.
train() {
  local left=0
  if [ -n "${BUDGET:-}" ]; then
    left=$((BUDGET * 60 - (SECONDS - start)))
    [ $left -gt 0 ] || out_of_time
  fi
  timeout --foreground -s INT $left ./train --train-data "$dir/tokens/train_*.bin" --val-data "$dir/tokens/val_*.bin" \
    --tokenizer "$dir/spm.model" --eval-tokens 60000 --resume auto --out "$@" >>"$dir/output.txt" || {
    local code=$?
    [ $code != 124 ] || out_of_time
    [ $code != 3 ] || return 0
    tail -n 3 "$dir/output.txt" >&2
    exit $code
  }
}
out_of_time() {
  echo "$(basename "$0"): the budget of $BUDGET minutes is used up; the same command goes on" >&2
  exit 0 # never in a subshell
}

# Run $1 is over: its checkpoints go.
finished() {
  rm -rf "$1"/step_*
  touch "$1/done"
  echo "$1: $(last_loss "$1")"
}
# Of the weights that were trained; 99 if the run diverged, so that every loss is less.
last_loss() {
  if ! grep -qs '"kind":"end",.*"reason":"done' "$1/log.jsonl"; then echo 99; else
    sed -n 's/^{"kind":"eval",.*"loss":\([0-9.]*\),.*"weights":"effective".*/\1/p' "$1/log.jsonl" | tail -n 1
  fi
}
