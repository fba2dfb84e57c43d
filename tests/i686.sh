#!/bin/bash
# labels: emulator
# timeout: 1500
# The library on 32-bit x86 with SSE2: sizes and addresses of 32 bits.
set -euo pipefail
# shellcheck source=tests/emulated/platform.sh
source "$ATTN_SOURCE/tests/emulated/platform.sh"
platform i686 i686-linux-gnu-gcc qemu-i386 \
    "gcc-i686-linux-gnu libc6-dev-i386-cross"
natively
# These tests use sizes above 2^32 and expect the results of a 64-bit size_t. Here such sizes are
# refused earlier, which test_sizes checks.
skip="test_vast_and_empty test_create_errors test_F15_counts_against_the_bytes
 test_F15_sizes_against_the_bytes test_dropout_limits
 refused_memory_is_an_error test_limits test_linear_errors"
# shellcheck disable=SC2034  # for platform.sh
flags=(-msse2 -mfpmath=sse -Wno-psabi "-DEMULATED_SKIP=\"${skip//$'\n'}\"")
build
passes max 300 generic: 0.02
units max "${quick[@]}" "${whole_calls[@]}"

# With the x87 unit, or any other arithmetic that does not round to float and double, it must not
# compile, and the error must name the missing compiler option.
for flags in -mfpmath=387 "-msse2 -mfpmath=387" "-msse -mfpmath=sse" \
    "-msse2 -mfpmath=sse -Ofast"; do
    # shellcheck disable=SC2086  # flags are words
    if "$cc" -I"$ATTN_SOURCE/include" $flags -c "$ATTN_SOURCE/src/core/dtype.c" -o x87.o \
        2>x87.log; then
        fail "compiled with $flags"
    fi
    grep -qE 'error.*(-msse2 -mfpmath=sse|leave out -ffast-math)' x87.log || fail "$(cat x87.log)"
done
# The public headers compile with any such flags of a program.
printf '#include "attn.h"\n#include "attn_nn.h"\n' >header.c
"$cc" -I"$ATTN_SOURCE/include" -mfpmath=387 -c header.c -o header.o || fail "headers"
