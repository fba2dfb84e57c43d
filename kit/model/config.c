/* Reads config.json as untrusted input: everything is checked before it is used. Every known key is
 * in a table of keys.c; this file reads those that are used. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../io/json.h"
#include "inner.h"

enum { MOST_HEADS = 4096, MOST_SIZE = 1 << 20, MOST_PLACES = 1 << 26 };

typedef struct reader {
    const json_t *top;
    const char *name;
    kit_error *err;
} reader;

static int wrong(const reader *r, const char *what)
{
    return kit_fail(r->err, KIT_BAD_FILE, "%s: %s", r->name, what);
}

/* Reads an integer that must be present. */
static int need(const reader *r, int64_t *to, const char *key, int64_t high)
{
    if (json_object_get(r->top, key))
        return io_json_integer(to, r->top, r->name, key, 1, high, r->err);
    return kit_fail(r->err, KIT_BAD_FILE, "%s: %s is missing", r->name, key);
}

/* Chooses between a family's own name of a key and the general one; if both are present, the
 * general one counts. */
static const char *either(const reader *r, const char *own, const char *general)
{
    return json_object_get(r->top, general) ? general : own;
}

/* ----------------------------------------------------------------------------------- Options */

static int read_activation(model_config *c, const reader *r)
{
    const char *name = c->a->rms ? "silu" : c->a->causal ? "gelu_new" : "gelu";
    const int code = io_json_text(&name, r->top, r->name, c->a->key.activation, r->err);
    if (code || model_activation(&c->activation, name))
        return code;
    return kit_fail(
        r->err, KIT_BAD_FILE,
        "%s: %s '%.40s' is not supported; supported are all kinds of gelu, relu and silu, mish, "
        "hardswish, tanh, sigmoid and linear",
        r->name, c->a->key.activation, name);
}

/* ----------------------------------------------------------------------------------- Windows */

/* Reads layer_types: "sliding_attention" or "full_attention" for each layer. */
static int read_layer_types(model_config *c, const json_t *types, const reader *r)
{
    bool good = json_array_size(types) == (size_t)c->sizes.layers;
    for (int64_t i = 0; i < c->sizes.layers && good; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        c->windowed[i] = type && strcmp(type, "sliding_attention") == 0;
        good = c->windowed[i] || (type && strcmp(type, "full_attention") == 0);
        if (good && c->windowed[i] && !c->window)
            return wrong(
                r, "layer_types has sliding_attention, but no window is set; set sliding_window, "
                   "and use_sliding_window if the model has this key");
    }
    return good ? KIT_OK
                : kit_fail(r->err, KIT_BAD_FILE,
                           "%s: layer_types must have full_attention or sliding_attention for each "
                           "of the %" PRId64 " layers",
                           r->name, c->sizes.layers);
}

static int read_windows(model_config *c, const reader *r)
{
    const json_t *window = json_object_get(r->top, "sliding_window");
    const json_t *types = json_object_get(r->top, "layer_types");
    bool wanted = c->a->windows == WINDOW_ALL;
    int64_t first = wanted ? 0 : 28;
    int code = KIT_OK;
    if (c->a->windows == WINDOW_ON_REQUEST &&
        ((code = io_json_flag(&wanted, r->top, r->name, "use_sliding_window", r->err)) ||
         (code =
              io_json_integer(&first, r->top, r->name, "max_window_layers", 0, INT32_MAX, r->err))))
        return code;
    if (wanted && c->a->windows != WINDOW_NONE && !json_is_null(window)) {
        c->window = 4096;
        code = io_json_integer(&c->window, r->top, r->name, "sliding_window", 1, INT32_MAX, r->err);
    }
    for (int64_t i = 0; i < c->sizes.layers; i++)
        c->windowed[i] = c->window && i >= first;
    if (code || c->a->windows == WINDOW_NONE || !json_is_array(types))
        return code;
    return read_layer_types(c, types, r);
}

/* ------------------------------------------------------------------------------------- Sizes */

static int read_scale(model_config *c, const reader *r)
{
    bool scaled = true;
    int code = KIT_OK;
    if (strcmp(c->a->kind, "gpt2") == 0 &&
        !(code = io_json_flag(&scaled, r->top, r->name, "scale_attn_weights", r->err)))
        code = io_json_flag(&c->scale_by_layer, r->top, r->name, "scale_attn_by_inverse_layer_idx",
                            r->err);
    c->scale = scaled ? 1 / sqrt((double)c->sizes.head_size) : 1;
    return code;
}

static int read_heads(model_config *c, const reader *r)
{
    model_sizes *s = &c->sizes;
    const bool shared = c->a->places == PLACES_ROTATED;
    int64_t D = 0;
    int code;
    s->kv_heads = s->heads;
    if (shared && c->a->kv_heads && !json_object_get(r->top, "num_key_value_heads"))
        s->kv_heads = c->a->kv_heads;
    if (shared && ((code = io_json_integer(&s->kv_heads, r->top, r->name, "num_key_value_heads", 1,
                                           MOST_HEADS, r->err)) ||
                   (code = io_json_integer(&D, r->top, r->name, "head_dim", 1, 65536, r->err))))
        return code;
    if (!D && s->embed % s->heads)
        return kit_fail(r->err, KIT_BAD_FILE, "%s: %s %" PRId64 " is not a multiple of %s %" PRId64,
                        r->name, either(r, c->a->key.embed, "hidden_size"), s->embed,
                        either(r, c->a->key.heads, "num_attention_heads"), s->heads);
    s->head_size = D ? D : s->embed / s->heads;
    if (s->heads % s->kv_heads)
        return kit_fail(r->err, KIT_BAD_FILE,
                        "%s: %s %" PRId64 " is not a multiple of num_key_value_heads %" PRId64,
                        r->name, either(r, c->a->key.heads, "num_attention_heads"), s->heads,
                        s->kv_heads);
    return read_scale(c, r);
}

