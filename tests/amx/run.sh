#!/bin/bash
# Runs a test program that was linked with the emulated matrix unit, whose vector part is AVX-512.
if ! grep -qw avx512vl /proc/cpuinfo; then
    echo "not run: the emulation of AMX needs a processor with AVX-512"
    exit 0
fi
exec "$@"
