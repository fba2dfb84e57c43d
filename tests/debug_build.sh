#!/bin/bash
# labels: slow
# timeout: 1200
# `make debug` compiles the library and the program without warnings, which are errors there.
set -euo pipefail
build=$PWD/build
rm -rf "$build"
cd "$ATTN_SOURCE"
cmake --preset debug -B "$build" -DATTN_BUILD_TESTS=OFF >/dev/null
cmake --build "$build" --target attn -j 2 >"$build/log" || { cat "$build/log"; exit 1; }
rm -rf "$build"
