/* config.json: what it says is checked against what a model can be, before anything is made of it.
 * An option that would change the numbers is done or refused by its name. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../io/json.h"
#include "inner.h"

enum { MOST_LAYERS = 1024, MOST_HEADS = 4096, MOST_SIZE = 1 << 20, MOST_PLACES = 1 << 26 };

typedef struct reader {
    const json_t *top;
    const char *name;
    kit_error *err;
} reader;

static int wrong(const reader *r, const char *what)
{
    return kit_fail(r->err, KIT_BAD_FILE, "%s: %s", r->name, what);
}

/* An integer that must be there. */
static int need(const reader *r, int64_t *to, const char *key, int64_t high)
{
    if (json_object_get(r->top, key))
        return io_json_integer(to, r->top, r->name, key, 1, high, r->err);
    return kit_fail(r->err, KIT_BAD_FILE, "%s: %s is missing", r->name, key);
}

/* ----------------------------------------------------------------------------------- Options */

static int read_activation(model_config *c, const reader *r)
{
    static const struct {
        const char *name;
        activation kind;
    } known[] = {{"gelu", ACT_GELU},
                 {"gelu_new", ACT_GELU_TANH},
                 {"gelu_pytorch_tanh", ACT_GELU_TANH},
                 {"gelu_fast", ACT_GELU_TANH},
                 {"quick_gelu", ACT_QUICK_GELU},
                 {"relu", ACT_RELU},
                 {"silu", ACT_SILU},
                 {"swish", ACT_SILU}};
    const char *name = c->a->rms ? "silu" : c->a->causal ? "gelu_new" : "gelu";
    const int code = io_json_text(&name, r->top, r->name, c->a->key.activation, r->err);
    if (code)
        return code;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0 && (known[i].kind != ACT_GELU || !c->a->name[GATE])) {
            c->activation = known[i].kind;
            return KIT_OK;
        }
    return kit_fail(
        r->err, KIT_BAD_FILE,
        "%s: %s '%.40s' is not supported; gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, "
        "quick_gelu, relu and silu are",
        r->name, c->a->key.activation, name);
}

/* What only some models have, and no model here has otherwise than this. */
static int refuse_options(const reader *r)
{
    static const struct {
        const char *key;
        bool must_be;
    } flags[] = {{"is_decoder", false},
                 {"add_cross_attention", false},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"use_sliding_window", false}};
    const char *positions = "absolute";
    int code = io_json_text(&positions, r->top, r->name, "position_embedding_type", r->err);
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !code; i++) {
        bool value = flags[i].must_be;
        code = io_json_flag(&value, r->top, r->name, flags[i].key, r->err);
        if (!code && value != flags[i].must_be)
            return kit_fail(r->err, KIT_BAD_FILE, "%s: %s: %s is not supported", r->name,
                            flags[i].key, value ? "true" : "false");
    }
    if (!code && strcmp(positions, "absolute") != 0)
        return kit_fail(r->err, KIT_BAD_FILE,
                        "%s: position_embedding_type '%.40s' is not supported; absolute is",
                        r->name, positions);
    return code;
}

/* ---------------------------------------------------------------------------------- Rotation */

static int read_scaling(rotation *to, const json_t *from, const reader *r)
{
    const char *type = "default", *name = r->name;
    int code;
    if ((code = io_json_real(&to->theta, from, name, "rope_theta", 1, 1e12, r->err)) ||
        (code = io_json_text(&type, from, name, "type", r->err)) ||
        (code = io_json_text(&type, from, name, "rope_type", r->err)))
        return code;
    if (strcmp(type, "default") == 0)
        return KIT_OK;
    to->linear = strcmp(type, "linear") == 0;
    if (!to->linear && strcmp(type, "llama3") != 0)
        return kit_fail(r->err, KIT_BAD_FILE,
                        "%s: rope_type '%.40s' is not supported; default, linear and llama3 are",
                        name, type);
    to->factor = 0;
    if ((code = io_json_real(&to->factor, from, name, "factor", 1, 1e6, r->err)) ||
        (code = io_json_real(&to->low, from, name, "low_freq_factor", 1e-6, 1e6, r->err)) ||
        (code = io_json_real(&to->high, from, name, "high_freq_factor", 1e-6, 1e6, r->err)) ||
        (code = io_json_real(&to->original, from, name, "original_max_position_embeddings", 1, 1e9,
                             r->err)))
        return code;
    if (to->factor < 1 || (!to->linear && !(to->low > 0 && to->high > to->low && to->original > 0)))
        return kit_fail(r->err, KIT_BAD_FILE, "%s: rope_type %s needs factor%s", name, type,
                        to->linear ? ""
                                   : ", low_freq_factor, a higher high_freq_factor and "
                                     "original_max_position_embeddings");
    return KIT_OK;
}

static int read_rotation(model_config *c, const reader *r)
{
    const json_t *old = json_object_get(r->top, "rope_scaling");
    const json_t *now = json_object_get(r->top, "rope_parameters");
    double part = 1;
    c->rotation = (rotation){.theta = 10000, .factor = 1};
    int code;
    if (c->sizes.head_size % 2)
        return wrong(r, "a rotated head must have an even size");
    if ((code = io_json_real(&c->rotation.theta, r->top, r->name, "rope_theta", 1, 1e12, r->err)) ||
        (code = io_json_real(&part, r->top, r->name, "partial_rotary_factor", 0, 1, r->err)))
        return code;
    if (part < 1)
        return wrong(r, "partial_rotary_factor below 1 is not supported");
    if (json_is_object(now))
        return read_scaling(&c->rotation, now, r);
    return json_is_object(old) ? read_scaling(&c->rotation, old, r) : KIT_OK;
}

