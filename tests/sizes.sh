#!/bin/bash
# tools/check-sizes.sh must find files of more than 600 lines and functions of more than 60, and
# count neither comments before a function nor lines of another one.
set -euo pipefail
: "${ATTN_SOURCE:?the source tree}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p src/kernel examples/lessons src/core

# Prints a function of $1 lines; its signature has two of them.
function_of() {
    printf 'static int function_%d(int a,\n    int b)\n{\n' "$1"
    for ((i = 4; i < $1; i++)); do echo '    a++;'; done
    echo '}'
}
lines() {
    for ((i = 0; i < $1; i++)); do echo '/* a line */'; done
}
run() {
    "$ATTN_SOURCE/tools/check-sizes.sh" "$@" >said 2>&1
}
holds() {
    run "$@" || { echo "refused: $*" >&2; cat said >&2; exit 1; }
}
# Arguments: the expected message, then the files.
fails() {
    local say=$1
    shift
    if run "$@"; then
        echo "not noticed: $say" >&2
        exit 1
    fi
    [[ $(cat said) == "$say"* ]] && return
    echo "another reason than '$say':" >&2
    cat said >&2
    exit 1
}

{ lines 50; function_of 60; echo 'typedef struct x {'; lines 70; printf '} x;\n\n'; function_of 60
} >good.c
lines 600 >good.py
holds good.c good.py
{ cat good.c; function_of 61; } >long.c
fails 'long.c:244: 61 lines, at most 60: static int function_61' good.c long.c good.py
lines 601 >long.py
fails 'long.py: 601 lines, at most 600' good.py long.py good.c
cp long.c src/kernel/
cp long.c examples/lessons/
holds src/kernel/long.c examples/lessons/long.c
cp long.c src/core/
fails 'src/core/long.c:244: 61 lines' src/core/long.c
cp long.py src/kernel/
fails 'src/kernel/long.py: 601 lines' src/kernel/long.py
echo "check-sizes.sh notices what it should"
