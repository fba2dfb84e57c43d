#!/bin/bash
# count-walk.sh [TREE [FUNCTION]]: how often does a reader of the sources in TREE (default: this
# tree) who follows one chunk of keys change from one file to another?
#
# Compiles the library without optimisation and with a hook at each function, runs one f32 causal
# forward of 64 queries and 256 keys by the generic kernels, and follows the calls from FUNCTION
# (default tile_task, the start of a task) on. Each call of one function by another is entered once.
# Prints stays (passages read in one file without interruption), files, and returns to a file that
# was read before.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "${1:-$here/../..}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
shopt -s nullglob
for file in "$tree"/src/*.c "$tree"/src/*/*.c; do
    "${CC:-cc}" -O0 -g -finstrument-functions -ffp-contract=off -std=gnu11 -w \
        -I"$tree/include" -I"$tree/src" -c "$file" -o "${file//\//_}.o"
done
"${CC:-cc}" -g -w -no-pie -I"$tree/include" "$here/walk.c" ./*.o -o walk -lm -lpthread
./walk
"$here/count_walk.py" walk trace "${2:-tile_task}"
