/* The record of bits: 2,000 fixed problems over everything that the library computes, and a hash of
 * the results of each on every instruction set. `attn check --bits` prints the table of a build;
 * with `--record FILE` it compares with one that was kept, such as tests/data/bits-0.1.txt, whose
 * head says when its lines may change.
 *
 * A problem depends on its index alone, and its inputs on integers: no libm, no instruction set and
 * no order of bytes has a part in them. Whoever changes what a problem draws (check_bits_*.c)
 * invalidates every record that was ever written: a new kind of problem needs a new record. */
#ifndef CHECK_BITS_H
#define CHECK_BITS_H

#include <stddef.h>
#include <stdio.h>

#define CHECK_BITS_PROBLEMS 2000

typedef struct check_bits_options {
    FILE *record;    /* is compared with; NULL: the table of this build is printed */
    const char *isa; /* NULL: every usable one */
    int every;       /* of so many problems one is computed; 0: all */
    FILE *out;       /* the table, or what differs; its last line is a summary */
} check_bits_options;

/* How many hashes differ from the record, or could not be computed; 1 too if none was compared. -1
 * where the record is damaged or memory is out: message says so in a line. */
int check_bits(const check_bits_options *options, char *message, size_t size);

#endif