/* ------------------------------------------------------------------------------------- Sizes */

static int read_heads(model_config *c, const reader *r)
{
    model_sizes *s = &c->sizes;
    int64_t D = 0;
    int code;
    s->kv_heads = s->heads;
    if (c->a->places == PLACES_ROTATED &&
        ((code = io_json_integer(&s->kv_heads, r->top, r->name, "num_key_value_heads", 1,
                                 MOST_HEADS, r->err)) ||
         (code = io_json_integer(&D, r->top, r->name, "head_dim", 1, 65536, r->err))))
        return code;
    if (!D && s->embed % s->heads)
        return kit_fail(r->err, KIT_BAD_FILE, "%s: %s %" PRId64 " is no multiple of %s %" PRId64,
                        r->name, c->a->key.embed, s->embed, c->a->key.heads, s->heads);
    s->head_size = D ? D : s->embed / s->heads;
    if (s->heads % s->kv_heads)
        return kit_fail(r->err, KIT_BAD_FILE,
                        "%s: %s %" PRId64 " is no multiple of num_key_value_heads %" PRId64,
                        r->name, c->a->key.heads, s->heads, s->kv_heads);
    s->scale = 1 / sqrt((double)s->head_size);
    bool scaled = true;
    code = io_json_flag(&scaled, r->top, r->name, "scale_attn_weights", r->err);
    if (!scaled)
        s->scale = 1;
    return code;
}

static int read_sizes(model_config *c, const reader *r)
{
    model_sizes *s = &c->sizes;
    const struct keys *key = &c->a->key;
    int code;
    s->kind = c->a->kind;
    s->causal = c->a->causal;
    s->places_added = c->a->places != PLACES_ROTATED;
    if ((code = need(r, &s->vocabulary, "vocab_size", 1 << 24)) ||
        (code = need(r, &s->embed, key->embed, MOST_SIZE)) ||
        (code = need(r, &s->layers, key->layers, MOST_LAYERS)) ||
        (code = need(r, &s->heads, key->heads, MOST_HEADS)) || (code = read_heads(c, r)))
        return code;
    s->positions = c->a->places == PLACES_ROTATED ? MOST_PLACES : 0;
    c->inner = 4 * s->embed; /* GPT-2's, where it is not said */
    if ((code = io_json_integer(&s->positions, r->top, r->name, key->positions, 1, MOST_PLACES,
                                r->err)) ||
        (code = io_json_integer(&c->inner, r->top, r->name, key->inner, 1, 4 * MOST_SIZE, r->err)))
        return code;
    if (!s->positions)
        return kit_fail(r->err, KIT_BAD_FILE, "%s: %s is missing", r->name, key->positions);
    if (c->a->name[TYPES])
        return need(r, &c->types, "type_vocab_size", 65536);
    return KIT_OK;
}

/* A token or a list of them. */
int model_config_ends(model_config *c, const json_t *top, const char *name, kit_error *err)
{
    const json_t *end = json_object_get(top, "eos_token_id");
    const size_t most = sizeof c->end / sizeof *c->end;
    if (!end || json_is_null(end))
        return KIT_OK;
    const size_t n = json_is_array(end) ? json_array_size(end) : 1;
    c->ends = 0;
    for (size_t i = 0; i < n && n <= most; i++) {
        const json_t *one = json_is_array(end) ? json_array_get(end, i) : end;
        if (!json_is_integer(one))
            break;
        c->end[c->ends++] = json_integer_value(one);
    }
    return c->ends == (int)n ? KIT_OK
                             : kit_fail(err, KIT_BAD_FILE,
                                        "%s: eos_token_id must be an id, or a list of at most "
                                        "%zu",
                                        name, most);
}

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
    kit_fail(r->err, KIT_BAD_FILE, "%s: model_type '%.60s' is not supported; there are %s", r->name,
             kind ? kind : "(none)", known);
    return NULL;
}

int model_config_read(model_config *c, const json_t *top, const char *name, kit_error *err)
{
    const reader r = {top, name, err};
    *c = (model_config){.a = find_architecture(&r)};
    if (!c->a)
        return KIT_BAD_FILE;
    int code = read_sizes(c, &r);
    c->eps = c->a->eps;
    c->tied = c->a->tied;
    c->padding = 1;
    if (code || (code = read_activation(c, &r)) || (code = refuse_options(&r)) ||
        (code = io_json_real(&c->eps, top, name, c->a->key.eps, 0, 1, err)) ||
        (code = io_json_flag(&c->tied, top, name, "tie_word_embeddings", err)) ||
        (code = model_config_ends(c, top, name, err)))
        return code;
    if (c->a->places == PLACES_AFTER_PADDING &&
        (code = io_json_integer(&c->padding, top, name, "pad_token_id", 0, 1 << 24, err)))
        return code;
    if (c->a->places != PLACES_ROTATED)
        return KIT_OK;
    if (strcmp(c->a->kind, "mistral") == 0 &&
        (code = io_json_integer(&c->sizes.window, top, name, "sliding_window", 1, INT32_MAX, err)))
        return code;
    return read_rotation(c, &r);
}

int model_check_config(const char *name, const void *bytes, size_t size, kit_error *err)
{
    json_t *top;
    model_config c;
    int code = io_json_parse(&top, name, bytes, size, err);
    if (!code)
        code = model_config_read(&c, top, name, err);
    json_decref(top);
    return code;
}
