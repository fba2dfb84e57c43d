#!/bin/bash
# Checks docs/models/backward.pml, the order of the backward's tasks, with the model checker spin.
# It explores every order of the threads' steps for small numbers of pairs, sequences, chunks, tiles
# and threads. Each line of output has the sizes, the number of states and the number of errors,
# which must be 0. Version 0.1.0 must have an error, which shows that the model can find one.
set -euo pipefail
model=$(cd "$(dirname "$0")/.." && pwd)/docs/models/backward.pml
fail() {
    echo "check-models: $*" >&2
    exit 1
}
for tool in spin gcc; do
    command -v $tool >/dev/null || {
        echo "not run: no $tool (apt-get install spin gcc)"
        exit 0
    }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# explore OPTIONS...: sets `states` and `errors`
explore() {
    spin -a "$@" "$model" >spin.log || fail "$*: $(cat spin.log)"
    gcc -O1 -w -DSAFETY -DCOLLAPSE -o pan pan.c
    ./pan -m1000000 >pan.log || true
    ! grep -qE 'max search depth|out of memory' pan.log || fail "$*: $(cat pan.log)"
    errors=$(sed -nE 's/.*errors: ([0-9]+).*/\1/p' pan.log)
    states=$(awk '$2 == "states," && $3 == "stored" { print $1 }' pan.log)
    [[ -n $errors && -n $states ]] || fail "$*: $(cat pan.log)"
    echo "backward $*: $states states, $errors errors"
}

# sizes PAIRS WHOLE SEQUENCES CHUNKS TILES THREADS [OPTION...]
sizes() {
    explore "-DPAIRS=$1" "-DWHOLE=$2" "-DSEQUENCES=$3" "-DCHUNKS=$4" "-DTILES=$5" "-DTHREADS=$6" \
        "${@:7}"
}

while read -r -a numbers; do
    sizes "${numbers[@]}"
    ((errors == 0)) || fail "${numbers[*]}: $(grep -m1 '^pan:' pan.log)"
done <<'END'
1 0 2 2 2 2
1 0 1 3 2 3
2 0 2 2 1 3
3 0 1 2 2 2
3 2 1 2 2 2
3 2 2 2 1 2
2 0 1 3 1 3
2 0 1 2 2 2 -DDMASK
3 2 1 2 1 2 -DDMASK
END

sizes 1 0 2 2 1 2 -DSHARED_SLOTS=2
((errors > 0)) || fail "version 0.1.0 shows no error: the model sees nothing"
