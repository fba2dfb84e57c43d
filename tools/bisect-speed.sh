#!/bin/bash
# Finds the commit that made one case of `attn bench` slower, by git bisect.
# `make bisect-speed CASE=decode:bf16 GOOD=HEAD~20` calls it.
#
#   tools/bisect-speed.sh CASE GOOD [BAD]     default of BAD: HEAD; tools/bench-case.sh lists cases
#
# GOOD is an ancestor of BAD. It and each candidate are built in worktrees below build-bisect/ and
# timed in alternating runs: good, candidate, good. The two runs of the good build differ by noise
# alone. A candidate is slower if its minimum exceeds the good build's by more than this noise and
# THRESHOLD percent (5) together. A commit that does not build is skipped. Changes in the working
# tree do not count, and no worktree remains at the end.
#
# Environment: THRESHOLD percent; RUNS of each kind (3); SECONDS_EACH, of one run (1)
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { echo "bisect-speed: $*" >&2; exit 2; }
commit() { git rev-parse --verify --quiet "$1^{commit}" || usage "$2=$1: no such commit"; }

# `git bisect run` calls this script again, for the commit that it checked out.
if [[ ${1:-} == --step ]]; then
    folder=$2 good=$2/good-build candidate=$2/candidate-build
else
    options=$(tools/bench-case.sh "${1:-2048}") || exit 2
    [[ -n ${2:-} ]] || usage "GOOD=COMMIT is missing: a commit that was still fast"
    good_commit=$(commit "$2" GOOD)
    bad_commit=$(commit "${3:-HEAD}" BAD)
    git merge-base --is-ancestor "$good_commit" "$bad_commit" ||
        usage "GOOD=$2 is no ancestor of BAD=${3:-HEAD}"
    [[ ${THRESHOLD:=5} =~ ^[0-9]+(\.[0-9]+)?$ ]] ||
        usage "THRESHOLD=$THRESHOLD: must be a number, in percent"
    export THRESHOLD OPTIONS=$options
fi

build() { # SOURCE BUILD
    {
        cmake -S "$1" -B "$2" -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD_TESTS=OFF \
            -DATTN_PAGE_WASM=OFF
        cmake --build "$2" -j "${JOBS:-$(nproc)}" --target attn
    } >"$2.log" 2>&1
}

least_us() { # BUILD: microseconds of the fastest call
    # shellcheck disable=SC2086  # OPTIONS is a list of words
    "$1/attn" bench $OPTIONS --seconds "${SECONDS_EACH:-1}" --json |
        sed -n 's/.*"time_us_min":\([0-9.e+-]*\).*/\1/p'
}

# Prints the figures; returns 0 if the candidate is as fast as the good build, 1 if it is slower.
compare() { # NAME
    local run times=()
    for ((run = 0; run < ${RUNS:-3}; run++)); do
        times+=("$(least_us "$good") $(least_us "$candidate") $(least_us "$good")")
    done
    printf '%s\n' "${times[@]}" | awk -v name="$1" -v threshold="$THRESHOLD" '
        function least(a, b) { return NR == 1 || b < a ? b : a }
        { old = least(old, $1 + 0); new = least(new, $2 + 0); again = least(again, $3 + 0) }
        END {
            if (old <= 0 || new <= 0 || again <= 0) exit 125
            best = old < again ? old : again
            noise = 100 * ((old < again ? again : old) / best - 1)
            slower = 100 * (new / best - 1)
            verdict = slower > noise + threshold
            printf "%-12s good %.2f, candidate %.2f, good %.2f us: %+.1f %%, noise %.1f %%: %s\n",
                name, old, new, again, slower, noise, verdict ? "slower" : "as fast"
            exit verdict
        }'
}

if [[ ${1:-} == --step ]]; then
    name=$(git -C "$folder/candidate" log -1 --format=%h)
    build "$folder/candidate" "$candidate" || { echo "$name does not build: skipped"; exit 125; }
    compare "$name"
    exit
fi

folder=$PWD/build-bisect
good=$folder/good-build candidate=$folder/candidate-build
[[ ! -e $folder ]] || usage "build-bisect/ exists: another run, or what a killed one left: \
rm -r build-bisect; git worktree prune"
cleanup() {
    cd "$folder/.."
    rm -rf "$folder"
    git worktree prune
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$folder"
git worktree add --quiet --detach "$folder/good" "$good_commit"
git worktree add --quiet --detach "$folder/candidate" "$bad_commit"
tools/install-deps.sh build

echo "case: attn bench $OPTIONS"
for which in good candidate; do
    build "$folder/$which" "$folder/$which-build" || {
        tail -n 30 "$folder/$which-build.log" >&2
        echo "bisect-speed: ${which/candidate/BAD} does not build" >&2
        exit 1
    }
done
status=0
compare BAD || status=$?
if ((status != 1)); then
    if ((status)); then
        echo "bisect-speed: attn bench $OPTIONS fails" >&2
    else
        echo "BAD is as fast as GOOD: nothing to find" >&2
    fi
    exit 1
fi

cp tools/bisect-speed.sh "$folder/step.sh"
cd "$folder/candidate"
git bisect start "$bad_commit" "$good_commit" >"$folder/bisect.log"
git bisect run "$folder/step.sh" --step "$folder" 2>&1 | tee -a "$folder/bisect.log" |
    grep -E '^[0-9a-f]{7,} +(good|does not build)|cannot continue' || true
# Where commits do not build, it may be one of several.
grep -E -A 5 'is the first bad commit|^The first bad commit could be' "$folder/bisect.log" ||
    { tail "$folder/bisect.log" >&2; exit 1; }
