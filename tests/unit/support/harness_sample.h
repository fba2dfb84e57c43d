/* A fixed sample of an operation of `attn check`, as a test. */
#ifndef HARNESS_SAMPLE_H
#define HARNESS_SAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "support/test.h"

/* Runs one round of cases on every instruction set; all of them pass, and there are at least
 * `least`. */
static inline void expect_sample_passes(const char *op, uint64_t seed, int least)
{
    char *report;
    size_t size;
    FILE *to = open_memstream(&report, &size);
    assert_non_null(to);
    const int failed = check_run(&(check_options){.op = op, .seed = seed, .out = to});
    fclose(to);
    fputs(report, stdout);
    assert_int_equal(failed, 0);
    const char *last = strstr(report, " passed, 0 failed");
    assert_non_null(last);
    while (last > report && last[-1] >= '0' && last[-1] <= '9')
        last--;
    assert_number(atoi(last), >=, least);
    free(report);
}

#endif
