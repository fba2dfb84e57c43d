/* The parity harness. It compares every kernel operation and every call, on every instruction set
 * of this machine, with the naive reference in ref/, over random shapes and contents. `attn check`
 * runs it on the user's machine; the test suite runs it with fixed seeds. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>

typedef struct check_options {
    double seconds;  /* at most, per operation and instruction set; 0: one full round of cases */
    uint64_t cases;  /* instead of a time: of each operation and instruction set; 0: see seconds */
    const char *isa; /* NULL: all usable ones */
    const char *op;  /* NULL: all */
    uint64_t seed;   /* 0: a random one; it is printed */
    int bench;       /* also print the time of each operation */
    FILE *out;       /* the report; its last line is "N passed, N failed" */
} check_options;

/* Returns the number of failed cases. -1: op or isa is unknown; one line on stderr says which. */
int check_run(const check_options *options);
/* Names for --op; NULL past the end. */
const char *check_op_name(int index);

#endif
