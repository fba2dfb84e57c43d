/* attn explain --model: the attention of a real model's layer as a trace, with the steps that
 * explain has for random weights. */
#ifndef KIT_EXPLAIN_MODEL_H
#define KIT_EXPLAIN_MODEL_H

#include "../model/model.h"
#include "explain.h"

typedef struct explain_model_options {
    const char *text, *pair; /* pair: a second text, or NULL */
    int64_t layer;           /* from 1 */
    int64_t head;            /* from 1; 0: all */
    const char *query;       /* a token as it is shown, or its position from 1; NULL: the second */
} explain_model_options;
/* KIT_USAGE: a layer, head or query that is not there, or a text the model cannot take. */
int explain_model(trace *t, const explain_model_options *options, const model *m, kit_error *err);

#endif
