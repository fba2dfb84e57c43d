#!/bin/bash
# Checks the formatting: every C file is as clang-format 14 writes it; no line has more than 100
# columns. `tools/check-format.sh --fix` formats the files, and wraps comments that are too long.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

formatter=
for name in clang-format-14 clang-format; do
    if "$name" --version 2>/dev/null | grep -q 'version 14\.'; then
        formatter=$name
        break
    fi
done
if [[ -z $formatter ]]; then
    echo "check-format: clang-format 14 is needed: apt-get install clang-format" >&2
    exit 1
fi

# Lists the files that git does not ignore, or all files if there is no git repository.
files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -co --exclude-standard -- "$@" |
            while read -r f; do [[ ! -f $f ]] || echo "$f"; done
    else
        local pattern names=()
        for pattern in "$@"; do names+=(-o -name "$pattern"); done
        find . -path './build*' -prune -o -type f \( "${names[@]:1}" \) -print
    fi
}
mapfile -t c_files < <(files '*.c' '*.h')
mapfile -t text_files < <(files '*.c' '*.h' '*.def' '*.py' '*.sh' '*.cmake' 'CMakeLists.txt' \
                              '*.js' '*.css')

too_long='^.{101,}'

if [[ ${1:-} == --fix ]]; then
    "$formatter" -i "${c_files[@]}"
    # Comments are changed only if a line is too long.
    style=$(mktemp)
    trap 'rm -f "$style"' EXIT
    sed 's/^ReflowComments:.*/ReflowComments: true/' .clang-format >"$style"
    for file in "${c_files[@]}"; do
        mapfile -t lines < <(grep -nE "$too_long" "$file" | cut -d: -f1)
        ((${#lines[@]})) || continue
        ranges=()
        for line in "${lines[@]}"; do ranges+=("--lines=$line:$line"); done
        "$formatter" -i --style="file:$style" "${ranges[@]}" "$file"
    done
    exit
fi

bad=0
"$formatter" --dry-run -Werror "${c_files[@]}" || bad=1
# (A test's link options must be on one line.)
if grep -HnE "$too_long" "${text_files[@]}" | grep -v -- '-Wl,--wrap='; then
    echo "check-format: lines past 100 columns" >&2
    bad=1
fi
if grep -HnE '[[:space:]]+$' "${text_files[@]}"; then
    echo "check-format: white space at the end of lines" >&2
    bad=1
fi
((!bad)) || exit 1
echo "format: ok, ${#text_files[@]} files"
