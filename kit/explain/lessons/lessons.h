/* Lessons: recipes whose steps also hold the numbers that a notebook printed.
 *
 * To add one: write lesson_<name>.c, add its row to the table in lessons.c and its declaration
 * below.
 */
#ifndef KIT_EXPLAIN_LESSONS_H
#define KIT_EXPLAIN_LESSONS_H

#include <stdio.h>

#include "../trace.h"

typedef struct explain_lesson {
    const char *name;     /* "dessert" */
    const char *notebook; /* the notebook's own title */
    const char *summary;  /* one line for the list of lessons */
    int (*build)(trace *t, attn_context *ctx, kit_error *err);
    int (*gradients)(trace *t, attn_context *ctx, kit_error *err); /* NULL: has none */
} explain_lesson;
extern const explain_lesson explain_lessons[];       /* the last row has the name NULL */
const explain_lesson *lesson_find(const char *name); /* NULL: no such lesson */

/* Compares every number of the trace that the notebook printed with the printed digits, and writes
 * one line for each step to out (may be NULL). Steps after the notebook's end are compared with
 * PyTorch's numbers, if the step has them. KIT_OK, or KIT_CHECK_FAILED with the first difference in
 * err. */
int lesson_check(const trace *t, FILE *out, kit_error *err);

/* The recipes of the lessons, one file each. */
int lesson_dessert(trace *t, attn_context *ctx, kit_error *err);
int lesson_sky(trace *t, attn_context *ctx, kit_error *err);
int lesson_sky_gradients(trace *t, attn_context *ctx, kit_error *err);
int lesson_module(trace *t, attn_context *ctx, kit_error *err);
int lesson_numpy(trace *t, attn_context *ctx, kit_error *err);
int lesson_journey(trace *t, attn_context *ctx, kit_error *err);

#endif
