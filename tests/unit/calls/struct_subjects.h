/* The structs that begin with their size and the calls that take them, for test_struct_size.c: what
 * each member's default is, something else for it, and all that a call gives. */
#ifndef STRUCT_SUBJECTS_H
#define STRUCT_SUBJECTS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "support/test.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* All that a call may write, its status and its error; 0xA5 before each. */
typedef struct results {
    attn_status status;
    attn_error err;
    int64_t numbers[16];
    char text[96];
    float a[1 << 10], b[1 << 10], c[1 << 10], d[1 << 10], lse[64], scores[1 << 10];
    double sums[2][8];
} results;
static results got;

/* Inputs: numbers between -1 and 1, and integers. */
static float in[8][1 << 12];
static const int64_t lengths[] = {3, 4}, starts_q[] = {0, 2, 4}, starts_k[] = {0, 3, 5};

static inline void fill_inputs(void)
{
    uint32_t x = 7;
    for (size_t i = 0; i < COUNT(in); i++)
        for (size_t j = 0; j < COUNT(in[i]); j++) {
            x = x * 1664525 + 1013904223;
            in[i][j] = (float)((double)x / 2147483648.0 - 1);
        }
}

/* ------------------------------------------------------------------------------------- subjects */

typedef struct subject {
    const char *name; /* the struct, and the call that takes it */
    size_t size, least;
    const size_t *members; /* the offset of each after struct_size */
    size_t count;
    int variants;
    bool each_matters; /* every member shows in the results of some variant */
    void (*defaults)(void *s);
    void (*set)(void *s, int variant); /* every member, to what is not its default */
    attn_status (*call)(const void *s, attn_error *err);
} subject;

static inline void run(const subject *t, const void *s, results *into)
{
    memset(&got, 0xA5, sizeof got);
    memset(&got.err, 0, sizeof got.err);
    got.status = t->call(s, &got.err);
    memcpy(into, &got, sizeof got);
}

/* Everything 0 but the size: what most structs begin with. */
static void zeros(void *s, size_t size)
{
    memset(s, 0, size);
    memcpy(s, &size, sizeof size);
}

/* ------------------------------------------------------------------------------- attn_sdpa_args */

enum { B = 2, H = 2, HK = 1, T = 4, S = 5, D = 3, DV = 2 };
static attn_tensor mask, lse, scores;
static attn_cache *cache;
static char workspace[1 << 18];

static const size_t sdpa_members[] = {
#define M(name) offsetof(attn_sdpa_args, name)
    M(q),
    M(k),
    M(v),
    M(out),
    M(scale),
    M(causal),
    M(causal_offset),
    M(window_left),
    M(window_right),
    M(mask),
    M(key_lengths),
    M(cu_seqlens_q),
    M(cu_seqlens_k),
    M(sequences),
    M(alibi_slopes),
    M(sink_logits),
    M(softcap),
    M(dropout),
    M(dropout_seed),
    M(precision),
    M(lse),
    M(scores),
    M(scores_stage),
    M(workspace),
    M(workspace_bytes),
    M(cache),
    M(diagonal) /* and alibi_form: sizes are multiples of 8, so they came together */
#undef M
};

static void sdpa_defaults(void *s)
{
    attn_sdpa_args *a = s;
    zeros(s, sizeof *a);
    a->window_left = -1;
    a->window_right = -1;
}

/* 0: lengths; 1: packed sequences; 2: a cache */
static void sdpa_set(void *s, int variant)
{
    attn_sdpa_args *a = s;
    sdpa_defaults(s);
    a->q = attn_bhtd(in[0], ATTN_F32, B, H, T, D);
    a->k = attn_bhtd(variant == 2 ? NULL : in[1], ATTN_F32, B, HK, S, D);
    a->v = attn_bhtd(variant == 2 ? NULL : in[2], ATTN_F32, B, HK, S, DV);
    a->out = attn_bhtd(got.a, ATTN_F32, B, H, T, DV);
    a->scale = 0.7;
    if (variant != 1) { /* causal leaves window_right nothing to hide, nor diagonal to choose */
        a->causal = ATTN_CAUSAL_OFFSET;
        a->causal_offset = 2;
    } else {
        a->diagonal = ATTN_DIAGONAL_BOTTOM_RIGHT;
        a->alibi_form = ATTN_ALIBI_SYMMETRIC;
    }
    a->window_left = 2;
    a->window_right = 1;
    mask = attn_bhtd(in[3], ATTN_F32, 1, 1, T, S);
    a->mask = &mask;
    if (variant != 1) {
        a->key_lengths = lengths;
    } else {
        a->cu_seqlens_q = starts_q;
        a->cu_seqlens_k = starts_k;
        a->sequences = 2;
    }
    a->alibi_slopes = in[4];
    a->sink_logits = in[5];
    a->softcap = 0.9;
    a->dropout = 0.5;
    a->dropout_seed = 12345;
    a->precision = ATTN_PRECISION_ACCURATE;
    lse = attn_bhtd(got.lse, ATTN_F32, B, H, T, 1);
    scores = attn_bhtd(got.scores, ATTN_F32, B, H, T, S);
    a->lse = &lse;
    a->scores = &scores;
    a->scores_stage = ATTN_STAGE_WEIGHTS;
    a->workspace = workspace;
    a->workspace_bytes = sizeof workspace;
    if (variant == 2)
        a->cache = cache;
}

