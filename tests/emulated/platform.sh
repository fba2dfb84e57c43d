# shellcheck shell=bash
# The library on another architecture, built by a bare cross compiler and run under an emulator:
# what tests/aarch64.sh and its like share. The compiler brings a C library and nothing else, so
# cmocka.h beside this file stands in for cmocka, and what needs other libraries is left out.
#
# Not run anywhere, for the emulator's sake: test_context_threads, test_fork and test_pool fork a
# process that has threads, which qemu-user does not survive; test_memory measures a process, which
# here is the emulator's.
flags=() # that the platform needs
harness_flags=() # and what is compiled to test it

fail() {
    echo "$platform: $*" >&2
    exit 1
}

# platform NAME COMPILER EMULATOR PACKAGES: the tools, or the end of the test where they are not.
platform() {
    platform=$1
    cc=$(command -v "$2") || {
        echo "not run: no cross compiler (apt-get install $4)"
        exit 0
    }
    qemu=$(command -v "$3") || {
        echo "not run: no $3 (apt-get install qemu-user)"
        exit 0
    }
    [[ $(uname -m) != "$1" ]] || { echo "not run: the other tests do it on this machine"; exit 0; }
    unset ATTN_ISA ATTN_NUM_THREADS
}

# Without the emulator, which is slower: where the kernel itself runs the platform's programs, as
# most kernels of x86-64 run those of i686.
native=''
natively() {
    echo 'int main(void) { return 0; }' >native.c
    "$cc" -static -o native native.c
    ! ./native 2>/dev/null || native=yes
}

# compile FOLDER FLAGS...: the files named on standard input, into FOLDER.
compile() {
    mkdir -p "$1"
    (cd "$1" && xargs -P "$(nproc)" -n 1 "$cc" -I"$ATTN_SOURCE/include" "${@:2}" -c)
}

# build: the library as anybody may build it: that no product and sum are fused by
# accident, which some architectures do at every chance, must not need an option. And the harness,
# which is slow in any case where its long double is software.
build() {
    printf "%s\n" "$ATTN_SOURCE"/src/*/*.c |
        compile library -O2 -Wall -Wextra -Wshadow -Wconversion -Werror "${flags[@]}"
    printf '%s\n' "$ATTN_SOURCE"/check/*.c "$ATTN_SOURCE"/ref/*.c \
        "$ATTN_SOURCE/tests/emulated/harness.c" |
        compile harness -O1 -ffp-contract=off -I"$ATTN_SOURCE" -I"$ATTN_SOURCE/check" \
            "${flags[@]}" "${harness_flags[@]}"
    mv harness/harness.o .
    "$cc" -static -o check harness.o harness/*.o library/*.o -lm -lpthread
}

# on CPU PROGRAM ARGUMENTS...: what it prints; a signal is a failure by itself, and so is 124: it
# ran for more than 300 s.
on() {
    local cpu=$1 status=0 run=("$qemu" -cpu "$1")
    shift
    [[ -z $native ]] || run=()
    output=$(timeout 300 "${run[@]}" "$@" </dev/null 2>&1) || status=$?
    ((status < 124)) || fail "$cpu: $* ended with $status: $output"
    return "$status"
}

# passes CPU MINIMUM CHOSEN ARGUMENTS...: all of at least MINIMUM cases of the harness pass.
passes() {
    on "$1" ./check "${@:4}" || fail "$1: ${*:4}: $output"
    grep -qE "^chosen $3( |\$)" <<<"$output" || fail "$1: should choose $3: $output"
    local count
    count=$(sed -nE 's/^([0-9]+) passed, 0 failed$/\1/p' <<<"$output")
    ((${count:-0} >= $2)) || fail "$1: too few cases: $output"
    echo "$1: ${*:4}: $count passed"
}

# same_bits CPU EVERY: of so many problems of the record one has the hash that x86-64 gives on the
# portable code.
same_bits() {
    on "$1" ./check bits "$ATTN_TEST_DATA/bits-0.1.txt" "$2" || fail "$1: $output"
    grep -qE '^[1-9][0-9]+ hashes compared, 0 differ' <<<"$output" || fail "$1: $output"
    echo "$1: $(tail -1 <<<"$output")"
}

# Unit tests of the engine: those that take a few seconds; those that compare with integers of 128
# bits, which machines of 32 bits lack; and those of whole calls, which take longer.
# shellcheck disable=SC2034  # for the scripts
quick=(backward_errors cache cache_file cache_i8 compare context cpu dtype error errors jvp measure
       mha_errors sizes)
# shellcheck disable=SC2034
wide=(alloc tensor)
# shellcheck disable=SC2034
whole_calls=(cache_sdpa contract decode dense_masks mha_backward nn nn_backward)

# unit NAME: builds tests/unit/*/test_NAME.c, with fewer rounds than elsewhere (EMULATED).
unit() {
    local source options
    source=$(echo "$ATTN_SOURCE"/tests/unit/*/"test_$1.c")
    read -ra options < <(sed -nE '1,10s/.*link: *([^*]*[^* ]).*/\1/p' "$source" | tr '\n' ' ') || :
    "$cc" -O1 -ffp-contract=off -DEMULATED -DATTN_TEST_DATA="\"$ATTN_TEST_DATA\"" "${flags[@]}" \
        "${harness_flags[@]}" -I"$ATTN_SOURCE"/tests/emulated \
        -I"$ATTN_SOURCE"/{include,.,src,check,ref,kit,tests/unit} \
        -static "${options[@]}" -o "unit/test_$1" "$source" harness/*.o library/*.o -lm -lpthread
}

# units CPU NAME...: each passes, within its time.
units() {
    local cpu=$1 name
    shift
    mkdir -p unit
    for name; do unit "$name"; done
    local began
    for name; do
        began=$SECONDS
        on "$cpu" "unit/test_$name" || fail "$cpu: test_$name: $output"
        tail -1 <<<"$output" | grep -qE '^[1-9][0-9]* tests, 0 failed$' ||
            fail "$cpu: test_$name: $output"
        echo "$cpu: test_$name: $(tail -1 <<<"$output"), $((SECONDS - began)) s"
    done
}
