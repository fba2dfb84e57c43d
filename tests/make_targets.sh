#!/bin/bash
# The scripts behind `make fuzz`, `make profile`, `make bisect-speed` and `make recipes`: what they
# say of a target or a case that does not exist, and their results in small trees whose answers are
# known.
set -euo pipefail
: "${ATTN_SOURCE:?the source tree}" "${ATTN:?the program}"
tools=$ATTN_SOURCE/tools
fail() { echo "$*" >&2; exit 1; }
command -v git >/dev/null || { echo "not run: git is needed"; exit; }

refused() { # TEXT COMMAND...: exits with 2 and says TEXT
    local text=$1 status=0 said
    shift
    said=$("$@" 2>&1 </dev/null) || status=$?
    [[ $status == 2 && $said == *"$text"* ]] || fail "$*: status $status, said: $said"
}

# ------------------------------------------------------------------------------------- messages
names=$(cd "$ATTN_SOURCE/fuzz" && printf '%s ' fuzz_*.c | sed 's/fuzz_//g; s/\.c//g; s/ $//')
[[ $("$tools/fuzz.sh") == "targets: $names"* ]] || fail "fuzz.sh does not list: $names"
refused "no target 'np'; targets: $names" "$tools/fuzz.sh" np
refused "SECONDS=0: must be" "$tools/fuzz.sh" npy 0
refused "SECONDS=1m: must be" "$tools/profile.sh" 128 1m
for script in profile bisect-speed; do
    refused "CASE=64: no such case" "$tools/$script.sh" 64
    refused "  decode  " "$tools/$script.sh" 128:f8
done
refused "GOOD=COMMIT is missing" "$tools/bisect-speed.sh" 128

# --------------------------------------------------------------------------------------- cases
own="--shape 1,1,1,2,2,4 --threads 2"
[[ $("$tools/bench-case.sh" "$own") == "$own" ]] || fail "options are no case of their own"
mapfile -t cases < <("$tools/bench-case.sh" | awk 'NR > 1 { print $1 }')
((${#cases[@]} >= 10)) || fail "cases: ${cases[*]}"
for name in "${cases[@]}" 6x6:bf16; do
    read -ra options < <("$tools/bench-case.sh" "$name")
    "$ATTN" bench "${options[@]}" --seconds 0.001 >said || fail "$name: ${options[*]}"
    grep -q '1 thread;' said || fail "$name runs on more than one thread"
done

# ------------------------------------------------- a tree whose commits take the time they say
new_tree() { # FOLDER
    rm -rf "$1"
    mkdir -p "$1/tools"
    cp "$tools"/{bench-case,bisect-speed,profile}.sh "$1/tools"
    printf '#!/bin/sh\n' >"$1/tools/install-deps.sh"
    chmod +x "$1/tools/install-deps.sh"
    cd "$1"
}
save() { git add -A && git commit -qm "$1" && git rev-parse HEAD; }
takes() { # US
    # shellcheck disable=SC2016  # for the planted program
    printf '#!/bin/sh\n[ "$2$3$7" = --shape1,1,1,6,6,161 ] || exit 2\n%s\n' \
        "echo '{\"cases\":[{\"time_us_min\":$1,\"time_us_median\":999}]}'" >program
    chmod +x program
}
top=$PWD
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
new_tree "$top/tree"
git init -q -b main
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.21)
project(planted LANGUAGES NONE)
add_custom_target(attn COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_SOURCE_DIR}/program attn)
END
printf '/build*/\n' >.gitignore
takes 100 && good=$(save "100 us")
takes 101 && save "101 us" >/dev/null
takes 104 && level=$(save "104 us")
takes 103 && save "103 us" >/dev/null
rm program && broken=$(save "does not build") # where git bisect looks first
for us in 104 102; do takes "$us" && save "$us us" >/dev/null; done
takes 109 && slow=$(save "109 us")
for us in 108 110; do takes "$us" && save "$us us" >/dev/null; done

unchanged() {
    [[ $(git worktree list | wc -l) == 1 && ! -e build-bisect ]] || fail "a worktree is left"
    [[ -z $(git for-each-ref refs/bisect) && $(git branch | wc -l) == 1 ]] || fail "refs are left"
    [[ -z $(git status --short) && $(git symbolic-ref HEAD) == refs/heads/main ]] ||
        fail "the tree has changed"
}
RUNS=1 tools/bisect-speed.sh 6x6 "$good" >found 2>&1 || { cat found; fail "bisect-speed failed"; }
mv found "$top/found"
grep -q "^$slow is the first bad commit" "$top/found" ||
    { cat "$top/found"; fail "another commit"; }
grep -q "BAD  *good 100.00, candidate 110.00, good 100.00 us: +10.0 %.*: slower" "$top/found" ||
    { cat "$top/found"; fail "other figures"; }
grep -q "^${broken:0:7} does not build: skipped" "$top/found" ||
    { cat "$top/found"; fail "the commit that does not build was not met"; }
unchanged
status=0
said=$(RUNS=1 tools/bisect-speed.sh 6x6 "$good" "$level" 2>&1) || status=$?
[[ $status == 1 && $said == *"as fast"*"nothing to find"* ]] || fail "4 % slower: $said"
unchanged
refused "GOOD=$slow is no ancestor of BAD=$good" tools/bisect-speed.sh 6x6 "$slow" "$good"
refused "GOOD=nowhere: no such commit" tools/bisect-speed.sh 6x6 nowhere

# --------------------------------- a tree with two recipes, of which one does not fit any more
new_tree "$top/recipes"
mkdir -p tests/recipes
cp "$tools/recipes.sh" tools
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.21)
project(planted LANGUAGES NONE)
enable_testing()
add_custom_target(nothing)
add_test(NAME changed COMMAND ${CMAKE_COMMAND} -E compare_files ${CMAKE_SOURCE_DIR}/a.txt
                                                                ${CMAKE_SOURCE_DIR}/want.txt)
