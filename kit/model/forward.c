/* The forward pass: embeddings, blocks, logits. Shapes: N tokens of the call; E the embedding; W =
 * (H + 2 Hk) D, one row of queries, keys and values; I the inner size of the MLP.
 *
 *   norm first:  x += out(attention(norm1(x)));   x += down(act(up(norm2(x))))
 *   norm after:  x = norm1(x + out(attention(x))); x = norm2(x + down(act(up(x))))
 *   gated:       act(gate(x)) * up(x) instead of act(up(x))
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

struct model_run {
    const model *m;
    int64_t most, length; /* most tokens of a call; tokens in the cache, from earlier calls */
    bool cached;
    attn_cache **cache; /* [layers] */
    kit_array x, normed, qkv, heads, branch, wide, gate, logits;
    kit_array place, type; /* i64 [most] */
    model_watch *watch; /* receives each layer's weights [H,rows,rows]; NULL: nobody wants them */
    void *watcher;
    kit_array weights; /* [H,most,most] */
    int64_t counted;   /* RoBERTa: tokens so far that are not padding */
    int64_t rows;      /* rows of the last call */
    int64_t off_layer; /* -1, or the layer of the head whose output is set to 0 */
    int64_t off_head;
};

/* ----------------------------------------------------------------------- Beginning and ending */

static int make_buffers(model_run *r, kit_error *err)
{
    const model_config *c = &r->m->config;
    const model_sizes *s = &c->sizes;
    const int64_t W = (s->heads + 2 * s->kv_heads) * s->head_size;
    const struct {
        kit_array *array;
        attn_dtype dtype;
        int64_t rows, columns;
    } all[] = {
        {&r->x, ATTN_F32, r->most, s->embed},
        {&r->normed, ATTN_F32, r->most, s->embed},
        {&r->qkv, ATTN_F32, r->most, W},
        {&r->heads, ATTN_F32, r->most, s->heads * s->head_size},
        {&r->branch, ATTN_F32, r->most, s->embed},
        {&r->wide, ATTN_F32, r->most, c->inner},
        {&r->gate, ATTN_F32, r->most, c->inner},
        {&r->logits, ATTN_F32, 1, s->predicts ? s->vocabulary : 0},
        {&r->place, ATTN_I64, 1, r->most},
        {&r->type, ATTN_I64, 1, r->most},
    };
    int code = KIT_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && !code; i++)
        code = kit_array_new(all[i].array, all[i].dtype, 2,
                             (const int64_t[]){all[i].rows, all[i].columns}, err);
    return code;
}

static int make_caches(model_run *r, int64_t keys, kit_error *err)
{
    const model_sizes *s = &r->m->config.sizes;
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    attn_error e;
    int code = KIT_OK;
    r->cache = calloc((size_t)s->layers, sizeof *r->cache);
    if (!r->cache)
        return kit_fail(err, KIT_LIMIT, "not enough memory for the cache");
    o.B = 1;
    o.Hk = s->kv_heads;
    o.D = o.Dv = s->head_size;
    o.max_keys = keys;
    for (int64_t l = 0; l < s->layers && !code; l++)
        code = kit_engine(attn_cache_create(&o, &r->cache[l], &e), &e, err);
    return code;
}

int model_run_begin(model_run **out, const model *m, int64_t most, int64_t keys, kit_error *err)
{
    model_run *r = *out = calloc(1, sizeof *r);
    if (!r)
        return kit_fail(err, KIT_LIMIT, "not enough memory");
    r->m = m;
    r->most = most;
    r->cached = keys > 0;
    r->off_layer = -1;
    int code = make_buffers(r, err);
    if (!code && r->cached)
        code = make_caches(r, keys, err);
    if (code) {
        model_run_end(r);
        *out = NULL;
    }
    return code;
}

