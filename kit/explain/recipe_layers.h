/* A page's data of a model's layers, apart from the layer that is explained step by step. */
#ifndef KIT_EXPLAIN_RECIPE_LAYERS_H
#define KIT_EXPLAIN_RECIPE_LAYERS_H

#include "../model/model.h"
#include "recipe.h"

typedef struct layer_heads { /* the shown heads of a model; first from 0 */
    const model *m;
    int64_t first, count;
} layer_heads;

/* Adds another layer: queries, keys and values, which are taken out of look; weights and
 * context, which the page computes from them; and layer_effects. The steps are "layer_2_queries"
 * and so on. */
void layer_html_only(recipe *r, const layer_heads *h, model_layer *look);

/* Adds the effect of heads on the layer's output, through W_O: the length of each value there, and
 * for each token the products of what each head adds with what each other head adds. The length of
 * the output without any chosen heads follows from these. values, context: the steps that they
 * belong to; prefix: start of the new steps' names. */
void layer_effects(recipe *r, const layer_heads *h, const model_layer *look, const char *values,
                   const char *context, const char *prefix);

/* For one head of `layer` (from 0), adds the parts of W_q, W_k and W_v, with biases, that make the
 * steps queries, keys and values from the step `input`. */
void layer_makers(recipe *r, const layer_heads *h, int64_t layer, const char *input);

#endif
