/* Scratch memory is linear in T and S for any options.
 *
 * Compares what the plans of the forward and of the backward request at 16 times the queries and
 * keys. A call allocates what its plan says. Forward mode allocates the same for any T and S. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/counted_memory.h"
#include "support/property.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 10
#else
#define ROUNDS 150
#endif
#define MIB 1048576.0
#define TIMES 16

/* --------------------------------------------------------------------- an allocator that counts */

static attn_context *counting_context(const check_case *c, int threads, counted_memory *l)
{
    attn_context_options options = counted_options(l, threads);
    attn_context *ctx = NULL;
    options.isa = attn_isa(c->isa).name;
    *l = (counted_memory){0};
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    l->most = l->bytes; /* the context itself is not the call's */
    return ctx;
}

/* ------------------------------------------------------------------------- a call of any length */

/* Plans look at no element, so one byte stands for all tensors. */
static char nothing;

typedef struct problem {
    check_call call;
    attn_sdpa_args args;
    attn_sdpa_grads grads;
    attn_tensor lse, dlse, mask, dmask, scores;
    int64_t lengths[CHECK_MAX_BATCH];
    int64_t cu_q[CHECK_MAX_SEQUENCES + 1], cu_k[CHECK_MAX_SEQUENCES + 1];
    double dalibi[CHECK_MAX_HEADS], dsink[CHECK_MAX_HEADS];
} problem;

static attn_tensor dense(attn_dtype dtype, const int64_t shape[4])
{
    return attn_bhtd(&nothing, dtype, shape[0], shape[1], shape[2], shape[3]);
}

/* A tensor of as many rows; `strided`: [B,T,H,D] in memory. */
static attn_tensor longer(const attn_tensor *t, int64_t rows, bool strided)
{
    return strided ? attn_bthd(&nothing, t->dtype, t->shape[0], rows, t->shape[1], t->shape[3])
                   : attn_bhtd(&nothing, t->dtype, t->shape[0], t->shape[1], rows, t->shape[3]);
}

/* The case's random options with T queries and S keys. */
static void stretch(problem *p, int64_t T, int64_t S, bool strided)
{
    const attn_sdpa_args *from = &p->call.args;
    attn_sdpa_args *a = &p->args;
    *a = *from;
    const int64_t rows[4] = {a->q.shape[0], a->q.shape[1], T, 1};
    const int64_t pairs[4] = {a->q.shape[0], a->q.shape[1], T, S};
    a->q = longer(&from->q, T, strided), a->out = longer(&from->out, T, strided);
    a->k = longer(&from->k, S, strided), a->v = longer(&from->v, S, strided);
    p->lse = dense(ATTN_F64, rows), p->dlse = dense(ATTN_F32, rows);
    p->scores = dense(ATTN_F16, pairs);
    a->lse = &p->lse;
    a->scores = from->scores ? &p->scores : NULL;
    for (int64_t b = 0; from->key_lengths && b < a->q.shape[0]; b++)
        p->lengths[b] = S - b * S / 5;
    a->key_lengths = from->key_lengths ? p->lengths : NULL;
    for (int64_t n = 0; from->sequences && n <= from->sequences; n++) {
        p->cu_q[n] = from->cu_seqlens_q[n] * T / from->q.shape[2];
        p->cu_k[n] = from->cu_seqlens_k[n] * S / from->k.shape[2];
    }
    if (from->cu_seqlens_q)
        a->cu_seqlens_q = p->cu_q, a->cu_seqlens_k = p->cu_k;
    if (from->mask) {
        int64_t shape[4];
        for (int d = 0; d < 4; d++)
            shape[d] = from->mask->shape[d] == 1 ? 1 : pairs[d];
        p->mask = dense(from->mask->dtype, shape);
        p->dmask = dense(ATTN_F32, shape);
        a->mask = &p->mask;
    }
}

/* Which gradients are wanted: bits of `wanted`, one for each of the seven. */
static void want(problem *p, unsigned wanted, bool strided)
{
    const attn_sdpa_args *a = &p->args;
    attn_sdpa_grads *g = &p->grads;
    attn_sdpa_grads_init(g);
    g->dout = longer(&a->out, a->out.shape[2], strided);
    g->dout.dtype = wanted & 1 ? ATTN_F32 : a->q.dtype;
    g->dlse = wanted & 2 ? &p->dlse : NULL;
    if (wanted & 4)
        g->dq = longer(&a->q, a->q.shape[2], strided);
    if (wanted & 8)
        g->dk = longer(&a->k, a->k.shape[2], strided);
    if (wanted & 16)
        g->dv = longer(&a->v, a->v.shape[2], strided);
    g->dmask = wanted & 32 && a->mask && a->mask->dtype != ATTN_BOOL ? &p->dmask : NULL;
    g->dalibi_slopes = wanted & 64 && a->alibi_slopes ? p->dalibi : NULL;
    g->dsink_logits = wanted & 128 && a->sink_logits ? p->dsink : NULL;
}

