#!/bin/bash
# labels: slow
# timeout: 1800
# The recipes of docs/ADDING.md still work: two of them are followed, each day two others.
set -euo pipefail
if ! command -v git >/dev/null; then
    echo "not run: git is needed, to apply patches"
else
    RECIPES_FOLDER=$PWD/recipes JOBS=2 "$ATTN_SOURCE/tools/recipes.sh" --turn
    rm -rf recipes
fi
