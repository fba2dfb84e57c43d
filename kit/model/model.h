/* Models trained elsewhere, and their forward pass on libattn, in f32. A model is a folder with
 * config.json, .safetensors and a tokeniser's files, or a checkpoint of attn train.
 *
 *   architecture.c  the supported models: names of tensors and structure, as tables
 *   keys.c          the known keys of config.json and generation_config.json, as tables
 *   config.c        config.json: sizes and options, as untrusted input
 *   generation.c    generation_config.json: how the next token is chosen
 *   trained.c       the same from a checkpoint of attn train
 *   weights.c       tensors of one or several files, checked and converted
 *   open.c          makes a model from all of these
 *   forward.c       embeddings, blocks, logits
 *   parts.c         operations that libattn does not have: RMS norm, activations
 *   rotation.c      rotates queries and keys by their positions (RoPE)
 *   sample.c        the next token from logits
 *
 * To add an architecture: add a row to the table of architecture.c, a table of its keys to keys.c,
 * and its new arithmetic to parts.c.
 */
#ifndef KIT_MODEL_H
#define KIT_MODEL_H

#include "../text/tokenizer.h"

typedef struct model model;

typedef struct model_sizes {
    const char *kind; /* model_type of config.json, such as "gpt2" */
    bool causal;      /* a decoder: tokens see only themselves and earlier ones */
    bool predicts;    /* the next token: a decoder whose file has a head or ties it */
    int64_t vocabulary, positions, embed, layers;
    int64_t heads, kv_heads, head_size;
    bool places_added; /* positions are added to the embeddings; else q and k are rotated */
} model_sizes;

/* Opens a folder, or a checkpoint of attn train. KIT_BAD_FILE: the message names the file and what
 * is wrong with it. ctx (may be NULL) is used by all calls and must outlive the model. */
int model_open(model **out, const char *path, attn_context *ctx, kit_error *err);
/* model_open with options; options may be NULL. */
typedef struct model_options {
    /* Ignore what attn does not know: keys of config.json and generation_config.json, and an
     * adapter in the model's folder. */
    bool ignore_unknown;
    void (*ignored)(const char *file, const char *what); /* called for each; may be NULL */
} model_options;
int model_open_with(model **out, const char *path, const model_options *options, attn_context *ctx,
                    kit_error *err);
void model_close(model *m); /* m may be NULL */
const model_sizes *model_sizes_of(const model *m);
attn_context *model_context(const model *m);
const kit_tokenizer *model_tokenizer(const model *m);
bool model_ends_with(const model *m, int64_t id);    /* whether the token ends a text */
int64_t model_window(const model *m, int64_t layer); /* keys a query sees, with its own; 0: all */
double model_scale(const model *m, int64_t layer);   /* scale of the scores */

/* Inputs and results of one layer's attention, for explain. The caller owns it and frees it with
 * model_layer_free. */
typedef struct model_layer {
    int64_t layer;     /* from 0; set by the caller */
    bool brief;        /* set by the caller: leave out input, normed and output */
    kit_array input;   /* [T,E] input of the layer */
    kit_array normed;  /* [T,E] after the norm, if the norm comes first; else no data */
    kit_array q, k, v; /* [H,T,D], [Hk,T,D], [Hk,T,D], rotated if the model rotates */
    kit_array context; /* [T,H*D] results of the heads, side by side */
    kit_array output;  /* [T,E] output of the layer */
} model_layer;
void model_layer_free(model_layer *look);

/* Gives the joined projection of a layer (from 0) to queries, keys and values: weight
 * [(H+2*Hk)*D,E], bias [(H+2*Hk)*D] or no data. The model owns the memory. */
void model_input_projection(const model *m, int64_t layer, attn_tensor *weight, attn_tensor *bias);
/* Gives the projection that joins the heads of a layer (from 0), W_O: weight [E,H*D]; bias [E] or,
 * if there is none, no data. The model owns the memory. */
void model_output_projection(const model *m, int64_t layer, attn_tensor *weight, attn_tensor *bias);

