#!/bin/bash
# Runs a fuzz target, fuzz/fuzz_TARGET.c, under clang's libFuzzer with the address and
# undefined-behaviour sanitizers. `make fuzz T=npy SECONDS=60` calls it.
#
#   tools/fuzz.sh                     lists the targets
#   tools/fuzz.sh TARGET [SECONDS]    default: 60 seconds
#
# Everything lies in build-fuzz/: corpus/TARGET/ (kept from run to run; it starts with the seeds of
# tests/unit/io/test_fuzz.c), crashes/ and TARGET.log. Exits with 1 if the target fails.
set -euo pipefail
cd "$(dirname "$0")/.."

targets() { printf '%s\n' fuzz/fuzz_*.c | sed 's|.*/fuzz_||; s|\.c$||' | paste -sd' '; }
usage() { echo "fuzz: $*" >&2; exit 2; }

target=${1:-} seconds=${2:-60}
if [[ -z $target ]]; then
    echo "targets: $(targets)"
    echo "example: make fuzz T=npy SECONDS=60"
    exit 0
fi
[[ " $(targets) " == *" $target "* ]] || usage "no target '$target'; targets: $(targets)"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || usage "SECONDS=$seconds: must be a whole number, 1 or more"

tools/install-deps.sh fuzz
build=build-fuzz corpus=build-fuzz/corpus/$target log=build-fuzz/$target.log
mkdir -p "$corpus" "$build/crashes" "$build/seeds"
{
    cmake --preset fuzz
    cmake --build --preset fuzz -j "${JOBS:-$(nproc)}" --target "fuzz_$target" seeds_for_fuzzing
} >"$log" 2>&1 || { cat "$log" >&2; exit 1; }

# Some targets write files; they are faster in memory.
scratch=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo "$build")")
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1

ATTN_FUZZ_CORPUS=$build/seeds "$build/seeds_for_fuzzing" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cp "$build/seeds/$target"-* "$corpus"

echo "fuzzing $target for $seconds s; output: $log"
status=0
"$build/fuzz_$target" -max_total_time="$seconds" -max_len=4096 -timeout=30 \
    -artifact_prefix="$build/crashes/$target-" "$corpus" >"$log" 2>&1 || status=$?
if ((status)); then
    grep -v '^#[0-9]*[[:space:]]*\(NEW\|REDUCE\|pulse\|RELOAD\)' "$log" | head -n 100 >&2
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "fuzz: $target failed (exit status $status); its output: $log" >&2
    [[ -z $input ]] || echo "to repeat it:  $build/fuzz_$target $input" >&2
    exit 1
fi
sed -n 's/^Done /no failure: /p' "$log" | tail -n 1
echo "corpus: $(find "$corpus" -type f | wc -l) inputs in $corpus"
