#!/bin/bash
# labels: emulator
# timeout: 1500
# The library on ppc64le, whose long double is two doubles and whose pages have 64 KiB.
set -euo pipefail
# shellcheck source=tests/emulated/platform.sh
source "$ATTN_SOURCE/tests/emulated/platform.sh"
platform ppc64le powerpc64le-linux-gnu-gcc qemu-ppc64le \
    "gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross"
build
passes power9 300 generic: 0.02
same_bits power9 23
units power9 "${quick[@]}" "${wide[@]}" dense_masks
