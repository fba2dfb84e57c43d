#!/bin/sh
# Compiles attention for the page: the library's own files, without a C library, into one module of
# WebAssembly.
#
#   build.sh                  prints a clang that can (Debian's clang and lld), or fails
#   build.sh CLANG OUT [AUTO] OUT becomes the module, OUT.base64 the same as text, on one line;
#                             with AUTO a failure is one line that says why, and OUT.base64 is
#                             empty: the page then computes by JavaScript
#
# SIMD (-msimd128) is in every browser since 2023; where it is not, the page uses JavaScript.
#
# Files are compiled and linked by two calls, and -O stands in the first alone: clang runs wasm-opt,
# where one is installed, when it links with -O, and Debian's refuses a module that --strip-all has
# left without its list of features. So the module is also the same with and without wasm-opt.
set -eu
target="--target=wasm32"
compile="-msimd128 -mbulk-memory -ffreestanding -nostdlibinc"
link="-nostdlib -Wl,--no-entry,--gc-sections,--strip-all,--compress-relocations,-z,stack-size=65536"

# build OUT FOLDER FLAGS... FILES...: OUT becomes the module, by way of objects in the empty FOLDER.
build() {
    out=$1 objects=$2
    shift 2
    # shellcheck disable=SC2086  # flags are words
    (cd "$objects" && "$clang" $target $compile -c "$@") &&
        "$clang" $target $link "$objects"/*.o -o "$out"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/o"

if [ $# -eq 0 ]; then
    echo '__attribute__((export_name("one"))) int one(void) { return 1; }' >"$work/try.c"
    for clang in clang clang-22 clang-21 clang-20 clang-19 clang-18 clang-17 clang-16 clang-15 \
                 clang-14; do
        if build "$work/try.wasm" "$work/o" "$work/try.c" 2>/dev/null; then
            echo "$clang"
            exit 0
        fi
    done
    exit 1
fi

clang=$1 module=$2 failure=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
set -- "$here/attend.c" "$here/freestanding.c" "$here/libc.c" "$here/kernels.c"
for name in core/alloc core/dtype core/struct_size core/tensor plan/engine plan/mask \
    plan/sdpa_check plan/sequence plan/task_list plan/work sdpa/chunk sdpa/decode sdpa/make_plan \
    sdpa/plan_info sdpa/prefetch sdpa/result sdpa/route sdpa/sdpa sdpa/tile_load \
    sdpa/tile_task; do
    set -- "$@" "$root/src/$name.c"
done
# The order of sums and their rounding are those of every other build (cmake/AttnCompile.cmake).
if build "$work/module" "$work/o" -std=gnu11 -Oz -DNDEBUG -ffp-contract=off -ffunction-sections \
    -fdata-sections -fvisibility=hidden -Wall -Wextra -Wno-unused-function \
    -isystem "$here/include" -I"$root/src" -I"$root/include" -I"$here" "$@" 2>"$work/said"; then
    cat "$work/said" >&2
    cp "$work/module" "$module"
    base64 <"$module" | tr -d '\n' >"$module.base64"
elif [ "$failure" = AUTO ]; then
    why=$(grep -m 1 -i error "$work/said" || head -n 1 "$work/said")
    echo "attn: pages will compute by JavaScript: $clang did not compile attention to" \
        "WebAssembly: ${why:-it does not say why}" >&2
    : >"$module.base64"
else
    cat "$work/said" >&2
    exit 1
fi