void model_run_end(model_run *r)
{
    if (!r)
        return;
    kit_array *all[] = {&r->x,    &r->normed, &r->qkv,   &r->heads, &r->branch, &r->wide,
                        &r->gate, &r->logits, &r->place, &r->type,  &r->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kit_array_free(all[i]);
    for (int64_t l = 0; r->cache && l < r->m->config.sizes.layers; l++)
        attn_cache_destroy(r->cache[l]);
    free(r->cache);
    free(r);
}

int model_run_watch(model_run *r, model_watch *watch, void *watcher, kit_error *err)
{
    const int64_t shape[3] = {r->m->config.sizes.heads, r->most, r->most};
    const int code = kit_array_new(&r->weights, ATTN_F32, 3, shape, err);
    r->watch = code ? NULL : watch;
    r->watcher = watcher;
    return code;
}

void model_run_without(model_run *r, int64_t layer, int64_t head)
{
    r->off_layer = layer;
    r->off_head = head;
}

const float *model_run_output(const model_run *r) { return r->x.data; }

void model_layer_free(model_layer *look)
{
    kit_array *all[] = {&look->input, &look->normed,  &look->q,     &look->k,
                        &look->v,     &look->context, &look->output};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kit_array_free(all[i]);
}

/* ------------------------------------------------------------------------------ Small steps */

static attn_tensor rows_of(const kit_array *a, int64_t rows)
{
    return attn_matrix(a->data, a->dtype, rows, a->shape[1]);
}

static attn_tensor vector(const kit_array *a)
{
    return attn_matrix(a->data, a->dtype, 1, a->shape[0]);
}

/* Gives the tensors of a linear layer; without a bias, *bias has no data. */
static void show(const module *of, attn_tensor *weight, attn_tensor *bias)
{
    *weight = rows_of(&of->weight, of->weight.shape[0]);
    *bias = of->bias.data ? vector(&of->bias) : (attn_tensor){0};
}

void model_input_projection(const model *m, int64_t layer, attn_tensor *weight, attn_tensor *bias)
{
    show(block_module(&m->block[layer], QKV), weight, bias);
}

void model_output_projection(const model *m, int64_t layer, attn_tensor *weight, attn_tensor *bias)
{
    show(block_module(&m->block[layer], OUT), weight, bias);
}

static int linear(const model_run *r, const kit_array *x, const module *w, const kit_array *out,
                  kit_error *err)
{
    attn_error e;
    const attn_tensor from = rows_of(x, r->rows), to = rows_of(out, r->rows);
    attn_tensor weight, bias;
    show(w, &weight, &bias);
    return kit_engine(attn_linear_forward(r->m->ctx, &from, &weight, bias.data ? &bias : NULL, &to,
                                          &e),
                      &e, err);
}

static int norm(const model_run *r, const kit_array *x, const module *w, const kit_array *out,
                kit_error *err)
{
    const model_config *c = &r->m->config;
    attn_error e;
    if (c->a->rms) {
        model_rms_norm(out->data, x->data, w->weight.data, c->eps, r->rows, c->sizes.embed);
        return KIT_OK;
    }
    const attn_tensor from = rows_of(x, r->rows), to = rows_of(out, r->rows);
    const attn_tensor weight = vector(&w->weight), bias = vector(&w->bias);
    return kit_engine(attn_layer_norm_forward(r->m->ctx, &from, &weight, &bias, c->eps, &to, &e),
                      &e, err);
}

/* to += from, both [rows, E]. */
static void add(const model_run *r, const kit_array *to, const kit_array *from)
{
    float *x = to->data;
    const float *y = from->data;
    const int64_t n = r->rows * to->shape[1];
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

/* Normalises x in place. */
static int norm_back(const model_run *r, const kit_array *x, const module *w, kit_error *err)
{
    const int code = norm(r, x, w, &r->normed, err);
    if (!code)
        memcpy(x->data, r->normed.data, (size_t)(r->rows * x->shape[1]) * sizeof(float));
    return code;
}

/* ------------------------------------------------------------------------------- Embeddings */

static int embed(const model_run *r, module_id id, const int64_t *ids, const kit_array *out,
                 kit_error *err)
{
    const kit_array *w = &r->m->m[id].weight;
    const attn_tensor table = rows_of(w, w->shape[0]), to = rows_of(out, r->rows);
    attn_error e;
    return kit_engine(attn_embedding_forward(r->m->ctx, &table, ids, r->rows, &to, &e), &e, err);
}

/* Numbers the positions. RoBERTa counts from after its padding token's id; a padding token has that
 * id as its position. */
static void number_places(model_run *r, const int64_t *ids)
{
    const model_config *c = &r->m->config;
    int64_t *place = r->place.data;
    r->counted = r->cached ? r->counted : 0;
    for (int64_t i = 0; i < r->rows; i++) {
        place[i] = r->length + i;
        if (c->a->places == PLACES_AFTER_PADDING)
            place[i] = ids[i] == c->padding ? c->padding : c->padding + ++r->counted;
    }
}

/* before: tokens of earlier calls. */
static int check_tokens(const model *m, int64_t before, const int64_t *ids, const int64_t *types,
                        int64_t count, kit_error *err)
{
    const model_config *c = &m->config;
    const int64_t lost = c->a->places == PLACES_AFTER_PADDING ? c->padding + 1 : 0;
    if (count < 1)
        return kit_fail(err, KIT_USAGE, "the text has no token");
    if (before + count > c->sizes.positions - lost)
        return kit_fail(err, KIT_USAGE,
                        "the text has %" PRId64 " tokens; the model has positions for %" PRId64,
                        before + count, c->sizes.positions - lost);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= c->sizes.vocabulary ||
            (types && c->types && types[i] >= c->types))
            return kit_fail(err, KIT_USAGE,
                            "token %" PRId64 ": the model has no id %" PRId64
                            " or no segment %" PRId64,
                            i + 1, ids[i], types ? types[i] : 0);
    return KIT_OK;
}

int model_check_tokens(const model *m, const int64_t *ids, const int64_t *types, int64_t count,
                       kit_error *err)
{
    return check_tokens(m, 0, ids, types, count, err);
}

static int embed_all(model_run *r, const int64_t *ids, const int64_t *types, kit_error *err)
{
    const model *m = r->m;
    int64_t *type = r->type.data;
    for (int64_t i = 0; i < r->rows; i++)
        type[i] = types ? types[i] : 0;
    number_places(r, ids);
    int code = embed(r, TOKENS, ids, &r->x, err);
    if (!code && m->m[PLACES].weight.data &&
        !(code = embed(r, PLACES, r->place.data, &r->branch, err)))
        add(r, &r->x, &r->branch);
    if (!code && m->m[TYPES].weight.data && !(code = embed(r, TYPES, type, &r->branch, err)))
        add(r, &r->x, &r->branch);
    if (!code && m->m[EMBED_NORM].weight.data)
        code = norm_back(r, &r->x, &m->m[EMBED_NORM], err);
    return code;
}

/* -------------------------------------------------------------------------------- Attention */

/* Returns heads first .. first + heads - 1 of the rows of qkv, as [1,heads,rows,D]. */
static attn_tensor heads_of(const model_run *r, int64_t first, int64_t heads)
{
    const int64_t W = r->qkv.shape[1], D = r->m->config.sizes.head_size;
    attn_tensor t = attn_bthd((float *)r->qkv.data + first * D, ATTN_F32, 1, r->rows, heads, D);
    t.stride[2] = W;
    t.stride[0] = W * r->rows;
    return t;
}

static int keep(kit_array *to, const attn_tensor *t, kit_error *err)
{
    const int64_t shape[3] = {t->shape[1], t->shape[2], t->shape[3]};
    const int code = kit_array_new(to, ATTN_F32, 3, shape, err);
    for (int64_t h = 0; h < shape[0] && !code; h++)
        for (int64_t i = 0; i < shape[1]; i++)
            memcpy((float *)to->data + (h * shape[1] + i) * shape[2],
                   (const float *)t->data + h * t->stride[1] + i * t->stride[2],
                   (size_t)shape[2] * sizeof(float));
    return code;
}

static int keep_rows(kit_array *to, const kit_array *from, int64_t rows, kit_error *err)
{
    const int code = kit_array_new(to, ATTN_F32, 2, (const int64_t[]){rows, from->shape[1]}, err);
    if (!code)
        memcpy(to->data, from->data, to->bytes);
    return code;
}

/* Sets the output of the head that is off to 0. */
static void silence(const model_run *r)
{
    const int64_t D = r->m->config.sizes.head_size, width = r->heads.shape[1];
    for (int64_t i = 0; i < r->rows; i++)
        memset((float *)r->heads.data + i * width + r->off_head * D, 0, (size_t)D * sizeof(float));
}

static int attend(model_run *r, int64_t layer, model_layer *look, kit_error *err)
{
    const model_sizes *s = &r->m->config.sizes;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    const attn_tensor table = attn_bhtd(r->weights.data, ATTN_F32, 1, s->heads, r->rows, r->rows);
    attn_error e;
    int code = KIT_OK;
    a.q = heads_of(r, 0, s->heads);
    a.k = heads_of(r, s->heads, s->kv_heads);
    a.v = heads_of(r, s->heads + s->kv_heads, s->kv_heads);
    a.out = attn_bthd(r->heads.data, ATTN_F32, 1, r->rows, s->heads, s->head_size);
    a.scale = model_scale(r->m, layer);
    a.causal = s->causal ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
    a.window_left = model_window(r->m, layer) - 1;
    if (look && ((code = keep(&look->q, &a.q, err)) || (code = keep(&look->k, &a.k, err)) ||
                 (code = keep(&look->v, &a.v, err))))
        return code;
    if (r->watch) {
        a.scores = &table;
        a.scores_stage = ATTN_STAGE_WEIGHTS;
    }
    if (r->cached) {
        code = kit_engine(attn_cache_append(r->cache[layer], 0, &a.k, &a.v, &e), &e, err);
        a.cache = r->cache[layer];
        a.k.data = a.v.data = NULL;
    }
    if (!code)
        code = kit_engine(attn_sdpa_forward(r->m->ctx, &a, &e), &e, err);
    if (!code && r->watch)
        r->watch(r->watcher, layer, r->weights.data);
    if (!code && layer == r->off_layer)
        silence(r);
    return code;
}

/* ----------------------------------------------------------------------------------- Blocks */

static int feed_forward(model_run *r, const block *b, const kit_array *x, kit_error *err)
{
    const model_config *c = &r->m->config;
    const bool gated = block_module(b, GATE)->weight.data != NULL;
    const bool apart = !gated && c->activation == ACT_GELU; /* libattn's is not in place */
    const kit_array *bent = gated ? &r->gate : &r->wide;
    attn_error e;
    int code = linear(r, x, block_module(b, UP), &r->wide, err);
    if (!code && gated)
        code = linear(r, x, block_module(b, GATE), &r->gate, err);
    if (!code && apart) {
        const attn_tensor from = rows_of(&r->wide, r->rows), to = rows_of(&r->gate, r->rows);
        code = kit_engine(attn_gelu_forward(r->m->ctx, &from, &to, &e), &e, err);
    } else if (!code) {
        model_activate(bent->data, c->activation, r->rows * c->inner);
    }
    float *up = r->wide.data;
    const float *gate = r->gate.data;
    for (int64_t i = 0; gated && !code && i < r->rows * c->inner; i++)
        up[i] *= gate[i];
    if (code)
        return code;
    return linear(r, apart ? &r->gate : &r->wide, block_module(b, DOWN), &r->branch, err);
}

static int run_block(model_run *r, int64_t layer, const angles *turn, model_layer *look,
                     kit_error *err)
{
    const model_config *c = &r->m->config;
    const model_sizes *s = &c->sizes;
    const block *b = &r->m->block[layer];
    const kit_array *x = c->a->norm_first ? &r->normed : &r->x;
    int code = KIT_OK;
    const bool all = look && !look->brief;
    if (all && (code = keep_rows(&look->input, &r->x, r->rows, err)))
        return code;
    if (c->a->norm_first)
        code = norm(r, &r->x, block_module(b, NORM1), &r->normed, err);
    if (!code && all && c->a->norm_first)
        code = keep_rows(&look->normed, &r->normed, r->rows, err);
    if (!code)
        code = linear(r, x, block_module(b, QKV), &r->qkv, err);
    if (!code && turn->cos)
        model_rotate(r->qkv.data, turn, r->rows, r->qkv.shape[1], s->heads + s->kv_heads,
                     s->head_size);
    if (!code)
        code = attend(r, layer, look, err);
    if (!code && look)
        code = keep_rows(&look->context, &r->heads, r->rows, err);
    if (!code)
        code = linear(r, &r->heads, block_module(b, OUT), &r->branch, err);
    add(r, &r->x, &r->branch);
    if (!code && !c->a->norm_first)
        code = norm_back(r, &r->x, block_module(b, NORM1), err);
    if (!code && c->inner) {
        if (c->a->norm_first)
            code = norm(r, &r->x, block_module(b, NORM2), &r->normed, err);
        if (!code)
            code = feed_forward(r, b, x, err);
        add(r, &r->x, &r->branch);
        if (!code && !c->a->norm_first)
            code = norm_back(r, &r->x, block_module(b, NORM2), err);
    }
    return code || !all ? code : keep_rows(&look->output, &r->x, r->rows, err);
}

int model_run_tokens(model_run *r, const int64_t *ids, const int64_t *types, int64_t count,
                     model_layer *look, int64_t looks, kit_error *err)
{
    const model_config *c = &r->m->config;
    angles turn = {0};
    int code = check_tokens(r->m, r->length, ids, types, count, err);
    if (!code && count > r->most)
        code = kit_fail(err, KIT_USAGE, "the text has more than %" PRId64 " tokens", r->most);
    if (code)
        return code;
    r->rows = count;
    code = embed_all(r, ids, types, err);
    if (!code && c->a->places == PLACES_ROTATED)
        code = model_angles(&turn, &c->rotation, r->length, count, c->sizes.head_size, err);
    for (int64_t l = 0; l < c->sizes.layers && !code; l++) {
        model_layer *at = NULL;
        for (int64_t i = 0; i < looks; i++)
            at = look[i].layer == l ? &look[i] : at;
        code = run_block(r, l, &turn, at, err);
    }
    free(turn.cos);
    free(turn.sin);
    r->length += r->cached && !code ? count : 0;
    return code;
}

int model_run_lens(model_run *r, const float *x, const float **logits, kit_error *err)
{
    const model *m = r->m;
    const bool own = m->m[HEAD].weight.data != NULL;
    const module head = {.weight = m->m[own ? HEAD : TOKENS].weight, .bias = m->m[HEAD].bias};
    const int64_t E = m->config.sizes.embed;
    memmove(r->x.data, x, (size_t)E * sizeof(float)); /* the buffers are free now */
    r->rows = 1;
    int code = norm(r, &r->x, &m->m[LAST_NORM], &r->normed, err);
    if (!code)
        code = linear(r, &r->normed, &head, &r->logits, err);
    *logits = r->logits.data;
    return code;
}

int model_run_logits(model_run *r, const float **logits, kit_error *err)
{
    const int64_t last = (r->rows - 1) * r->m->config.sizes.embed; /* only its row gives logits */
    return model_run_lens(r, (const float *)r->x.data + last, logits, err);
}
