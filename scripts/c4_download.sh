# Part of scripts/c4.sh: fetch downloads one file. Uses the script's $url, $config, $hub, $folder,
# $scratch and $wait_base.
# shellcheck shell=bash disable=SC2154

# Slower than 1 KB/s for a minute is a failure.
curl_options=(--fail --location --continue-at - --connect-timeout 30 --speed-limit 1000
  --speed-time 60)

# FILE: what an earlier try left is asked for from its last byte on. That byte makes the server tell
# the size, and a file that is complete already is no error.
prepare_part() {
  [ -e "$1" ] || return 0
  if starts_as_gzip "$1"; then truncate -s -1 -- "$1"; else rm -- "$1"; fi
}

# Sets $headers, those of the last answer by their names in small letters. The hub tells size and
# hash, x-linked-*, in the answer that redirects.
read_headers() {
  local line key
  headers=()
  while IFS= read -r line; do
    line=${line%$'\r'} key=${line%%:*} key=${key,,}
    if [[ $line == HTTP/* ]]; then
      for key in "${!headers[@]}"; do [[ $key == x-linked-* ]] || unset "headers[$key]"; done
    elif [[ $line == *:* ]]; then
      line=${line#*:} line=${line#"${line%%[! ]*}"}
      headers[$key]=${line//\"/}
    fi
  done <"$scratch/headers"
}

# Seconds that the server asks to wait, or 0. The header is a number or a date.
retry_after() {
  local value=${headers[retry-after]:-} now
  if [[ $value =~ ^[0-9]{1,9}$ ]]; then echo $((10#$value)); elif [ -n "$value" ]; then
    now=$(date +%s)
    value=$(($(date -d "$value" +%s 2>/dev/null || echo "$now") - now))
    echo $((value > 0 ? value : 0))
  else echo 0; fi
}

explain_page() {
  fail "$1: the answer is a web page, not gzip: $2" \
    "a proxy, a network's login page or an error of the server; open the address in a browser" \
    "C4_URL=$url must be followed by $config/c4-train.00000-of-*.json.gz"
}

# What an HTTP status means; fails at once where trying again cannot help.
explain_status() {
  case $1 in
    401) fail "$2: HTTP 401, the server wants a login" "the hub wants none: is C4_URL right?" ;;
    404 | 410) fail "$2: HTTP $1, there is no such file" "is C4_URL right? The hub's is $hub" ;;
    403) echo "HTTP 403, access refused: by the hub if asked too often, by some proxies always" ;;
    408) echo "HTTP 408, the server waited too long for us" ;;
    416) echo "HTTP 416, more is here than the file has there" ;;
    429) echo "HTTP 429, too many requests: the server wants us to slow down" ;;
    5??) echo "HTTP $1, trouble at the server" ;;
    *) fail "$2: HTTP $1, not expected" "is C4_URL right?" ;;
  esac
}

# FILE EXPECTED: what is wrong with a complete download, or nothing: its size, its contents, and its
# hash where the server tells one.
defect_of() {
  local size sha
  size=$(size_of "$1")
  [ "$size" != 0 ] || { echo "the answer is empty" && return; }
  [ -z "$2" ] || [ "$size" = "$2" ] || { echo "$size bytes, expected $2" && return; }
  gzip -t <"$1" 2>"$scratch/gzip" || {
    echo "damaged: $(sed -n 's/^gzip: stdin: //p' "$scratch/gzip")"
    return
  }
  sha=${headers[x-linked-etag]:-}
  [[ ! $sha =~ ^[0-9a-f]{64}$ ]] || sha256sum --status -c - <<<"$sha  $1" ||
    echo "sha256 is not $sha"
}

declare -A headers
tries=8 # without progress; waits of 5, 10 ... 320 s: ten minutes, longer than the hub's limits last
longest_wait=3600
# FILE URL: downloads it, under its final name only when all of it is right.
fetch() {
  local file=$1 from=$2 part=$1.part failed=0 best=0 most=$tries start=$SECONDS
  local answer code expected have kind rc reason wait
  while :; do
    prepare_part "$part"
    : >"$scratch/headers"
    rc=0
    answer=$(curl "${curl_options[@]}" "$([ -t 2 ] && echo --progress-bar || echo --silent)" \
      --dump-header "$scratch/headers" --output "$part" --write-out '%{http_code} %{errormsg}' \
      "$from" </dev/null) || rc=$?
    read_headers
    code=${answer%% *} have=$(size_of "$part") kind=${headers[content-type]:-}
    expected=${headers[content-range]:-} expected=${headers[x-linked-size]:-${expected#*/}}
    [[ $expected =~ ^[0-9]+$ ]] || expected=
    [ -n "$expected" ] || [ "$code" != 200 ] || expected=${headers[content-length]:-}
    if [[ $code == 2* && $kind == text/html* ]]; then
      starts_as_gzip "$part" 2>/dev/null || rm -f -- "$part"
      explain_page "$from" "Content-Type $kind"
    fi
    case $rc in
      0)
        [ "$have" = 0 ] || starts_as_gzip "$part" || {
          reason=$(head -c 60 -- "$part" | tr -c '[:print:]' ' ')
          rm -- "$part"
          explain_page "$from" "it starts with \"$reason\""
        }
        reason=$(defect_of "$part" "$expected")
        [ -n "$reason" ] || break
        [ "$have" -lt "${expected:-0}" ] || rm -f -- "$part" ;;
      22)
        reason=$(explain_status "$code" "$from")
        [ "$code" != 403 ] || most=3
        [ "$code" != 416 ] || rm -f -- "$part" ;;
      33)
        reason="the server cannot continue in the middle; it starts over"
        rm -f -- "$part" ;;
      23) fail "$part: cannot write: $(bytes "$(free_in "$folder")") free on its disk" \
        "make room, or --downloads DIR on another disk" ;;
      1 | 3) fail "$from: ${answer#* }" "is C4_URL right?" ;;
      60) fail "$from: ${answer#* }" \
        "apt-get install ca-certificates; or does a proxy stand between?" ;;
      *) reason=${answer#* } ;;
    esac
    if [ "$have" -gt "$best" ]; then failed=0 best=$have; fi
    failed=$((failed + 1)) wait=$(retry_after)
    reason="$reason ($have of ${expected:-?} bytes are here)"
    [ $failed -lt $most ] || fail "$from: given up after $most tries: $reason" \
      "try again later, or another mirror: C4_URL="
    [ "$wait" -le $longest_wait ] ||
      fail "$from: $reason; the server asks to wait $wait s" "try again then"
    [ "$wait" -ge $((wait_base << (failed - 1))) ] || wait=$((wait_base << (failed - 1)))
    echo "c4: ${file##*/}: $reason; try $((failed + 1)) of $most in $wait s" >&2
    sleep "$wait"
  done
  mv -- "$part" "$file"
  say "  $have bytes in $((SECONDS - start)) s, sha256 $(sha256sum <"$file" | cut -c-64)"
}
