/* The page of `attn explain --model` with its story. */
#ifndef KIT_EXPLAIN_MODEL_STORY_H
#define KIT_EXPLAIN_MODEL_STORY_H

#include "../explain_model.h"

/* Computes explain_model. A trace for a page with all layers and heads, of up to
 * EXPLAIN_MODEL_FEW tokens, also gets the words of model.lesson; for them the model reads the text
 * again, once for each kind of head. */
int lesson_model(trace *t, const explain_model_options *o, const model *m, kit_error *err);

#endif
