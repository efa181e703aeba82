#!/usr/bin/env bash
# Says which Debian or Ubuntu packages are missing, then installs them (with sudo if needed).
#
#   scripts/install_deps.sh [NEED]...      NEED: build quickstart c4 test bench long lint all   [build]
#   NO_INSTALL=1                           only says what is missing
#
# The sanitizers need nothing of their own: their libraries come with g++.
set -euo pipefail

fail() {
  echo "install_deps.sh: $*" >&2
  exit 1
}

# need, package, what for
packages() {
  cat <<'LIST'
build       g++                   C++20 compiler
build       make                  build
build       libdnnl-dev           fast matrix products on the CPU
build       libsentencepiece-dev  SentencePiece tokenizers (T5, Llama)
build       libeigen3-dev         small eigenproblems (quant/)
build       libpcre2-dev          GPT-2's tokenizer
build       zlib1g-dev            gzip input, checksums
build       nlohmann-json3-dev    JSON
build       libcli11-dev          options and config files
quickstart  python3-matplotlib    plot of the loss
quickstart  bible-kjv             text to train on
c4          curl                  downloads
c4          ca-certificates       https
test        libgtest-dev          unit tests
test        jq                    the README's lines that read a log
test        python3-pandas        the README's lines that read a log
bench       libbenchmark-dev      timing
bench       libopenblas0-pthread  baseline of matrix products
bench       python3-torch         baseline of training
bench       python3-sentencepiece baseline of tokenization
long        clang                 fuzzing (libFuzzer)
lint        clang-tidy            make lint
lint        clang-format          make format
lint        cppcheck              make lint
LIST
}

# What a need includes besides itself.
expand() {
  case $1 in
    build) echo build ;;
    quickstart) echo build quickstart ;;
    c4) echo build c4 ;;
    test) echo build quickstart c4 test ;;
    bench) echo build bench ;;
    long) echo build long ;;
    lint) echo lint ;;
    all) echo build quickstart c4 test bench long lint ;;
    *) fail "unknown need \"$1\"; expected build, quickstart, c4, test, bench, long, lint or all" ;;
  esac
}

wanted=
[ $# -gt 0 ] || set -- build
for need in "$@"; do
  more=$(expand "$need") || exit 1
  wanted="$wanted $more"
done
list=$(packages | awk -v wanted=" $wanted " 'index(wanted, " " $1 " ")')
names=$(awk '{ print $2 }' <<<"$list")

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This is neither Debian nor Ubuntu. Install what corresponds to these packages yourself:"
  cut -c13- <<<"$list" | sed 's/^/  /'
  exit 1
fi

# Prints the lines of $list whose package is not installed.
missing() {
  local installed
  # shellcheck disable=SC2086  # a list of words
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $names 2>/dev/null |
    awk '$2 == "installed" { printf " %s ", $1 }') || true
  awk -v installed="$installed" '!index(installed, " " $2 " ")' <<<"$list"
}

lacking=$(missing)
if [ -z "$lacking" ]; then
  echo "All packages for $* are installed."
  exit 0
fi
echo "Missing packages for $*:"
cut -c13- <<<"$lacking" | sed 's/^/  /'
to_install=$(awk '{ printf " %s", $2 }' <<<"$lacking")
if [ -n "${NO_INSTALL:-}" ]; then
  echo "Not installed, because NO_INSTALL is set: apt-get install$to_install"
  exit 0
fi

sudo=
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null ||
    fail "not root and no sudo here; as root: apt-get install$to_install"
  sudo=sudo
fi
apt() {
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@"
}

echo "Installing them ..."
apt update || fail "the package lists cannot be fetched: is there a network? Nothing was installed."
# shellcheck disable=SC2086  # a list of words
apt install -y --no-install-recommends $to_install ||
  fail "apt-get install failed (see above); on Ubuntu some need: add-apt-repository universe"
lacking=$(missing | awk '{ printf " %s", $2 }')
[ -z "$lacking" ] || fail "still missing after the installation:$lacking"
echo "Installed."
