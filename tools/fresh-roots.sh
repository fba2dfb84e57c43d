#!/bin/bash
# Runs a new user's first commands, `make demo` and `pip install ./python`, in four fresh systems of
# Debian 12, with the committed files of this tree. Prints one line for each; fails if one failed.
#
#   [LOGS=FOLDER] tools/fresh-roots.sh [NAME...]     default: all; FOLDER gets their output
#
#   plain        the smallest system that debootstrap makes
#   wasm         with clang, lld, wasi-libc and binaryen: pages compute in WebAssembly
#   clang        with clang alone, which cannot link WebAssembly: pages compute by JavaScript
#   cmake-3.21   the oldest CMake that CMakeLists.txt accepts, from PyPI
#
# Needs root, debootstrap, the network, 2 GB in TMPDIR and, on two cores, half an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
die() { echo "fresh-roots: $*" >&2; exit 1; }
names=(plain wasm clang cmake-3.21)
for name in "$@"; do
    [[ " ${names[*]} " == *" $name "* ]] ||
        { echo "fresh-roots: no system '$name'; systems: ${names[*]}" >&2; exit 2; }
done
(($# == 0)) || names=("$@")
((EUID == 0)) || die "must run as root, for debootstrap and chroot"
command -v debootstrap >/dev/null || die "no debootstrap: apt-get install debootstrap"

work=$(mktemp -d)
running=
# The processes in a root end with the one that started them, and the mounts end with these (see
# inside). So only files remain to be removed.
cleanup() {
    [[ -z $running ]] || { kill -KILL "$running" && wait "$running"; } 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
logs=${LOGS:-$work/logs}
mkdir -p "$logs"
logs=$(realpath "$logs")
passed=0 failed=0

inside() { # COMMAND: runs it in $root with the environment of a new shell
    local status=0
    # shellcheck disable=SC2016  # for the bash inside
    unshare --mount --pid --fork --kill-child bash -c \
        'mount -t proc proc "$1/proc" && exec chroot "$1" env -i HOME=/root TERM=dumb \
             PATH="$2" PIP_CERT=/etc/ssl/certs/ca-certificates.crt bash -ec "$3"' \
        inside "$root" "$path" "$1" </dev/null &
    # In the foreground, bash would handle a signal only after the command ends.
    running=$!
    wait "$running" || status=$?
    running=
    return "$status"
}

prepare() { # COMMAND: prepares the system before the user's commands
    inside "$1" >>"$logs/$name.prepare" 2>&1 && return
    tail -n 20 "$logs/$name.prepare" >&2
    die "$name cannot be prepared"
}

try() { # WHAT FILE COMMAND
    local start=$SECONDS result=ok
    inside "$3" >"$logs/$name.$2" 2>&1 || result=failed
    printf '%-11s %-22s %-6s %4d s, the system has now %s\n' "$name" "$1" "$result" \
           $((SECONDS - start)) "$(du -sh "$root" | cut -f1)"
    if [[ $result == ok ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        tail -n 40 "$logs/$name.$2" | sed 's/^/    /'
    fi
}

debootstrap --variant=minbase bookworm "$work/base" >"$logs/debootstrap" 2>&1 ||
    { tail -n 5 "$logs/debootstrap" >&2; die "debootstrap failed"; }
# As in images of Debian, and so that apt-get update is needed as README.md says.
rm -rf "$work"/base/var/lib/apt/lists/*

for name in "${names[@]}"; do
    root=$work/$name
    path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    rm -rf --one-file-system "$work/last"
    cp -a "$work/base" "$root"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc"
    : >"$logs/$name.prepare"
    prepare "apt-get update && apt-get install -y make git"
    # A system behind a proxy has its own certificates.
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs"
    packages=() proof='! [[ -e build/page.wasm ]]'
    case $name in
    wasm)
        packages=(clang lld wasi-libc libclang-rt-dev-wasm32 binaryen)
        proof='[[ -s build/page.wasm.base64 ]]'
        ;;
    clang) packages=(clang) ;;
    cmake-3.21) proof='grep -q "^CMAKE_CACHE_MINOR_VERSION:INTERNAL=21$" build/CMakeCache.txt' ;;
    esac
    prepare "apt-get install -y --no-install-recommends python3-venv ${packages[*]}"
    if [[ $name == cmake-* ]]; then
        prepare "python3 -m venv /opt/cmake && /opt/cmake/bin/pip install cmake==3.21.4"
        path=/opt/cmake/bin:$path
    fi
    git clone -q . "$root/root/libattn"

    try "make demo" demo "cd; cd libattn; make demo; $proof"
    try "pip install ./python" pip 'cd; python3 -m venv venv; . venv/bin/activate
        cd libattn; pip install ./python
        cd /; python3 -c "
import attn, numpy as np
assert abs(attn.scaled_dot_product_attention(*[np.eye(2)] * 3).sum() - 2) < 1e-12"'
    mv "$root" "$work/last"
done
echo "$passed passed, $failed failed"
((failed == 0))
