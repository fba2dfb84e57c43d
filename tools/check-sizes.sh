#!/bin/bash
# Checks sizes: no file of code has more than 600 lines, and no function in C more than 60, from the
# first line of its signature to its closing brace. Two kinds of files may have longer functions:
# kernels (src/kernel/), and the lessons' programs (examples/lessons/), which are read from top to
# bottom. Functions must begin and end as clang-format writes them.
#
#   tools/check-sizes.sh [FILE...]    default: all files that git does not ignore
set -euo pipefail
folder=$(cd "$(dirname "$0")/.." && pwd)
if (($# == 0)); then
    cd "$folder"
    patterns=('*.c' '*.h' '*.def' '*.py' '*.sh' '*.cmake' 'CMakeLists.txt' '*.js' '*.css')
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        mapfile -t files < <(git ls-files -co --exclude-standard -- "${patterns[@]}" |
            while read -r f; do [[ ! -f $f ]] || echo "$f"; done)
    else
        names=()
        for pattern in "${patterns[@]}"; do names+=(-o -name "$pattern"); done
        mapfile -t files < <(find . -path './build*' -prune -o \
                                  -type f \( "${names[@]:1}" \) -printf '%P\n')
    fi
    set -- "${files[@]}"
fi
awk -v files=$# '
    function say(text) { print text > "/dev/stderr"; bad = 1 }
    function end_file() {
        if (lines > 600) say(file ": " lines " lines, at most 600; split it along a seam")
    }
    FNR == 1 {
        end_file()
        file = FILENAME
        signature = 0
        is_c = file ~ /\.[ch]$/ && file !~ /^(.*\/)?(src\/kernel|examples\/lessons)\//
    }
    { lines = FNR }
    !is_c { next }
    # A signature follows an empty line, a comment, a directive, or the end of another item.
    /^[A-Za-z_]/ && !signature { signature = FNR; head = $0 }
    /^$|[;}]$|\*\/$|^#/ && !/^}/ && !body { signature = 0 }
    /^{$/ && signature { body = signature }
    /^}/ {
        if (body && FNR - body + 1 > 60)
            say(file ":" body ": " FNR - body + 1 " lines, at most 60: " head)
        body = signature = 0
    }
    END {
        end_file()
        if (bad) exit 1
        print "sizes: ok, " files " files"
    }' "$@"
