#!/bin/bash
# The library's sources are standard C: they compile in a mode that accepts only standard C and
# hides the system's extensions.
set -euo pipefail
cd "$ATTN_SOURCE"
files=(src/*/*.c)
((${#files[@]} > 50)) || { echo "only ${#files[@]} sources" >&2; exit 1; }
printf '%s\n' "${files[@]}" |
    xargs -P "$(nproc)" -n 4 "${CC:-cc}" -std=c11 -O1 -Wall -Wextra -Werror -fsyntax-only \
          -Iinclude -Isrc
echo "${#files[@]} sources"
