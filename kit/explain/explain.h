/* explain: attention step by step, for people.
 *
 * A recipe fills a trace (trace.h); a renderer turns a trace into bytes; a lesson is a recipe whose
 * steps also carry what a notebook printed, so that it can check itself.
 *
 * To add a lesson: write recipe_<name>.c, add its row to the table in lessons.c and its declaration
 * below. To add a renderer: write render_<name>.c and add its row to the table in render.c.
 */
#ifndef KIT_EXPLAIN_H
#define KIT_EXPLAIN_H

#include <stdio.h>

#include "trace.h"

/* ------------------------------------------------------------------------------ attn explain
 *
 * Words -> ids -> embeddings -> queries, keys, values -> scores -> weights -> context, with
 * random weights from PyTorch's stream: torch.manual_seed(seed); Embedding(V, embed);
 * randn(w_q); randn(w_k); randn(w_v). KIT_USAGE for an empty sentence, a size out of range, or a
 * query that is no word of it.
 */
typedef struct explain_options {
    const char *text;
    uint64_t seed;
    int64_t embed, qk, v, heads; /* each 1 or more */
    bool causal, no_scale;
    double scale;      /* 0: 1/sqrt(qk); not together with no_scale */
    const char *query; /* a word, or its position from 1; NULL: the second word */
} explain_options;
#define EXPLAIN_OPTIONS_INIT                                                                       \
    {                                                                                              \
        NULL, 123, 16, 24, 28, 1, false, false, 0.0, NULL                                          \
    }
int explain_build(trace *t, const explain_options *options, attn_context *ctx, kit_error *err);

/* ------------------------------------------------------------------------------- attn lesson */
typedef struct explain_lesson {
    const char *name;     /* "dessert" */
    const char *notebook; /* the notebook's own title */
    const char *summary;  /* one line for the list */
    int (*build)(trace *t, attn_context *ctx, kit_error *err);
    int (*gradients)(trace *t, attn_context *ctx, kit_error *err); /* with them; NULL: has none */
} explain_lesson;
extern const explain_lesson explain_lessons[];       /* ends with a row whose name is NULL */
const explain_lesson *lesson_find(const char *name); /* NULL: no such lesson */

/* Compares every number of the trace that the notebook printed with the printed digits, one line
 * each to out (may be NULL); beyond the notebook, with PyTorch's where a step has them. KIT_OK, or
 * KIT_CHECK_FAILED with the first difference in err. */
int lesson_check(const trace *t, FILE *out, kit_error *err);

/* Chooses the row that is written out: a word, or a position from 1. KIT_USAGE if it is none. */
int trace_set_query(trace *t, const char *query, kit_error *err);

/* --------------------------------------------------------------------------------- renderers
 *
 * Each makes the whole output in memory; free it with free(). size does not count the final NUL
 * that follows the bytes.
 */
typedef enum render_colour { RENDER_NO_COLOUR, RENDER_256, RENDER_TRUECOLOUR } render_colour;
typedef struct render_text_options {
    int width; /* columns of the terminal, at least 20 */
    render_colour colour;
    bool unicode; /* false: nothing but ASCII */
    bool full;    /* print every matrix */
    int top;      /* most weighted keys to list where a map was pooled; 0: 5 */
} render_text_options;
#define RENDER_TEXT_OPTIONS_INIT                                                                   \
    {                                                                                              \
        80, RENDER_NO_COLOUR, true, false, 0                                                       \
    }
int render_text(char **bytes, size_t *size, const trace *t, const render_text_options *options,
                kit_error *err);
int render_json(char **bytes, size_t *size, const trace *t, kit_error *err);
int render_svg(char **bytes, size_t *size, const trace *t, kit_error *err);
int render_png(char **bytes, size_t *size, const trace *t, kit_error *err);
int render_pdf(char **bytes, size_t *size, const trace *t, kit_error *err);
/* One file that needs nothing else; large matrices are in it as base64, or computed by it. */
int render_html(char **bytes, size_t *size, const trace *t, kit_error *err);

/* By the suffix of a file's name: .html .svg .png .pdf .json .txt. NULL, and err says which
 * there are. */
typedef int (*render_function)(char **bytes, size_t *size, const trace *t, kit_error *err);
render_function render_by_suffix(const char *path, kit_error *err);

/* -------------------------------------------------------------------------------------- quiz
 *
 * Predict, then see: question number `index` (from 0) hides one visible cell of the weights. The
 * same seed asks the same questions. KIT_USAGE if the trace has no cell worth asking for.
 */
#define QUIZ_TOLERANCE 0.01
typedef struct quiz_question {
    size_t step;               /* index of the weights in the trace */
    int64_t head, row, column; /* the hidden cell */
    double answer;
    char question[512];  /* each is one line, to be wrapped */
    char row_text[1024]; /* the row's scores */
    char hint[1024];     /* the equation with its operands */
} quiz_question;
int quiz_ask(quiz_question *q, const trace *t, uint64_t seed, int index, kit_error *err);
bool quiz_is_right(const quiz_question *q, double answer);

#endif
