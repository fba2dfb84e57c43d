#!/bin/bash
# Checks that the ABI is compatible with that of the last releases: programs compiled with their
# headers still work. Additions pass: functions, enumerators, members at the end of structs that
# begin with struct_size (docs/ABI.md). Anything else fails, unless the version number announces a
# new ABI: another major version or, below 1.0, another minor one.
#
#   tools/check-abi.sh            this tree against each line "NAME COMMIT" of tools/abi-baseline
#   tools/check-abi.sh OLD NEW    one source tree against another
#
# Needs abidiff (Debian: abigail-tools) and, for tools/abi-baseline, a clone with its history.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "check-abi: $*" >&2
    exit 1
}

# Only exported functions matter, so the kernels, which take nine tenths of the time, are not
# compiled.
build() { # TREE LIBRARY
    local objects=$2.objects
    mkdir -p "$objects"
    (
        cd "$1"
        # shellcheck disable=SC2016  # the inner shell's variables
        find src -name '*.c' ! -path 'src/kernel/*' ! -path 'src/bf16/unit_*' -print0 |
            xargs -0 -P "$(nproc)" -I{} sh -c \
                '${CC:-cc} -std=gnu11 -g -O0 -w -fPIC -fvisibility=hidden -Iinclude -Isrc \
                     -c "$1" -o "$2/$(echo "$1" | tr / _).o"' sh {} "$objects"
        ${CC:-cc} -shared -o "$2" -Wl,--version-script=cmake/attn.map "$objects"/*.o -lm
    ) >"$2.log" 2>&1 || { cat "$2.log" >&2; fail "$1 does not build"; }
}

# The part of a version that identifies the ABI: 0.2 of 0.2.1, 1 of 1.4.0.
abi_version() { # TREE
    local version
    version=$(sed -n 's/^#define ATTN_VERSION_STRING "\(.*\)"$/\1/p' "$1/include/attn.h")
    [[ $version == *.*.* ]] || fail "$1/include/attn.h has no version"
    case $version in
    0.*) echo "${version%.*}" ;;
    *) echo "${version%%.*}" ;;
    esac
}

# Lists the structs of a tree that begin with struct_size, separated by |.
growing() { # TREE
    awk '/^typedef struct/ { grows = 0 } /^    size_t struct_size;/ { grows = 1 }
         /^}/ && grows { gsub(/[} ;]/, ""); print; grows = 0 }' "$1"/include/*.h | paste -sd '|'
}

# Whether the only changes in a leaf report are such structs growing at their ends. abidiff's own
# suppressions (has_data_member_inserted_at = end) would also hide changes of other members.
only_growth() { # REPORT STRUCTS
    awk -v structs="^($2)\$" '
        /^$/ || /^[A-Za-z\/ ]+ summary: / { next }
        /^.struct [a-z0-9_]+ at .* changed:$/ {
            type = $2
            if (type !~ structs) exit 1
            size = 0
            next
        }
        /^  type size changed from [0-9]+ to [0-9]+ \(in bits\)$/ { size = $5; next }
        /^  [0-9]+ data member insertions?:$/ { next }
        /^    .*, at offset [0-9]+ \(in bits\) at / {
            offset = $0
            sub(/.*, at offset /, "", offset)
            if (!size || offset + 0 < size) exit 1
            grown++
            next
        }
        { exit 1 }
        END { if (!grown) exit 1 }' "$1"
}

compare() { # NAME OLD NEW OLD_LIBRARY NEW_LIBRARY
    local was now status=0 report=$work/report
    was=$(abi_version "$2")
    now=$(abi_version "$3")
    abidiff --leaf-changes-only --no-added-syms --headers-dir1 "$2/include" \
            --headers-dir2 "$3/include" "$4" "$5" >"$report" 2>&1 || status=$?
    # 1, 2: abidiff failed; 4: changes; 8: some of them are incompatible
    if ((status & 3)) || ((status > 15)); then
        cat "$report" >&2
        fail "abidiff fails with status $status"
    fi
    if ((status == 0)); then
        echo "abi: as $1 or more"
    elif ((status == 4)) && only_growth "$report" "$(growing "$2")"; then
        echo "abi: as $1, with longer structs"
        grep -E "changed:|at offset" "$report"
    elif [[ $was != "$now" ]]; then
        cat "$report"
        echo "abi: another than $1, as version $now says"
    else
        cat "$report" >&2
        fail "programs compiled with $1 break; see docs/ABI.md, or make it another version than" \
             "$now"
    fi
}

command -v abidiff >/dev/null || {
    echo "not run: no abidiff (apt-get install abigail-tools)"
    exit 1
}
if (($# == 2)); then
    build "$1" "$work/old.so"
    build "$2" "$work/new.so"
    compare "$1" "$1" "$2" "$work/old.so" "$work/new.so"
    exit 0
fi

cd "$here"
[[ -e .git ]] || { echo "not run: not a git clone, the last release is not here"; exit 1; }
build "$here" "$work/new.so"
compared=0
while read -r name commit; do
    [[ -n $name && $name != \#* ]] || continue
    git cat-file -e "$commit^{commit}" 2>/dev/null ||
        fail "commit $commit, $name in tools/abi-baseline, is not in this clone;" \
             "git fetch --unshallow gets the history"
    mkdir "$work/$name"
    git archive "$commit" include src cmake | tar x -C "$work/$name"
    build "$work/$name" "$work/$name.so"
    compare "$name" "$work/$name" "$here" "$work/$name.so" "$work/new.so"
    compared=$((compared + 1))
done <tools/abi-baseline
((compared)) || fail "tools/abi-baseline names no release"
