/* A trace: what a recipe computed, step by step, for the renderers to draw.
 *
 * Recipes (recipe_*.c, lessons/) call libattn and append to a trace; renderers (render/) draw it.
 * Recipes and renderers are independent of each other. Every number shown is read from the trace,
 * and was computed by libattn.
 */
#ifndef KIT_EXPLAIN_TRACE_H
#define KIT_EXPLAIN_TRACE_H

#include "../kit.h"

/* The kind of a step's tensor; it tells a renderer how to draw the step. */
typedef enum trace_kind {
    TRACE_IDS,     /* integers */
    TRACE_VALUES,  /* any matrix */
    TRACE_SCORES,  /* rows are queries, columns are keys; any sign; -inf where masked */
    TRACE_WEIGHTS, /* rows are queries, columns are keys; 0..1, rows sum to 1 */
    TRACE_SCALAR,
    TRACE_CURVE,        /* [n,2]: x and y of a curve, x ascending; column labels name them */
    TRACE_PROBABILITIES /* a table of parts of 1; rows and columns have their own labels */
} trace_kind;

/* The origin of a step's numbers, so that any of them can be written out with its operands. `a` and
 * `b` name the steps that it was made from. */
typedef enum trace_op {
    TRACE_GIVEN,   /* input, drawn, or trained; of weights, a may name their scores */
    TRACE_LOOKUP,  /* row a[i] of table b */
    TRACE_PROJECT, /* a times the matrix b */
    TRACE_DOT,     /* row i of a . row j of b */
    TRACE_SCALE,   /* a * factor */
    TRACE_MASK,    /* a, times factor unless that is 0; -inf where a key is hidden */
    TRACE_SOFTMAX, /* e^a / sum of e^a over each row */
    TRACE_MIX,     /* rows of b, weighted by a */
    TRACE_ATTEND,  /* in one step: softmax of factor * (row i of a . row j of b), per head; b may
                    * have fewer heads than a, each for a group */
    TRACE_NORM,  /* [H,S]: length of each row of values a, or of the row times a head's part of b */
    TRACE_SLOPE, /* gradient of a loss by the scores of weights a */
    TRACE_MAKER, /* [D,E+1], html_only: makes step b [T,D] from step a [T,E]. Number c of b is a
                  * row of a times the first E numbers of row c here, plus its last one */
    TRACE_COMPUTED, /* from a, and b if it is not NULL, as the step's formula says */
    TRACE_PRODUCTS  /* [T,n(n+1)/2]: for each token, products of what n - 1 heads (of context a)
                    * and the rest add to the layer's output: vector i . vector j at i(i+1)/2 +
                    * j, j up to i */
} trace_op;

typedef struct trace_step {
    char *name;     /* "scaled_scores": its key in JSON */
    char *title;    /* "Divide by sqrt(d_k)" */
    char *formula;  /* "S / sqrt(24)" */
    char *sentence; /* one or two sentences, with words and numbers of this case */
    char *section;  /* heading above the step, or NULL */
    trace_kind kind;
    kit_array tensor;  /* [T,.], or [H,T,.] with heads; any rank in lessons. A step that is
                          html_only may have a shape and no data: the page computes it */
    char **row_labels; /* of the last but one dimension, or NULL; owned */
    size_t row_label_count;
    char **column_labels; /* of the last dimension, or NULL; owned */
    size_t column_label_count;
    bool after_notebook; /* continues after the notebook's end */
    bool small;          /* one of many: drawn small; in text only with --full */
    bool check_only;     /* only compared with `printed`; no renderer draws it */
    char *printed; /* what the notebook printed, or after its end what PyTorch prints; or NULL */
    trace_op op;
    char *a, *b;    /* names of the operand steps, or NULL */
    double factor;  /* of TRACE_SCALE; of TRACE_SOFTMAX, _MASK if a is not scaled yet, else 0 */
    bool causal;    /* of TRACE_MASK, _ATTEND: keys after the query are hidden */
    int64_t window; /* each query sees this many keys, ending with its own; 0: no window */
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
    int64_t heads, query;            /* query: the row written out in full, -1: none */
    int64_t head;                    /* of a model: the shown head, from 1; 0: all heads */
    int64_t across;                  /* small panels side by side in a picture; 0: as many as fit */
    struct explain_options *options; /* of explain_build (explain.h), without its texts, so that a
                                        page can compute it again; or NULL; owned */
    struct script *script;           /* the words around the steps (script.h), or NULL; owned */
    struct trace
        *more;   /* what the text shows at its end: the same sentence again; or NULL, owned */
    char *notes; /* lines "label<TAB>sentence" for the end: health, slips, what to try; or NULL */
    char *facts; /* lines "name<TAB>text" that the script quotes: words, sizes, options; or NULL */
    trace_step *step; /* [count + html_only_count] */
    size_t count;
    size_t html_only_count; /* after those: steps for pages only, such as a model's other layers */
    size_t capacity;
} trace;

void trace_free(trace *t);
/* Appends a step that takes over `tensor`. Strings are copied. Returns NULL and fills err on
 * failure. */
trace_step *trace_add(trace *t, const char *name, trace_kind kind, kit_array *tensor,
                      kit_error *err);
/* The same for html_only steps; all steps after the first of these must be html_only. */
trace_step *trace_add_html_only(trace *t, const char *name, trace_kind kind, kit_array *tensor,
                                kit_error *err);
const trace_step *trace_find(const trace *t, const char *name);
/* Finds a fact by its name, which has `length` bytes. Returns its text, of *size bytes; NULL: the
 * trace does not have it. */
const char *trace_fact(const trace *t, const char *name, size_t length, size_t *size);

/* Chooses the row that is written out in full: a word, or a position from 1. KIT_USAGE: there is no
 * such row. */
int trace_set_query(trace *t, const char *query, kit_error *err);

#endif
