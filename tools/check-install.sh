#!/bin/bash
# Installs into a temporary prefix, moves it to another folder, and builds and runs a program with
# it in each way that users do: pkg-config, pkg-config --static, find_package.
#
#   tools/check-install.sh [BUILD]     default build/
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "check-install: $*" >&2
    exit 1
}
cc=${CC:-cc}

# An installed tree can be moved: nothing in it contains the path of the first folder.
cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"
prefix=$work/prefix
library=$(dirname "$(find "$prefix" -name libattn.so)")
if grep -rlI "$work/first" "$prefix"; then
    fail "an installed file names its prefix"
fi

export PKG_CONFIG_PATH=$library/pkgconfig
export LD_LIBRARY_PATH=$library
read -ra flags < <(pkg-config --cflags --libs attn)
"$cc" -o "$work/shared" examples/one_call.c "${flags[@]}"
read -ra flags < <(pkg-config --cflags --libs --static attn)
"$cc" -static -o "$work/static" examples/one_call.c "${flags[@]}"
cmake -S examples/consumer -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" ||
    { cat "$work/log"; fail "find_package(Attn) fails"; }
cmake --build "$work/consumer" >"$work/log" || { cat "$work/log"; fail "examples/consumer fails"; }

"$work/shared" >"$work/want" || fail "examples/one_call fails"
for program in "$work/static" "$work/consumer/one_call" "$work/consumer/one_call_static"; do
    "$program" | diff "$work/want" - || fail "$program differs from the shared one"
done
# libattn-mpi, by pkg-config: 401 tokens on 3 ranks.
cat >"$work/ranks.c" <<'END'
#include <attn_mpi.h>
int main(void) { return attn_mpi_rows(401, 0, 3) == 145 ? 0 : 1; }
END
read -ra flags < <(pkg-config --cflags --libs attn-mpi)
"$cc" -o "$work/ranks" "$work/ranks.c" "${flags[@]}"
"$work/ranks" || fail "libattn-mpi of the installed tree is wrong"
for program in causal_threads decode pieces; do
    "$work/consumer/$program" >/dev/null || fail "examples/$program fails"
done

# The program, its manual page and its bash completion.
version=$(pkg-config --modversion attn)
"$prefix/bin/attn" info | grep -qF "$version" || fail "attn info does not say version $version"
page=$prefix/share/man/man1/attn.1
grep -q '^\.TH' "$page" || fail "no manual page"
if command -v man >/dev/null; then
    LC_ALL=C.UTF-8 MANROFFSEQ='' man --warnings -l "$page" 2>&1 >/dev/null | diff /dev/null - ||
        fail "the manual page has warnings"
fi
bash -n "$prefix/share/bash-completion/completions/attn" || fail "the completion is not valid"

echo "install: ok, version $version"
