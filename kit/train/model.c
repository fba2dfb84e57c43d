/* The model: embeddings of tokens and positions, blocks, a final norm, a linear head.
 *
 *   x = tokens + places
 *   each block:  x = x + attention(norm(x))    causal, several heads, q k v in one projection
 *               x = x + mlp(norm(x))          optional: linear to 4 E, GELU, linear back
 *   logits = head(norm(x))
 *
 * If the task draws the embeddings of each sequence, tokens are rows of its own table `words`, the
 * head gives a vector as long as an embedding, and logits = 4/sqrt(E) · head(norm(x)) · wordsᵀ. The
 * factor makes logits of random vectors large enough for a sure answer.
 *
 * The backward pass below mirrors the forward pass. Between the calls of libattn there are only
 * sums of two arrays.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train_inner.h"

#define EPS 1e-5 /* of a layer norm, as in PyTorch */
#define WIDER 4  /* size of the MLP, in embeddings */

#define CERTAINTY 4 /* of logits that compare with drawn embeddings; see above */

enum { TOKENS = 0 }; /* the first parameter, unless embeddings are drawn */
/* Parameters of a block, counted from train_block.first. A module's bias follows its weight. */
enum { NORM = 0, IN = 2, OUT = 4, ATTENTION_ONLY = 6, NORM2 = 6, UP = 8, DOWN = 10, WITH_MLP = 12 };

/* ------------------------------------------------------------------------------- Parameters */

static int add_parameter(train_model *m, const char *name, int64_t rows, int64_t columns,
                         kit_error *err)
{
    train_parameter *p = &m->parameter[m->count];
    kit_array *all[] = {&p->value, &p->grad, &p->m, &p->v};
    const int64_t shape[2] = {rows, columns};
    int code = KIT_OK;
    snprintf(p->name, sizeof p->name, "%s", name);
    m->count++;
    for (int i = 0; i < 4 && !code; i++)
        code = kit_array_new(all[i], ATTN_F32, rows ? 2 : 1, rows ? shape : shape + 1, err);
    return code;
}

/* Adds a module's weight and bias; rows 0: a norm, whose weight is a vector. */
static int add_module(train_model *m, const char *format, int layer, int64_t rows, int64_t columns,
                      kit_error *err)
{
    char stem[32], name[48];
    snprintf(stem, sizeof stem, format, layer);
    const bool joined = stem[strlen(stem) - 1] == '_';
    snprintf(name, sizeof name, "%s%s", stem, joined ? "weight" : ".weight");
    int code = add_parameter(m, name, rows, columns, err);
    snprintf(name, sizeof name, "%s%s", stem, joined ? "bias" : ".bias");
    return code ? code : add_parameter(m, name, 0, rows ? rows : columns, err);
}

static int add_block(train_model *m, int layer, kit_error *err)
{
    const int64_t E = m->config.embed;
    const struct {
        const char *name;
        int64_t rows, columns;
    } modules[] = {{"blocks.%d.norm1", 0, E},
                   {"blocks.%d.attention.in_proj_", 3 * E, E}, /* as in MultiheadAttention */
                   {"blocks.%d.attention.out", E, E},
                   {"blocks.%d.norm2", 0, E},
                   {"blocks.%d.mlp.up", WIDER * E, E},
                   {"blocks.%d.mlp.down", E, WIDER * E}};
    int code = KIT_OK;
    m->block[layer].first = m->count;
    for (int i = 0; i < (m->config.mlp ? 6 : 3) && !code; i++)
        code = add_module(m, modules[i].name, layer, modules[i].rows, modules[i].columns, err);
    return code;
}

static attn_tensor view(const kit_array *a)
{
    const bool vector = a->rank == 1;
    return attn_matrix(a->data, a->dtype, vector ? 1 : a->shape[0], a->shape[vector ? 0 : 1]);
}

static attn_tensor value_of(const train_model *m, int i) { return view(&m->parameter[i].value); }
static attn_tensor grad_of(const train_model *m, int i) { return view(&m->parameter[i].grad); }

static bool draws(const train_model *m) { return train_task_draws_words(m->config.task); }

/* Whether the answer is a vector that is compared with the drawn embeddings. */
static bool compares(const train_model *m) { return m->config.task == TRAIN_ANY_WORDS; }

