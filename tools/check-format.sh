#!/bin/bash
# Formatting: clang-format 14 agrees with every C file; no line past 100 columns, no file past 600
# lines. `tools/check-format.sh --fix` formats instead.
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

# Everything that is not ignored; a tree without git is taken as it lies.
files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -co --exclude-standard -- "$@" | while read -r f; do [[ ! -f $f ]] || echo "$f"; done
    else
        local pattern names=()
        for pattern in "$@"; do names+=(-o -name "$pattern"); done
        find . -path './build*' -prune -o -type f \( "${names[@]:1}" \) -print
    fi
}
mapfile -t c_files < <(files '*.c' '*.h')
mapfile -t text_files < <(files '*.c' '*.h' '*.def' '*.py' '*.sh' '*.cmake' 'CMakeLists.txt')

if [[ ${1:-} == --fix ]]; then
    exec "$formatter" -i "${c_files[@]}"
fi

bad=0
"$formatter" --dry-run -Werror "${c_files[@]}" || bad=1
if grep -HnE '^.{101,}' "${text_files[@]}"; then
    echo "check-format: lines past 100 columns" >&2
    bad=1
fi
if grep -HnE '[[:space:]]+$' "${text_files[@]}"; then
    echo "check-format: white space at the end of lines" >&2
    bad=1
fi
for file in "${text_files[@]}"; do
    lines=$(wc -l <"$file")
    if ((lines > 600)); then
        echo "$file: $lines lines; split it along a seam" >&2
        bad=1
    fi
done
((!bad)) || exit 1
echo "format: ok, ${#text_files[@]} files"
