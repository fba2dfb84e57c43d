#!/bin/bash
# The bf16 code for processors with AMX or AVX512-BF16: it compiles without a warning with every
# installed compiler, and the kernels contain the instructions that they are written for.
set -eu
if [ "$(uname -m)" != x86_64 ]; then
    echo "not run: AMX and AVX512-BF16 are of x86-64"
    exit 0
fi
tried=0
for compiler in gcc clang; do
    command -v $compiler >/dev/null || continue
    tried=1
    for file in bf16_task bf16_operands bf16_decode unit_amx unit_dot unit_grads unit_shared \
        amx_emulated; do
        $compiler -std=gnu11 -O2 -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Werror \
            -ffp-contract=off -I"$ATTN_SOURCE/include" -I"$ATTN_SOURCE/src" \
            -c "$ATTN_SOURCE/src/bf16/$file.c" -o "$file.o"
    done
    for instruction in ldtilecfg tilerelease tileloadd tilestored tilezero tdpbf16ps; do
        count=$(objdump -d unit_amx.o | grep -c "[[:space:]]$instruction\b") || true
        echo "$compiler: $instruction $count"
        [ "$count" -gt 0 ]
    done
    count=$(objdump -d unit_dot.o | grep -c "[[:space:]]vdpbf16ps\b") || true
    echo "$compiler: vdpbf16ps $count"
    [ "$count" -gt 0 ]
done
[ $tried = 1 ]
