#!/bin/bash
# Follows the recipes of docs/ADDING.md: applies each patch of tests/recipes/, which adds an example
# as the document describes it, to a copy of the tree, builds, and runs the tests that the head of
# the patch names. `make recipes` follows all of them.
#
#   tools/recipes.sh [NAME...]    default: all
#   tools/recipes.sh --turn       the two whose turn it is, by the day of the year
#
# Environment: RECIPES_FOLDER, for the copy and its build (build-recipes)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
mapfile -t all < <(cd tests/recipes && printf '%s\n' *.patch | sed 's/\.patch$//')
names=("$@")
if [[ ${1:-} == --turn ]]; then
    day=$((10#$(date +%j)))
    names=("${all[day % ${#all[@]}]}" "${all[(day + 1) % ${#all[@]}]}")
elif (($# == 0)); then
    names=("${all[@]}")
fi
for name in "${names[@]}"; do
    [[ " ${all[*]} " == *" $name "* ]] ||
        { echo "recipes: no recipe '$name'; recipes: ${all[*]}" >&2; exit 2; }
done

folder=$(realpath -m "${RECIPES_FOLDER:-build-recipes}")
tree=$folder/tree build=$folder/build log=$folder/log
rm -rf "$tree" "$build"
mkdir -p "$tree"
files() {
    if [[ $(git rev-parse --show-toplevel 2>/dev/null) -ef $root ]]; then
        git ls-files -co --exclude-standard
    else
        find . \( -path './build*' -o -path ./.git \) -prune -o -type f -print
    fi
}
files | while read -r f; do [[ ! -f $f ]] || echo "$f"; done | tar -c -T - | tar -x -C "$tree"
cd "$tree"
git init -q
git add -A

head_line() { sed -n "1,/^\$/s/^$2: //p" "$root/tests/recipes/$1.patch"; } # NAME KEY

follow() { # NAME
    local tests targets pattern
    git checkout -q -- .
    git clean -fdq
    git apply -C1 --recount --reject --verbose "$root/tests/recipes/$1.patch" || {
        echo "recipes: tests/recipes/$1.patch does not fit the tree any more. Adapt it, and the"
        echo "recipe that it follows: $(head_line "$1" Recipe)"
        return 1
    }
    read -ra targets < <(head_line "$1" Build)
    read -ra tests < <(head_line "$1" Test)
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O1 -DATTN_WERROR=ON \
        -DATTN_PAGE_WASM=OFF || return 1
    cmake --build "$build" -j "${JOBS:-$(nproc)}" --target "${targets[@]}" || return 1
    pattern="^($(IFS='|' && echo "${tests[*]}"))\$"
    [[ $(ctest --test-dir "$build" -N -R "$pattern") == *"Total Tests: ${#tests[@]}"* ]] ||
        { echo "recipes: $1: not all of these tests exist: ${tests[*]}"; return 1; }
    ctest --test-dir "$build" -R "$pattern" --output-on-failure
}

passed=0 failed=0
for name in "${names[@]}"; do
    start=$SECONDS
    if follow "$name" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $name: $(head_line "$name" Test) ($((SECONDS - start)) s)"
    else
        failed=$((failed + 1))
        tail -n 60 "$log"
        echo "FAIL  $name"
    fi
done
echo "$passed passed, $failed failed"
((failed == 0))