static int64_t answers(const train_model *m) { return train_config_answers(&m->config); }

void train_model_init(train_model *m)
{
    attn_rng rng;
    attn_rng_seed(&rng, m->config.seed);
    for (int i = 0; i < m->count; i++) {
        kit_array *w = &m->parameter[i].value;
        const size_t n = (size_t)kit_array_count(w);
        if (i <= m->places) {
            attn_rng_randn(&rng, w->data, n);
        } else if (w->rank == 2) {
            attn_rng_linear(&rng, w->data, m->parameter[i + 1].value.data, w->shape[1],
                            w->shape[0]);
        } else if (strstr(m->parameter[i].name, "weight")) {
            for (size_t k = 0; k < n; k++)
                ((float *)w->data)[k] = 1;
        }
    }
}

void train_model_draw_words(train_model *m, int64_t first, int64_t count, attn_rng *rng)
{
    const int64_t one = train_config_tokens(&m->config) * m->config.embed;
    for (int64_t b = first; b < first + count && draws(m); b++)
        attn_rng_randn(rng, m->words + b * one, (size_t)one);
}

/* ------------------------------------------------------------------------------ Activations */

/* Takes the next `n` floats of memory; with base NULL it only counts them. */
static float *take(float *base, size_t *used, size_t n)
{
    float *piece = base ? base + *used : NULL;
    *used += (n + 15) / 16 * 16; /* whole cache lines */
    return piece;
}

static size_t place_activations(train_model *m, float *base)
{
    const train_config *c = &m->config;
    const size_t N = (size_t)(c->batch * c->length), E = (size_t)c->embed;
    const size_t V = (size_t)train_config_tokens(c);
    size_t used = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        train_block *b = &m->block[l];
        b->input = take(base, &used, N * E);
        b->normed = take(base, &used, N * E);
        b->qkv = take(base, &used, N * 3 * E);
        b->heads = take(base, &used, N * E);
        b->lse = take(base, &used, N * (size_t)c->heads);
        b->middle = take(base, &used, N * E);
        b->normed2 = take(base, &used, c->mlp ? N * E : 0);
        b->wide = take(base, &used, c->mlp ? N * WIDER * E : 0);
        b->bent = take(base, &used, c->mlp ? N * WIDER * E : 0);
    }
    m->output = take(base, &used, N * E);
    m->normed = take(base, &used, N * E);
    m->logits = take(base, &used, N * (size_t)answers(m));
    m->words = take(base, &used, draws(m) ? (size_t)c->batch * V * E : 0);
    m->answer = take(base, &used, compares(m) ? N * E : 0);
    for (int i = 0; i < 4; i++)
        m->d[i] = take(base, &used, N * (i == 3 && c->mlp ? WIDER : 1) * E);
    m->d_wide = take(base, &used, N * (c->mlp ? WIDER : 3) * E);
    m->d_logits = take(base, &used, N * (size_t)answers(m));
    return used;
}

/* All sizes of activations are below this product, times a small factor; it must be addressable. */
static bool fits(const train_config *c)
{
    const double N = (double)c->batch * (double)c->length, E = (double)c->embed;
    const double V = (double)train_config_tokens(c);
    const double A = (double)train_config_answers(c);
    return N * (E * 20 * ((double)c->layers + 1) + 2 * (A > V ? A : V)) < 1e11 &&
           V * E * (train_task_draws_words(c->task) ? (double)c->batch : 1) < 1e10;
}

