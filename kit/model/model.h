/* Models that others trained: a folder with config.json, .safetensors and a tokeniser's files, or a
 * checkpoint of attn train; and their forward pass on the engine, in f32.
 *
 *   architecture.c  which models there are: their tensors' names, their shape, as tables
 *   config.c        config.json: sizes and options, none believed
 *   trained.c       the same from a checkpoint of attn train
 *   weights.c       tensors of one file or of several, checked and converted
 *   open.c          a model from all of these
 *   forward.c       embeddings, blocks, logits
 *   parts.c         what the engine has no call for: RMS norm, rotation, activations
 *   sample.c        the next token from logits
 *
 * To add an architecture: a row in the table of architecture.c, its keys in config.c if they have
 * other names, and what is new of its arithmetic in parts.c.
 */
#ifndef KIT_MODEL_H
#define KIT_MODEL_H

#include "../text/tokenizer.h"

typedef struct model model;

typedef struct model_sizes {
    const char *kind; /* "gpt2": config.json's model_type */
    bool causal;      /* a decoder, which predicts the next token */
    int64_t vocabulary, positions, embed, layers;
    int64_t heads, kv_heads, head_size;
    int64_t window;    /* keys that a query sees, itself the last; 0: all */
    bool places_added; /* to the embeddings; else queries and keys are rotated */
    double scale;      /* of the scores: 1/sqrt(head_size), or 1 */
} model_sizes;

/* path: a folder, or a checkpoint of attn train. KIT_BAD_FILE says what is wrong with which file.
 * ctx (NULL is fine) is kept for all calls and must outlive the model. */
int model_open(model **out, const char *path, attn_context *ctx, kit_error *err);
void model_close(model *m); /* NULL is fine */
const model_sizes *model_sizes_of(const model *m);
attn_context *model_context(const model *m);
const kit_tokenizer *model_tokenizer(const model *m);
bool model_ends_with(const model *m, int64_t id); /* a token that ends a text */

/* What one layer's attention was given and gave, for explain. Owned; free with model_layer_free. */
typedef struct model_layer {
    int64_t layer;     /* from 0; set by the caller */
    bool brief;        /* set by the caller: input, normed and output are not wanted */
    kit_array input;   /* [T,E] what the layer is given */
    kit_array normed;  /* [T,E] after the norm, where that comes first; else no data */
    kit_array q, k, v; /* [H,T,D], [Hk,T,D], [Hk,T,D], rotated where the model does that */
    kit_array context; /* [T,H*D] what the heads found, side by side */
    kit_array output;  /* [T,E] what the layer gives */
} model_layer;
void model_layer_free(model_layer *look);

/* The projections of a layer (from 0) to queries, keys and values, in one: weight [(H+2*Hk)*D,E],
 * bias as below. */
void model_input_projection(const model *m, int64_t layer, attn_tensor *weight, attn_tensor *bias);
/* The projection that joins the heads of a layer (from 0), W_O: weight [E,H*D]; bias [E] or, if
 * there is none, no data. The model's own memory. */
void model_output_projection(const model *m, int64_t layer, attn_tensor *weight, attn_tensor *bias);

/* A run: memory for calls of up to `most` tokens, and, with `keys` > 0, a cache of so many, so that
 * calls go on from each other. One thread at a time. */
typedef struct model_run model_run;
int model_run_begin(model_run **out, const model *m, int64_t most, int64_t keys, kit_error *err);
void model_run_end(model_run *r); /* NULL is fine */
/* Ids, and segments (NULL: all 0), both [count]. KIT_USAGE: more than the model has places for, or
 * an id that it has not. look [looks] is filled; NULL, 0: nothing is wanted. */
int model_run_tokens(model_run *r, const int64_t *ids, const int64_t *types, int64_t count,
                     model_layer *look, int64_t looks, kit_error *err);
/* After model_run_tokens, of a decoder: a logit for each token of the vocabulary, after the last
 * one. Valid until the next call. */
int model_run_logits(model_run *r, const float **logits, kit_error *err);

/* The next token: temperature 0 takes the likeliest, else one is drawn by rng among the top_k
 * likeliest (0: all). KIT_NOT_FINITE if a logit is NaN. */
int model_sample(int64_t *id, const float *logits, int64_t count, double temperature, int64_t top_k,
                 attn_rng *rng, kit_error *err);
/* The likeliest n tokens, likeliest first, and their probabilities. */
int model_top(int64_t *id, double *probability, int n, const float *logits, int64_t count,
              kit_error *err);

/* config.json from memory, checked as model_open checks it (the fuzz target). */
int model_check_config(const char *name, const void *bytes, size_t size, kit_error *err);

#endif