END
printf '%s\n' 1 2 3 4 5 6 7 8 9 >a.txt
printf '%s\n' 0 1 2 three 4 5 6 7 8 9 >want.txt
recipe() { # NAME LINE: a patch of two hunks, of which the second changes LINE to "three"
    printf '%s\n' "Recipe: docs/ADDING.md, \"A $1\"" "Build: nothing" "Test: changed" "" \
        "--- a/a.txt" "+++ b/a.txt" "@@ -1 +1,2 @@" "+0" " 1" \
        "@@ -2,3 +3,3 @@" " 2" "-$2" "+three" " 4" >"tests/recipes/$1.patch"
}
recipe fitting 3
recipe stale III
sed 's/^Test:.*/& other/' tests/recipes/fitting.patch >tests/recipes/testless.patch
status=0
tools/recipes.sh >followed 2>&1 || status=$?
for line in "^ok    fitting: changed" \
    "^error: patch failed: a.txt:2" "^III$" "^Rejected hunk #2" "^FAIL  stale" \
    'stale.patch does not fit.*Adapt it, and the$' '^recipe.*docs/ADDING.md, "A stale"' \
    "^recipes: testless: not all of these tests exist: changed other" "^1 passed, 2 failed"; do
    grep -q "$line" followed || { cat followed; fail "recipes.sh does not say: $line"; }
done
[[ $status == 1 ]] || fail "recipes.sh exits with $status, though a recipe failed"
RECIPES_FOLDER=$PWD/elsewhere tools/recipes.sh fitting >followed 2>&1 || { cat followed; exit 1; }
[[ -e elsewhere/tree/a.txt && $(<followed) == *"1 passed, 0 failed" ]] || fail "recipes.sh fitting"
refused "no recipe 'none'; recipes: fitting stale testless" tools/recipes.sh none

# ------------------------------------- a program of which one function takes two thirds of the time
new_tree "$top/profile"
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.21)
project(planted LANGUAGES C)
add_executable(attn program.c)
END
cat >program.c <<'END'
#include <stdlib.h>
#include <time.h>
/* Each addition waits for the one before, so that a round takes the same time in all of them. */
#define SPIN(name, rounds)                                                                         \
    static __attribute__((noinline)) void name(void)                                               \
    {                                                                                              \
        double x = number;                                                                         \
        for (long i = 0; i < (rounds); i++)                                                        \
            x = x * 0.5 + 0.5;                                                                     \
        number = x;                                                                                \
    }
static volatile double number = 2;
SPIN(op_scores, 2000000)
SPIN(op_weights, 1000000)
SPIN(op_fma_loop, 1000001) /* not equal, or the compiler makes one function of two */
SPIN(draw_inputs, 200000000)
int main(int argc, char **argv)
{
    draw_inputs();
    while (clock() < atof(argv[argc - 1]) * CLOCKS_PER_SEC) {
        op_scores();
        op_weights();
        op_fma_loop();
    }
    return 0;
}
END
# Two thirds and one third, in truth. A busy machine loses samples in runs, so only the order and
# rough shares are asked for; draw_inputs and op_fma_loop would take most of it if they counted.
tools/profile.sh 6x6 4 >table || { cat table; fail "profile failed"; }
awk '$1 == "op_scores" { scores = $3 + 0; first = NR }
     $1 == "op_weights" { weights = $3 + 0; second = NR }
     $1 == "draw_inputs" { drawn = $3 + 0 }
     /^not counted above: .* s of measuring the machine/ { machine = $4 + 0 }
     END { exit !(machine > 0.1 && drawn < 20 && first < second && scores < 95 && 5 < weights) }' \
    table || { cat table; fail "other functions or another order than two thirds and one third"; }
echo "messages, ${#cases[@]} cases, bisect-speed, recipes, profile: ok"