int train_model_make(train_model *m, const train_config *c, attn_context *ctx, kit_error *err)
{
    *m = (train_model){.config = *c, .ctx = ctx};
    if (!fits(c))
        return kit_fail(
            err, KIT_LIMIT,
            "a model of these sizes is too large to be trained by attn; choose smaller ones");
    const size_t N = (size_t)(c->batch * c->length);
    const int parameters = 2 + (int)c->layers * WITH_MLP + 4;
    m->parameter = calloc((size_t)parameters, sizeof *m->parameter);
    m->block = calloc((size_t)c->layers, sizeof *m->block);
    if (m->block)
        m->memory = calloc(place_activations(m, NULL), sizeof *m->memory);
    m->tokens = calloc(3 * N, sizeof *m->tokens);
    if (!m->parameter || !m->block || !m->memory || !m->tokens)
        return kit_fail(err, KIT_LIMIT, "not enough memory for the model");
    m->targets = m->tokens + N;
    m->place = m->targets + N;
    place_activations(m, m->memory);
    const int64_t E = c->embed, V = train_config_tokens(c);
    int code = draws(m) ? KIT_OK : add_parameter(m, "tokens.weight", V, E, err);
    m->places = m->count;
    if (!code)
        code = add_parameter(m, "places.weight", c->length, E, err);
    for (int l = 0; l < (int)c->layers && !code; l++)
        code = add_block(m, l, err);
    if (!code)
        code = add_module(m, "norm", 0, 0, E, err);
    if (!code)
        code = add_module(m, "head", 0, compares(m) ? E : answers(m), E, err);
    return code;
}

void train_model_free(train_model *m)
{
    for (int i = 0; i < m->count; i++) {
        kit_array_free(&m->parameter[i].value);
        kit_array_free(&m->parameter[i].grad);
        kit_array_free(&m->parameter[i].m);
        kit_array_free(&m->parameter[i].v);
    }
    free(m->parameter);
    free(m->block);
    free(m->memory);
    free(m->tokens);
    *m = (train_model){0};
}

/* ---------------------------------------------------------------------------------- Forward */

static attn_tensor rows(const train_model *m, const float *data, int64_t columns)
{
    return attn_matrix(data, ATTN_F32, m->batch * m->length, columns);
}

static void add(float *to, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = a[i] + b[i];
}

static int linear(const train_model *m, const float *x, int64_t in, int weight, float *out,
                  int64_t columns, kit_error *err)
{
    attn_error e;
    const attn_tensor vx = rows(m, x, in), vout = rows(m, out, columns);
    const attn_tensor w = value_of(m, weight), bias = value_of(m, weight + 1);
    return kit_engine(attn_linear_forward(m->ctx, &vx, &w, &bias, &vout, &e), &e, err);
}

static int norm(const train_model *m, const float *x, int weight, float *out, kit_error *err)
{
    attn_error e;
    const int64_t E = m->config.embed;
    const attn_tensor vx = rows(m, x, E), vout = rows(m, out, E);
    const attn_tensor w = value_of(m, weight), bias = value_of(m, weight + 1);
    return kit_engine(attn_layer_norm_forward(m->ctx, &vx, &w, &bias, EPS, &vout, &e), &e, err);
}

/* Returns q, k or v (part 0, 1, 2) as [B,H,T,D]: its columns of the joint projection. */
static attn_tensor part(const train_model *m, const float *qkv, int which)
{
    const int64_t E = m->config.embed, H = m->config.heads;
    attn_tensor t = attn_bthd(qkv + which * E, ATTN_F32, m->batch, m->length, H, E / H);
    t.stride[0] = m->length * 3 * E;
    t.stride[2] = 3 * E;
    return t;
}

static attn_sdpa_args attention_of(const train_model *m, const train_block *b, attn_tensor *lse)
{
    const int64_t E = m->config.embed, H = m->config.heads;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = part(m, b->qkv, 0);
    a.k = part(m, b->qkv, 1);
    a.v = part(m, b->qkv, 2);
    a.out = attn_bthd(b->heads, ATTN_F32, m->batch, m->length, H, E / H);
    *lse = attn_bhtd(b->lse, ATTN_F32, m->batch, H, m->length, 1);
    a.lse = lse;
    /* For the same word each place looks only before itself, where it would find itself. */
    a.causal = m->config.task == TRAIN_SAME_WORD ? ATTN_CAUSAL_OFFSET : ATTN_CAUSAL_TOP_LEFT;
    a.causal_offset = m->config.task == TRAIN_SAME_WORD ? -1 : 0;
    return a;
}