/* ----------------------------------------------------------------------------------- properties */

static bool usable(const attn_sdpa_args *a)
{
    return check_count(&a->q) > 0 && check_count(&a->v) > 0;
}

static double scratch_of(check_case *c, const problem *p, bool backward, int *threads)
{
    attn_plan_info info = {.struct_size = sizeof info};
    attn_error err = {0};
    attn_context *ctx = check_context(c, p->call.threads);
    if (backward ? attn_sdpa_backward_plan(ctx, &p->args, &p->grads, &info, &err)
                 : attn_sdpa_plan(ctx, &p->args, &info, &err))
        check_fail(c, "%s", err.message);
    *threads = info.threads;
    return (double)info.scratch_bytes;
}

/* 16 times the queries and keys: 16 times the scratch at most, and what a few tiles more take. One
 * byte for every hundredth pair of a query and a key would already be too much. */
static void grows_with_the_length(check_case *c)
{
    problem p;
    do {
        check_call_random(c, &p.call, 3e4);
    } while (!usable(&p.call.args));
    /* So many that each sequence has more than a chunk of keys: totals are kept from there on. A
     * random call has at most 513 keys, so one of them becomes at least 272. */
    const int64_t T = check_between(c, 140000, 280000), S = check_between(c, 140000, 280000);
    const bool strided = check_chance(c, 50);
    const unsigned wanted = (unsigned)check_between(c, 0, 255) | 4U << check_between(c, 0, 2);
    for (int backward = 0; backward < 2; backward++) {
        int few, many;
        stretch(&p, T, S, strided), want(&p, wanted, strided);
        const double once = scratch_of(c, &p, backward, &few);
        stretch(&p, TIMES * T, TIMES * S, strided), want(&p, wanted, strided);
        const double then = scratch_of(c, &p, backward, &many);
        if (then > TIMES * 1.1 * once * many / few + MIB)
            check_fail(c,
                       "%s, wanted %x: %.0f bytes for %lld queries and %lld keys, %.0f for %d "
                       "times as many",
                       backward ? "backward" : "forward", wanted, once, (long long)T, (long long)S,
                       then, TIMES);
    }
}

