#!/bin/bash
# Checks docs/PROMISES.md: every row of its tables names the tests of its promise, and these tests
# exist and are run. The last column has one code span for each test:
#
#   `unit/test_special: hidden, seen`   a file below tests/, and those of its cases that count; a
#                                       test of unit/ is named without its folder there
#   `old_cpu.sh`                        a script below tests/
#   `tools/check-library.sh`            any other file that is run, from the root of the tree
#   `attn check: sdpa`                  an entry of the harness, check/
#
#   tools/check-promises.sh [--sheet FILE]     other arguments are not looked at
set -euo pipefail
cd "$(dirname "$0")/.."
sheet=docs/PROMISES.md
[[ ${1:-} != --sheet ]] || sheet=$2

# Prints the existing tests as lines "FILE" and "FILE<tab>CASE". Files are without extension, except
# scripts and fuzz targets; cases are without a leading test_.
tests() {
    local file
    for file in tests/{unit/*,amx}/test_*.c tests/{cli,mpi,python,page,peers}/test_*.py; do
        file=${file#tests/}
        echo "${file%.*}"
    done | sed -E 's/^unit\/.*\//unit\//'
    for file in tests/*.sh; do
        echo "${file#tests/}"
    done
    # Scripts of tools/ count if ctest or .ci/run runs them.
    sed -nE 's/^ *foreach\(check IN ITEMS (.*)\)/\1/p' tests/CMakeLists.txt | tr ' ' '\n' |
        sed -E 's/.*/tools\/check-&.sh/'
    grep -oE '^tools/check-[a-z]+\.sh' .ci/run
    printf '%s\n' fuzz/fuzz_*.c 'attn check'
    grep -HoE 'cmocka_unit_test[a-z_]*\((test_)?[A-Za-z0-9_]+' tests/{unit/*,amx}/test_*.c |
        sed -E 's/^tests\/([^:]*)\.c:[^(]*\((test_)?/\1\t/; s/^unit\/.*\//unit\//'
    grep -HoE '^ +def test_[A-Za-z0-9_]+' tests/{cli,mpi,python,page,peers}/test_*.py |
        sed -E 's/^tests\/([^:]*)\.py: +def test_/\1\t/'
    grep -oE '\{"[a-z0-9_]+", check_' check/check_main.c | sed -E 's/.*"(.*)".*/attn check\t\1/'
}

awk -v sheet="$sheet" '
    function fail(text) {
        printf "%s:%d: %s\n", sheet, FNR, text > "/dev/stderr"
        bad = 1
    }
    function one_test(span,    file, cases, n, i) {
        file = span
        sub(/:.*/, "", file)
        if (!(file in known)) {
            fail("there is no test " file)
            return
        }
        if (span !~ /:/)
            return
        sub(/^[^:]*: */, "", span)
        n = split(span, cases, / *, */)
        if (n == 0)
            fail(file ": names no case after the colon")
        for (i = 1; i <= n; i++)
            if (!((file "\t" cases[i]) in known))
                fail(file " has no case " cases[i])
    }
    FNR == NR { known[$0] = 1; next }
    !/^\|/ { rows_follow = 0; next }
    /^\|( *-+ *\|)+ *$/ { rows_follow = 1; next }
    !rows_follow { next }
    {
        columns = split($0, cell, /[|]/) - 2
        if (columns != 2) {
            fail("a row has " columns " columns, not 2: promise, checked by")
            next
        }
        promises++
        if ($0 in seen || cell[2] in seen)
            fail("stands there twice:" cell[2])
        seen[cell[2]] = 1
        if (cell[2] ~ /^ *$/)
            fail("a row without a promise")
        named = 0
        rest = cell[3]
        while (match(rest, /`[^`]*`/)) {
            one_test(substr(rest, RSTART + 1, RLENGTH - 2))
            rest = substr(rest, RSTART + RLENGTH)
            named++
        }
        tests += named
        if (!named)
            fail("names no test:" cell[2])
    }
    END {
        if (!promises) {
            printf "%s: has no promises\n", sheet > "/dev/stderr"
            bad = 1
        }
        if (!bad)
            printf "promises: %d, each checked by a test that exists (%d named)\n", promises, tests
        exit bad
    }' <(tests) "$sheet"
