/* A trace: what a recipe computed, step by step, for the renderers to draw.
 *
 * Recipes (recipe_*.c, lessons/) call the engine and append to a trace; renderers (render/) draw a
 * trace. No recipe knows a renderer, no renderer knows a recipe. Every number that anything shows
 * is read from here, and got here from the engine.
 */
#ifndef KIT_EXPLAIN_TRACE_H
#define KIT_EXPLAIN_TRACE_H

#include "../kit.h"

/* What a step's tensor is, so that a renderer can choose how to draw it. */
typedef enum trace_kind {
    TRACE_IDS,     /* integers */
    TRACE_VALUES,  /* any matrix */
    TRACE_SCORES,  /* a row asks, a column answers; any sign; -inf where masked */
    TRACE_WEIGHTS, /* a row asks, a column answers; 0..1, rows sum to 1 */
    TRACE_SCALAR,
    TRACE_CURVE,        /* [n,2]: x and y of a curve, x rising; column labels name them */
    TRACE_PROBABILITIES /* a table of parts of 1, with rows and columns of its own */
} trace_kind;

/* Where a step's numbers come from, so that any of them can be written out with its operands: `a`
 * and `b` name the steps that it was made from. */
typedef enum trace_op {
    TRACE_GIVEN,   /* typed in, drawn, or anything not listed here */
    TRACE_LOOKUP,  /* row a[i] of table b */
    TRACE_PROJECT, /* a times the matrix b */
    TRACE_DOT,     /* row i of a . row j of b */
    TRACE_SCALE,   /* a * factor */
    TRACE_MASK,    /* a, times factor if it is not 0, and -inf where a key is hidden */
    TRACE_SOFTMAX, /* e^a / sum of e^a over each row */
    TRACE_MIX,     /* rows of b, weighted by a */
    TRACE_ATTEND,  /* in one go: softmax of factor * (row i of a . row j of b), per head; b may have
                      fewer heads than a, each for a group */
    TRACE_NORM,  /* [H,S]: the length of each row of values a, or of it times a head's part of b */
    TRACE_SLOPE, /* gradient of a loss by the scores behind weights a */
    TRACE_MAKER, /* [D,E+1], html_only: with it step a [T,E] becomes step b [T,D]; number c is a row
                      of a times the first E numbers of row c here, plus its last one */
    TRACE_PRODUCTS /* [T,n(n+1)/2]: of each token, what n - 1 heads (of context a) and the rest add
                      to the layer's output: vector i . vector j at i(i+1)/2 + j, j up to i */
} trace_op;

typedef struct trace_step {
    char *name;     /* "scaled_scores": the key in JSON */
    char *title;    /* "Divide by sqrt(d_k)" */
    char *formula;  /* "S / sqrt(24)" */
    char *sentence; /* one or two sentences, with this case's own words and numbers */
    char *section;  /* heading that the step stands under, or NULL */
    trace_kind kind;
    kit_array tensor;  /* [T,.], or [H,T,.] with heads; any rank in lessons. A step that is
                          html_only may have a shape and no data: the page computes it */
    char **row_labels; /* of the last but one dimension, or NULL; owned */
    size_t row_label_count;
    char **column_labels; /* of the last dimension, or NULL; owned */
    size_t column_label_count;
    bool after_notebook; /* goes on where the notebook stops */
    bool small;          /* one of many: drawn small, and in text only with everything else */
    bool check_only;     /* only there to be compared with `printed`: no renderer draws it */
    char *printed; /* what the notebook printed for it, or after it, what PyTorch prints; or NULL */
    trace_op op;
    char *a, *b;    /* names of the operand steps, or NULL */
    double factor;  /* of TRACE_SCALE; of TRACE_SOFTMAX, _MASK if a is yet to be scaled, else 0 */
    bool causal;    /* of TRACE_MASK, _ATTEND: the keys after the query are hidden */
    int64_t window; /* and all but so many up to the query, itself the last; 0: none of those */
    int64_t layer, moment; /* of a model with layers, from 1; after so many steps of training, from
                              1 for step 0; 0: neither */
    double slack,
        slack_part;  /* lesson_check allows slack + slack_part * |value| more than the last */
    char *slack_why; /* printed digit, for this reason; NULL: none */
} trace_step;

typedef struct trace {
    char *command; /* "explain", "lesson", "train": JSON schema "attn.<command>/1" */
    char *title;
    char *lesson;  /* the lesson's name, or NULL */
    char *text;    /* the sentence, or NULL */
    char *setting; /* one line: sizes, scale, mask, where the weights come from; or NULL */
    kit_words words;
    int64_t heads, query; /* query: the row that is written out, -1: none */
    int64_t head;         /* of a model: the one that is shown, from 1; 0: all of them */
    int64_t across;       /* small panels side by side in a picture; 0: as many as fit */
    char *notes; /* lines "label<TAB>sentence" for the end: health, slips, what to try; or NULL */
    trace_step *step; /* [count + html_only_count] */
    size_t count;
    size_t html_only_count; /* after those: what a page alone has, such as a model's other layers */
    size_t capacity;
} trace;

void trace_free(trace *t);
/* Appends a step that takes over `tensor`. Strings are copied. NULL and err on failure. */
trace_step *trace_add(trace *t, const char *name, trace_kind kind, kit_array *tensor,
                      kit_error *err);
/* The same for a page alone; from the first of these on, all steps are html_only. */
trace_step *trace_add_html_only(trace *t, const char *name, trace_kind kind, kit_array *tensor,
                                kit_error *err);
const trace_step *trace_find(const trace *t, const char *name);

/* Chooses the row that is written out: a word, or a position from 1. KIT_USAGE if it is none. */
int trace_set_query(trace *t, const char *query, kit_error *err);

#endif