/* What a call allocates is what its plan asked for; nothing is left at the end. */
static void takes_what_was_planned(check_case *c)
{
    check_call call;
    do {
        check_call_random(c, &call, 2e5);
    } while (!usable(&call.args));
    attn_sdpa_args *a = &call.args;
    const int64_t rows[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
    check_tensor lse = check_tensor_new(c, ATTN_F64, rows, CHECK_DENSE);
    check_tensor dout = check_tensor_new(c, ATTN_F32, a->out.shape, CHECK_DENSE);
    check_tensor dq = check_tensor_new(c, ATTN_F32, a->q.shape, CHECK_LOOSE);
    check_tensor dk = check_tensor_new(c, ATTN_F64, a->k.shape, CHECK_LOOSE);
    check_tensor dv = check_tensor_new(c, ATTN_F32, a->v.shape, CHECK_LOOSE);
    check_call_fill(c, &dout, 1);
    a->lse = &lse.view;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = dout.view, g.dq = dq.view, g.dk = dk.view, g.dv = dv.view;
    for (int backward = 0; backward < 2; backward++) {
        counted_memory l;
        attn_context *ctx = counting_context(c, call.threads, &l);
        const size_t before = l.bytes;
        attn_plan_info info = {.struct_size = sizeof info};
        attn_error err = {0};
        if (backward ? attn_sdpa_backward_plan(ctx, a, &g, &info, &err) ||
                           attn_sdpa_backward(ctx, a, &g, &err)
                     : attn_sdpa_plan(ctx, a, &info, &err) || attn_sdpa_forward(ctx, a, &err))
            check_fail(c, "%s", err.message);
        /* A context keeps its scratch; it may take a page more than it needs. */
        if (l.most - before > info.scratch_bytes + 4096)
            check_fail(c, "%s took %zu bytes, want %zu as its plan says",
                       backward ? "backward" : "forward", l.most - before, info.scratch_bytes);
        attn_context_destroy(ctx);
        assert_int_equal(l.bytes, 0);
    }
}

/* What forward mode takes with n queries and keys of small random numbers. */
static size_t peak_of_jvp(check_case *c, const problem *p, int64_t n, int threads)
{
    problem at = *p;
    stretch(&at, n, n, false);
    attn_sdpa_args *a = &at.args;
    attn_sdpa_tangents x = ATTN_SDPA_TANGENTS_INIT;
    a->mask = NULL; /* dense masks would be most of this test's own memory */
    a->scores = NULL;
    attn_tensor *all[] = {&a->q, &a->k, &a->v, &a->out, &at.lse, &x.tq, &x.tk, &x.tv, &x.tout};
    x.tq = a->q, x.tk = a->k, x.tv = a->v, x.tout = a->out;
    void *memory[9];
    for (int i = 0; i < 9; i++) {
        const size_t count = (size_t)check_count(all[i]);
        all[i]->data = memory[i] = calloc(count + 1, attn_dtype_size(all[i]->dtype));
        assert_non_null(memory[i]);
    }
    counted_memory l;
    attn_error err = {0};
    attn_context *ctx = counting_context(c, threads, &l);
    const size_t before = l.bytes;
    if (attn_sdpa_jvp(ctx, a, &x, &err))
        check_fail(c, "%s", err.message);
    const size_t most = l.most - before;
    attn_context_destroy(ctx);
    for (int i = 0; i < 9; i++)
        free(memory[i]);
    return most;
}

/* Forward mode takes some tiles for each thread, whatever T and S are. */
static void forward_mode_takes_the_same(check_case *c)
{
    problem p;
    do {
        check_call_random(c, &p.call, 1e3);
    } while (!usable(&p.call.args) || p.call.args.q.shape[0] * p.call.args.q.shape[1] > 2);
    const int threads = (int)check_between(c, 1, 3);
    const size_t once = peak_of_jvp(c, &p, 512, threads);
    const size_t then = peak_of_jvp(c, &p, 2048, threads);
    const size_t tiles = (size_t)threads * 64 * 8 *
                         (size_t)(8 * (p.call.args.q.shape[3] + p.call.args.v.shape[3]) + 1024);
    if (once == 0 || then > once * (size_t)threads + 4096 || then > tiles)
        check_fail(c,
                   "jvp took %zu bytes for 512 queries and keys, %zu for 2048; %zu are some tiles",
                   once, then, tiles);
}

/* The keys and values of a cache: what a call asks for beyond them. */
static void from_a_cache(check_case *c)
{
    enum { D = 8, FEW = 2000 };
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64, ATTN_I8};
    const attn_dtype type = CHECK_PICK(c, types);
    const attn_dtype of_q = type == ATTN_I8 ? ATTN_F32 : type;
    double scratch[2];
    const int64_t T = check_between(c, 1, 100);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.causal = (attn_causal)check_between(c, 0, 2);
    a.softcap = check_chance(c, 30) ? 5 : 0;
    a.precision = check_chance(c, 30) ? ATTN_PRECISION_ACCURATE : ATTN_PRECISION_DEFAULT;
    check_describe(c, "cache of %s, T=%d", attn_dtype_name(type), (int)T);
    const int64_t page = check_chance(c, 50) ? 64 : 0;
    for (int i = 0; i < 2; i++) {
        const int64_t S = i ? (int64_t)TIMES * FEW : FEW;
        attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
        o.B = 1, o.Hk = 2, o.D = o.Dv = D, o.dtype = type, o.max_keys = S, o.page_keys = page;
        attn_cache *cache = NULL;
        float *zeros = calloc((size_t)S * 2 * D, sizeof *zeros);
        assert_int_equal(attn_cache_create(&o, &cache, NULL), ATTN_OK);
        const attn_tensor rows = attn_bhtd(zeros, ATTN_F32, 1, 2, S, D);
        assert_int_equal(attn_cache_append(cache, 0, &rows, &rows, NULL), ATTN_OK);
        free(zeros);
        a.cache = cache;
        a.q = attn_bhtd(&nothing, of_q, 1, 4, i ? T * TIMES : T, D), a.out = a.q;
        attn_plan_info info = {.struct_size = sizeof info};
        attn_error err = {0};
        if (attn_sdpa_plan(check_context(c, 3), &a, &info, &err))
            check_fail(c, "%s", err.message);
        scratch[i] = (double)info.scratch_bytes;
        attn_cache_destroy(cache);
    }
    if (scratch[1] > TIMES * 1.1 * scratch[0] + MIB)
        check_fail(c, "%.0f bytes, then %.0f", scratch[0], scratch[1]);
}

/* ------------------------------------------------------------------------------------ the tests */

static void test_plans(void **state)
{
    (void)state;
    run_property(grows_with_the_length, "plans", 2 * ROUNDS);
}

static void test_calls(void **state)
{
    (void)state;
    run_property(takes_what_was_planned, "calls", ROUNDS / 2);
}

static void test_jvp(void **state)
{
    (void)state;
    run_property(forward_mode_takes_the_same, "jvp", ROUNDS / 10);
}

static void test_cache(void **state)
{
    (void)state;
    run_property(from_a_cache, "cache", ROUNDS / 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_jvp),
        cmocka_unit_test(test_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
