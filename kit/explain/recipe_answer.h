/* A page's data of a model's answer: how it depends on temperature, layers and heads. */
#ifndef KIT_EXPLAIN_RECIPE_ANSWER_H
#define KIT_EXPLAIN_RECIPE_ANSWER_H

#include "../model/model.h"
#include "recipe.h"

/* Adds steps that only a page shows. `layer` (from 1) is the explained one.
 *
 *   next_tokens_at  [41,n]  probabilities of the likeliest tokens (step next_tokens) among all
 *                           tokens, at the temperatures 10^(i/20 - 1)
 *   logit_lens      [L,n]   their probabilities if the model ended after each layer
 *   logit_lens_first [L,1]  the probability of the token that is then likeliest; the row's label is
 *                           that token
 *   without_heads_N [H,n]   their probabilities in a run of the model without one head of layer N;
 *                   [H,T]   if the model predicts no token: how far each token's output moves, as a
 *                           part of its length
 *
 * The runs without heads are left out for layers where they would take too long. */
void answer_steps(recipe *r, const model *m, const kit_tokens *tokens, int64_t layer);

#endif
