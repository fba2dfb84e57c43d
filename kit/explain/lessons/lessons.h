/* Lessons: recipes whose steps also hold the numbers that a notebook printed, with scripts that
 * explain them.
 *
 * To add one: write lesson_<name>.c, <name>.lesson and examples/lessons/<name>.c (docs/LESSONS.md).
 * The build makes the table of the lessons, <lessons.def>, from the scripts' lines that begin with
 * "lesson" (cmake/LessonTable.cmake).
 */
#ifndef KIT_EXPLAIN_LESSONS_H
#define KIT_EXPLAIN_LESSONS_H

#include <stdio.h>

#include "../explain.h"
#include "../script.h"

typedef struct explain_lesson {
    const char *name;     /* "dessert" */
    const char *notebook; /* the notebook's own title */
    int (*build)(trace *t, attn_context *ctx, kit_error *err);
    int (*gradients)(trace *t, attn_context *ctx, kit_error *err); /* NULL: has none */
} explain_lesson;
extern const explain_lesson explain_lessons[];       /* the last row has the name NULL */
const explain_lesson *lesson_find(const char *name); /* NULL: no such lesson */

/* Computes a lesson and gives it its words. gradients: continues with them; the lesson must have
 * them. */
int lesson_build(const explain_lesson *l, bool gradients, trace *t, attn_context *ctx,
                 kit_error *err);
/* Reads the script alone, whose numbers are not yet filled in: title, summary, time and names of
 * steps. To be freed with script_free. */
int lesson_script(const explain_lesson *l, script *s, kit_error *err);
/* Reads the glossary into s->term, in alphabetical order. To be freed with script_free. */
int lesson_glossary(script *s, kit_error *err);

/* Computes explain_build and gives it the words of explain.lesson. */
int lesson_explain(trace *t, const explain_options *o, attn_context *ctx, kit_error *err);

/* Compares every number of the trace that the notebook printed with the printed digits, and writes
 * one line for each step to out (may be NULL). Steps after the notebook's end are compared with
 * PyTorch's numbers, if the step has them. KIT_OK, or KIT_CHECK_FAILED with the first difference in
 * err. */
int lesson_check(const trace *t, FILE *out, kit_error *err);

/* The recipes of the lessons, one file each: lesson_<name>, and lesson_<name>_gradients. */
#define LESSON(name, notebook) int lesson_##name(trace *t, attn_context *ctx, kit_error *err);
#define LESSON_GRADIENTS(name, notebook)                                                           \
    LESSON(name, notebook)                                                                         \
    int lesson_##name##_gradients(trace *t, attn_context *ctx, kit_error *err);
#include <lessons.def>

#endif
