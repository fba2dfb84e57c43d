# shellcheck shell=bash
# flags: options of CMake for a test that builds the tree again. A compiler cache has the files as
# the tree's own build compiles them; without one, -O1 is faster to compile.
# shellcheck disable=SC2034  # for the tests
flags=(-DATTN_WERROR="${ATTN_WERROR:-OFF}")
[[ -n ${CMAKE_C_COMPILER_LAUNCHER:-} ]] || flags+=(-DCMAKE_C_FLAGS_RELEASE="-O1 -DNDEBUG")
