#!/bin/bash
# The direction of dependencies: cli -> kit, check -> include/attn.h <- src. Every #include "..." is
# resolved to the file it names, and must be one that the including folder may see.
set -euo pipefail
cd "$(dirname "$0")/.."

# What a file may include, as patterns of paths; the first line whose folder fits counts.
may_see() {
    case "$1" in
    include/*) echo 'include/*' ;;
    # A module plans and runs its attention as one call of its own, hence sdpa*.h.
    src/nn/*)
        echo 'include/attn.h src/internal.h src/sdpa.h src/sdpa_backward.h' \
             'src/kernel/kernel.h src/nn/*'
        ;;
    src/kernel/*) echo 'include/attn.h src/internal.h src/kernel/*' ;;
    src/*) echo 'include/attn.h src/kernel/* src/*.h src/*.def' ;;
    ref/*) echo 'include/attn.h ref/*' ;;
    # The library for a page, without a system: it stands in for files of src/.
    kit/explain/page/wasm/*)
        echo 'include/attn.h src/*.h src/kernel/*.c kit/explain/page/wasm/*'
        ;;
    kit/*) echo 'include/attn.h kit/*' ;;
    check/*)
        echo 'include/attn.h src/internal.h src/kernel/kernel.h src/kernel/*.def ref/* check/*'
        ;;
    cli/*) echo 'include/attn.h kit/* check/* cli/*' ;;
    # Plays the schedule of a call, so it sees the plan.
    bench/scaling*) echo 'include/attn.h src/internal.h src/sdpa.h bench/*' ;;
    examples/* | bench/*) echo 'include/attn.h' ;;
    fuzz/*) echo 'include/attn.h kit/* ref/* fuzz/*' ;;
    *) echo '*' ;;
    esac
}

# The file that "$2" means in $1: beside it, or under a folder of the include path.
resolve() {
    local folder
    for folder in "$(dirname "$1")" include src . ; do
        if [[ -f $folder/$2 ]]; then
            realpath --relative-to=. "$folder/$2"
            return
        fi
    done
    echo "missing:$2"
}

bad=0
while IFS=: read -r file line included; do
    target=$(resolve "$file" "$included")
    allowed=0
    set -f
    for pattern in $(may_see "$file"); do
        # A * in src/*.h does not reach into src/kernel/: compare the depth where it matters.
        # shellcheck disable=SC2053
        if [[ $target == $pattern && ($pattern != src/\*.* || $target != src/*/*) ]]; then
            allowed=1
        fi
    done
    set +f
    if ((!allowed)); then
        echo "$file:$line: may not include \"$included\" ($target)" >&2
        bad=1
    fi
done < <(grep -rnE --include='*.c' --include='*.h' --include='*.def' \
              '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' \
              include src ref kit check cli examples bench fuzz tests |
         sed -E 's/^([^:]*):([0-9]+):[^"]*"([^"]*)".*/\1:\2:\3/')

# The engine and its definition know no library but the C library.
if grep -rnE '#[[:space:]]*include[[:space:]]*<(attn|jansson|zip|utf8proc|cairo)' \
        src ref include >&2; then
    echo "the engine may not include that" >&2
    bad=1
fi
((!bad)) || exit 1
echo "dependency direction: ok"
