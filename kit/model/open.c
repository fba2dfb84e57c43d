/* Opens a model: the config, then every tensor that the architecture names, then the tokeniser. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../io/json.h"
#include "inner.h"

enum { NAME_ROOM = 192, PATH_ROOM = 4096 };
#define CONFIG_LIMIT ((size_t)1 << 20)

typedef struct loading {
    model *m;
    const weights *w;
    const char *prefix; /* of every name except the head's */
    kit_error *err;
} loading;

/* ------------------------------------------------------------------------------ One module */

static void name_of(char name[NAME_ROOM], const loading *l, module_id id, int64_t layer,
                    const char *what)
{
    const char *stem = l->m->config.a->name[id], *place = strstr(stem, "%d");
    const char *prefix = id == HEAD ? "" : l->prefix;
    if (place)
        snprintf(name, NAME_ROOM, "%s%.*s%" PRId64 "%s", prefix, (int)(place - stem), stem, layer,
                 place + 2);
    else
        snprintf(name, NAME_ROOM, "%s%s", prefix, stem);
    const size_t used = strlen(name);
    snprintf(name + used, NAME_ROOM - used, "%s%s", name[used - 1] == '_' ? "" : ".", what);
}

/* Finds the name of a norm's tensor; old files use other names. */
static void norm_name(char name[NAME_ROOM], const loading *l, module_id id, int64_t layer,
                      const char *what, const char *old)
{
    name_of(name, l, id, layer, what);
    if (weights_has(l->w, name))
        return;
    char other[NAME_ROOM];
    name_of(other, l, id, layer, old);
    if (weights_has(l->w, other))
        memcpy(name, other, sizeof other);
}

static int load_norm(const loading *l, module *to, module_id id, int64_t layer)
{
    const int64_t E = l->m->config.sizes.embed;
    char name[NAME_ROOM];
    if (!l->m->config.a->name[id])
        return KIT_OK;
    norm_name(name, l, id, layer, "weight", "gamma");
    const int code = weights_load(&to->weight, l->w, name, 0, E, false, l->err);
    if (code || l->m->config.a->rms)
        return code;
    norm_name(name, l, id, layer, "bias", "beta");
    return weights_load(&to->bias, l->w, name, 0, E, false, l->err);
}

static int load_table(const loading *l, module_id id, int64_t rows)
{
    char name[NAME_ROOM];
    if (!l->m->config.a->name[id])
        return KIT_OK;
    name_of(name, l, id, 0, "weight");
    return weights_load(&l->m->m[id].weight, l->w, name, rows, l->m->config.sizes.embed, false,
                        l->err);
}

/* Whether the config gives the module a bias. If it does not, a bias in the file is not used. */
static bool has_bias(const model_config *c, module_id id)
{
    const bool attention = id == QUERY || id == KEY || id == VALUE || id == QKV;
    const bool mlp = id == GATE || id == UP || id == DOWN;
    if (id == HEAD)
        return c->a->head_bias;
    switch (c->a->biases) {
    case BIAS_NEVER: return false;
    case BIAS_OF_QKV: return attention;
    case BIAS_BY_CONFIG: return mlp ? c->mlp_bias : c->attention_bias;
    case BIAS_ALWAYS: break;
    }
    return true;
}

static int load_linear(const loading *l, module *to, module_id id, int64_t layer, int64_t out,
                       int64_t in)
{
    const architecture *a = l->m->config.a;
    char name[NAME_ROOM];
    if (!a->name[id])
        return KIT_OK;
    name_of(name, l, id, layer, "weight");
    const bool turned = a->transposed && id != HEAD;
    const int code = weights_load(&to->weight, l->w, name, out, in, turned, l->err);
    name_of(name, l, id, layer, "bias");
    if (code || !has_bias(&l->m->config, id) || (id == HEAD && !weights_has(l->w, name)))
        return code;
    return weights_load(&to->bias, l->w, name, 0, out, false, l->err);
}

/* ------------------------------------------------------------------------------- One block */

static void put_rows(kit_array *to, const kit_array *from, size_t *at)
{
    if (from->data)
        memcpy((char *)to->data + *at, from->data, from->bytes);
}

/* Joins three projections into one, for fewer and larger products. A projection without a bias gets
 * zeros. */