/* A run holds memory for calls of up to `most` tokens. With `keys` > 0 it also holds a cache of so
 * many keys, and each call continues the text of the calls before. For one thread at a time. */
typedef struct model_run model_run;
int model_run_begin(model_run **out, const model *m, int64_t most, int64_t keys, kit_error *err);
void model_run_end(model_run *r); /* r may be NULL */
/* Lets every later call of model_run_tokens pass the attention weights of each layer, from 0 on, to
 * `watch`: [H,count,count], valid until it returns. For a run without a cache. */
typedef void model_watch(void *watcher, int64_t layer, const float *weights);
int model_run_watch(model_run *r, model_watch *watch, void *watcher, kit_error *err);
/* What model_run_tokens refuses before it computes, for the first tokens of a text. */
int model_check_tokens(const model *m, const int64_t *ids, const int64_t *types, int64_t count,
                       kit_error *err);
/* Runs the model. ids, and segments in types (NULL: all 0), are [count]. KIT_USAGE: more tokens
 * than the model has positions for, or an unknown id. look [looks] is filled; NULL, 0: nothing is
 * wanted. */
int model_run_tokens(model_run *r, const int64_t *ids, const int64_t *types, int64_t count,
                     model_layer *look, int64_t looks, kit_error *err);
/* For decoders, after model_run_tokens: gives a logit for each token of the vocabulary to follow
 * the last token. Valid until the next call. */
int model_run_logits(model_run *r, const float **logits, kit_error *err);
/* The same for the vector x [E] of any layer's output, as if no layer followed: the logit lens. */
int model_run_lens(model_run *r, const float *x, const float **logits, kit_error *err);
/* Lets every later call of model_run_tokens set the output of one head to 0, before W_O. layer and
 * head from 0; layer -1: of no head. */
void model_run_without(model_run *r, int64_t layer, int64_t head);
/* After model_run_tokens: the output of the last layer, [count,E]. Valid until the next call. */
const float *model_run_output(const model_run *r);

/* How the next token is chosen, as generation_config.json says or, if there is none, config.json.
 * Without either, it is {.top_p = 1, .repetition_penalty = 1}: the likeliest token. */
typedef struct model_generation {
    double temperature; /* 0: the likeliest; else sampled from softmax(logits / temperature) */
    int64_t top_k;      /* sample among this many likeliest tokens; 0: among all */
    double top_p;       /* and among the likeliest tokens that together have this probability */
    double repetition_penalty; /* divides the logits of tokens that occurred; 1: no effect */
    int64_t no_repeat_ngram;   /* no run of this many tokens occurs twice; 0: no limit */
} model_generation;
/* Gives what the model's files specify. KIT_BAD_FILE: they have an unsupported option that would
 * change the tokens. given: the caller has a temperature of its own, and `drawn` tells whether it
 * samples. */
int model_generation_of(model_generation *g, const model *m, bool given, bool drawn,
                        kit_error *err);
/* Changes the logits [count] of the next token as the earlier tokens [length] require. */
int model_penalize(float *logits, int64_t count, const int64_t *token, int64_t length,
                   const model_generation *how, kit_error *err);
/* Chooses the next token. KIT_NOT_FINITE: a logit is NaN or, if the token is sampled, the largest
 * is infinite. */
int model_sample(int64_t *id, const float *logits, int64_t count, const model_generation *how,
                 attn_rng *rng, kit_error *err);
/* Gives the n likeliest tokens, likeliest first, and their probabilities. */
int model_top(int64_t *id, double *probability, int n, const float *logits, int64_t count,
              kit_error *err);

/* The tables of keys, for attn info. A row has the family, the key, its use ("used", "no
 * effect", "fixed", "fixed where drawn"), the supported values, and the meaning. False after the
 * last row. */
typedef struct model_key {
    const char *family, *key, *use, *values, *meaning;
} model_key;
bool model_key_at(model_key *row, size_t i);

/* Checks a config.json in memory as model_open does (for the fuzz target). */
int model_check_config(const char *name, const void *bytes, size_t size, kit_error *err);

#endif
