#!/bin/bash
# labels: slow
# timeout: 1200
# -DATTN_MPI=ON builds a program with the MPI that CMake is told to take. Its job writes the bytes
# of a run without MPI. mpi/test_attn_run.py has everything else about such jobs.
set -euo pipefail
fail() {
    echo "mpi_program: $*" >&2
    exit 1
}
quietly() { "$@" >log 2>&1 || { cat log; fail "$*"; }; }

mpi=''
for candidate in openmpi mpich; do
    if command -v "mpicc.$candidate" "mpiexec.$candidate" >/dev/null; then
        mpi=$candidate
    fi
done
if [[ -z $mpi ]]; then
    echo "not run: neither Open MPI nor MPICH under Debian's names"
    exit 0
fi

# shellcheck source=tests/support/build_flags.sh
source "$ATTN_SOURCE/tests/support/build_flags.sh"
rm -rf build ./*.npy
quietly cmake -S "$ATTN_SOURCE" -B build -DATTN_MPI=ON -DMPI_EXECUTABLE_SUFFIX=".$mpi" \
        -DATTN_BUILD_TESTS=OFF -DATTN_PAGE_WASM=OFF -DCMAKE_BUILD_TYPE=Release "${flags[@]}"
quietly cmake --build build -j "$(nproc)" --target attn
{ # q, k and v at once: 150 tokens
    printf "\x93NUMPY\x01\x00\x76\x00%-117s\n" \
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 150, 8), }"
    head -c $((2 * 150 * 8 * 4)) /dev/zero | tr '\0' '>' # 0x3e3e3e3e is 0.18580338
} >x.npy
arrays=(--q x.npy --k x.npy --v x.npy --causal top-left --dropout 0.5)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_TLS=posix,sysv,self
build/attn run "${arrays[@]}" --out one.npy
timeout -k 5 120 "mpiexec.$mpi" -n 2 build/attn run --mpi "${arrays[@]}" --out two.npy </dev/null
cmp one.npy two.npy
[[ $(wc -c <two.npy) == $((128 + 2 * 150 * 8 * 4)) ]] || fail "two.npy has another size"
echo "a program with $mpi: the same bytes with two processes"
