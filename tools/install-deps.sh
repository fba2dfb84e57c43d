#!/bin/bash
# Installs the Debian packages that are needed and missing, as root or through sudo.
#
#   tools/install-deps.sh [build|test|ci|bench|fuzz]    default: build, a part of every group
#
# clang, lld, wasi-libc and libclang-rt-dev-wasm32 are not needed to build; with them, pages compute
# in WebAssembly, and their sentence can be changed (ATTN_PAGE_WASM).
#
# Asks no questions. If it cannot install, it prints the needed packages in one message.
set -euo pipefail

build=(gcc libc6-dev make cmake pkg-config
       libjansson-dev libzip-dev libutf8proc-dev libcairo2-dev)
tests=("${build[@]}" libcmocka-dev python3 python3-numpy python3-hypothesis
       python3-selenium chromium chromium-headless-shell chromium-driver
       clang lld wasi-libc libclang-rt-dev-wasm32
       qemu-user openmpi-bin libopenmpi-dev mpich libmpich-dev)
bench=("${build[@]}" python3 python3-venv)
fuzz=("${build[@]}" libcmocka-dev clang libclang-rt-dev)
ci=("${tests[@]}" git ccache libclang-rt-dev clang-format g++ shellcheck abigail-tools spin
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-i686-linux-gnu libc6-dev-i386-cross
    gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross gcc-s390x-linux-gnu libc6-dev-s390x-cross)

case "${1:-build}" in
build) wanted=("${build[@]}") ;;
test) wanted=("${tests[@]}") ;;
ci) wanted=("${ci[@]}") ;;
bench) wanted=("${bench[@]}") ;;
fuzz) wanted=("${fuzz[@]}") ;;
*)
    echo "install-deps: no group '$1'; groups: build test ci bench fuzz" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "install-deps: not a Debian system, nothing installed; needed, by Debian's names:" \
         "${wanted[*]}" >&2
    exit 0
fi

missing=()
for package in "${wanted[@]}"; do
    status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
    [[ $status == "install ok installed" ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

if ((EUID == 0)); then
    root=(env)
elif command -v sudo >/dev/null; then
    root=(sudo env)
else
    echo "install-deps: neither root nor sudo; run this as root:" \
         "apt-get install -y ${missing[*]}" >&2
    exit 1
fi
root+=(DEBIAN_FRONTEND=noninteractive)

echo "installing: ${missing[*]}" >&2
install=("${root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}")
# The package lists may be absent or stale: fetch them only if the first try fails.
"${install[@]}" </dev/null >/dev/null 2>&1 && exit 0
# apt's notes on a minimal system (no apt-utils, no init) are shown only if the installation failed.
said=$({ "${root[@]}" apt-get update -q && "${install[@]}"; } 2>&1 >/dev/null </dev/null) || {
    status=$?
    printf '%s\n' "$said" >&2
    exit "$status"
}
