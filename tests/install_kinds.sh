#!/bin/bash
# timeout: 600
# BUILD_SHARED_LIBS, CMake's own variable, chooses the library that is installed. A project that
# links Attn::attn gets this one, by find_package and by add_subdirectory. A level of
# _FORTIFY_SOURCE that the user has set is not changed.
set -euo pipefail
fail() {
    echo "install_kinds: $*" >&2
    exit 1
}
quietly() { "$@" >log 2>&1 || { cat log; fail "$*"; }; }

rm -rf OFF ON fortify* user* prefix*
mkdir user
cat >user/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.21)
project(user C)
if(ATTN_TREE)
    add_subdirectory(${ATTN_TREE} attn)
    if(TARGET test)
        message(FATAL_ERROR "tests of another project")
    endif()
else()
    find_package(Attn 0.2 REQUIRED)
endif()
add_executable(one_call ${EXAMPLE})
target_link_libraries(one_call PRIVATE Attn::attn)
END

# shellcheck source=tests/support/build_flags.sh
source "$ATTN_SOURCE/tests/support/build_flags.sh"
configure() { # FOLDER OPTION...
    quietly cmake -S "$ATTN_SOURCE" -B "$1" -DATTN_BUILD_PROGRAM=OFF -DCMAKE_BUILD_TYPE=Release \
            "${flags[@]}" "${@:2}"
}

for shared in OFF ON; do
    configure "fortify-$shared" -DBUILD_SHARED_LIBS="$shared" \
              -DCMAKE_C_FLAGS="-D_FORTIFY_SOURCE=1" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
    commands=fortify-$shared/compile_commands.json
    grep -q 'FORTIFY_SOURCE=1' "$commands" || fail "the builder's flags: lost"
    ! grep -q 'FORTIFY_SOURCE=2' "$commands" || fail "_FORTIFY_SOURCE redefined"
    configure "$shared" -DBUILD_SHARED_LIBS="$shared"
    quietly cmake --build "$shared" -j "$(nproc)"
    quietly cmake --install "$shared" --prefix "$PWD/prefix-$shared"
    got=$(find "prefix-$shared" -name 'libattn.*' -type f -printf '%f ')
    case $shared$got in
    OFF"libattn.a " | ON"libattn.so."*) ;;
    *) fail "BUILD_SHARED_LIBS=$shared installs $got" ;;
    esac
    for name in LICENSE attn.h attn_cache.h attn_nn.h attn_pieces.h attn_mpi.h attn_mpi_comm.h; do
        [[ -n $(find "prefix-$shared" -name "$name") ]] || fail "$name is not installed"
    done
    quietly cmake -S user -B "user-$shared" -DCMAKE_PREFIX_PATH="$PWD/prefix-$shared" \
            -DEXAMPLE="$ATTN_SOURCE/examples/one_call.c"
    quietly cmake --build "user-$shared"
    "user-$shared/one_call" >"$shared.out"
done
cmp OFF.out ON.out
quietly cmake -S user -B user-tree -DBUILD_SHARED_LIBS=OFF -DATTN_TREE="$ATTN_SOURCE" \
        -DEXAMPLE="$ATTN_SOURCE/examples/one_call.c"
echo "installed: one library each"
