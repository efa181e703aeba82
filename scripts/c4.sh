#!/usr/bin/env bash
# Shards of C4: from the Hugging Face hub, a mirror or a local folder to token files for ./train.
# Needs bash, curl, gzip, coreutils, flock. doc/c4.md tells what happens when something goes wrong.
set -euo pipefail

usage() {
  cat <<'TEXT'
Downloads shards of C4 and turns them into token files for ./train.

  scripts/c4.sh [--shards 0-7] [--val] [--tokenizer FILE|train:N] ... [-- ./tokenize options]

  --config NAME      en | en.noblocklist | en.noclean | realnewslike   [en]
  --shards LIST      training shards: 0-7, 3, 0,2,5-6, all or none   [0]
  --val, --val=LIST  validation shards too   [none; --val alone: 0]
  --tokenizer WHAT   a SentencePiece model, a folder with GPT-2's two files, or train:N: a
                     SentencePiece model of N pieces, trained on the first training shard
                     [train:32000]
  --out DIR          for the tokens: DIR/c4_train_00000_000000.bin ...   [tokens]
  --downloads DIR    for the downloads, removed once they are tokenized   [c4]
  --keep             keeps the downloads
  --help

  C4_URL=WHERE       a mirror with the hub's layout, or a folder with the files, read where they are
  C4_WAIT=SECONDS    before the second try of a download, doubled before each further one   [5]

Called again it goes on where it stopped: finished shards are kept, a download continues in its
middle.
What follows "--" goes to ./tokenize, e.g. -- --on-error skip
TEXT
}

say() { printf '%s\n' "$@"; }
stop() { # CODE MESSAGE...
  printf 'c4: error: %s\n' "$2" >&2
  [ $# -lt 3 ] || printf '  hint: %s\n' "${@:3}" >&2
  exit "$1"
}
fail() { stop 1 "$@"; }
fail_usage() { stop 2 "$@"; }
bytes() { numfmt --to=si --suffix=B --format=%.1f "$1"; }
size_of() { if [ -e "$1" ]; then stat -c %s -- "$1"; else echo 0; fi; }
starts_as_gzip() { [ "$(head -c 2 -- "$1" | od -An -tx1)" = " 1f 8b" ]; }

# ---- options ------------------------------------------------------------------------------------
unknown() {
  local known guess=
  for known in --config --shards --val --tokenizer --out --downloads --keep; do
    [[ $known != "${option:0:4}"* ]] || guess=$known
  done
  fail_usage "unknown option $option" "${guess:+did you mean $guess? }scripts/c4.sh --help lists \
them; ./tokenize's own follow after --"
}

config=en shards=0 val=none tokenizer=train:32000 out=tokens downloads=c4 keep=
while [ $# -gt 0 ]; do
  option=${1%%=*}
  case $1 in
    --) shift && break ;;
    --help | -h) usage && exit ;;
    --keep) keep=yes ;;
    --val) val=0 ;;
    --val=?* | --config=?* | --shards=?* | --tokenizer=?* | --out=?* | --downloads=?*)
      printf -v "${option#--}" %s "${1#*=}" ;;
    --config | --shards | --tokenizer | --out | --downloads)
      if [ $# -lt 2 ] || [[ $2 == --* ]]; then fail_usage "$1 needs a value"; fi
      printf -v "${option#--}" %s "$2"
      shift ;;
    *) unknown "$1" ;;
  esac
  shift
done
tokenize_options=("$@")

# NAMES OPTION...: sets $rest to the options without those of these names, and their values.
without() {
  local names=" $1 "
  shift
  rest=()
  while [ $# -gt 0 ]; do
    if [[ $names == *" ${1%%=*} "* ]]; then
      [[ $1 == *=* ]] || shift
    else rest+=("$1"); fi
    [ $# -eq 0 ] || shift
  done
}

# Files and documents, training and validation; bytes of all, gzipped (the dataset's card).
case $config in
  en) facts="1024 8 364868892 364608 326778635540" ;;
  en.noblocklist) facts="1024 8 393391519 393226 406611392434" ;;
  en.noclean) facts="7168 64 1063805381 1065029 2430376268625" ;;
  realnewslike) facts="512 1 13799838 13863 15419740744" ;;
  *) fail_usage "--config $config: expected en, en.noblocklist, en.noclean or realnewslike" ;;
