#!/bin/bash
# labels: tools
# timeout: 900
#
# Tests the wheels of tools/wheels.sh: the glibc version that they need, and that the library in
# each computes. Needs ziglang (PyPI) and, for the second wheel, musl-gcc (Debian: musl-tools).
set -euo pipefail
source=${ATTN_SOURCE:-$(cd "$(dirname "$0")/.." && pwd)}
python3 -m ziglang version >/dev/null 2>&1 || { echo "not run: python3 has no ziglang"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "wheels: $*" >&2; exit 1; }

CFLAGS=-O1 "$source/tools/wheels.sh" "$work" 2>/dev/null
cd "$work"
for kind in manylinux_2_28 musllinux_1_2; do
    mkdir "$kind"
    python3 -m zipfile -e attn-*-py3-none-"$kind"_*.whl "$kind"
done

newest=$(readelf -V manylinux_2_28/attn/libattn.so | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -1)
((${newest#GLIBC_2.} <= 28)) || fail "manylinux_2_28 asks for $newest"
env -u ATTN_LIBRARY PYTHONPATH=manylinux_2_28 python3 - <<'END'
import attn, numpy as np
q = np.arange(12.0).reshape(3, 4) / 10
w = np.exp(q @ q.T / 2)
want = w / w.sum(1, keepdims=True) @ q
assert abs(attn.scaled_dot_product_attention(q, q, q) - want).max() < 1e-14
END
echo "manylinux_2_28: computes; asks for $newest"

! readelf -V musllinux_1_2/attn/libattn.so | grep -q GLIBC || fail "musllinux_1_2 asks for glibc"
command -v musl-gcc >/dev/null || { echo "musllinux_1_2: no musl-gcc to try it with"; exit 0; }
musl-gcc -I"$source/include" "$source/examples/one_call.c" -o one_call \
         "$PWD/musllinux_1_2/attn/libattn.so"
output=$(LD_LIBRARY_PATH=musllinux_1_2/attn ./one_call | head -1)
[[ $output == "0.4011 0.1978 0.4011 5.0000" ]] || fail "one_call on musl gives $output"
echo "musllinux_1_2: computes"
