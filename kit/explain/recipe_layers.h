/* What a page has of a model's layers beside the one that is told step by step. */
#ifndef KIT_EXPLAIN_RECIPE_LAYERS_H
#define KIT_EXPLAIN_RECIPE_LAYERS_H

#include "../model/model.h"
#include "recipe.h"

typedef struct layer_heads { /* which heads of a model: first from 0 */
    const model *m;
    int64_t first, count;
} layer_heads;

/* Another layer: queries, keys and values, which are taken out of look; weights and context, which
 * the page computes from them; and layer_effects. Steps "layer_2_queries" and so on. */
void layer_html_only(recipe *r, const layer_heads *h, model_layer *look);

/* What heads do to the layer's output, through W_O: the length of each value there, and the
 * products of what each head adds to each token with what each other adds, from which follows how
 * long the output is with any of them off. values, context: the steps that they belong to; prefix:
 * of the new steps' names. */
void layer_effects(recipe *r, const layer_heads *h, const model_layer *look, const char *values,
                   const char *context, const char *prefix);

/* Of one head of `layer` (from 0): the parts of W_q, W_k and W_v, with biases, that made its steps
 * queries, keys and values from the step `input`. */
void layer_makers(recipe *r, const layer_heads *h, int64_t layer, const char *input);

#endif
