/* What the files of kit/model share; model.h is the face that others see. */
#ifndef KIT_MODEL_INNER_H
#define KIT_MODEL_INNER_H

#include <jansson.h>

#include "model.h"

enum { MODEL_MOST_LAYERS = 1024 };

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
typedef enum biases { /* of linear layers, but the head */
                      BIAS_ALWAYS,
                      BIAS_NEVER,
                      BIAS_OF_QKV,   /* queries, keys and values alone */
                      BIAS_BY_CONFIG /* attention_bias, mlp_bias */
} biases;
typedef enum windows { /* which layers see a window of keys alone */
                       WINDOW_NONE,
                       WINDOW_ALL,       /* all, or those that layer_types names */
                       WINDOW_ON_REQUEST /* from max_window_layers on, or by layer_types, where
                                          * use_sliding_window says so */
} windows;

typedef struct architecture {
    const char *kind;          /* model_type */
    const char *prefix;        /* of every name, where the model was saved with a head; or "" */
    const char *name[MODULES]; /* stem of a module's tensors, %d: the layer; NULL: there is none */
    bool causal;
    bool norm_first; /* before attention and MLP, and once at the end; else after each */
    bool rms;        /* RMS norms, without bias */
    bool transposed; /* weights are [in, out] */
    bool may_lack_mlp;
    bool head_bias; /* if the file has one */
    places places;
    biases biases;
    windows windows;
    struct keys { /* of config.json; eps NULL: the norms' is fixed */
        const char *embed, *layers, *heads, *inner, *positions, *activation, *eps;
    } key;
    int64_t kv_heads; /* where config.json does not say; 0: as many as heads */
    int64_t length;   /* max_position_embeddings likewise; 0: it must say */
    bool tied;        /* unless config.json says otherwise: the head is the table of tokens */
    double eps;
} architecture;
extern const architecture model_architectures[];          /* ends with a row whose kind is NULL */
const architecture *model_architecture(const char *kind); /* NULL: not known */

/* ----------------------------------------------------------------------------- activations */
typedef enum activation {
    ACT_GELU,
    ACT_GELU_TANH,
    ACT_GELU_10,
    ACT_QUICK_GELU,
    ACT_RELU,
    ACT_RELU2,
    ACT_RELU6,
    ACT_LEAKY_RELU,
    ACT_SILU,
    ACT_HARD_SWISH,
    ACT_MISH,
    ACT_TANH,
    ACT_SIGMOID,
    ACT_LINEAR
} activation;

/* ------------------------------------------------------------------------------- rotation.c */
typedef enum rotation_kind {
    ROTATION_DEFAULT,
    ROTATION_LINEAR,
    ROTATION_DYNAMIC,
    ROTATION_YARN,
    ROTATION_LONGROPE,
    ROTATION_LLAMA3
} rotation_kind;
typedef struct rotation {
    rotation_kind kind;
    double theta, factor;
    double length, original; /* tokens that the model is made for, and was made for at first */
    double low, high;        /* llama3: turns within the original length */
    double fast, slow;       /* yarn: likewise */
    bool truncate;           /* yarn */
    double size;             /* of rotated vectors; 1 but for yarn and longrope */
    double *near, *far;      /* longrope, [D/2] each: within the original length, and beyond */
} rotation;
/* From config.json; c->length is known. */
int model_rotation_read(rotation *to, const json_t *top, const char *name, int64_t D,
                        int64_t length, const model_options *options, kit_error *err);
void model_rotation_free(rotation *r);
/* Cosines and sines of `count` places from `first` on. Rotates the heads of `rows` rows, which lie
 * `stride` apart and hold `heads` times D numbers: pairs (i, i + D/2) by the angle of their place
 * (Su et al. 2021). */
typedef struct angles {
    float *cos, *sin; /* [count, D/2] */
} angles;
int model_angles(angles *a, const rotation *r, int64_t first, int64_t count, int64_t D,
                 kit_error *err);
void model_rotate(float *x, const angles *a, int64_t rows, int64_t stride, int64_t heads,
                  int64_t D);

/* ---------------------------------------------------------------------------------- keys.c
 *
 * The rule: every key of config.json and generation_config.json is used, or known to change no
 * number of this model, or refused by its name. The tables say which; all of them end with a row
 * whose name is NULL. */
typedef enum key_use {
    KEY_USED,  /* read, and done */
    KEY_IDLE,  /* changes no number of this model, whatever its value */
    KEY_FIXED, /* changes numbers; the values listed are those that change none, or are done */
    KEY_DRAWN  /* KEY_FIXED, but only where the next token is drawn */
} key_use;
typedef struct config_key {
    const char *name;
    key_use use;
    const char *values; /* "int|null": int real bool text list object null any, or a literal */
    const char *meaning;
} config_key;
extern const config_key model_common_keys[];   /* of config.json of every model */
extern const config_key model_rotation_keys[]; /* in rope_parameters and rope_scaling */
/* Of generation_config.json, or of config.json where that is not there. */
extern const config_key model_generation_keys[];
const config_key *model_family_keys(const char *kind); /* of config.json of one model_type */

typedef struct key_check {
    const char *name;             /* of the file, and what starts every message */
    const char *kind;             /* model_type; NULL: of no one in particular */
    const config_key *other;      /* keys that others read, and check; NULL: none */
    const model_options *options; /* NULL: none */
    bool shared;                  /* the file has keys of others too, which they check */
    bool drawn;                   /* the second look at it, for texts that are drawn */
    kit_error *err;
} key_check;
/* Whether each key of `top` is in one of the tables (NULL at the end) with a value that is
 * understood. */
int model_check_keys(const json_t *top, const config_key *const *tables, const key_check *how);

/* -------------------------------------------------------------------------------- config.c */
typedef struct model_config {
    const architecture *a;
    model_sizes sizes;
    int64_t types, inner, padding;
    int64_t length; /* max_position_embeddings, where places are rotated */
    int64_t window; /* keys that a query sees in a layer with a window, itself the last; 0: all */
    bool windowed[MODEL_MOST_LAYERS];
    double scale;        /* of the scores: 1/sqrt(head_size), or 1 */
    bool scale_by_layer; /* and divided by the layer's number */
    activation activation;
    double eps;
    bool tied, attention_bias, mlp_bias;
    rotation rotation;
    int64_t end[8]; /* tokens that end a text */
    int ends;
    model_generation generation;
    kit_error no_text;  /* code KIT_OK, or why generate cannot do what the files ask for */
    kit_error no_drawn; /* likewise where tokens are drawn */
} model_config;
int model_config_read(model_config *c, const json_t *top, const char *name,
                      const model_options *options, kit_error *err);
void model_config_free(model_config *c);

/* ---------------------------------------------------------------------------- generation.c */
/* What a text is made by: `top` is generation_config.json, or config.json where that is not there,
 * as `fallback` says. */
int model_generation_read(model_config *c, const json_t *top, const char *name, bool fallback,
                          const model_options *options, kit_error *err);

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
bool model_activation(activation *kind, const char *name); /* false: not known */
void model_activate(float *x, activation kind, int64_t count);

#endif
