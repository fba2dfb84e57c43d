#!/bin/bash
# Tests which changes tools/check-abi.sh accepts, with libraries of one file.
set -euo pipefail
fail() {
    echo "abi_changes: $*" >&2
    exit 1
}
command -v abidiff >/dev/null || {
    echo "not run: no abidiff (apt-get install abigail-tools)"
    exit 0
}

# Writes a small library that resembles this one: a struct that may grow, one that may not, one that
# contains the first by value, an enum, two functions.
tree() { # FOLDER
    rm -rf "$1"
    mkdir -p "$1/include" "$1/src/kernel" "$1/cmake"
    cat >"$1/include/attn.h" <<'END'
#define ATTN_VERSION_STRING "0.2.0"
#include <stddef.h>
#define ATTN_API __attribute__((visibility("default")))
typedef enum attn_kind {
    ATTN_ONE = 1,
    ATTN_TWO = 2
} attn_kind;
typedef struct attn_view {
    void *data;
    long rows;
} attn_view;
typedef struct attn_args {
    size_t struct_size;
    attn_view view;
    double scale;
    long left;
    attn_kind kind;
    int flags;
} attn_args;
typedef struct attn_pair {
    const attn_args *args;
    attn_view view;
} attn_pair;
ATTN_API int attn_run(const attn_args *args);
ATTN_API int attn_run_pair(const attn_pair *pair, long n);
END
    cat >"$1/src/run.c" <<'END'
#include "attn.h"
int attn_run(const attn_args *args) { return (int)args->kind; }
int attn_run_pair(const attn_pair *pair, long n) { return attn_run(pair->args) + (int)n; }
END
    echo 'ATTN_0.2 { global: attn_*; local: *; };' >"$1/cmake/attn.map"
}

# change WANT WHAT SED_SCRIPT...: the scripts edit the file of the new tree
change() {
    local want=$1 what=$2 status=0 script
    shift 2
    tree new
    for script in "$@"; do
        cp -r new before
        sed -i "$script" new/include/attn.h new/src/run.c new/cmake/attn.map
        ! diff -r before new >/dev/null || fail "$what: '$script' changes nothing"
        rm -r before
    done
    "$ATTN_SOURCE/tools/check-abi.sh" "$PWD/old" "$PWD/new" >log 2>&1 || status=$?
    ((status == want)) || { cat log; fail "$what: status $status, not $want"; }
    ((want == 0)) || grep -q "programs compiled with .* break" log || { cat log; fail "$what"; }
    printf '%d  %s\n' "$status" "$what"
}

tree old
last='s/^    int flags;/&\n    double later;/' # at the end of attn_args
change 0 "nothing" 's/n);/n); \/* the same *\//'
change 0 "a member at the end of a struct that grows" "$last"
change 0 "two of them" "$last" 's/^    double later;/&\n    void *more;/'
change 0 "a function more" 's/^ATTN_API int attn_run(/ATTN_API int attn_more(void);\n&/' \
    's/^int attn_run(/int attn_more(void) { return 1; }\n&/'
change 0 "an enumerator more" 's/ATTN_TWO = 2/ATTN_TWO = 2,\n    ATTN_THREE = 3/'
change 1 "a member in the middle" 's/^    double scale;/&\n    double early;/'
change 1 "a member less" '/^    long left;/d'
change 1 "a member of another type of the same size" 's/^    long left;/    double left;/'
change 1 "the same, and one more at the end" "$last" 's/^    long left;/    double left;/'
change 1 "two members swapped" \
    's/^    double scale;/    long left;/;t;s/^    long left;/    double scale;/'
change 1 "a member at the end of a frozen struct" 's/^    long rows;/&\n    long columns;/'
change 1 "the struct that grows, held by value" \
    's/^    const attn_args \*args;/    attn_args args;/' \
    's/pair->args/\&pair->args/'
change 1 "an enumerator of another value" 's/ATTN_TWO = 2/ATTN_TWO = 3/'
change 1 "a function less" 's/^\(ATTN_API \)*int attn_run_pair/static inline int attn_run_pair/'
change 1 "a function of another name" 's/attn_run_pair/attn_run_two/'
change 1 "a parameter of another type" 's/long n)/int n)/'
change 1 "another version of all symbols" 's/ATTN_0.2 {/ATTN_0.3 {/'
change 0 "the same as a new minor version" 's/ATTN_0.2 {/ATTN_0.3 {/' 's/"0.2.0"/"0.3.0"/'
change 1 "a member less in a patch version" '/^    long left;/d' 's/"0.2.0"/"0.2.1"/'
