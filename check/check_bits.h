/* The record of bits: 2,000 fixed problems that cover everything the library computes, with a hash
 * of each problem's results on every instruction set. `attn check --bits` prints the table of a
 * build. With `--record FILE` it compares this table with a stored one, such as
 * tests/data/bits-0.1.txt, whose head says when its lines may change.
 *
 * A problem depends only on its index, and its inputs only on integers: neither libm nor the
 * instruction set nor the byte order affects them. A change of what a problem draws
 * (check_bits_*.c) invalidates every record ever written, so a new kind of problem needs a new
 * record. */
#ifndef CHECK_BITS_H
#define CHECK_BITS_H

#include <stddef.h>
#include <stdio.h>

#define CHECK_BITS_PROBLEMS 2000

typedef struct check_bits_options {
    FILE *record;    /* compare with this record; NULL: print the table of this build */
    const char *isa; /* NULL: all usable ones */
    int every;       /* compute one problem out of this many; 0: all */
    FILE *out;       /* the table, or the differences; the last line is a summary */
} check_bits_options;

/* Returns the number of hashes that differ from the record or could not be computed, and 1 if none
 * was compared. -1: the record is damaged or memory ran out; message then says so in one line. */
int check_bits(const check_bits_options *options, char *message, size_t size);

#endif
