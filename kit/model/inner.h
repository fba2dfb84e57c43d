/* What the files of kit/model share; model.h is the face that others see. */
#ifndef KIT_MODEL_INNER_H
#define KIT_MODEL_INNER_H

#include <jansson.h>

#include "model.h"

/* -------------------------------------------------------------------------- architecture.c */
typedef enum module_id { /* of the model, then of a block */
                         TOKENS,
                         PLACES,
                         TYPES,
                         EMBED_NORM,
                         LAST_NORM,
                         HEAD,
                         MODEL_MODULES,
                         NORM1 = MODEL_MODULES,
                         QUERY,
                         KEY,
                         VALUE,
                         QKV, /* the three in one */
                         OUT,
                         NORM2,
                         GATE,
                         UP,
                         DOWN,
                         MODULES
} module_id;
#define BLOCK_MODULES (MODULES - MODEL_MODULES)

typedef enum places { PLACES_FROM_0, PLACES_AFTER_PADDING, PLACES_ROTATED } places;
typedef enum biases { BIAS_ALWAYS, BIAS_IF_THERE } biases; /* of linear layers */

typedef struct architecture {
    const char *kind;          /* model_type */
    const char *prefix;        /* of every name, where the model was saved with a head; or "" */
    const char *name[MODULES]; /* stem of a module's tensors, %d: the layer; NULL: there is none */
    bool causal;
    bool norm_first; /* before attention and MLP, and once at the end; else after each */
    bool rms;        /* RMS norms, without bias */
    bool transposed; /* weights are [in, out] */
    bool may_lack_mlp;
    places places;
    biases biases;
    struct keys { /* of config.json */
        const char *embed, *layers, *heads, *inner, *positions, *activation, *eps;
    } key;
    bool tied; /* unless config.json says otherwise: the head is the table of tokens */
    double eps;
} architecture;
extern const architecture model_architectures[];          /* ends with a row whose kind is NULL */
const architecture *model_architecture(const char *kind); /* NULL: not known */

/* -------------------------------------------------------------------------------- config.c */
typedef enum activation { ACT_GELU, ACT_GELU_TANH, ACT_QUICK_GELU, ACT_RELU, ACT_SILU } activation;

typedef struct rotation {
    double theta;
    double factor, low, high, original; /* llama3's scaling; factor 1: none */
    bool linear;                        /* factor alone */
} rotation;

typedef struct model_config {
    const architecture *a;
    model_sizes sizes;
    int64_t types, inner, padding;
    activation activation;
    double eps;
    bool tied;
    rotation rotation;
    int64_t end[8]; /* tokens that end a text */
    int ends;
} model_config;
int model_config_read(model_config *c, const json_t *top, const char *name, kit_error *err);
int model_config_ends(model_config *c, const json_t *top, const char *name, kit_error *err);

/* ------------------------------------------------------------------------------- trained.c */
/* Config and tokeniser of a checkpoint of attn train. */
int model_trained_config(model_config *c, const char *path, kit_error *err);
int model_trained_tokenizer(kit_tokenizer **t, const char *path, kit_error *err);

/* ------------------------------------------------------------------------------- weights.c */
typedef struct weights weights;
int weights_open_folder(weights **out, const char *folder, kit_error *err);
int weights_open_file(weights **out, const char *path, kit_error *err);
void weights_close(weights *w);
bool weights_has(const weights *w, const char *name);
/* As f32, of this shape; rows 0: a vector. turned: stored as [columns, rows]. */
int weights_load(kit_array *a, const weights *w, const char *name, int64_t rows, int64_t columns,
                 bool turned, kit_error *err);

/* ---------------------------------------------------------------------------------- open.c */
typedef struct module {
    kit_array weight, bias; /* bias: no data if there is none */
} module;
typedef struct block {
    module m[BLOCK_MODULES]; /* QKV is always made: rows of q, k and v of all heads */
} block;
struct model {
    model_config config;
    attn_context *ctx;
    kit_tokenizer *tokenizer;
    module m[MODEL_MODULES];
    block *block;
};
static inline const module *block_module(const block *b, module_id id)
{
    return &b->m[id - MODEL_MODULES];
}

/* --------------------------------------------------------------------------------- parts.c */
void model_rms_norm(float *out, const float *x, const float *weight, double eps, int64_t rows,
                    int64_t columns);
void model_activate(float *x, activation kind, int64_t count);
/* Rotates the heads of `rows` rows, which lie `stride` apart and hold `heads` times D numbers:
 * pairs (i, i + D/2) by the angle of their place (Su et al. 2021). */
typedef struct angles {
    float *cos, *sin; /* [positions, D/2] */
} angles;
int model_angles(angles *a, const rotation *r, int64_t first, int64_t count, int64_t D,
                 kit_error *err);
void model_rotate(float *x, const angles *a, int64_t rows, int64_t stride, int64_t heads,
                  int64_t D);

#endif