static int join_projections(const loading *l, block *b)
{
    module *all = &b->m[QKV - MODEL_MODULES], *part = &b->m[QUERY - MODEL_MODULES];
    const model_sizes *s = &l->m->config.sizes;
    const int64_t rows = (s->heads + 2 * s->kv_heads) * s->head_size;
    const bool bias = part[0].bias.data || part[1].bias.data || part[2].bias.data;
    size_t at = 0, bias_at = 0;
    int code = kit_array_new(&all->weight, ATTN_F32, 2, (const int64_t[]){rows, s->embed}, l->err);
    if (!code && bias)
        code = kit_array_new(&all->bias, ATTN_F32, 1, &rows, l->err);
    for (int i = 0; i < 3 && !code; i++) {
        put_rows(&all->weight, &part[i].weight, &at);
        put_rows(&all->bias, &part[i].bias, &bias_at);
        at += part[i].weight.bytes;
        bias_at += (size_t)part[i].weight.shape[0] * sizeof(float);
        kit_array_free(&part[i].weight);
        kit_array_free(&part[i].bias);
    }
    return code;
}

static int load_projections(const loading *l, block *b, int64_t layer)
{
    const model_sizes *s = &l->m->config.sizes;
    const int64_t E = s->embed, Q = s->heads * s->head_size, K = s->kv_heads * s->head_size;
    module *m = b->m;
    int code;
    if (l->m->config.a->name[QKV])
        return load_linear(l, &m[QKV - MODEL_MODULES], QKV, layer, Q + 2 * K, E);
    if ((code = load_linear(l, &m[QUERY - MODEL_MODULES], QUERY, layer, Q, E)) ||
        (code = load_linear(l, &m[KEY - MODEL_MODULES], KEY, layer, K, E)) ||
        (code = load_linear(l, &m[VALUE - MODEL_MODULES], VALUE, layer, K, E)))
        return code;
    return join_projections(l, b);
}

static int load_block(const loading *l, block *b, int64_t layer)
{
    const model_config *c = &l->m->config;
    const int64_t E = c->sizes.embed, Q = c->sizes.heads * c->sizes.head_size;
    module *m = b->m;
    int code;
    if ((code = load_norm(l, &m[NORM1 - MODEL_MODULES], NORM1, layer)) ||
        (code = load_projections(l, b, layer)) ||
        (code = load_linear(l, &m[OUT - MODEL_MODULES], OUT, layer, E, Q)) || !c->inner)
        return code;
    if ((code = load_norm(l, &m[NORM2 - MODEL_MODULES], NORM2, layer)) ||
        (code = load_linear(l, &m[GATE - MODEL_MODULES], GATE, layer, c->inner, E)) ||
        (code = load_linear(l, &m[UP - MODEL_MODULES], UP, layer, c->inner, E)))
        return code;
    return load_linear(l, &m[DOWN - MODEL_MODULES], DOWN, layer, E, c->inner);
}

/* ---------------------------------------------------------------------------------- A model */

/* Loads the head. A head in the file is used even if tied. A model without one that is not tied can
 * be explained, but does not predict. */
static int load_head(const loading *l)
{
    model *m = l->m;
    char name[NAME_ROOM];
    if (!m->config.a->name[HEAD])
        return KIT_OK;
    name_of(name, l, HEAD, 0, "weight");
    const bool own = weights_has(l->w, name);
    m->config.sizes.predicts = own || m->config.tied;
    return own ? load_linear(l, &m->m[HEAD], HEAD, 0, m->config.sizes.vocabulary,
                             m->config.sizes.embed)
               : KIT_OK;
}

static int load_all(loading *l)
{
    model *m = l->m;
    const model_sizes *s = &m->config.sizes;
    char name[NAME_ROOM];
    int code;
    l->prefix = m->config.a->prefix;
    name_of(name, l, TOKENS, 0, "weight");
    if (!weights_has(l->w, name)) /* the model was saved without a head */
        l->prefix = "";
    if ((code = load_table(l, TOKENS, s->vocabulary)) ||
        (code = load_table(l, PLACES, s->positions)) ||
        (code = load_table(l, TYPES, m->config.types)) ||
        (code = load_norm(l, &m->m[EMBED_NORM], EMBED_NORM, 0)) ||
        (code = load_norm(l, &m->m[LAST_NORM], LAST_NORM, 0)))
        return code;
    if ((code = load_head(l)))
        return code;
    m->block = calloc((size_t)s->layers, sizeof *m->block);
    if (!m->block)
        return kit_fail(l->err, KIT_LIMIT, "not enough memory for the model");
    for (int64_t i = 0; i < s->layers && !code; i++)
        code = load_block(l, &m->block[i], i);
    return code;
}

