#!/bin/bash
# labels: emulator
# The library on AArch64, built by a bare cross compiler and run under an emulator: it chooses NEON,
# computes what the definition says on every instruction set of that architecture, and executes
# nothing that its oldest processors lack.
set -euo pipefail
fail() {
    echo "aarch64: $*" >&2
    exit 1
}

cc=$(command -v aarch64-linux-gnu-gcc) || {
    echo "not run: no cross compiler (apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
    exit 0
}
qemu=$(command -v qemu-aarch64) || {
    echo "not run: no qemu-aarch64 (apt-get install qemu-user)"
    exit 0
}
[[ $(uname -m) != aarch64 ]] || { echo "not run: the other tests do it on this machine"; exit 0; }
if grep -qE '__(asan|tsan|msan)_init' "$ATTN"; then
    echo "not run: a build with sanitizers has nothing to add here"
    exit 0
fi
unset ATTN_ISA ATTN_NUM_THREADS

cat >main.c <<'END'
/* What is chosen, and what the processor says it has; then the harness: SECONDS [OPERATION [ISA]]
 */
#include <stdlib.h>
#include "attn.h"
#include "check.h"
int main(int argc, char **argv)
{
    char features[512];
    attn_cpu_features(features, sizeof features);
    printf("chosen %s: %s\n", attn_context_isa(NULL), features);
    fflush(stdout);
    check_options o = {.seconds = atof(argv[1]), .seed = 2024, .out = stdout};
    o.op = argc > 2 ? argv[2] : NULL;
    o.isa = argc > 3 ? argv[3] : NULL;
    return check_run(&o) ? 1 : 0;
}
END

# compile FOLDER FLAGS...: the files named on standard input, into FOLDER.
compile() {
    mkdir -p "$1"
    (cd "$1" && xargs -P "$(nproc)" -n 1 "$cc" -I"$ATTN_SOURCE/include" "${@:2}" -c)
}
# The library as anybody may build it: that no product and sum are fused by accident, which this
# architecture does at every chance, must not need an option. The definition is slow in any case:
# its long double is software here.
printf '%s\n' "$ATTN_SOURCE"/src/*.c "$ATTN_SOURCE"/src/*/*.c |
    compile library -O2 -Wall -Wextra -Werror
printf '%s\n' "$ATTN_SOURCE"/check/*.c "$ATTN_SOURCE"/ref/*.c "$PWD/main.c" |
    compile harness -O1 -ffp-contract=off -I"$ATTN_SOURCE" -I"$ATTN_SOURCE/check"
"$cc" -static -o harness/run harness/*.o library/*.o -lm -lpthread

# on CPU ARGUMENTS...: what the harness prints; a signal is a failure by itself
on() {
    local cpu=$1 status=0
    shift
    output=$("$qemu" -cpu "$cpu" harness/run "$@" 2>&1) || status=$?
    ((status < 128)) || fail "$cpu: $* ended by signal $((status - 128)): $output"
    return "$status"
}
# passes CPU MINIMUM ARGUMENTS...: all of at least MINIMUM cases pass, NEON is chosen
passes() {
    on "$1" "${@:3}" || fail "$1: ${*:3}: $output"
    grep -qE '^chosen neon: asimd( |$)' <<<"$output" || fail "$1: should choose neon: $output"
    local count
    count=$(sed -nE 's/^([0-9]+) passed, 0 failed$/\1/p' <<<"$output")
    ((${count:-0} >= $2)) || fail "$1: too few cases: $output"
    echo "$1: ${*:3}: $count passed"
}

passes max 500 0.1
ran=$(awk '$1 == "ok" { print $3 }' <<<"$output" | sort -u | tr '\n' ' ')
[[ $ran == "generic neon " ]] || fail "ran $ran"
passes max 1 10 sdpa neon
passes max 1 2 sdpa generic

# The first processor of the architecture; it has none of what came later.
passes cortex-a57 100 0.02
! grep -qE '^chosen .*(sve|bf16|asimddp)' <<<"$output" || fail "features it lacks: $output"

# Asked for by name, a set of another architecture is an error and no crash.
! on max 0.01 scores avx2 || fail "ran avx2"
grep -q 'no instruction set avx2' <<<"$output" || fail "avx2: $output"
export ATTN_ISA=generic
on max 0.01 scores || fail "$output"
grep -q '^chosen generic:' <<<"$output" || fail "ATTN_ISA is not obeyed: $output"
