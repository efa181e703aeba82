#!/usr/bin/env bash
# The King James Bible (Debian's bible-kjv) as JSON lines like C4's, on standard output: a document for
# each chapter, a verse on each line of it ("Ge1:1 In the beginning ..." is what `bible` prints).
# The text is plain ASCII without quotes and backslashes, so that JSON needs no escapes; checked.
set -euo pipefail
bible -f gen1:1-rev22:21 | LC_ALL=C awk '
  function flush() {
    if (text != "")
      print "{\"text\":\"" text "\",\"timestamp\":\"1769-01-01T00:00:00Z\",\"url\":\"bible-kjv:" chapter "\"}"
    text = ""
  }
  !/^[1-3]?[A-Z][A-Za-z]*[0-9]+:[0-9]+ / || /[^ -~]|["\\]/ {
    print "bible.sh: unexpected line from bible-kjv: " $0 > "/dev/stderr"
    exit failed = 1
  }
  {
    label = $1
    sub(/:.*/, "", label)
    if (label != chapter) flush()
    chapter = label
    text = text (text == "" ? "" : "\\n") substr($0, length($1) + 2)
  }
  END {
    if (failed) exit 1
    flush()
  }'
