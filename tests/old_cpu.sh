#!/bin/bash
# labels: emulator slow
# The same program on older processors, under an emulator: it chooses an instruction set that they
# have, executes no instruction that they lack, and computes correct results.
set -euo pipefail
fail() {
    echo "old_cpu: $*" >&2
    exit 1
}

qemu=$(command -v qemu-x86_64) || {
    echo "not run: no qemu-x86_64 (apt-get install qemu-user)"
    exit 0
}
[[ $(uname -m) == x86_64 ]] || { echo "not run: the program is not for x86-64"; exit 0; }
unset ATTN_ISA ATTN_NUM_THREADS

# on CPU COMMAND...: prints the program's output; a signal counts as a failure
on() {
    local cpu=$1 status=0
    shift
    output=$("$qemu" -cpu "$cpu" "$ATTN" "$@" 2>&1) || status=$?
    ((status < 128)) || fail "$cpu: attn $* ended by signal $((status - 128)): $output"
    return "$status"
}

# harness CPU OPERATION...: runs these operations of the harness, "" for all of it. Sets `cases`,
# their number, and `printed`, what the harness printed.
harness() {
    local cpu=$1 operation
    shift
    cases=0 printed=''
    for operation; do
        on "$cpu" check ${operation:+--op "$operation"} --seconds 0.01 --seed 2024 ||
            fail "$cpu: $output"
        tail -1 <<<"$output" | grep -qE '^[1-9][0-9]* passed, 0 failed$' || fail "$cpu: $output"
        cases=$((cases + $(tail -1 <<<"$output" | cut -d' ' -f1)))
        printed+=$output$'\n'
    done
    ((cases >= 100)) || fail "$cpu: only $cases cases"
}

# Writes [2,64,8] of f32 as .npy; four numbers repeat.
{
    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' \
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 64, 8), }"
    for ((i = 0; i < 256; i++)); do
        printf '\x00\x00\x80\x3f\x00\x00\x00\xbf\x9a\x99\x99\x3e\x00\x00\x20\x40'
    done
} >x.npy
run=(run --q x.npy --k x.npy --v x.npy --causal top-left --grad-out x.npy --grad-q)

# Each processor, and the instruction set that should be chosen on it. The operation "threads" takes
# most of the time and runs on the first processor with each set: src/core/cpu.c alone reads which
# instructions a processor has, and chooses a whole set, so later ones execute the same code.
declare -A operations=() # of each set, without "threads"
while read -r cpu chosen; do
    on "$cpu" info || fail "$cpu: attn info: $output"
    grep -qE "^chosen +$chosen:" <<<"$output" || fail "$cpu: should choose $chosen: $output"

    if [[ -z ${operations[$chosen]:-} ]]; then
        harness "$cpu" ""
        operations[$chosen]=$(awk '$1 == "ok" { print $2 }' <<<"$printed" | sort -u |
                              grep -vx threads)
    else
        mapfile -t names <<<"${operations[$chosen]}"
        harness "$cpu" "${names[@]}"
    fi
    ran=$(awk '$1 == "ok" { print $3 }' <<<"$printed" | sort -u | tr '\n' ' ')
    case $chosen in
    generic) [[ $ran == "generic " ]] || fail "$cpu: ran $ran" ;;
    *) [[ $ran == "avx2 generic " ]] || fail "$cpu: ran $ran" ;;
    esac

    # Attention and its gradients have the same bits as with this set on the machine itself, if it
    # has the set. Training, modules and caches pass their tests.
    on "$cpu" "${run[@]}" "$cpu.npy" --out "$cpu.out.npy" || fail "$cpu: attn run: $output"
    if ATTN_ISA=$chosen "$ATTN" "${run[@]}" here.npy --out here.out.npy >/dev/null 2>&1; then
        if ! cmp "$cpu.npy" here.npy || ! cmp "$cpu.out.npy" here.out.npy; then
            fail "$cpu: other bits"
        fi
    fi
    case $cpu in
    Conroe | Haswell)
        on "$cpu" train --steps 2 --batch 2 --length 8 --embed 16 --seed 1 -o train.json ||
            fail "$cpu: attn train: $output"
        for test in test_cache_i8 test_mha_errors test_nn_backward; do
            output=$("$qemu" -cpu "$cpu" "$ATTN_BUILD/tests/$test" 2>&1) ||
                fail "$cpu: $test: $output"
        done
        ;;
    esac

    # Choosing an instruction set by name that the processor lacks is an error, not a crash.
    if [[ $chosen == generic ]]; then
        on "$cpu" check --isa avx2 --seconds 0.01 && fail "$cpu: ran avx2"
    fi
    echo "$cpu: $chosen, $cases passed"
done <<'END'
Conroe generic
Nehalem generic
SandyBridge generic
Haswell avx2
Haswell,-fma generic
Haswell,-avx2 generic
max avx2
END
