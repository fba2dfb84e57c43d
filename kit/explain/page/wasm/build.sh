#!/bin/sh
# Compiles the program's part for the page to one module of WebAssembly: the library, and what
# `attn explain` needs to make a trace and its JSON, with wasi-libc as their C library.
#
#   build.sh                        prints a clang that can (Debian's clang, lld, wasi-libc,
#                                   libclang-rt-dev-wasm32), or fails
#   build.sh CLANG MADE OUT [AUTO]  MADE: a folder with unicode_table.h, which unicode_table.c
#                                   printed, lessons.def (LessonTable.cmake), page_lesson.c
#                                   (EmbedLessons.cmake) and heads_file.c (EmbedHeads.cmake). OUT
#                                   becomes the module, OUT.base64 the same as text on one line,
#                                   compressed by gzip; with AUTO a failure is one line that says
#                                   why, and OUT.base64 is empty: the page then computes by
#                                   JavaScript
#
# SIMD (-msimd128) is in every browser since 2023; where it is not, the page uses JavaScript. A
# browser with SIMD also has the older instructions that the other flags allow; they make the module
# 2 KB smaller.
#
# Files are compiled and linked by two calls, and -O stands in the first alone: clang runs wasm-opt,
# where one is installed, when it links with -O, and Debian's refuses a module that --strip-all has
# left without its list of features. So the module is also the same with and without wasm-opt.
set -eu
target="--target=wasm32-wasi"
compile="-msimd128 -mbulk-memory -msign-ext -mnontrapping-fptoint"
link="-mexec-model=reactor -lm -Wl,--gc-sections,--strip-all,--stack-first,-z,stack-size=262144"

# build OUT FOLDER FLAGS... FILES...: OUT becomes the module, by way of objects in the empty FOLDER.
build() {
    out=$1 objects=$2
    shift 2
    # shellcheck disable=SC2086  # flags are words
    (cd "$objects" && "$clang" $target $compile -c "$@") &&
        "$clang" $target "$objects"/*.o $link -o "$out"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/o"

if [ $# -eq 0 ]; then
    # Needs the headers, the C library and, for the product, the compiler's own library.
    cat >"$work/try.c" <<'C'
#include <stdlib.h>
__attribute__((export_name("two"))) double two(const char *text, __int128 x)
{
    return strtod(text, NULL) + (double)(x * x);
}
C
    for clang in clang clang-22 clang-21 clang-20 clang-19 clang-18 clang-17 clang-16 clang-15 \
                 clang-14; do
        if build "$work/try.wasm" "$work/o" "$work/try.c" 2>/dev/null; then
            echo "$clang"
            exit 0
        fi
    done
    exit 1
fi

clang=$1 made=$2 module=$3 failure=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
mkdir "$work/table"
cp "$made/unicode_table.h" "$made/lessons.def" "$work/table"
set -- "$here/attend.c" "$here/explain.c" "$here/fmaf.c" "$here/learn.c" "$here/no_system.c" \
    "$here/unicode.c" "$made/page_lesson.c" "$made/heads_file.c"
for name in kit explain/grid explain/recipe_common explain/recipe_explain explain/recipe_health \
    explain/recipe_trained explain/lessons/explain_facts explain/lessons/lessons \
    explain/lessons/script_apply explain/lessons/script_parse explain/lessons/script_quote \
    explain/script explain/trace explain/render/draw explain/render/json_page \
    explain/render/json_script explain/render/render_json io/array io/json_write io/shortest \
    text/shown text/words train/heads train/model train/run train/task; do
    set -- "$@" "$root/kit/$name.c"
done
for file in "$root"/src/*/*.c; do
    case $file in
    */context/pool.c | */context/fork.c | */context/openmp.c) ;; # no_system.c
    */isa_avx* | */isa_neon* | */amx_emulated.c) ;; # for other CPUs
    *) set -- "$@" "$file" ;;
    esac
done
# The order of sums and their rounding are those of every other build (cmake/AttnCompile.cmake).
if build "$work/module" "$work/o" -std=gnu11 -Oz -DNDEBUG -ffp-contract=off -ffunction-sections \
    -fdata-sections -fvisibility=hidden -isystem "$here/port" \
    -isystem "$work/table" -I"$root" -I"$root/kit" -I"$root/src" -I"$root/include" "$@" \
    2>"$work/said"; then
    cat "$work/said" >&2
    cp "$work/module" "$module"
    gzip -9n <"$module" | base64 | tr -d '\n' >"$module.base64"
elif [ "$failure" = AUTO ]; then
    why=$(grep -m 1 -i error "$work/said" || head -n 1 "$work/said")
    echo "attn: pages will compute by JavaScript: $clang did not compile the program to" \
        "WebAssembly: ${why:-it does not say why}" >&2
    : >"$module.base64"
else
    cat "$work/said" >&2
    exit 1
fi
