#!/bin/bash
# labels: emulator
# timeout: 1500
# The library on s390x, which is big-endian: tests code that reads bytes as words, or words as
# bytes.
set -euo pipefail
# shellcheck source=tests/emulated/platform.sh
source "$ATTN_SOURCE/tests/emulated/platform.sh"
platform s390x s390x-linux-gnu-gcc qemu-s390x \
    "gcc-s390x-linux-gnu libc6-dev-s390x-cross"
build
passes max 300 generic: 0.02
same_bits max 23
units max "${quick[@]}" "${wide[@]}" ref dense_masks
