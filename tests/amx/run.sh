#!/bin/bash
# run.sh FLAG PROGRAM: runs a test program that was linked with the emulated matrix unit, whose
# vector part is AVX-512 or, in C, AVX2.
if ! grep -qw "$1" /proc/cpuinfo; then
    echo "not run: the emulation of AMX needs a processor with AVX-512, or gcc and AVX2"
    exit 0
fi
exec "${@:2}"
