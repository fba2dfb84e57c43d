#!/bin/bash
# labels: emulator
# timeout: 1500
# The library on Windows, compiled by mingw-w64 and run under Wine: the DLL, which gives the same
# results as libattn.so and needs only Windows; every instruction set of this machine, compared with
# the reference; unit tests. (The record of bits is not compared, because lse and the modules call
# the C library's exp.)
set -euo pipefail
# shellcheck source=tests/emulated/platform.sh
source "$ATTN_SOURCE/tests/emulated/platform.sh"
platform windows x86_64-w64-mingw32-gcc-posix wine "gcc-mingw-w64-x86-64-posix wine64"
# Its isfinite() of a double contains a float constant.
flags=(-D__USE_MINGW_ANSI_STDIO=1 "-Wa,-muse-unaligned-vector-move" -Wno-float-conversion)
# fma() of mingw's C library rounds twice, so the reference uses the processor's.
harness_flags=(-mfma "-I$ATTN_SOURCE/tests/emulated/windows")
export WINEPREFIX=$PWD/prefix WINEDEBUG=-all
trap 'wineserver -k || :' EXIT

on() {
    local program=$2 status=0
    [[ -e $program ]] || program+=.exe
    output=$(timeout 300 wine "$program" "${@:3}" </dev/null 2>errors) || status=$?
    output=${output//$'\r'/}
    ((status < 124)) || fail "$* ended with $status: $output$(cat errors)"
    return "$status"
}

grep -qw fma /proc/cpuinfo || { echo "not run: the definition needs a processor with fma"; exit 0; }
build
"$cc" -shared -static -o libattn.dll library/*.o -Wl,--out-implib,libattn.dll.a \
    "-Wl,--version-script=$ATTN_SOURCE/cmake/attn.map" -lpthread
x86_64-w64-mingw32-objdump -p libattn.dll >dll
wanted=$(nm -D --defined-only "$ATTN_LIBRARY" | sed -nE 's/.* (attn_\w+).*/\1/p' | sort)
needs=$(sed -nE 's/.*DLL Name: //p' dll | tr '[:upper:]' '[:lower:]' | sort | tr '\n' ' ')
[[ $needs == "kernel32.dll msvcrt.dll " ]] || fail "the DLL needs $needs"
given=$(sed -nE '/\[Ordinal\/Name Pointer\]/,/^$/s/.*\[ *[0-9]+\] (\w+)$/\1/p' dll | sort)
[[ -n $wanted && $wanted == "$given" ]] || fail "the DLL gives other functions than libattn.so"
"$cc" "${flags[@]}" -I"$ATTN_SOURCE/include" -o one_call "$ATTN_SOURCE/examples/one_call.c" \
    libattn.dll.a
on wine ./one_call || fail "examples/one_call: $output"

passes wine 500 "[a-z0-9]+:" 0.05
ran=$(awk '$1 == "ok" { print $3 }' <<<"$output" | sort -u | tr '\n' ' ')
[[ $ran == *"generic "* && $ran == *"avx2 "* ]] || fail "ran $ran"
# Of the tests that need no POSIX functions.
units wine compare dtype error errors jvp sizes tensor decode dense_masks special spans ref \
    schedule signs extremes