/* If peft is installed, transformers applies an adapter in the folder to the model. */
static int check_adapter(const char *folder, const model_options *options, kit_error *err)
{
    static const char name[] = "adapter_config.json";
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (access(path, F_OK) != 0)
        return KIT_OK;
    if (!options || !options->ignore_unknown)
        return kit_fail(
            err, KIT_BAD_FILE,
            "%s: is an adapter, which attn cannot apply; merge it into the model (peft's "
            "merge_and_unload), or ignore it with --ignore-unknown",
            path);
    if (options->ignored)
        options->ignored(folder, name);
    return KIT_OK;
}

static int read_config(model *m, const char *folder, const model_options *options, kit_error *err)
{
    char path[PATH_ROOM];
    json_t *top, *more;
    if (snprintf(path, sizeof path, "%s/config.json", folder) >= (int)sizeof path)
        return kit_fail(err, KIT_BAD_FILE, "%.200s...: the path is too long", folder);
    int code = io_json_read(&top, path, CONFIG_LIMIT, err);
    if (!code)
        code = model_config_read(&m->config, top, path, options, err);
    json_decref(top);
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    if (code || access(path, F_OK) != 0)
        return code;
    code = io_json_read(&more, path, CONFIG_LIMIT, err);
    if (!code)
        code = model_generation_read(&m->config, more, path, false, options, err);
    json_decref(more);
    return code;
}

static int open_all(model *m, const char *path, const model_options *options, weights **w,
                    kit_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return kit_fail(
            err, KIT_BAD_FILE,
            "%s: no such folder or checkpoint; attn never downloads. Get a model with: pip "
            "install huggingface_hub && hf download openai-community/gpt2 "
            "--local-dir gpt2",
            path);
    const bool folder = S_ISDIR(st.st_mode);
    int code =
        folder ? read_config(m, path, options, err) : model_trained_config(&m->config, path, err);
    if (!code && folder)
        code = check_adapter(path, options, err);
    if (!code)
        code = folder ? weights_open_folder(w, path, err) : weights_open_file(w, path, err);
    if (!code)
        code = load_all(&(loading){.m = m, .w = *w, .err = err});
    if (!code) /* last, because the weights give the number of tokens */
        code = folder ? kit_tokenizer_open(&m->tokenizer, path, err)
                      : model_trained_tokenizer(&m->tokenizer, path, err);
    return code ? code : kit_tokenizer_limit(m->tokenizer, m->config.sizes.vocabulary, path, err);
}

int model_open_with(model **out, const char *path, const model_options *options, attn_context *ctx,
                    kit_error *err)
{
    weights *w = NULL;
    model *m = *out = calloc(1, sizeof *m);
    if (!m)
        return kit_fail(err, KIT_LIMIT, "%s: not enough memory", path);
    m->ctx = ctx;
    const int code = open_all(m, path, options, &w, err);
    weights_close(w);
    if (code) {
        model_close(m);
        *out = NULL;
    }
    return code;
}

int model_open(model **out, const char *path, attn_context *ctx, kit_error *err)
{
    return model_open_with(out, path, NULL, ctx, err);
}

static void free_modules(module *m, int count)
{
    for (int i = 0; i < count; i++) {
        kit_array_free(&m[i].weight);
        kit_array_free(&m[i].bias);
    }
}

void model_close(model *m)
{
    if (!m)
        return;
    free_modules(m->m, MODEL_MODULES);
    for (int64_t i = 0; m->block && i < m->config.sizes.layers; i++)
        free_modules(m->block[i].m, BLOCK_MODULES);
    free(m->block);
    kit_tokenizer_free(m->tokenizer);
    model_config_free(&m->config);
    free(m);
}

const model_sizes *model_sizes_of(const model *m) { return &m->config.sizes; }
attn_context *model_context(const model *m) { return m->ctx; }
const kit_tokenizer *model_tokenizer(const model *m) { return m->tokenizer; }

int64_t model_window(const model *m, int64_t layer)
{
    return m->config.windowed[layer] ? m->config.window : 0;
}

double model_scale(const model *m, int64_t layer)
{
    return m->config.scale / (m->config.scale_by_layer ? (double)(layer + 1) : 1);
}

bool model_ends_with(const model *m, int64_t id)
{
    for (int i = 0; i < m->config.ends; i++)
        if (m->config.end[i] == id)
            return true;
    return false;
}
