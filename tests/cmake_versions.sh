#!/bin/bash
# No CMake file requires a newer version than CMakeLists.txt. A script that did made builds fail
# halfway with the oldest supported CMake.
set -euo pipefail
cd "$ATTN_SOURCE"
oldest=$(sed -nE 's/^cmake_minimum_required\(VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
presets=$(sed -nE 's/.*"major": ([0-9]+), "minor": ([0-9]+).*/\1.\2/p' CMakePresets.json)
[[ -n $oldest && $presets == "$oldest" ]] ||
    { echo "CMakeLists.txt asks for '$oldest', CMakePresets.json for '$presets'" >&2; exit 1; }
asked=$(grep -nE '(cmake_policy|cmake_minimum_required)\(VERSION' CMakeLists.txt cmake/* \
             tests/CMakeLists.txt examples/*/CMakeLists.txt)
if grep -vF "(VERSION $oldest)" <<<"$asked"; then
    echo "these ask for another CMake than CMakeLists.txt, $oldest" >&2
    exit 1
fi
wc -l <<<"$asked"
