/* attn explain --model: the attention of a real model's layer as a trace, with the steps that
 * explain has for random weights. */
#ifndef KIT_EXPLAIN_MODEL_H
#define KIT_EXPLAIN_MODEL_H

#include "../model/model.h"
#include "trace.h"

typedef struct explain_model_options {
    const char *text, *pair; /* pair: a second text, or NULL */
    int64_t layer;           /* from 1: the one that is told step by step */
    bool all;                /* the title names no layer: every one is to be explored */
    int64_t others;          /* tokens: texts up to so long keep every other layer for a page */
    int64_t head;            /* from 1; 0: all */
    const char *query;       /* a token as it is shown, or its position from 1; NULL: the second */
} explain_model_options;
#define EXPLAIN_MODEL_FEW 64                  /* tokens: with so few, all layers are small */
#define EXPLAIN_MODEL_MOST ((int64_t)1 << 27) /* elements of all layers' vectors; 360 MB */
/* KIT_LIMIT: more than EXPLAIN_MODEL_MOST. KIT_USAGE: a layer, head or query that is not there, or
 * a text the model cannot take. */
int explain_model(trace *t, const explain_model_options *options, const model *m, kit_error *err);

#endif
