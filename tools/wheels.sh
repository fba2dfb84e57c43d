#!/bin/bash
# tools/wheels.sh FOLDER: writes two wheels for PyPI and this machine's processor into FOLDER: one
# for glibc 2.28 and newer (manylinux_2_28), one for musl 1.2 (musllinux_1_2). They contain the
# library but not the program, because this system's jansson and utf8proc are built for its own
# libc.
#
# Needs zig's C compiler, which can compile for both: pip install ziglang
set -euo pipefail
[[ $# == 1 && -d $1 ]] || { echo "usage: tools/wheels.sh FOLDER" >&2; exit 2; }
folder=$(realpath "$1")
cd "$(dirname "$0")/../python"
python3 -m ziglang version >/dev/null 2>&1 ||
    { echo "wheels: this python3 has no ziglang: pip install ziglang" >&2; exit 1; }
machine=$(uname -m)

build() { # PLATFORM SYSTEM
    CC="python3 -m ziglang cc -target $machine-$2" python3 - "$folder" "$1_$machine" <<'END'
import sys
sys.path.insert(0, ".")
import backend
print(backend.build_wheel(sys.argv[1], {"platform": sys.argv[2]}))
END
}
build manylinux_2_28 linux-gnu.2.28
build musllinux_1_2 linux-musl