/* Reads how many tokens the model has positions for. A model that rotates queries and keys takes
 * longer texts too. */
static int read_places(model_config *c, const reader *r)
{
    static const char general[] = "max_position_embeddings";
    model_sizes *s = &c->sizes;
    if (s->places_added)
        return need(r, &s->positions, either(r, c->a->key.positions, general), MOST_PLACES);
    s->positions = MOST_PLACES;
    c->length = c->a->length;
    return io_json_integer(&c->length, r->top, r->name, general, 1, MOST_PLACES, r->err);
}

static int read_sizes(model_config *c, const reader *r)
{
    model_sizes *s = &c->sizes;
    const struct keys *key = &c->a->key;
    const bool may_lack = strcmp(c->a->kind, "gpt2") == 0;
    int code;
    s->kind = c->a->kind;
    s->causal = c->a->causal;
    s->places_added = c->a->places != PLACES_ROTATED;
    if ((code = need(r, &s->vocabulary, "vocab_size", 1 << 24)) ||
        (code = need(r, &s->embed, either(r, key->embed, "hidden_size"), MOST_SIZE)) ||
        (code =
             need(r, &s->layers, either(r, key->layers, "num_hidden_layers"), MODEL_MOST_LAYERS)) ||
        (code = need(r, &s->heads, either(r, key->heads, "num_attention_heads"), MOST_HEADS)) ||
        (code = read_heads(c, r)) || (code = read_places(c, r)))
        return code;
    c->inner = 4 * s->embed;
    code = may_lack
               ? io_json_integer(&c->inner, r->top, r->name, key->inner, 1, 4 * MOST_SIZE, r->err)
               : need(r, &c->inner, key->inner, 4 * MOST_SIZE);
    c->types = 2;
    if (!code && c->a->name[TYPES])
        code = io_json_integer(&c->types, r->top, r->name, "type_vocab_size", 1, 65536, r->err);
    return code;
}

/* --------------------------------------------------------------------------------- The whole */

static const architecture *find_architecture(const reader *r)
{
    const char *kind = json_string_value(json_object_get(r->top, "model_type"));
    const architecture *a = kind ? model_architecture(kind) : NULL;
    char known[128] = "";
    if (a && a->key.embed)
        return a;
    for (a = model_architectures; a->kind; a++)
        if (a->key.embed)
            strcat(strcat(known, *known ? ", " : ""), a->kind);
    kit_fail(r->err, KIT_BAD_FILE, "%s: model_type '%.60s' is not supported; supported are %s",
             r->name, kind ? kind : "(none)", known);
    return NULL;
}

static int read_options(model_config *c, const reader *r)
{
    int code;
    c->eps = c->a->eps;
    c->tied = c->a->tied;
    c->padding = 1;
    if ((code = read_activation(c, r)) || (code = read_windows(c, r)) ||
        (c->a->key.eps &&
         (code = io_json_real(&c->eps, r->top, r->name, c->a->key.eps, 0, 1, r->err))) ||
        (code = io_json_flag(&c->tied, r->top, r->name, "tie_word_embeddings", r->err)))
        return code;
    if (c->a->places == PLACES_AFTER_PADDING)
        return io_json_integer(&c->padding, r->top, r->name, "pad_token_id", 0, 1 << 24, r->err);
    if (c->a->biases == BIAS_BY_CONFIG &&
        (code = io_json_flag(&c->attention_bias, r->top, r->name, "attention_bias", r->err)))
        return code;
    return c->a->biases == BIAS_BY_CONFIG
               ? io_json_flag(&c->mlp_bias, r->top, r->name, "mlp_bias", r->err)
               : KIT_OK;
}

int model_config_read(model_config *c, const json_t *top, const char *name,
                      const model_options *options, kit_error *err)
{
    const reader r = {top, name, err};
    *c = (model_config){.a = find_architecture(&r)};
    if (!c->a)
        return KIT_BAD_FILE;
    const config_key *const tables[] = {model_family_keys(c->a->kind), model_common_keys, NULL};
    const key_check how = {.name = name,
                           .kind = c->a->kind,
                           .other = model_generation_keys,
                           .options = options,
                           .err = err};
    int code;
    if ((code = model_check_keys(top, tables, &how)) || (code = read_sizes(c, &r)) ||
        (code = read_options(c, &r)) ||
        (code = model_generation_read(c, top, name, true, options, err)) ||
        c->a->places != PLACES_ROTATED)
        return code;
    return model_rotation_read(&c->rotation, top, name, c->sizes.head_size, c->length, options,
                               err);
}

void model_config_free(model_config *c) { model_rotation_free(&c->rotation); }

int model_check_config(const char *name, const void *bytes, size_t size, kit_error *err)
{
    json_t *top;
    model_config c = {0};
    int code = io_json_parse(&top, name, bytes, size, err);
    if (!code)
        code = model_config_read(&c, top, name, false, err);
    model_config_free(&c);
    json_decref(top);
    return code;
}
