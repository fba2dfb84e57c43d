/* The parity harness: every kernel operation and every call, on every instruction set that this
 * machine has, against the naive reference in ref/, over random shapes and contents. `attn check`
 * runs it on the user's machine; the test suite runs it with fixed seeds. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>

typedef struct check_options {
    double seconds;  /* per operation and instruction set, at most; 0: one full round of cases */
    const char *isa; /* NULL: every usable one */
    const char *op;  /* NULL: all */
    uint64_t seed;   /* 0: one is drawn; it is printed */
    int bench;       /* print the time of each operation too */
    FILE *out;       /* the report; last line "N passed, N failed" */
} check_options;

/* The number that failed; -1: op or isa unknown (then one line on stderr says so). */
int check_run(const check_options *options);
/* Names for --op, NULL past the end. */
const char *check_op_name(int index);

#endif
