#!/bin/sh
# Compiles attention for the page: the library's own files, without a C library, into one module of
# WebAssembly.
#
#   build.sh               prints a clang that can (Debian's clang and lld), or fails
#   build.sh CLANG OUT     OUT becomes the module, OUT.base64 the same as text, on one line
#
# SIMD (-msimd128) is in every browser since 2023; where it is not, the page uses JavaScript.
set -eu
flags="--target=wasm32 -msimd128 -mbulk-memory -ffreestanding -nostdlib -nostdlibinc
       -Wl,--no-entry,--gc-sections,--strip-all,--compress-relocations,-z,stack-size=65536"

if [ $# -eq 0 ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    echo '__attribute__((export_name("one"))) int one(void) { return 1; }' >"$work/try.c"
    for clang in clang clang-22 clang-21 clang-20 clang-19 clang-18 clang-17 clang-16 clang-15 \
                 clang-14; do
        # shellcheck disable=SC2086  # flags are words
        if "$clang" $flags "$work/try.c" -o "$work/try.wasm" 2>/dev/null; then
            echo "$clang"
            exit 0
        fi
    done
    exit 1
fi

clang=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
set -- "$here/attend.c" "$here/alone.c" "$here/libc.c" "$here/kernels.c"
for name in alloc dtype mask sdpa sdpa_ahead sdpa_check sdpa_chunk sdpa_result sdpa_short \
    sdpa_tile tensor; do
    set -- "$@" "$root/src/$name.c"
done
# The order of sums and their rounding are those of every other build (cmake/AttnCompile.cmake).
# shellcheck disable=SC2086
"$clang" $flags -std=gnu11 -Oz -DNDEBUG -ffp-contract=off -ffunction-sections -fdata-sections \
    -fvisibility=hidden -Wall -Wextra -Wno-unused-function -isystem "$here/include" \
    -I"$root/src" -I"$root/include" -I"$here" -o "$out" "$@"
base64 <"$out" | tr -d '\n' >"$out.base64"
