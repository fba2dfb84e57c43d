#!/bin/bash
# What is promised of the library as a file: small, needs only the C library, exports only attn_*;
# the header compiles alone as C and C++; a bare compiler call builds it without CMake.
#
#   tools/check-library.sh [BUILD]     a release build, default build/
set -euo pipefail
cd "$(dirname "$0")/.."
library=${1:-build}/libattn.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "check-library: $*" >&2
    exit 1
}

strip -o "$work/libattn.so" "$library"
size=$(stat -c %s "$work/libattn.so")
((size < 1048576)) || fail "libattn.so has $size bytes stripped; it must stay under 1 MiB"

objdump -p "$library" | grep -q 'SONAME *libattn\.so\.0$' || fail "SONAME is not libattn.so.0"
mapfile -t needed < <(objdump -p "$library" | awk '$1 == "NEEDED" { print $2 }')
for name in "${needed[@]}"; do
    case "$name" in
    libc.so.* | libm.so.* | ld-linux*) ;;
    *) fail "libattn.so needs $name; only libc and libm are allowed" ;;
    esac
done

exported=$(nm -D --defined-only "$library" |
           awk '$2 != "A" { sub("@.*", "", $3); print $3 }' | sort)
[[ -n $exported ]] || fail "libattn.so exports nothing"
strangers=$(grep -v '^attn_' <<<"$exported" || true)
[[ -z $strangers ]] || fail "libattn.so exports more than attn_*: $strangers"
# Every function that the header declares is there, and nothing that it does not declare.
declared=$(gcc -E -P include/attn.h | tr '\n' ' ' | tr ';{}' '\n' |
           grep 'visibility' | grep -oE 'attn_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u)
difference=$(diff <(echo "$declared") <(echo "$exported") || true)
[[ -z $difference ]] || fail "the header (<) and the library (>) differ: $difference"

warnings=(-Wall -Wextra -pedantic -Werror)
for compiler in gcc g++ clang clang++; do
    if ! command -v "$compiler" >/dev/null; then
        echo "check-library: no $compiler, left out" >&2
        continue
    fi
    case "$compiler" in
    *++) dialect=(-std=c++17 -x c++) ;;
    *) dialect=(-std=c11 -x c) ;;
    esac
    for header in attn.h attn_nn.h; do
        echo "#include \"$header\"" |
            "$compiler" "${dialect[@]}" "${warnings[@]}" -Iinclude -fsyntax-only - ||
            fail "$header does not compile alone with $compiler"
    done
done

for compiler in gcc clang; do
    command -v "$compiler" >/dev/null || continue
    "$compiler" examples/one_call.c src/*.c src/*/*.c -Iinclude -lm -lpthread \
                -o "$work/$compiler" ||
        fail "a bare $compiler does not build examples/one_call.c with the sources"
    "$work/$compiler" >"$work/$compiler.out" || fail "examples/one_call built by $compiler fails"
    [[ -s $work/$compiler.out ]] || fail "examples/one_call built by $compiler prints nothing"
done

echo "library: ok, $size bytes stripped, $(wc -l <<<"$exported") functions, needs ${needed[*]}"
