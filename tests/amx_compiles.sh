#!/bin/bash
# The path for AMX as it runs on a processor that has it: it compiles without a warning by every
# compiler that is here, and its fast kernel holds the instructions that it is about.
set -eu
if [ "$(uname -m)" != x86_64 ]; then
    echo "not run: AMX is of x86-64"
    exit 0
fi
tried=0
for compiler in gcc clang; do
    command -v $compiler >/dev/null || continue
    tried=1
    for file in sdpa_amx sdpa_amx_data kernel/amx_step kernel/amx_pieces kernel/amx_emulated; do
        $compiler -std=gnu11 -O2 -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Werror \
            -ffp-contract=off -I"$ATTN_SOURCE/include" -I"$ATTN_SOURCE/src" \
            -c "$ATTN_SOURCE/src/$file.c" -o "$(basename $file).o"
    done
    for instruction in ldtilecfg tilerelease tileloadd tilestored tilezero tdpbf16ps; do
        count=$(objdump -d amx_step.o | grep -c "[[:space:]]$instruction\b") || true
        echo "$compiler: $instruction $count"
        [ "$count" -gt 0 ]
    done
done
[ $tried = 1 ]
