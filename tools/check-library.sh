#!/bin/bash
# Checks the promises about the library file: it is small, needs only the C library, and exports
# only attn_*; the header compiles by itself as C and C++; the compiler alone builds the library,
# without CMake.
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

# Each instruction set adds its own kernels, so the limit is a budget: raising it needs a reason.
# It was 1 MiB before AMX had a decode path of its own (docs/decisions/0024).
limit=1310720 # 1.25 MiB
strip -o "$work/libattn.so" "$library"
size=$(stat -c %s "$work/libattn.so")
((size < limit)) || fail "libattn.so has $size bytes stripped; it must stay under $limit"

# Below 1.0 the name contains the minor version, so that a program never loads a library with
# another ABI.
version=$(sed -n 's/^#define ATTN_VERSION_STRING "\(.*\)"$/\1/p' include/attn.h)
name=libattn.so.${version%%.*}
[[ $version != 0.* ]] || name=libattn.so.${version%.*}
soname=$(objdump -p "$library" | awk '$1 == "SONAME" { print $2 }')
[[ $soname == "$name" ]] || fail "SONAME is $soname; of version $version it must be $name"
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
# The library has every function that the header declares, and exports nothing else.
declared=$(gcc -E -P include/attn.h | tr '\n' ' ' | tr ';{}' '\n' |
           grep 'visibility' | grep -oE 'attn_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u)
difference=$(diff <(echo "$declared") <(echo "$exported") || true)
[[ -z $difference ]] || fail "the header (<) and the library (>) differ: $difference"

# The library never prints, exits, aborts, sends or catches a signal, or changes the locale, because
# it imports no function that does. Functions that hardening compilers add are allowed:
# __stack_chk_fail and the __*_chk functions that format into buffers only detect memory that is
# already corrupted.
imported=$(nm -D --undefined-only "$library" | awk '{ sub("@.*", "", $2); print $2 }' | sort -u)
grep -qx 'aligned_alloc' <<<"$imported" || fail "nm shows no imports of libattn.so"
forbidden='_*(v?f?w?printf|f?puts|f?putc|putchar|fwrite|writev?|send|perror|psignal)(_chk)?'
forbidden+='|std(out|err)|syslog|_?exit|_Exit|quick_exit|abort|__assert(_fail|_rtn)?|__fortify_fail'
forbidden+='|raise|kill|tgkill|pthread_kill|signal|sigaction|sigqueue|alarm|(_*sig)?longjmp'
forbidden+='|setlocale|uselocale|fesetround|feenableexcept|fedisableexcept|terminate'
bad=$(grep -xE "$forbidden" <<<"$imported" || true)
[[ -z $bad ]] || fail "libattn.so imports what prints, exits, aborts or the like: ${bad//$'\n'/ }"

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
    for header in attn.h attn_cache.h attn_nn.h attn_pieces.h attn_mpi.h; do
        echo "#include \"$header\"" |
            "$compiler" "${dialect[@]}" "${warnings[@]}" -Iinclude -fsyntax-only - ||
            fail "$header does not compile alone with $compiler"
    done
done

# Every struct that may grow has an init function and an INIT macro. The functions are for C++
# before C++20, where the macros cause warnings.
mapfile -t grow < <(sed -n 's/^} \(attn_[a-z_]*\);$/\1/p' <(awk '
    /^typedef struct/ { grows = 0 } /^    size_t struct_size;/ { grows = 1 } /^}/ && grows
    ' include/attn.h include/attn_cache.h include/attn_nn.h include/attn_pieces.h))
((${#grow[@]} >= 9)) || fail "only ${#grow[@]} structs that begin with struct_size were found"
{
    echo '#include "attn.h"'
    echo 'int main() { int wrong = 0;'
    for type in "${grow[@]}"; do
        echo "{ $type s; ${type}_init(&s); wrong += s.struct_size != sizeof s; }"
    done
    echo 'return wrong; }'
} >"$work/init.cc"
{
    echo '#include "attn.h"'
    for type in "${grow[@]}"; do
        echo "$type of_$type = ${type^^}_INIT;"
    done
} >"$work/init.c"
for compiler in g++ clang++; do
    command -v "$compiler" >/dev/null || continue
    "$compiler" -std=c++11 "${warnings[@]}" -Iinclude -o "$work/init" "$work/init.cc" "$library" ||
        fail "a C++11 program with every init function does not build with $compiler"
    LD_LIBRARY_PATH=$(dirname "$library") "$work/init" ||
        fail "an init function leaves another struct_size than sizeof ($compiler)"
done
for compiler in gcc clang; do
    command -v "$compiler" >/dev/null || continue
    "$compiler" -std=c11 "${warnings[@]}" -Iinclude -fsyntax-only "$work/init.c" ||
        fail "an INIT macro is missing or wrong ($compiler)"
done

for compiler in gcc clang; do
    command -v "$compiler" >/dev/null || continue
    "$compiler" examples/one_call.c src/*/*.c -Iinclude -lm -lpthread \
                -o "$work/$compiler" ||
        fail "a bare $compiler does not build examples/one_call.c with the sources"
    "$work/$compiler" >"$work/$compiler.out" || fail "examples/one_call built by $compiler fails"
    [[ -s $work/$compiler.out ]] || fail "examples/one_call built by $compiler prints nothing"
done

echo "library: ok, $size bytes stripped, $(wc -l <<<"$exported") functions, needs ${needed[*]}"
