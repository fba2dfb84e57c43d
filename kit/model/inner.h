/* Shared by the files of kit/model; model.h is the interface for everyone else. */
#ifndef KIT_MODEL_INNER_H
#define KIT_MODEL_INNER_H

#include <jansson.h>

#include "model.h"

enum { MODEL_MOST_LAYERS = 1024 };

/* -------------------------------------------------------------------------- architecture.c */
typedef enum module_id { /* modules of the model, then those of a block */
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
                         QKV, /* the three joined */
                         OUT,
                         NORM2,
                         GATE,
                         UP,
                         DOWN,
                         MODULES
} module_id;
#define BLOCK_MODULES (MODULES - MODEL_MODULES)

typedef enum places { PLACES_FROM_0, PLACES_AFTER_PADDING, PLACES_ROTATED } places;
typedef enum biases { /* biases of linear layers, except the head's */
                      BIAS_ALWAYS,
                      BIAS_NEVER,
                      BIAS_OF_QKV,   /* only queries, keys and values */
                      BIAS_BY_CONFIG /* as attention_bias and mlp_bias say */
} biases;
typedef enum windows { /* which layers see only a window of keys */
                       WINDOW_NONE,
                       WINDOW_ALL,       /* all layers, or those in layer_types */
                       WINDOW_ON_REQUEST /* if use_sliding_window is true: the layers from
                                          * max_window_layers on, or those in layer_types */
} windows;

typedef struct architecture {
    const char *kind;          /* model_type */
    const char *prefix;        /* of every name if the model was saved with a head; or "" */
    const char *name[MODULES]; /* stem of a module's tensors, %d: layer; NULL: no such module */
    bool causal;
    bool norm_first; /* norms before attention and MLP, and one at the end; else after each */
    bool rms;        /* RMS norms without bias; else layer norms */
    bool transposed; /* weights are [in, out] */
    bool may_lack_mlp;
    bool head_bias; /* the head has a bias if the file has one */
    places places;
    biases biases;
    windows windows;
    struct keys { /* keys of config.json; eps NULL: the norms' eps is fixed */
        const char *embed, *layers, *heads, *inner, *positions, *activation, *eps;
    } key;
    int64_t kv_heads; /* if config.json does not say; 0: as many as heads */
    int64_t length;   /* default of max_position_embeddings; 0: config.json must have it */
    bool tied;        /* default: the head is the table of tokens */
    double eps;
} architecture;
extern const architecture model_architectures[];          /* ends with a row whose kind is NULL */
const architecture *model_architecture(const char *kind); /* NULL: unknown */

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
    double length, original; /* tokens that the model takes; those of its first training */
    double low, high;        /* llama3: rotations within the original length */
    double fast, slow;       /* yarn: likewise */
    bool truncate;           /* yarn */
    double size;             /* scale of rotated vectors; 1 except for yarn and longrope */
    double *near, *far; /* longrope, [D/2] each: used up to the original length, and beyond it */
} rotation;
/* Reads the rotation from config.json. length: max_position_embeddings. */
int model_rotation_read(rotation *to, const json_t *top, const char *name, int64_t D,
                        int64_t length, const model_options *options, kit_error *err);
void model_rotation_free(rotation *r);
/* model_angles gives the cosines and sines of `count` positions from `first` on. model_rotate
 * rotates `rows` rows, `stride` numbers apart, of `heads` heads of D numbers: each pair (i, i +
 * D/2) by the angle of its position (Su et al. 2021). */
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
 * number of this model, or refused by name. The tables say which. Each table ends with a row whose
 * name is NULL. */
typedef enum key_use {
    KEY_USED,  /* read and applied */
    KEY_IDLE,  /* changes no number of this model, whatever its value */
    KEY_FIXED, /* changes numbers; the values listed change none, or are supported */
    KEY_DRAWN  /* KEY_FIXED, but only if the next token is sampled */
} key_use;
typedef struct config_key {
    const char *name;
    key_use use;
    const char *values; /* "int|null": int real bool text list object null any, or a literal */
    const char *meaning;
} config_key;
extern const config_key model_common_keys[];   /* of config.json of every model */
extern const config_key model_rotation_keys[]; /* of rope_parameters and rope_scaling */
/* Keys of generation_config.json, or of config.json if there is no such file. */
extern const config_key model_generation_keys[];
const config_key *model_family_keys(const char *kind); /* of config.json of one model_type */

typedef struct key_check {
    const char *name;             /* of the file; starts every message */
    const char *kind;             /* model_type; NULL: of no particular model */
    const config_key *other;      /* keys that other code reads and checks; NULL: none */
    const model_options *options; /* NULL: none */
    bool shared;                  /* the file also has other keys, which other code checks */
    bool drawn;                   /* second check of the file, for sampling */
    kit_error *err;
} key_check;
/* Checks that each key of `top` is in one of the tables (NULL at the end) and has a supported
 * value. */
int model_check_keys(const json_t *top, const config_key *const *tables, const key_check *how);

/* -------------------------------------------------------------------------------- config.c */
typedef struct model_config {
    const architecture *a;
    model_sizes sizes;
    int64_t types, inner, padding;
    int64_t length; /* max_position_embeddings, if positions are rotated */
    int64_t window; /* keys that a query sees in a layer with a window, including its own; 0: all */
    bool windowed[MODEL_MOST_LAYERS];
    double scale;        /* scale of the scores: 1/sqrt(head_size), or 1 */
    bool scale_by_layer; /* also divide the scale by the layer's number, from 1 */
    activation activation;
    double eps;
    bool tied, attention_bias, mlp_bias;
    rotation rotation;
    int64_t end[8]; /* tokens that end a text */
    int ends;
    model_generation generation;
    kit_error no_text;  /* KIT_OK, or why generate cannot do what the files require */
    kit_error no_drawn; /* the same for sampling */
} model_config;
int model_config_read(model_config *c, const json_t *top, const char *name,
                      const model_options *options, kit_error *err);
void model_config_free(model_config *c);

/* ---------------------------------------------------------------------------- generation.c */
/* Reads how texts are generated. `top` is generation_config.json or, with `fallback`,
 * config.json. */
int model_generation_read(model_config *c, const json_t *top, const char *name, bool fallback,
                          const model_options *options, kit_error *err);

/* ------------------------------------------------------------------------------- trained.c */
/* Read the config and the tokeniser of a checkpoint of attn train. */
int model_trained_config(model_config *c, const char *path, kit_error *err);
int model_trained_tokenizer(kit_tokenizer **t, const char *path, kit_error *err);

/* ------------------------------------------------------------------------------- weights.c */
typedef struct weights weights;
int weights_open_folder(weights **out, const char *folder, kit_error *err);
int weights_open_file(weights **out, const char *path, kit_error *err);
void weights_close(weights *w);
bool weights_has(const weights *w, const char *name);
/* Loads a tensor of this shape as f32; rows 0: a vector. turned: stored as [columns, rows]. */
int weights_load(kit_array *a, const weights *w, const char *name, int64_t rows, int64_t columns,
                 bool turned, kit_error *err);

/* ---------------------------------------------------------------------------------- open.c */
typedef struct module {
    kit_array weight, bias; /* bias: no data if there is none */
} module;
typedef struct block {
    module m[BLOCK_MODULES]; /* QKV always exists: rows of q, k and v of all heads */
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
bool model_activation(activation *kind, const char *name); /* false: unknown */
void model_activate(float *x, activation kind, int64_t count);

#endif