/* Writes the block's sum to the next block's input; the last block writes to m->output. */
static int block_forward(train_model *m, int layer, kit_error *err)
{
    train_block *b = &m->block[layer];
    const int64_t E = m->config.embed, N = m->batch * m->length;
    float *next = layer + 1 < m->config.layers ? m->block[layer + 1].input : m->output;
    float *sum = m->config.mlp ? b->middle : next, *branch = m->d[0];
    attn_tensor lse;
    attn_error e;
    int code = norm(m, b->input, b->first + NORM, b->normed, err);
    if (!code)
        code = linear(m, b->normed, E, b->first + IN, b->qkv, 3 * E, err);
    if (!code) {
        const attn_sdpa_args a = attention_of(m, b, &lse);
        code = kit_engine(attn_sdpa_forward(m->ctx, &a, &e), &e, err);
    }
    if (!code)
        code = linear(m, b->heads, E, b->first + OUT, branch, E, err);
    add(sum, b->input, branch, N * E);
    if (code || !m->config.mlp)
        return code;
    code = norm(m, b->middle, b->first + NORM2, b->normed2, err);
    if (!code)
        code = linear(m, b->normed2, E, b->first + UP, b->wide, WIDER * E, err);
    if (!code) {
        const attn_tensor x = rows(m, b->wide, WIDER * E), out = rows(m, b->bent, WIDER * E);
        code = kit_engine(attn_gelu_forward(m->ctx, &x, &out, &e), &e, err);
    }
    if (!code)
        code = linear(m, b->bent, WIDER * E, b->first + DOWN, branch, E, err);
    add(next, b->middle, branch, N * E);
    return code;
}

static int embed_tokens(train_model *m, float *input, kit_error *err)
{
    const int64_t E = m->config.embed, V = train_config_tokens(&m->config);
    const int64_t N = m->batch * m->length;
    attn_error e;
    if (!draws(m)) {
        const attn_tensor table = value_of(m, TOKENS), x = rows(m, input, E);
        return kit_engine(attn_embedding_forward(m->ctx, &table, m->tokens, N, &x, &e), &e, err);
    }
    for (int64_t n = 0; n < N; n++)
        memcpy(input + n * E, m->words + (n / m->length * V + m->tokens[n]) * E,
               (size_t)E * sizeof *input);
    return KIT_OK;
}

/* The words, the answers and their logits of sequence b, as matrices. */
typedef struct comparison {
    attn_tensor words, answer, logits;
} comparison;

static comparison comparison_of(const train_model *m, int64_t b, float *answer, float *logits)
{
    const int64_t E = m->config.embed, V = train_config_tokens(&m->config), T = m->length;
    return (comparison){attn_matrix(m->words + b * V * E, ATTN_F32, V, E),
                        attn_matrix(answer + b * T * E, ATTN_F32, T, E),
                        attn_matrix(logits + b * T * V, ATTN_F32, T, V)};
}

static void multiply(float *x, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(factor * (double)x[i]);
}

static double certainty(const train_model *m) { return CERTAINTY / sqrt((double)m->config.embed); }

/* Compares m->answer with the words of its sequence. */
static int compare(train_model *m, kit_error *err)
{
    attn_error e;
    int code = KIT_OK;
    for (int64_t b = 0; b < m->batch && !code; b++) {
        const comparison c = comparison_of(m, b, m->answer, m->logits);
        code = kit_engine(attn_linear_forward(m->ctx, &c.answer, &c.words, NULL, &c.logits, &e), &e,
                          err);
    }
    multiply(m->logits, m->batch * m->length * train_config_tokens(&m->config), certainty(m));
    return code;
}

int train_model_forward(train_model *m, int64_t batch, int64_t length, kit_error *err)
{
    const int64_t E = m->config.embed, N = batch * length;
    attn_error e;
    m->batch = batch;
    m->length = length;
    for (int64_t n = 0; n < N; n++)
        m->place[n] = n % length;
    float *input = m->block[0].input;
    const attn_tensor places = value_of(m, m->places), other = rows(m, m->d[0], E);
    int code = embed_tokens(m, input, err);
    if (!code)
        code =
            kit_engine(attn_embedding_forward(m->ctx, &places, m->place, N, &other, &e), &e, err);
    add(input, input, m->d[0], N * E);
    for (int l = 0; l < (int)m->config.layers && !code; l++)
        code = block_forward(m, l, err);
    const int last = m->count - 4;
    if (!code)
        code = norm(m, m->output, last, m->normed, err);
    if (!code && compares(m)) {
        code = linear(m, m->normed, E, last + 2, m->answer, E, err);
        return code ? code : compare(m, err);
    }
    if (!code)
        code = linear(m, m->normed, E, last + 2, m->logits, answers(m), err);
    return code;
}

