#!/bin/bash
# tools/bits-merge.sh RECORD TABLE: prints RECORD (tests/data/bits-*.txt) with the hashes of TABLE,
# the output of `attn check --bits`, perhaps from another machine. If a hash of a line has changed,
# the hashes of instruction sets that TABLE lacks belong to older results and become "-".
set -euo pipefail
[[ $# == 2 ]] || { echo "usage: tools/bits-merge.sh RECORD TABLE" >&2; exit 2; }
awk '
    NR == FNR { if ($0 !~ /^#/) table[$1 " " $2] = $0; next }
    /^#/ || $1 == "problem" { print; next }
    !(($1 " " $2) in table) { print "no line " $1 " " $2 " in the table" >"/dev/stderr"; exit 1 }
    {
        split(table[$1 " " $2], now, " ")
        changed = 0
        for (i = 3; i <= NF; i++)
            changed = changed || (now[i] != "-" && $i != "-" && now[i] != $i)
        for (i = 3; i <= NF; i++)
            $i = now[i] != "-" ? now[i] : changed ? "-" : $i
        print
    }' "$2" "$1"
