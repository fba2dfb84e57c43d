#!/bin/bash
# tools/check-deps.sh must find files that call each other in a circle, in the objects of each part
# of the program.
set -euo pipefail
: "${ATTN_SOURCE:?the source tree}"
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# Makes an object: arguments are its path without ".o", the function it defines, the one it calls.
object() {
    local path=$build/CMakeFiles/$1
    mkdir -p "$(dirname "$path")"
    printf 'void %s(void);\nvoid %s(void);\nvoid %s(void)\n{\n    %s();\n}\n' "$2" "$3" "$2" "$3" |
        "${CC:-cc}" -x c -c -o "$path.o" -
}
says() {
    "$ATTN_SOURCE/tools/check-deps.sh" "$build" 2>&1 || true
}

[[ $(says) == *"no objects in $build"* ]]
object attn_objects.dir/src/core/a.c low high
object attn_objects.dir/src/sdpa/b.c high unknown
[[ $(says) == 'dependency direction: ok' ]]
for part in attn_objects.dir/src attn_check.dir/check attn_kit.dir/kit attn_cli.dir/cli \
            attn.dir/cli; do
    object "$part/x/first.c" first second
    object "$part/x/second.c" second third
    [[ $(says) == 'dependency direction: ok' ]]
    object "$part/x/third.c" third first
    [[ $(says) == *'in a circle'*"$part/x/first.c.o"* ]] || {
        echo "not noticed: a circle in $part" >&2
        exit 1
    }
    rm -r "$build/CMakeFiles/$part/x"
done
echo "check-deps.sh notices what it should"