/* --------------------------------------------------------------------------------- Backward */

static int linear_back(const train_model *m, const float *dout, int64_t columns, const float *x,
                       int64_t in, int weight, float *dx, kit_error *err)
{
    attn_error e;
    const attn_tensor vdout = rows(m, dout, columns), vx = rows(m, x, in), vdx = rows(m, dx, in);
    const attn_tensor w = value_of(m, weight);
    const attn_tensor dw = grad_of(m, weight), db = grad_of(m, weight + 1);
    return kit_engine(attn_linear_backward(m->ctx, &vdout, &vx, &w, &vdx, &dw, &db, &e), &e, err);
}

static int norm_back(const train_model *m, const float *dout, const float *x, int weight, float *dx,
                     kit_error *err)
{
    attn_error e;
    const int64_t E = m->config.embed;
    const attn_tensor vdout = rows(m, dout, E), vx = rows(m, x, E), vdx = rows(m, dx, E);
    const attn_tensor w = value_of(m, weight);
    const attn_tensor dw = grad_of(m, weight), db = grad_of(m, weight + 1);
    return kit_engine(attn_layer_norm_backward(m->ctx, &vdout, &vx, &w, EPS, &vdx, &dw, &db, &e),
                      &e, err);
}

static int attention_back(const train_model *m, const train_block *b, const float *dheads,
                          float *dqkv, kit_error *err)
{
    attn_error e;
    attn_tensor lse, mask, dmask;
    const int64_t E = m->config.embed, H = m->config.heads, T = m->length;
    attn_sdpa_args a = attention_of(m, b, &lse);
    kit_array zeros = {0};
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = attn_bthd(dheads, ATTN_F32, m->batch, m->length, H, E / H);
    g.dq = part(m, dqkv, 0);
    g.dk = part(m, dqkv, 1);
    g.dv = part(m, dqkv, 2);
    if (m->slopes) { /* a zero mask changes nothing; its gradient is that of the scores */
        const int code = kit_array_new(&zeros, ATTN_F32, 3, (const int64_t[]){H, T, T}, err);
        if (code)
            return code;
        mask = attn_bhtd(zeros.data, ATTN_F32, 1, H, T, T);
        dmask = attn_bhtd(m->slopes + (b - m->block) * H * T * T, ATTN_F32, 1, H, T, T);
        a.mask = &mask;
        g.dmask = &dmask;
    }
    const int code = kit_engine(attn_sdpa_backward(m->ctx, &a, &g, &e), &e, err);
    kit_array_free(&zeros);
    return code;
}

static int mlp_back(train_model *m, const train_block *b, kit_error *err)
{
    const int64_t E = m->config.embed, N = m->batch * m->length;
    attn_error e;
    float *d = m->d[0], *dwide = m->d_wide, *dbent = m->d[3];
    int code = linear_back(m, d, E, b->bent, WIDER * E, b->first + DOWN, dwide, err);
    if (!code) {
        const attn_tensor dout = rows(m, dwide, WIDER * E), x = rows(m, b->wide, WIDER * E);
        const attn_tensor dx = rows(m, dbent, WIDER * E);
        code = kit_engine(attn_gelu_backward(m->ctx, &dout, &x, &dx, &e), &e, err);
    }
    if (!code)
        code = linear_back(m, dbent, WIDER * E, b->normed2, E, b->first + UP, m->d[1], err);
    if (!code)
        code = norm_back(m, m->d[1], b->middle, b->first + NORM2, m->d[2], err);
    add(d, d, m->d[2], N * E);
    return code;
}

/* Reads the gradient of the block's output from m->d[0] and writes that of its input there. */
static int block_back(train_model *m, int layer, kit_error *err)
{
    const train_block *b = &m->block[layer];
    const int64_t E = m->config.embed, N = m->batch * m->length;
    float *d = m->d[0], *dqkv = m->d_wide;
    int code = m->config.mlp ? mlp_back(m, b, err) : KIT_OK;
    if (!code)
        code = linear_back(m, d, E, b->heads, E, b->first + OUT, m->d[1], err);
    if (!code)
        code = attention_back(m, b, m->d[1], dqkv, err);
    if (!code)
        code = linear_back(m, dqkv, 3 * E, b->normed, E, b->first + IN, m->d[1], err);
    if (!code)
        code = norm_back(m, m->d[1], b->input, b->first + NORM, m->d[2], err);
    add(d, d, m->d[2], N * E);
    return code;
}

