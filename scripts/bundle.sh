#!/usr/bin/env bash
# Copies what the build needs from packages into build/deps: headers, static zlib and PCRE2, GoogleTest's
# sources. A machine of the same kind without these packages then builds with `make DEPS=build/deps`.
# oneDNN and SentencePiece stay out: the build does without them.
set -euo pipefail
cd "$(dirname "$0")/.."

to=build/deps
rm -rf "$to"
mkdir -p "$to/include" "$to/lib"
for header in nlohmann CLI eigen3 gtest zlib.h zconf.h pcre2.h; do
  found=
  for folder in /usr/include "/usr/include/$(g++ -print-multiarch)"; do
    [ ! -e "$folder/$header" ] || found=$folder/$header
  done
  [ -n "$found" ] || {
    echo "bundle.sh: $header is in neither /usr/include nor its folder for $(g++ -print-multiarch)" >&2
    exit 1
  }
  cp -r "$found" "$to/include/"
done
for library in libz.a libpcre2-8.a; do
  found=$(g++ -print-file-name="$library")
  [ -e "$found" ] || {
    echo "bundle.sh: the linker finds no $library" >&2
    exit 1
  }
  cp "$found" "$to/lib/"
done
cp -r /usr/src/googletest/googletest "$to/googletest"
rm -rf "$to/googletest/test" "$to/googletest/samples" "$to/googletest/docs"
du -sh "$to"