esac
read -r train_files val_files train_docs val_docs total_bytes <<<"$facts"

# OPTION LIST COUNT: the numbers that the list names, in order, each once.
expand() {
  local part first last
  case $2 in
    none) return ;;
    all) seq 0 $(($3 - 1)) && return ;;
  esac
  [[ $2 =~ ^[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*$ ]] ||
    fail_usage "$1 $2: expected numbers and ranges such as 0-7, 3 or 0,2,5-6, or all, or none"
  for part in ${2//,/ }; do
    first=$((10#${part%-*})) last=$((10#${part#*-}))
    [ $first -le $last ] || fail_usage "$1 $2: the range $part runs backwards" "$last-$first"
    [ $last -lt "$3" ] || fail_usage "$1 $2: $config has shards 0 to $(($3 - 1)), found $last"
    seq $first $last
  done | sort -nu
}
train_list=$(expand --shards "$shards" "$train_files")
val_list=$(expand --val "$val" "$val_files")
[ -n "$train_list$val_list" ] || fail_usage "--shards none: nothing to do without --val"

wait_base=${C4_WAIT:-5}
[[ $wait_base =~ ^[0-9]{1,3}$ ]] || fail_usage "C4_WAIT=$wait_base: expected seconds, 0 to 999"

root=$(realpath --relative-to=. "$(dirname "$0")/..")
[ -x "$root/tokenize" ] || fail "$root/tokenize is missing" "make"

hub=https://huggingface.co/datasets/allenai/c4/resolve/main
url=${C4_URL:-$hub} url=${url%/}
case $url in
  http://* | https://*) local_folder= ;;
  file://*) local_folder=${url#file://} ;;
  *://*) fail_usage "C4_URL=$url: expected http://, https://, file:// or a folder" ;;
  *) local_folder=$url ;;
esac
[ -z "$local_folder" ] || [ -d "$local_folder" ] || fail "C4_URL=$C4_URL: no such folder"
[ -n "$local_folder" ] || command -v curl >/dev/null ||
  fail "curl is missing" "scripts/install_deps.sh c4"

# The glob of one config matches no other: c4_train_*, c4-realnewslike_train_*.
tokens=$out/c4
[ "$config" = en ] || tokens+=-$config
folder=${local_folder:-$downloads}/$config
mkdir -p "$out"
[ -n "$local_folder" ] || mkdir -p "$folder"
case $tokenizer in
  train:*)
    pieces=${tokenizer#train:}
    [[ $pieces =~ ^[1-9][0-9]{1,6}$ ]] ||
      fail_usage "--tokenizer $tokenizer: expected train:N with N pieces, such as train:32000"
    [ -n "$train_list" ] || fail_usage "--tokenizer $tokenizer needs a training shard to train on"
    tokenizer=${tokens}_spm_$pieces.model ;;
  *)
    pieces=
    [ -e "$tokenizer" ] || fail "--tokenizer $tokenizer: no such file or folder" \
      "a SentencePiece model, a folder with GPT-2's two files, or train:N" ;;
esac

# One at a time, for two would write the same files. curl and ./tokenize inherit the locks.
lock() {
  flock -w 5 "$1" ||
    fail "$2 is in use: by another scripts/c4.sh, or by a program that a killed one left" \
      "wait for it, or end it; ps -C curl,tokenize shows it"
}
exec 8<"$out" && lock 8 "$out"
[ -n "$local_folder" ] || { exec 9<"$folder" && lock 9 "$folder"; }

# Finished shards keep the form that the options gave them; they cannot be made again here.
without "--jobs --on-error --max-doc-bytes" "${tokenize_options[@]}"
form="${rest[*]}"
if compgen -G "${tokens}_*_[0-9][0-9][0-9][0-9][0-9].json" >/dev/null; then
  found=$(cat "${tokens}_options.txt" 2>/dev/null || true)
  [ "$found" = "$form" ] ||
    fail "${tokens}_*.bin were made with other options of ./tokenize: found '$found', now '$form'" \
      "the same options, another folder (--out DIR), or start over: rm ${tokens}_*"
fi

# PREFIX: whether the manifest, the last file that ./tokenize writes, and all its shards are there.
is_finished() {
  local shard
  [ -e "$1.json" ] || return 1
  while read -r shard; do [ -e "${1%/*}/$shard" ] || return 1; done < <(
    grep -o '"file": *"[^"]*"' "$1.json" | cut -d'"' -f4)
  [ -e "${1}_000000.bin" ]
}

# ---- what there is to do: a job is a split and a shard, "train 5" or "val 0" --------------------
# SPLIT SHARD: sets $name, the file's on the hub; $file, where its text is or will be; $prefix, of
# the tokens; $expected, its gzipped size.
set_job() {
  local document=$((total_bytes * 1000 / (train_docs + val_docs))) # in 1/1000 of a byte
  if [ "$1" = val ]; then
    printf -v name 'c4-validation.%05d-of-%05d.json.gz' "$2" "$val_files"
    expected=$((document * val_docs / val_files / 1000))
  else
    printf -v name 'c4-train.%05d-of-%05d.json.gz' "$2" "$train_files"
    expected=$((document * train_docs / train_files / 1000))
  fi
  printf -v prefix '%s_%s_%05d' "$tokens" "$1" "$2"
  file=$folder/$name
  if [ -n "$local_folder" ] && [ -e "$local_folder/$name" ]; then file=$local_folder/$name; fi
}

jobs=() kept=0 bad='' text_bytes=0 download_bytes=0 largest=0
while read -r split shard; do
  [ -n "$shard" ] || continue
  set_job "$split" "$shard"
  if is_finished "$prefix"; then
    kept=$((kept + 1))
    continue
  fi
  jobs+=("$split $shard")
  if [ -n "$local_folder" ]; then
    if [ ! -r "$file" ]; then bad+=$'\n'"  missing: $name"; elif ! starts_as_gzip "$file"; then
      bad+=$'\n'"  not gzip: $file"
    else expected=$(size_of "$file"); fi
  elif [ ! -e "$file" ]; then
    download_bytes=$((download_bytes + expected))
    [ ! -e "$file.part" ] || download_bytes=$((download_bytes - $(size_of "$file.part")))
    [ "$expected" -le "$largest" ] || largest=$expected
  fi
  text_bytes=$((text_bytes + expected))
done < <(
  # shellcheck disable=SC2086  # lists of numbers
  [ -z "$val_list" ] || printf 'val %s\n' $val_list
  # shellcheck disable=SC2086
  [ -z "$train_list" ] || printf 'train %s\n' $train_list
)
if [ -n "$bad" ]; then
  there=$(find "$local_folder" -maxdepth 2 -name '*.json.gz' -printf '%P\n' | sort | head -n 8 |
    paste -sd ' ')
  fail "C4_URL=$local_folder, in it or in its folder $config:$bad" \
    "there are: ${there:-no .json.gz files}"
fi

# FOLDER: bytes free there.
free_in() { df --output=avail -B1 -- "$1" | tail -n 1 | tr -d ' '; }
# FOLDER NEEDED
check_disk() {
  local free
  free=$(free_in "$1")
  say "disk        $1: needs about $(bytes "$2"), has $(bytes "$free") free"
  [ "$free" -ge "$2" ] ||
    fail "not enough room in $1: needed about $(bytes "$2"), free $(bytes "$free")" \
      "fewer --shards at a time, without --keep, or another disk: --out DIR, --downloads DIR"
}
check_disks() {
  # Token files are 1 to 1.5 times as large as the gzipped text with 16-bit ids. Without --keep two
  # downloads are there at a time: the one that is tokenized and the next.
  local output=$((text_bytes * 3 / 2)) originals=$download_bytes
  [ -n "$keep" ] || [ $originals -le $((2 * largest)) ] || originals=$((2 * largest))
  if [ -n "$local_folder" ] || [ $originals = 0 ]; then check_disk "$out" $output; elif
    [ "$(stat -c %d -- "$out")" = "$(stat -c %d -- "$folder")" ]
  then check_disk "$out" $((output + originals)); else
    check_disk "$out" $output
    check_disk "$folder" $originals
  fi
}

say "source      C4 $config, $url"
say "shards      training $shards of $train_files, validation $val of $val_files:\
 $kept done, ${#jobs[@]} to do"
if [ -z "$local_folder" ]; then
  say "download    about $(bytes $download_bytes) to $folder, $(
    if [ -n "$keep" ]; then echo "kept there"; else echo "removed once tokenized"; fi)"