static int embeddings_back(train_model *m, kit_error *err)
{
    attn_error e;
    const int64_t N = m->batch * m->length;
    const attn_tensor d = rows(m, m->d[0], m->config.embed), places = grad_of(m, m->places);
    int code = KIT_OK;
    if (!draws(m)) { /* drawn embeddings are data: nothing needs their gradients */
        const attn_tensor tokens = grad_of(m, TOKENS);
        code = kit_engine(attn_embedding_backward(m->ctx, &d, m->tokens, N, &tokens, &e), &e, err);
    }
    return code
               ? code
               : kit_engine(attn_embedding_backward(m->ctx, &d, m->place, N, &places, &e), &e, err);
}

/* Writes the gradient of m->normed to m->d[1]. */
static int head_back(train_model *m, kit_error *err)
{
    const int64_t E = m->config.embed;
    const int head = m->count - 2;
    attn_error e;
    int code = KIT_OK;
    if (!compares(m))
        return linear_back(m, m->d_logits, answers(m), m->normed, E, head, m->d[1], err);
    float *d_answer = m->d[2];
    for (int64_t b = 0; b < m->batch && !code; b++) {
        const comparison c = comparison_of(m, b, d_answer, m->d_logits);
        code = kit_engine(attn_linear_backward(m->ctx, &c.logits, NULL, &c.words, &c.answer, NULL,
                                               NULL, &e),
                          &e, err);
    }
    multiply(d_answer, m->batch * m->length * E, certainty(m));
    return code ? code : linear_back(m, d_answer, E, m->normed, E, head, m->d[1], err);
}

int train_model_loss(train_model *m, double *loss, bool grads, kit_error *err)
{
    attn_error e;
    const int64_t V = answers(m);
    const attn_tensor logits = rows(m, m->logits, V), dlogits = rows(m, m->d_logits, V);
    int code =
        kit_engine(attn_cross_entropy_forward(m->ctx, &logits, m->targets, TRAIN_IGNORE, loss, &e),
                   &e, err);
    if (code || !grads)
        return code;
    code = kit_engine(attn_cross_entropy_backward(m->ctx, 1, &logits, m->targets, TRAIN_IGNORE,
                                                  &dlogits, &e),
                      &e, err);
    const int last = m->count - 4;
    if (!code)
        code = head_back(m, err);
    if (!code)
        code = norm_back(m, m->d[1], m->output, last, m->d[0], err);
    for (int l = (int)m->config.layers - 1; l >= 0 && !code; l--)
        code = block_back(m, l, err);
    return code ? code : embeddings_back(m, err);
}

/* ----------------------------------------------------------------------------------- Showing */

int train_model_scores(train_model *m, int layer, attn_stage stage, kit_array *out, kit_error *err)
{
    const int64_t H = m->config.heads, T = m->length;
    attn_error e;
    attn_tensor lse;
    kit_array unused = {0}; /* this call's output; the backward still needs the forward's */
    attn_sdpa_args a = attention_of(m, &m->block[layer], &lse);
    int code = kit_array_new(out, ATTN_F32, 3, (const int64_t[]){H, T, T}, err);
    if (!code)
        code = kit_array_new(&unused, ATTN_F32, 4, a.out.shape, err);
    if (code) {
        kit_array_free(out);
        return code;
    }
    const attn_tensor scores = attn_bhtd(out->data, ATTN_F32, 1, H, T, T);
    a.scores = &scores;
    a.scores_stage = stage;
    a.lse = NULL;
    a.out = attn_bhtd(unused.data, ATTN_F32, m->batch, H, T, a.out.shape[3]);
    a.precision = ATTN_PRECISION_ACCURATE; /* as in explain: its digits can be reproduced by hand */
    code = kit_engine(attn_sdpa_forward(m->ctx, &a, &e), &e, err);
    kit_array_free(&unused);
    return code;
}
