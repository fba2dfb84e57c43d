#!/bin/bash
# Checks the direction of dependencies: cli -> kit, check -> include/attn.h <- src. Every #include
# "..." is resolved to a file, which must be in a folder that the including folder may use. With a
# build, no two files of src/, check/, kit/ and cli/ may call each other, directly or in a circle.
#
#   tools/check-deps.sh [BUILD]
set -euo pipefail
cd "$(dirname "$0")/.."

# The folders of src/, lowest first. Each may use itself and those before it.
layers=(core context kernel cache plan bf16 sdpa grad nn)

# Prints what a file of the folder src/$1 may include.
layers_up_to() {
    local folder
    echo include/attn.h
    for folder in "${layers[@]}"; do
        echo "src/$folder/*"
        [[ $folder != "$1" ]] || return 0
    done
    echo "check-deps: src/$1 is not in the list of layers" >&2
    return 1
}

# What every file of kit/ may include: all of kit/ except the folders below kit/explain/.
kit='include/attn.h kit/+([!/]) kit/@(io|text|model|train)/* kit/explain/+([!/])'

# Prints what a file may include, as patterns of paths. The first matching line counts.
may_see() {
    case "$1" in
    include/*) echo 'include/*' ;;
    src/*) layers_up_to "$(cut -d/ -f2 <<<"$1")" ;;
    mpi/*) echo 'include/attn.h include/attn_mpi.h src/plan/rules.def mpi/*' ;;
    ref/*) echo 'include/attn.h ref/*' ;;
    # The program in a page; no_system.c replaces a file of src/.
    kit/explain/page/wasm/*)
        echo "$kit kit/explain/@(lessons|render)/* src/core/internal.h kit/explain/page/wasm/*"
        ;;
    kit/explain/render/*) echo "$kit kit/explain/page/* kit/explain/render/*" ;;
    # A quiz writes its lines with the functions that the renderers share.
    kit/explain/lessons/*) echo "$kit kit/explain/render/* kit/explain/lessons/*" ;;
    kit/*) echo "$kit" ;;
    check/*)
        echo 'include/attn.h src/core/internal.h src/*/*.def src/kernel/kernel.h ref/* check/*'
        ;;
    cli/mpi/*) echo 'include/attn_mpi.h include/attn_mpi_comm.h kit/* cli/*' ;;
    cli/*) echo 'include/attn.h kit/* check/* cli/*' ;;
    # Simulates the schedule of a call, so it uses the plan.
    bench/scaling*) echo 'include/attn.h src/core/internal.h src/sdpa/sdpa.h bench/*' ;;
    examples/*) echo 'include/attn.h examples/*' ;;
    bench/*) echo 'include/attn.h' ;;
    fuzz/*) echo 'include/attn.h kit/* ref/* fuzz/*' ;;
    *) echo '*' ;;
    esac
}

# Sets `target` to the file that #include "$2" in $1 means: in the same folder, or below a folder of
# the include path.
resolve() {
    local folder head
    for folder in "${1%/*}" include src . ; do
        target=$folder/$2
        [[ -f $target ]] && break
        target=missing:$2
    done
    target=${target#./}
    while [[ $target == */../* ]]; do # a/b/../c.h: a/c.h
        head=${target%%/../*}
        [[ $head == */* ]] && head=${head%/*}/ || head=
        target=$head${target#*/../}
    done
}

bad=0 patterns='' last=''
while IFS=: read -r file line included; do
    [[ $file == "$last" ]] || patterns=$(may_see "$file")
    last=$file
    resolve "$file" "$included"
    allowed=0
    set -f
    for pattern in $patterns; do
        # shellcheck disable=SC2053
        if [[ $target == $pattern ]]; then
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
              include src mpi ref kit check cli examples bench fuzz tests |
         sed -E 's/^([^:]*):([0-9]+):[^"]*"([^"]*)".*/\1:\2:\3/')

# The library and the reference include only headers of the C library.
if grep -rnE '#[[:space:]]*include[[:space:]]*<(attn|jansson|zip|utf8proc|cairo)' \
        src ref include >&2; then
    echo "the engine may not include that" >&2
    bad=1
fi
((!bad)) || exit 1

# Finds files that call each other in a circle, from the symbols that their objects define and need:
# files of the library, and of the program if it was built.
objects=${1:-build}/CMakeFiles
if [[ -d $objects/attn_objects.dir/src ]]; then
    circles=$(
        cd "$objects"
        find attn_objects.dir attn_check.dir attn_kit.dir attn_cli.dir attn.dir -name '*.o' \
             -exec nm -A {} + 2>/dev/null |
            sed -E 's/^([^:]*):[0-9a-f]* *([A-Za-z]) (.*)$/\1 \2 \3/' |
            awk '$2 ~ /[TRDB]/ { defined[$3] = $1 }
                 $2 == "U" { user[++n] = $1; wants[n] = $3 }
                 END { for (i = 1; i <= n; i++)
                           if (wants[i] in defined) print user[i], defined[wants[i]] }' |
            tsort 2>&1 >/dev/null | grep '\.o$' || true
    )
    [[ -z $circles ]] || { echo "files that call each other in a circle: $circles" >&2; exit 1; }
else
    [[ $# == 0 ]] || { echo "check-deps: no objects in $1" >&2; exit 1; }
fi
echo "dependency direction: ok"
