/* What every recipe is written with: steps, and the engine's calls between them.
 *
 * A recipe reads top to bottom: recipe_step() appends an empty step and returns its array, an
 * engine call fills it, recipe_describe() and its neighbours describe it. The first failure is
 * kept and everything after it does nothing, so that a recipe needs one check, at its end
 * (recipe_end).
 *
 * Shapes: a step is [T,.], [H,T,.] with heads, or [.] for one row alone; recipe_view() sees any
 * of them as the engine's [B,H,T,D], aligned to the right.
 */
#ifndef KIT_EXPLAIN_RECIPE_H
#define KIT_EXPLAIN_RECIPE_H

#include "trace.h"

typedef struct recipe {
    trace *trace;
    attn_context *ctx;
    kit_error *err;
    int status;          /* KIT_OK until the first failure */
    const char *section; /* heading of the steps to come */
    bool after_notebook; /* so are the steps to come */
    bool html_only;      /* so are the steps to come: only a page has them */
    int64_t layer;       /* of a model, from 1, that the steps to come are of; 0: of none */
} recipe;

/* Starts an empty trace: a lesson's, or, with `lesson` NULL, explain's, or train's if there is no
 * text either. `text` is split into words. */
recipe recipe_begin(trace *t, attn_context *ctx, kit_error *err, const char *lesson,
                    const char *title, const char *text);
void recipe_setting(recipe *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
int recipe_end(recipe *r); /* frees the trace if the recipe failed; returns the status */
int recipe_fail(recipe *r, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A zeroed step; recipe_add_copy copies `data` into it. SHAPE(T, D) stands for rank and shape. */
#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
kit_array recipe_step(recipe *r, const char *name, trace_kind kind, attn_dtype dtype, int rank,
                      const int64_t *shape);
kit_array recipe_add_copy(recipe *r, const char *name, trace_kind kind, attn_dtype dtype, int rank,
                          const int64_t *shape, const void *data);
/* A step that takes over `tensor`; one that is html_only may have no data, but a shape. */
kit_array recipe_add_owned(recipe *r, const char *name, trace_kind kind, kit_array *tensor);

/* These describe the last step. */
void recipe_describe(recipe *r, const char *title, const char *formula, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void recipe_set_provenance(recipe *r, trace_op op, const char *a, const char *b, double factor);
/* Of TRACE_MASK, TRACE_ATTEND: keys after the query are hidden, and where window > 0 all but so
 * many of the others, the query's own the last. */
void recipe_causal(recipe *r, int64_t window);
void recipe_rows(recipe *r, const char *const *labels, size_t count);
void recipe_columns(recipe *r, const char *const *labels, size_t count);
void recipe_word_rows(recipe *r);    /* the sentence's words ask */
void recipe_word_columns(recipe *r); /* the sentence's words answer */
void recipe_small(recipe *r);
/* layer: from 1; moment: steps of training, -1: none. */
void recipe_set_layer_step(recipe *r, int64_t layer, int64_t moment);
void recipe_printed(recipe *r, const char *verbatim);
void recipe_slack(recipe *r, double slack, double part, const char *why);
/* Only for lesson_check. */
void recipe_check_only(recipe *r, const char *title, const char *verbatim);

/* A line of the notes: health, slips, what to try. */
void recipe_note(recipe *r, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Health of the weights in step `name`, said as a note. What may be the cause and what would repair
 * it, for either illness, comes from the recipe; NULL where it has nothing to say. */
typedef struct recipe_advice {
    const char *saturated_cause, *saturated_repair;
    const char *flat_cause, *flat_repair;
} recipe_advice;
void recipe_health(recipe *r, const char *name, const recipe_advice *advice);

/* Views for the engine. */
attn_tensor recipe_view(kit_array a);
attn_tensor recipe_row(kit_array a, int64_t i);          /* row i of [T,.], as one row */
attn_tensor recipe_swapped(attn_tensor t);               /* the last two dimensions exchanged */
attn_tensor recipe_repeat(attn_tensor t, int64_t heads); /* the same for every head */

/* The engine. recipe_engine keeps the error of a call that has no function here. */
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
void recipe_context(recipe *r, const recipe_attention *a, attn_tensor out);

#endif
