#!/bin/bash
# Compiles examples/lessons/*.c against the library of a build and runs each: make lessons
#
#   tools/lessons.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${1:?the build folder}")

for file in examples/lessons/*.c; do
    program=$build/lesson-$(basename "$file" .c)
    printf '\n== %s\n' "$file"
    "${CC:-cc}" -std=c11 -O1 -Wall -Wextra -Iinclude "$file" -L"$build" -lattn -lm -o "$program"
    LD_LIBRARY_PATH=$build "$program"
done
