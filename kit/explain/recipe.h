/* Functions to write recipes with: steps, and the calls of libattn between them.
 *
 * A recipe reads top to bottom: recipe_step() appends an empty step and returns its array, a call
 * of libattn fills it, and recipe_describe() and its neighbours describe it. After the first
 * failure all these functions do nothing, so a recipe needs only one check, at its end
 * (recipe_end).
 *
 * Shapes: a step is [T,.], [H,T,.] with heads, or [.] for a single row. recipe_view() views any of
 * them as [B,H,T,D], aligned to the right.
 */
#ifndef KIT_EXPLAIN_RECIPE_H
#define KIT_EXPLAIN_RECIPE_H

#include "trace.h"

typedef struct recipe {
    trace *trace;
    attn_context *ctx;
    kit_error *err;
    int status;          /* KIT_OK until the first failure */
    const char *section; /* heading of the following steps */
    bool after_notebook; /* given to the following steps */
    bool html_only;      /* given to the following steps: only pages show them */
    int64_t layer;       /* model layer of the following steps, from 1; 0: none */
} recipe;

/* Starts an empty trace for a lesson. If `lesson` is NULL, the trace is for explain, or, without a
 * text, for train. `text` is split into words. */
recipe recipe_begin(trace *t, attn_context *ctx, kit_error *err, const char *lesson,
                    const char *title, const char *text);
void recipe_setting(recipe *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
int recipe_end(recipe *r); /* frees the trace if the recipe failed; returns the status */
int recipe_fail(recipe *r, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* recipe_step gives a zeroed step; recipe_add_copy copies `data` into a new step. SHAPE(T, D)
 * stands for rank and shape. */
#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
kit_array recipe_step(recipe *r, const char *name, trace_kind kind, attn_dtype dtype, int rank,
                      const int64_t *shape);
kit_array recipe_add_copy(recipe *r, const char *name, trace_kind kind, attn_dtype dtype, int rank,
                          const int64_t *shape, const void *data);
/* Adds a step that takes over `tensor`. An html_only step may have a shape but no data. */
kit_array recipe_add_owned(recipe *r, const char *name, trace_kind kind, kit_array *tensor);

/* These functions describe the last step. */
void recipe_describe(recipe *r, const char *title, const char *formula, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void recipe_set_provenance(recipe *r, trace_op op, const char *a, const char *b, double factor);
/* For TRACE_MASK and TRACE_ATTEND: keys after the query are hidden. If window > 0, each query sees
 * only that many keys, ending with its own. */
void recipe_causal(recipe *r, int64_t window);
void recipe_rows(recipe *r, const char *const *labels, size_t count);
void recipe_columns(recipe *r, const char *const *labels, size_t count);
void recipe_word_rows(recipe *r);    /* rows are the sentence's words */
void recipe_word_columns(recipe *r); /* columns are the sentence's words */
void recipe_small(recipe *r);
/* layer: from 1; moment: training steps done, -1: none. */
void recipe_set_layer_step(recipe *r, int64_t layer, int64_t moment);
void recipe_printed(recipe *r, const char *verbatim);
void recipe_slack(recipe *r, double slack, double part, const char *why);
/* For lesson_check only. */
void recipe_check_only(recipe *r, const char *title, const char *verbatim);

/* Adds a line to the notes: health, slips, what to try. */
void recipe_note(recipe *r, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds a fact that the script may quote or ask for: {fact query}, {if causal}. */
void recipe_fact(recipe *r, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds a note about the health of the weights in step `name`. The recipe gives the possible cause
 * and the repair for each of the two faults; NULL: none. */
typedef struct recipe_advice {
    const char *saturated_cause, *saturated_repair;
    const char *flat_cause, *flat_repair;
} recipe_advice;
void recipe_health(recipe *r, const char *name, const recipe_advice *advice);

/* Views for calls of libattn. */
attn_tensor recipe_view(kit_array a);
attn_tensor recipe_row(kit_array a, int64_t i);          /* row i of [T,.], as one row */
attn_tensor recipe_swapped(attn_tensor t);               /* the last two dimensions swapped */
attn_tensor recipe_repeat(attn_tensor t, int64_t heads); /* the same rows for every head */

/* Calls of libattn. recipe_engine keeps the error of a call that has no function here. */
void recipe_engine(recipe *r, attn_status status, const attn_error *e);
void recipe_lookup(recipe *r, kit_array ids, kit_array table, kit_array out);
void recipe_linear(recipe *r, attn_tensor x, attn_tensor weight, const attn_tensor *bias,
                   attn_tensor out);
typedef struct recipe_attention {
    attn_tensor q, k, v;
    double scale; /* as in attn_sdpa_args: 0 is 1/sqrt(D) */
    bool causal;
    const attn_tensor *mask;
} recipe_attention;
void recipe_scores(recipe *r, const recipe_attention *a, attn_stage stage, attn_tensor scores);
/* Fails with KIT_NOT_FINITE if a number of the f32 array overflowed. Scores are checked before
 * masks are added: a score of -inf would be taken for a hidden key. The message is "`what` is not
 * finite; `cause`". */
void recipe_finite(recipe *r, kit_array a, const char *what, const char *cause);
void recipe_context(recipe *r, const recipe_attention *a, attn_tensor out);

#endif