fi
say "tokenizer   $tokenizer$([ -e "$tokenizer" ] || echo ": to be trained, $pieces pieces")"
[ ${#jobs[@]} = 0 ] || check_disks

# ---- texts --------------------------------------------------------------------------------------
# shellcheck source=scripts/c4_download.sh
. "$root/scripts/c4_download.sh"
head_start=      # process of a download in the background
scratch=$(mktemp -d) # for what curl and others report
finished=
clean_up() {
  local status=$?
  [ -z "$head_start" ] || kill "$head_start" 2>/dev/null || true
  rm -rf "$scratch"
  [ -n "$finished" ] || [ $status = 0 ] ||
    echo "c4: not finished; what is complete is kept, the same command goes on from here" >&2
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Begins the job's download while the job before is tokenized; provide ends it and checks it.
begin_early() {
  set_job "$@"
  [ -z "$local_folder" ] && [ ! -e "$file" ] || return 0
  (
    prepare_part "$file.part"
    exec curl --silent "${curl_options[@]}" --output "$file.part" "$url/$config/$name" </dev/null
  ) &
  head_start=$!
}

# The job's text is at $file afterwards.
provide() {
  [ ! -e "$file" ] || return 0
  say "  $url/$config/$name"
  if [ -n "$head_start" ]; then # of this very job
    say "  its download began while the one before was tokenized"
    wait "$head_start" || true
    head_start=
  fi
  fetch "$file" "$url/$config/$name"
}

# ---- tokens -------------------------------------------------------------------------------------
if [ ! -e "$tokenizer" ]; then
  say "" "training a tokenizer"
  set_job train "${train_list%%$'\n'*}"
  provide
  without "--bos --eos --shard-tokens --pad-to --jobs" "${tokenize_options[@]}"
  "$root/tokenize" --train-spm --vocab "$pieces" --out "${tokenizer%.model}" "${rest[@]}" "$file" ||
    exit $?
fi

# Finished shards must be this tokenizer's: the manifest has its hash.
if [ -d "$tokenizer" ]; then
  sha256sum "$tokenizer"/{encoder.json,vocab.json,spiece.model,tokenizer.model} 2>/dev/null || true
else sha256sum "$tokenizer"; fi | cut -c-64 >"$scratch/hashes"
for manifest in "$tokens"_{train,val}_[0-9][0-9][0-9][0-9][0-9].json; do
  [ ! -e "$manifest" ] || grep -qFf "$scratch/hashes" "$manifest" ||
    fail "${manifest%.json}_*.bin were made with another tokenizer than $tokenizer" \
      "another folder (--out DIR), or start over: rm ${tokens}_*"
done

number=0 start=$SECONDS
for job in "${jobs[@]}"; do
  read -r split shard <<<"$job"
  number=$((number + 1)) left=$((${#jobs[@]} - number))
  set_job "$split" "$shard"
  say "" "[$number/${#jobs[@]}] $name"
  provide
  # shellcheck disable=SC2086  # a job is two words
  [ $left = 0 ] || begin_early ${jobs[number]}
  set_job "$split" "$shard"
  printf '%s\n' "$form" >"${tokens}_options.txt"
  "$root/tokenize" --tokenizer "$tokenizer" --out "$prefix" "${tokenize_options[@]}" "$file" ||
    exit $?
  [ -n "$keep$local_folder" ] || rm -- "$file"
  spent=$((SECONDS - start))
  [ $left = 0 ] || say "  $spent s so far, about $((spent * left / number)) s to go"
done

finished=yes
say "" "All of them are tokenized."
options="--model llama-60M --tokenizer $(printf %q "$tokenizer")"
for split in train val; do
  files="${tokens}_${split}_*.bin"
  ! compgen -G "$files" >/dev/null || options+=" --$split-data '$files'"
done
[[ $options != *--train-data* ]] ||
  say "To train on them:" "" "$root/train $options --steps 10000"
