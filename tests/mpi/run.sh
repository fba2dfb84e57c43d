#!/bin/bash
# Runs mpi/job.c as jobs of 1 to 8 ranks: the bits of one call, forward and backward, scatter and
# gather, a rank that stops, and the launcher of the other MPI. All jobs of a function must print
# the same hash of the results of one call.
#
#   tests/mpi/run.sh openmpi|mpich PROGRAM      ATTN_RANK_PROBLEMS: problems of each job
set -euo pipefail
mpi=$1 program=$2
problems=${ATTN_RANK_PROBLEMS:-20}
fail() {
    echo "mpi: $*" >&2
    exit 1
}

# Open MPI refuses to run as root without these, and more ranks than cores without the options.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_TLS=posix,sysv,self
openmpi_options=(--oversubscribe --bind-to none --mca pml ob1 --mca btl "vader,self"
                 --mca btl_vader_single_copy_mechanism none --mca mpi_yield_when_idle 1
                 --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo)
# Processes of Open MPI share a folder in TMPDIR. Each makes it if it is missing, and removes it if
# it is empty; two that do this at the same time can fail. So this test has a folder of its own,
# which is there and never empty.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
mkdir -p "$TMPDIR/ompi.$(uname -n | cut -d. -f1).$(id -u)/kept"
launch() { # MPI RANKS ARG...
    local options=()
    [[ $1 != openmpi ]] || options=("${openmpi_options[@]}")
    timeout -k 5 120 "mpiexec.$1" "${options[@]}" -n "$2" "$program" "${@:3}" </dev/null
}

for mode in bits backward; do
    hash='' count=$problems
    [[ $mode == bits ]] || count=$(((problems + 1) / 2)) # each makes two calls
    for P in 1 2 3 4 7 8; do
        said=$(launch "$mpi" "$P" "$mode" "$count") || fail "$mode, $P ranks: ${said:-no output}"
        echo "$mpi, $mode, $said"
        [[ $said == *"$count problems, $count equal one call"* ]] ||
            fail "$mode, $P ranks: $said"
        [[ -z $hash || $hash == "${said##* }" ]] ||
            fail "$mode, $P ranks: another hash than before"
        hash=${said##* }
    done
done
launch "$mpi" 3 layout 401 || fail "scatter and gather of 401 tokens on 3 ranks"

# A stopped rank: the others name it, and the job ends. One that waits for it may be named, too.
status=0
said=$(launch "$mpi" 3 stop 2>&1) || status=$?
((status != 0 && status != 124)) ||
    fail "a stopped rank: the job ended with $status: $said"
for rank in 0 2; do
    grep -qE "^rank $rank: ATTN_ERR_COMM: comm: ranks? (0, )?1(, 2)? sent nothing within 2 s" \
        <<<"$said" ||
        fail "a stopped rank: rank $rank does not name it: $said"
done

# The other launcher would start ranks that each believe to be alone.
other=openmpi
[[ $mpi == openmpi ]] && other=mpich
if command -v "mpiexec.$other" >/dev/null; then
    status=0
    said=$(launch "$other" 2 bits 1 2>&1) || status=$?
    ((status != 0)) || fail "the launcher of $other: not refused: $said"
    grep -q "use the mpirun of the MPI" <<<"$said" || fail "the launcher of $other: $said"
fi
echo "$mpi: ok"
