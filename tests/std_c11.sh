#!/bin/bash
# The library's sources are standard C: a compiler that is told so, and that hides what its system
# has beyond it, takes them.
set -euo pipefail
cd "$ATTN_SOURCE"
files=(src/*/*.c)
((${#files[@]} > 50)) || { echo "only ${#files[@]} sources" >&2; exit 1; }
printf '%s\n' "${files[@]}" |
    xargs -P "$(nproc)" -n 4 "${CC:-cc}" -std=c11 -O1 -Wall -Wextra -Werror -fsyntax-only \
          -Iinclude -Isrc
echo "${#files[@]} sources"
