/* attn explain --model: the attention of one layer of a model as a trace, with the same steps as
 * for random weights. */
#ifndef KIT_EXPLAIN_MODEL_H
#define KIT_EXPLAIN_MODEL_H

#include "../model/model.h"
#include "trace.h"

typedef struct explain_model_options {
    const char *text, *pair; /* pair: a second text, or NULL */
    int64_t layer;           /* from 1: the layer that is explained step by step */
    bool all;                /* the title names no layer, because the page shows all of them */
    int64_t others;    /* in tokens: for texts up to this long, a page gets every other layer */
    int64_t head;      /* from 1; 0: all */
    const char *query; /* a token as shown, or its position from 1; NULL: the second */
} explain_model_options;
#define EXPLAIN_MODEL_FEW 64 /* tokens: up to this many, all layers take little space */
#define EXPLAIN_MODEL_MOST ((int64_t)1 << 27) /* elements of all layers' vectors; 360 MB */
/* KIT_LIMIT: more than EXPLAIN_MODEL_MOST. KIT_USAGE: no such layer, head or query, or a text that
 * the model cannot take. */
int explain_model(trace *t, const explain_model_options *options, const model *m, kit_error *err);

#endif
