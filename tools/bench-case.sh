#!/bin/bash
# Prints the options of `attn bench` that time one case. tools/profile.sh and tools/bisect-speed.sh
# take their CASE from here.
#
#   tools/bench-case.sh NAME          a case of the table below; in bf16, f16 or f64: NAME:TYPE
#   tools/bench-case.sh '--shape ...' options of `attn bench` are a case, too
#   tools/bench-case.sh               lists the names
#
# One thread, unless the options say otherwise: a call on one thread is the easiest to repeat.
set -euo pipefail

cases='6x6                 --shape 1,1,1,6,6,16
128                 --shape 1,12,12,128,128,64
512                 --shape 1,12,12,512,512,64
2048                --shape 1,8,8,2048,2048,64
2048-causal         --shape 1,8,8,2048,2048,64 --causal top-left
2048-d128           --shape 1,8,8,2048,2048,128
decode              --shape 1,32,32,1,4096,128
decode-4-queries    --shape 1,32,32,4,4096,128 --causal bottom-right
decode-batch        --shape 8,8,8,1,2048,128
decode-grouped      --shape 1,32,4,1,8192,128
backward-512        --shape 1,12,12,512,512,64 --pass backward
backward-2048       --shape 1,8,8,2048,2048,64 --pass backward'

case=${1:-}
if [[ -z $case ]]; then
    echo "cases, each in f32 or as NAME:bf16, NAME:f16, NAME:f64:"
    echo "  ${cases//$'\n'/$'\n'  }"
    exit 0
fi
if [[ $case == --* ]]; then
    options=$case
else
    type=${case#"${case%%:*}"}
    options=$(awk -v name="${case%%:*}" '$1 == name { $1 = ""; print substr($0, 2) }' <<<"$cases")
    if [[ -z $options || ! $type =~ ^(:(f64|f32|f16|bf16))?$ ]]; then
        echo "CASE=$case: no such case" >&2
        "$0" >&2
        exit 2
    fi
    options+=${type:+ --dtype ${type#:}}
fi
[[ " $options " == *" --threads"[\ =]* ]] || options+=" --threads 1"
echo "$options"