static attn_status call_forward(const void *s, attn_error *err)
{
    return attn_sdpa_forward(NULL, s, err);
}

static void put_plan(const attn_plan_info *info)
{
    memcpy(got.text, info->kernel, sizeof info->kernel);
    got.numbers[0] = (int64_t)info->scratch_bytes;
    got.numbers[1] = info->threads;
    got.numbers[2] = info->tasks;
    got.numbers[3] = (int64_t)info->flop;
    got.numbers[4] = (int64_t)info->bytes;
    got.numbers[5] = info->tiles;
    got.numbers[6] = info->prefetch;
    got.numbers[7] = info->parts;
    memcpy(got.text + sizeof info->kernel, info->route, sizeof info->route);
}

static attn_status call_plan(const void *s, attn_error *err)
{
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    const attn_status status = attn_sdpa_plan(NULL, s, &info, err);
    if (status == ATTN_OK)
        put_plan(&info);
    return status;
}

/* A derivative reads out and lse. */
static void derivative_set(void *s, int variant)
{
    attn_sdpa_args *a = s;
    sdpa_set(s, variant);
    a->out.data = in[6];
    lse.data = in[7];
}

static attn_tensor dlse, dmask;

static void grads_set(void *s, int variant)
{
    attn_sdpa_grads *g = s;
    (void)variant;
    zeros(s, sizeof *g);
    g->dout = attn_bhtd(in[5], ATTN_F32, B, H, T, DV);
    dlse = attn_bhtd(in[4], ATTN_F32, B, H, T, 1);
    g->dlse = &dlse;
    g->dq = attn_bhtd(got.a, ATTN_F32, B, H, T, D);
    g->dk = attn_bhtd(got.b, ATTN_F32, B, HK, S, D);
    g->dv = attn_bhtd(got.c, ATTN_F32, B, HK, S, DV);
    dmask = attn_bhtd(got.d, ATTN_F32, 1, 1, T, S);
    g->dmask = &dmask;
    g->dalibi_slopes = got.sums[0];
    g->dsink_logits = got.sums[1];
}

static attn_status call_backward(const void *s, attn_error *err)
{
    attn_sdpa_grads g;
    grads_set(&g, 0);
    return attn_sdpa_backward(NULL, s, &g, err);
}

static attn_tensor tlse;

static void tangents_set(void *s, int variant)
{
    attn_sdpa_tangents *t = s;
    (void)variant;
    zeros(s, sizeof *t);
    t->tq = attn_bhtd(in[3], ATTN_F32, B, H, T, D);
    t->tk = attn_bhtd(in[4], ATTN_F32, B, HK, S, D);
    t->tv = attn_bhtd(in[5], ATTN_F32, B, HK, S, DV);
    t->tout = attn_bhtd(got.a, ATTN_F32, B, H, T, DV);
    tlse = attn_bhtd(got.b, ATTN_F32, B, H, T, 1);
    t->tlse = &tlse;
}

static attn_status call_jvp(const void *s, attn_error *err)
{
    attn_sdpa_tangents t;
    tangents_set(&t, 0);
    return attn_sdpa_jvp(NULL, s, &t, err);
}

/* --------------------------------------------------------- attn_sdpa_grads, attn_sdpa_tangents */

static const size_t grads_members[] = {
#define M(name) offsetof(attn_sdpa_grads, name)
    M(dout),  M(dlse),          M(dq),          M(dk), M(dv),
    M(dmask), M(dalibi_slopes), M(dsink_logits)
#undef M
};
static const size_t tangents_members[] = {
#define M(name) offsetof(attn_sdpa_tangents, name)
    M(tq), M(tk), M(tv), M(tout), M(tlse)
#undef M
};

