#!/bin/bash
# tools/check-promises.sh must fail for a promise that names no test, for a test or a case that does
# not exist, for a promise that is listed twice, and for a sheet without promises.
# shellcheck disable=SC2016
set -euo pipefail
: "${ATTN_SOURCE:?the source tree}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
head='| promise | checked by |
| --- | --- |'

run() {
    printf '%s\n' "$head" "$@" >"$folder/sheet.md"
    "$ATTN_SOURCE/tools/check-promises.sh" --sheet "$folder/sheet.md" >"$folder/said" 2>&1
}
holds() {
    run "$@" || { echo "refused: $*" >&2; cat "$folder/said" >&2; exit 1; }
}
# Arguments: the expected message, then the rows.
fails() {
    local say=$1
    shift
    if run "$@"; then
        echo "not noticed: $*" >&2
        exit 1
    fi
    grep -qF -- "$say" "$folder/said" && return
    echo "another reason than '$say':" >&2
    cat "$folder/said" >&2
    exit 1
}

good='| out is right | `unit/test_special: hidden, seen`, by example; `attn check: sdpa` |'
holds "$good" '| two | `cli/test_run: linear_memory`, `old_cpu.sh`, `tools/check-library.sh` |' \
      '| three | `unit/test_context: defaults`, `fuzz/fuzz_cache.c`, `tools/check-deps.sh` |'
fails 'names no test: bits' "$good" '| bits | the tests |'
fails 'names no test: bits' "$good" '| bits | |'
fails 'there is no test unit/test_none' '| x | `unit/test_none` |' "$good"
fails 'there is no test test_special' '| x | `test_special` |'
fails 'test_special has no case hiden' '| x | `unit/test_special: seen, hiden` |'
fails 'has no case sums' '| x | `cli/test_run: sums` |'
fails 'names no case' '| x | `cli/test_run:` |'
fails 'attn check has no case sdp' '| x | `attn check: sdp` |'
fails 'there is no test tools/install-deps.sh' '| x | `tools/install-deps.sh` |'
fails 'stands there twice' "$good" "$good"
fails '3 columns' '| x | y | `attn check: sdpa` |'
fails 'has no promises'
echo "check-promises.sh notices what it should"
