/* What the tests of bad arguments expect of an error. */
#ifndef ARGUMENT_ERRORS_H
#define ARGUMENT_ERRORS_H

#include <stdbool.h>
#include <string.h>

#include "attn.h"
#include "support/test.h"

/* A table of all that a call may write, which ends with {NULL, 0}. */
typedef struct test_output {
    void *memory;
    size_t size;
} test_output;

static inline void blank_all(const test_output *outputs)
{
    for (; outputs->memory; outputs++)
        memset(outputs->memory, 0xA5, outputs->size);
}

/* Has nothing been written here since? */
static inline bool is_blank(const void *memory, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)memory)[i] != 0xA5)
            return false;
    return true;
}

static inline bool all_blank(const test_output *outputs)
{
    bool blank = true;
    for (; outputs->memory; outputs++)
        blank &= is_blank(outputs->memory, outputs->size);
    return blank;
}

/* The status, the argument's name, and one line that begins with it and says something; and not a
 * byte of the outputs written since blank_all(). */
static inline void expect_bad_argument(const char *name, attn_status status, attn_status want,
                                       const attn_error *err, const char *argument,
                                       const test_output *outputs)
{
    if (status != want || err->status != want)
        fail_msg("%s: %s (%s), want %s", name, attn_status_name(status), err->message,
                 attn_status_name(want));
    if (strcmp(err->argument, argument) != 0)
        fail_msg("%s: names %s, want %s (%s)", name, err->argument, argument, err->message);
    const size_t n = strlen(argument);
    if (strncmp(err->message, argument, n) != 0 || strlen(err->message) < n + 8 ||
        strchr(err->message, '\n'))
        fail_msg("%s: says \"%s\"", name, err->message);
    if (!all_blank(outputs))
        fail_msg("%s: something was written", name);
}

#endif
