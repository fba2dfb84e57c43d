#!/bin/bash
# Shows in which functions one case of `attn bench` spends its time.
# `make profile CASE=decode:bf16` calls it.
#
#   tools/profile.sh [CASE [SECONDS]]    default: 2048 for 10 seconds; tools/bench-case.sh lists
#                                        the cases
#
# The program is linked with -pg in build-profile/, so that the C library samples it 100 times a
# second of CPU time, and gprof adds the samples up. Unlike perf, this needs no privilege and works
# in containers; unlike valgrind, it runs AVX-512. The code is compiled as for a release. Functions
# that the compiler inlined count as part of their callers.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-2048} seconds=${2:-10}
case=$(tools/bench-case.sh "$name") || exit 2
if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
    echo "SECONDS=$seconds: must be a whole number, 1 or more" >&2
    exit 2
fi
tools/install-deps.sh build
command -v gprof >/dev/null ||
    { echo "profile: no gprof, which is a part of GNU binutils" >&2; exit 1; }

build="build-profile"
mkdir -p "$build"
{
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD_TESTS=OFF \
        -DATTN_PAGE_WASM=OFF -DCMAKE_EXE_LINKER_FLAGS=-pg
    cmake --build "$build" -j "${JOBS:-$(nproc)}" --target attn
} >"$build/log" 2>&1 || { cat "$build/log" >&2; exit 1; }

read -ra options <<<"$case"
TIMEFORMAT='cpu %U %S'
sample() { # SECONDS: prints the CPU time and gprof's table, without its heads
    rm -f "$build"/gmon.*
    { time GMON_OUT_PREFIX=$build/gmon "$build/attn" bench "${options[@]}" --seconds "$1" \
        >"$build/bench"; } 2>&1 || return
    compgen -G "$build/gmon.*" >/dev/null || {
        echo "profile: no samples were written; does this C library support -pg, as glibc does?" >&2
        return 1
    }
    gprof -b -p "$build/attn" "$build"/gmon.* | sed -n '/^ *[0-9]/p'
}

# The bench also draws inputs, once, and measures the machine's multiply-adds and reads in between.
# A run of no time shows the first; functions of their own do the second. Both are left out.
sample 1e-6 >"$build/start" || { cat "$build/start" >&2; exit 1; }
sample "$seconds" >"$build/samples" || { cat "$build/samples" >&2; exit 1; }
sed '/^$/d' "$build/bench"
awk '
    FNR == 1 { sign = NR == 1 ? -1 : 1 }
    $1 == "cpu" { outside += sign * ($2 + $3); next }
    { outside -= sign * $3 }
    $NF ~ /^(op_fma_loop|peak|sum_[a-z0-9]+|best_rate)$/ { machine += sign * $3; next }
    { seconds[$NF] += sign * $3 }
    END {
        for (f in seconds)
            if (seconds[f] > 0.005)
                all += seconds[f]
        if (!all) {
            print "profile: no samples of the case; give it more SECONDS" > "/dev/stderr"
            exit 1
        }
        printf "\n%-36s %8s %7s\n", "function", "seconds", "share"
        sort = "sort -k2,2nr"
        for (f in seconds)
            if (seconds[f] > 0.005)
                printf "%-36s %8.2f %6.1f%%\n", f, seconds[f], 100 * seconds[f] / all | sort
        close(sort)
        printf "not counted above: %.2f s of measuring the machine, ", machine
        printf "%.2f s in libc, libm and the kernel\n", (outside > 0 ? outside : 0)
    }' "$build/start" "$build/samples"