static void grads_defaults(void *s) { zeros(s, sizeof(attn_sdpa_grads)); }
static void tangents_defaults(void *s) { zeros(s, sizeof(attn_sdpa_tangents)); }

static attn_status call_with_grads(const void *s, attn_error *err)
{
    attn_sdpa_args a;
    derivative_set(&a, 0);
    return attn_sdpa_backward(NULL, &a, s, err);
}

static attn_status call_backward_plan(const void *s, attn_error *err)
{
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    attn_sdpa_args a;
    derivative_set(&a, 0);
    const attn_status status = attn_sdpa_backward_plan(NULL, &a, s, &info, err);
    if (status == ATTN_OK)
        put_plan(&info);
    return status;
}

static attn_status call_with_tangents(const void *s, attn_error *err)
{
    attn_sdpa_args a;
    derivative_set(&a, 0);
    return attn_sdpa_jvp(NULL, &a, s, err);
}

/* -------------------------------------------------- attn_context_options, attn_cache_options */

static int64_t counts[2][4]; /* of memory taken and released, tasks, sets; by the user's pointer */

static int64_t *counts_of(void *user) { return user ? user : counts[0]; }

static void *count_allocate(void *user, size_t size, size_t alignment)
{
    counts_of(user)[0]++;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void count_release(void *user, void *memory, size_t size)
{
    (void)size;
    counts_of(user)[1]++;
    free(memory);
}

static void count_parallel(void *user, int n, void (*body)(void *arg, int index), void *arg)
{
    counts_of(user)[2] += n;
    counts_of(user)[3]++;
    for (int i = 0; i < n; i++)
        body(arg, i);
}

static const size_t context_members[] = {
#define M(name) offsetof(attn_context_options, name)
    M(threads),     M(isa),          M(allocate),     M(release),
    M(memory_user), M(parallel_for), M(parallel_user)
#undef M
};

static void context_defaults(void *s) { zeros(s, sizeof(attn_context_options)); }

static void context_set(void *s, int variant)
{
    attn_context_options *o = s;
    (void)variant;
    context_defaults(s);
    o->threads = 5;
    o->isa = "generic";
    o->allocate = count_allocate;
    o->release = count_release;
    o->memory_user = counts[1];
    o->parallel_for = count_parallel;
    o->parallel_user = counts[1];
}

static attn_status call_context(const void *s, attn_error *err)
{
    enum { BIG = 128, WIDTH = 32 };
    static float out[4 * BIG * WIDTH];
    attn_context *ctx;
    const attn_status status = attn_context_create(s, &ctx, err);
    if (status != ATTN_OK)
        return status;
    memset(counts, 0, sizeof counts);
    got.numbers[0] = attn_context_threads(ctx);
    snprintf(got.text, sizeof got.text, "%s", attn_context_isa(ctx));
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = a.k = a.v = attn_bhtd(in, ATTN_F32, 1, 4, BIG, WIDTH);
    a.out = attn_bhtd(out, ATTN_F32, 1, 4, BIG, WIDTH);
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
    attn_context_destroy(ctx);
    memcpy(got.numbers + 1, counts, sizeof counts);
    return status;
}

static const size_t cache_members[] = {
#define M(name) offsetof(attn_cache_options, name)
    M(B),         M(Hk),    M(D),        M(Dv),      M(dtype),      M(max_keys),
    M(page_keys), M(pages), M(allocate), M(release), M(memory_user)
#undef M
};

static void cache_defaults(void *s)
{
    zeros(s, sizeof(attn_cache_options));
    ((attn_cache_options *)s)->dtype = ATTN_F32;
}

static void cache_set(void *s, int variant)
{
    attn_cache_options *o = s;
    (void)variant;
    cache_defaults(s);
    o->B = 1, o->Hk = 1, o->D = D, o->Dv = DV;
    o->dtype = ATTN_F64;
    o->max_keys = 192;
    o->page_keys = 128;
    o->pages = 1;
    o->allocate = count_allocate;
    o->release = count_release;
    o->memory_user = counts[1];
}

static int keep_bytes(void *user, const void *bytes, size_t n)
{
    size_t *at = user;
    assert_number(*at + n, <=, sizeof workspace);
    memcpy(workspace + *at, bytes, n);
    *at += n;
    return 0;
}

/* Made, filled until it is full, saved and loaded. */
static attn_status call_cache(const void *s, attn_error *err)
{
    attn_cache *made, *again = NULL;
    memset(counts, 0, sizeof counts);
    const attn_status status = attn_cache_create(s, &made, err);
    if (status != ATTN_OK)
        return status;
    const attn_tensor k = attn_bhtd(in[0], ATTN_F32, 1, 1, 32, D);
    const attn_tensor v = attn_bhtd(in[1], ATTN_F32, 1, 1, 32, DV);
    size_t saved = 0;
    got.numbers[0] = (int64_t)attn_cache_bytes(made);
    while (attn_cache_append(made, 0, &k, &v, NULL) == ATTN_OK)
        continue;
    got.numbers[1] = attn_cache_length(made, 0);
    assert_int_equal(attn_cache_save(made, keep_bytes, &saved, NULL), ATTN_OK);
    got.numbers[2] = attn_cache_load(s, workspace, saved, &again, err);
    attn_tensor back = attn_bhtd(got.a, ATTN_F32, 1, 1, 32, D);
    assert_int_equal(attn_cache_read(again, 0, 64, &back, NULL, NULL), ATTN_OK);
    attn_cache_destroy(again);
    attn_cache_destroy(made);
    memcpy(got.numbers + 3, counts, sizeof counts);
    return status;
}

#include "struct_pieces.h"

/* ---------------------------------------------------------------- attn_mha_args, attn_mha_grads */

enum { E = 4 };

static const size_t mha_members[] = {
#define M(name) offsetof(attn_mha_args, name)
    M(x),
    M(source),
    M(w_q),
    M(w_k),
    M(w_v),
    M(b_q),
    M(b_k),
    M(b_v),
    M(w_o),
    M(b_o),
    M(out),
    M(attention),
    M(output_dropout),
    M(output_dropout_seed)
#undef M
};
static const size_t mha_grads_members[] = {
#define M(name) offsetof(attn_mha_grads, name)
    M(dout), M(dx),   M(dsource), M(dw_q),  M(dw_k),          M(dw_v),        M(db_q), M(db_k),
    M(db_v), M(dw_o), M(db_o),    M(dmask), M(dalibi_slopes), M(dsink_logits)
#undef M
};

static void mha_defaults(void *s) { zeros(s, sizeof(attn_mha_args)); }
static void mha_grads_defaults(void *s) { zeros(s, sizeof(attn_mha_grads)); }

static void mha_set(void *s, int variant)
{
    static attn_sdpa_args attention;
    attn_mha_args *a = s;
    mha_defaults(s);
    sdpa_set(&attention, variant);
    a->x = attn_bhtd(in[0], ATTN_F32, B, 1, T, E);
    a->source = attn_bhtd(in[1], ATTN_F32, B, 1, S, E);
    a->w_q = attn_bhtd(in[2], ATTN_F32, 1, H, D, E);
    a->w_k = attn_bhtd(in[3], ATTN_F32, 1, HK, D, E);
    a->w_v = attn_bhtd(in[4], ATTN_F32, 1, HK, DV, E);
    a->b_q = attn_bhtd(in[5], ATTN_F32, 1, H, 1, D);
    a->b_k = attn_bhtd(in[6], ATTN_F32, 1, HK, 1, D);
    a->b_v = attn_bhtd(in[7], ATTN_F32, 1, HK, 1, DV);
    a->w_o = attn_bhtd(in[7] + E, ATTN_F32, 1, 1, E, H * DV);
    a->b_o = attn_bhtd(in[6] + E, ATTN_F32, 1, 1, 1, E);
    a->out = attn_bhtd(got.a, ATTN_F32, B, 1, T, E);
    a->attention = &attention;
    a->output_dropout = 0.5;
    a->output_dropout_seed = 99;
}

static attn_status call_mha(const void *s, attn_error *err)
{
    return attn_mha_forward(NULL, s, err);
}

static attn_status call_module(const void *s, attn_error *err)
{
    attn_mha *module;
    attn_status status = attn_mha_create(NULL, s, &module, err);
    if (status == ATTN_OK)
        status = attn_mha_run(NULL, module, s, err);
    attn_mha_destroy(module);
    return status;
}

/* Of multi-head attention's own arguments. */
static attn_status call_with_attention(const void *s, attn_error *err)
{
    attn_mha_args a;
    mha_set(&a, 0);
    a.attention = s;
    return attn_mha_forward(NULL, &a, err);
}

static void mha_grads_set(void *s, int variant)
{
    attn_mha_grads *g = s;
    (void)variant;
    mha_grads_defaults(s);
    g->dout = attn_bhtd(in[5], ATTN_F32, B, 1, T, E);
    g->dx = attn_bhtd(got.a, ATTN_F32, B, 1, T, E);
    g->dw_v = attn_bhtd(got.b, ATTN_F32, 1, HK, DV, E);
    dmask = attn_bhtd(got.d, ATTN_F32, 1, 1, T, S);
    g->dmask = &dmask;
    g->dalibi_slopes = got.sums[0];
    g->dsink_logits = got.sums[1];
}

static attn_status call_mha_backward(const void *s, attn_error *err)
{
    attn_mha_grads g;
    mha_grads_set(&g, 0);
    g.dmask = NULL; /* whether there are a mask, slopes and sinks is what is tried */
    g.dalibi_slopes = g.dsink_logits = NULL;
    return attn_mha_backward(NULL, s, &g, err);
}

static attn_status call_with_mha_grads(const void *s, attn_error *err)
{
    attn_mha_args a;
    mha_set(&a, 0);
    return attn_mha_backward(NULL, &a, s, err);
}

/* --------------------------------------------------------------------------- attn_adamw_options */

static const size_t adamw_members[] = {
#define M(name) offsetof(attn_adamw_options, name)
    M(lr), M(beta1), M(beta2), M(eps), M(weight_decay)
#undef M
};

static void adamw_defaults(void *s)
{
    *(attn_adamw_options *)s =
        (attn_adamw_options){sizeof(attn_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 1e-2};
}

static void adamw_set(void *s, int variant)
{
    (void)variant;
    *(attn_adamw_options *)s =
        (attn_adamw_options){sizeof(attn_adamw_options), 0.5, 0.8, 0.7, 0.25, 0.125};
}

static attn_status call_adamw(const void *s, attn_error *err)
{
    float state[3][8];
    memcpy(state[0], in[0], sizeof state[0]);
    memset(state[1], 0, sizeof state[1] * 2);
    const attn_tensor grad = attn_matrix(in[1], ATTN_F32, 1, 8);
    attn_tensor t[3];
    for (int i = 0; i < 3; i++)
        t[i] = attn_matrix(state[i], ATTN_F32, 1, 8);
    const attn_status status = attn_adamw_step(NULL, s, 2, &t[0], &grad, &t[1], &t[2], err);
    if (status == ATTN_OK)
        memcpy(got.a, state, sizeof state);
    return status;
}

/* --------------------------------------------------------------------------------- the product */

#define SUBJECT(call, of, type, first, variants, each, set, function)                              \
    {                                                                                              \
#type ", " call, sizeof(type), offsetof(type, first), of##_members, COUNT(of##_members),   \
            variants, each, of##_defaults, set, function                                           \
    }
static const subject subjects[] = {
    SUBJECT("forward", sdpa, attn_sdpa_args, scale, 3, true, sdpa_set, call_forward),
    SUBJECT("plan", sdpa, attn_sdpa_args, scale, 3, false, sdpa_set, call_plan),
    SUBJECT("backward", sdpa, attn_sdpa_args, scale, 2, false, derivative_set, call_backward),
    SUBJECT("jvp", sdpa, attn_sdpa_args, scale, 2, false, derivative_set, call_jvp),
    SUBJECT("backward", grads, attn_sdpa_grads, dmask, 1, true, grads_set, call_with_grads),
    SUBJECT("plan", grads, attn_sdpa_grads, dmask, 1, false, grads_set, call_backward_plan),
    SUBJECT("jvp", tangents, attn_sdpa_tangents, tlse, 1, true, tangents_set, call_with_tangents),
    SUBJECT("mha", sdpa, attn_sdpa_args, scale, 2, false, sdpa_set, call_with_attention),
    SUBJECT("forward", mha, attn_mha_args, attention, 2, true, mha_set, call_mha),
    SUBJECT("run", mha, attn_mha_args, attention, 2, false, mha_set, call_module),
    SUBJECT("backward", mha, attn_mha_args, attention, 2, false, mha_set, call_mha_backward),
    SUBJECT("backward", mha_grads, attn_mha_grads, dmask, 1, true, mha_grads_set,
            call_with_mha_grads),
    SUBJECT("create", context, attn_context_options, threads, 1, true, context_set, call_context),
    SUBJECT("create", cache, attn_cache_options, page_keys, 1, true, cache_set, call_cache),
    SUBJECT("begin", pieces, attn_pieces_options, q_positions, 1, true, pieces_set, call_pieces),
    SUBJECT("backward", pieces_backward, attn_pieces_options, q_positions, 1, true,
            pieces_backward_set, call_pieces_backward),
    SUBJECT("step", adamw, attn_adamw_options, lr, 1, true, adamw_set, call_adamw),
};

#endif
