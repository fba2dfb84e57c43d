#!/bin/bash
# labels: emulator
# timeout: 1500
# The library on AArch64, built with a cross compiler and run under an emulator: it chooses NEON,
# computes correct results on every instruction set of that architecture, and executes no
# instruction that the oldest processors lack.
set -euo pipefail
# shellcheck source=tests/emulated/platform.sh
source "$ATTN_SOURCE/tests/emulated/platform.sh"
platform aarch64 aarch64-linux-gnu-gcc qemu-aarch64 "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
build

# The first processor of the architecture, without later extensions: what it runs, the others do.
passes cortex-a57 500 "neon: asimd" 0.02
ran=$(awk '$1 == "ok" { print $3 }' <<<"$output" | sort -u | tr '\n' ' ')
[[ $ran == "generic neon " ]] || fail "ran $ran"
! grep -qE '^chosen .*(sve|bf16|asimddp)' <<<"$output" || fail "features it lacks: $output"

# One with all extensions chooses the same instruction set.
passes max 1 "neon: asimd" 10 sdpa neon
passes max 1 "neon: asimd" 2 sdpa generic

# Choosing an instruction set of another architecture by name is an error, not a crash.
! on max ./check 0.01 scores avx2 || fail "ran avx2"
grep -q 'no instruction set avx2' <<<"$output" || fail "avx2: $output"
export ATTN_ISA=generic
on max ./check 0.01 scores || fail "$output"
grep -q '^chosen generic:' <<<"$output" || fail "ATTN_ISA is not obeyed: $output"
unset ATTN_ISA

# The promises about whole calls, on both instruction sets.
units max "${quick[@]}" "${wide[@]}" "${whole_calls[@]}" backward_contract special
