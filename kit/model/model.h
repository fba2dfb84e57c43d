/* Models that others trained: a folder with config.json, .safetensors and a tokeniser's files, or a
 * checkpoint of attn train; and their forward pass on the engine, in f32.
 *
 *   architecture.c  which models there are: their tensors' names, their shape, as tables
 *   keys.c          the keys of config.json and generation_config.json that are known, as tables
 *   config.c        config.json: sizes and options, none believed
 *   generation.c    generation_config.json: how the next token is chosen
 *   trained.c       the same from a checkpoint of attn train
 *   weights.c       tensors of one file or of several, checked and converted
 *   open.c          a model from all of these
 *   forward.c       embeddings, blocks, logits
 *   parts.c         what the engine has no call for: RMS norm, activations
 *   rotation.c      queries and keys turned by their places
 *   sample.c        the next token from logits
 *
 * To add an architecture: a row in the table of architecture.c, a table of its keys in keys.c, and
 * what is new of its arithmetic in parts.c.
 */
#ifndef KIT_MODEL_H
#define KIT_MODEL_H

#include "../text/tokenizer.h"

typedef struct model model;

typedef struct model_sizes {
    const char *kind; /* "gpt2": config.json's model_type */
    bool causal;      /* a decoder: tokens see only themselves and those before */
    bool predicts;    /* the next token: a decoder whose file has a head, or ties it */
    int64_t vocabulary, positions, embed, layers;
    int64_t heads, kv_heads, head_size;
    bool places_added; /* to the embeddings; else queries and keys are rotated */
} model_sizes;

/* path: a folder, or a checkpoint of attn train. KIT_BAD_FILE says what is wrong with which file.
 * ctx (NULL is fine) is kept for all calls and must outlive the model. */
int model_open(model **out, const char *path, attn_context *ctx, kit_error *err);
/* The same with options; NULL: model_open's. */
typedef struct model_options {
    /* Go on without what attn does not know: keys of config.json and generation_config.json, an
     * adapter beside the model. */
    bool ignore_unknown;
    void (*ignored)(const char *file, const char *what); /* told of each; NULL */
} model_options;
int model_open_with(model **out, const char *path, const model_options *options, attn_context *ctx,
                    kit_error *err);
void model_close(model *m); /* NULL is fine */
const model_sizes *model_sizes_of(const model *m);
attn_context *model_context(const model *m);
const kit_tokenizer *model_tokenizer(const model *m);
bool model_ends_with(const model *m, int64_t id);    /* a token that ends a text */
int64_t model_window(const model *m, int64_t layer); /* keys a query sees, itself last; 0: all */
double model_scale(const model *m, int64_t layer);   /* of the scores */

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

/* How the next token is chosen. generation_config.json says so, or config.json where that is not
 * there; what neither says is {.top_p = 1, .repetition_penalty = 1}: the likeliest. */
typedef struct model_generation {
    double temperature;        /* 0: the likeliest; else it is drawn from softmax(logits / it) */
    int64_t top_k;             /* drawn among so many likeliest; 0: all */
    double top_p;              /* and among the likeliest that have so much probability together */
    double repetition_penalty; /* logits of tokens that were there are divided by it; 1: none */
    int64_t no_repeat_ngram;   /* so many tokens never come twice in the same order; 0: may */
} model_generation;
/* What the model's files ask for. KIT_BAD_FILE: something that is not supported, and would change
 * the tokens. given: the caller has a temperature of its own, which says whether they are drawn. */
int model_generation_of(model_generation *g, const model *m, bool given, bool drawn,
                        kit_error *err);
/* What tokens [length] that were there change in the logits [count] of the next one. */
int model_penalize(float *logits, int64_t count, const int64_t *token, int64_t length,
                   const model_generation *how, kit_error *err);
/* The next token. KIT_NOT_FINITE if a logit is NaN, or all are -inf. */
int model_sample(int64_t *id, const float *logits, int64_t count, const model_generation *how,
                 attn_rng *rng, kit_error *err);
/* The likeliest n tokens, likeliest first, and their probabilities. */
int model_top(int64_t *id, double *probability, int n, const float *logits, int64_t count,
              kit_error *err);

/* The tables of keys, for attn info: a row's family, its key, what is done with it ("used", "no
 * effect", "fixed", "fixed where drawn"), the values that are understood, and what it is. False
 * after the last. */
typedef struct model_key {
    const char *family, *key, *use, *values, *meaning;
} model_key;
bool model_key_at(model_key *row, size_t i);

/* config.json from memory, checked as model_open checks it (the fuzz target). */
int model_check_config(const char *name, const void *bytes, size_t size, kit_error *err);

#endif
