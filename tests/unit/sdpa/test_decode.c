/* Decoding gives the bits of prefill.
 *
 * labels: threads
 *
 * One call over T queries gives the expected bits. Each query is then computed again alone, in
 * groups of three, with its key/value head's queries in one tile or by itself, and by 1, 2, 3 and 7
 * threads that share the keys of one query. So the kernels with keys in their lanes, heads packed
 * into lanes, work cut along the keys, and the short path for one block of keys must all agree with
 * full tiles. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_tensor.h"
#include "ref/attn_ref.h"
#include "support/same_elements.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(EMULATED)
#define ROUNDS 8
#else
#define ROUNDS 60
#endif

enum { THREADS = 4 };
static const int thread_counts[THREADS] = {1, 2, 3, 7};

static uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}
static int64_t pick(int64_t n) { return (int64_t)(draw() % (uint64_t)n); }
static int64_t one_of(const int64_t *list, int64_t n) { return list[pick(n)]; }
static float normal(void)
{
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (float)(draw() >> 40) * 0x1p-24f - 0.5f;
    return sum * 1.4f;
}

typedef struct decode_case {
    int64_t B, H, Hk, T, S, D, Dv;
    attn_dtype dtype;
    char *q, *k, *v, *out, *again;
    float lse[512], lse_again[512], sinks[16];
    int64_t lengths[3];
    unsigned char *mask; /* [B,1,1,S] */
    attn_tensor mask_view, lse_view;
    attn_sdpa_args args;
    char what[160];
} decode_case;

static char *random_elements(attn_dtype dtype, int64_t n)
{
    const size_t size = attn_dtype_size(dtype);
    char *x = malloc((size_t)n * size + 1);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        const float f = normal();
        const double d = (double)f;
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        const uint16_t bf16 = (uint16_t)(bits >> 16);
        /* sign, exponent moved from bias 127 to 15, fraction cut: a normal binary16 or 0 */
        const int exponent = (int)(bits >> 23 & 0xff) - 112;
        const uint16_t f16 =
            (uint16_t)((bits >> 16 & 0x8000) |
                       (exponent < 1 ? 0 : (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff)));
        memcpy(x + (size_t)i * size,
               dtype == ATTN_F32    ? (const void *)&f
               : dtype == ATTN_F64  ? (const void *)&d
               : dtype == ATTN_BF16 ? (const void *)&bf16
                                    : (const void *)&f16,
               size);
    }
    return x;
}

/* Now and then an infinite value, most often of the last key: results are made another way then. */
static void spoil_a_value(decode_case *c)
{
    if (pick(5) || c->Dv == 0)
        return;
    const int64_t j = pick(3) ? c->S - 1 : pick(c->S), at = j * c->Dv + pick(c->Dv);
    const double d = (double)INFINITY;
    const float f = INFINITY;
    const uint16_t bf16 = 0x7f80, f16 = 0x7c00;
    const void *x = c->dtype == ATTN_F32    ? (const void *)&f
                    : c->dtype == ATTN_F64  ? (const void *)&d
                    : c->dtype == ATTN_BF16 ? (const void *)&bf16
                                            : (const void *)&f16;
    memcpy(c->v + (size_t)at * attn_dtype_size(c->dtype), x, attn_dtype_size(c->dtype));
}

/* Options that a decoder uses; offset: which query of the sequence comes first. */
static void draw_options(decode_case *c)
{
    attn_sdpa_args *a = &c->args;
    a->causal = pick(3) ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
    if (pick(3) == 0)
        a->window_left = pick(c->S + 1);
    if (pick(4) == 0)
        a->softcap = 20;
    if (pick(3) == 0) {
        for (int64_t h = 0; h < c->H; h++)
            c->sinks[h] = normal();
        a->sink_logits = c->sinks;
    }
    if (pick(3) == 0) {
        for (int64_t b = 0; b < c->B; b++)
            c->lengths[b] = pick(c->S + 1);
        a->key_lengths = c->lengths;
    }
    if (pick(3) == 0) {
        for (int64_t j = 0; j < c->B * c->S; j++)
            c->mask[j] = pick(5) != 0;
        const attn_tensor mask = {c->mask, ATTN_BOOL, {c->B, 1, 1, c->S}, {c->S, c->S, c->S, 1}};
        c->mask_view = mask;
        a->mask = &c->mask_view;
    }
    snprintf(c->what, sizeof c->what,
             "%s B%d H%d/%d T%d S%d D%d Dv%d causal%d window%d cap%g sinks%d lengths%d mask%d",
             attn_dtype_name(c->dtype), (int)c->B, (int)c->H, (int)c->Hk, (int)c->T, (int)c->S,
             (int)c->D, (int)c->Dv, a->causal, (int)a->window_left, a->softcap, !!a->sink_logits,
             !!a->key_lengths, !!a->mask);
}

static void make_case(decode_case *c)
{
    static const int64_t groups[] = {1, 1, 2, 3, 8, 16},
                         keys[] = {1, 5, 16, 33, 63, 64, 257, 700, 2900};
    static const int64_t widths[] = {1, 8, 16, 33, 64, 80, 128, 130};
    static const attn_dtype types[] = {ATTN_F32, ATTN_F32, ATTN_BF16, ATTN_F16, ATTN_F64};
    memset(c, 0, sizeof *c);
    c->Hk = 1 + pick(2);
    c->H = one_of(groups, 6);
    c->Hk = c->H * c->Hk > 16 ? 1 : c->Hk;
    c->H *= c->Hk;
    c->S = one_of(keys, 9) + pick(2);
    c->B = c->S > 500 ? 1 : 1 + pick(3);
    c->T = 1 + pick(5);
    c->D = one_of(widths, 8);
    c->Dv = pick(2) ? c->D : one_of(widths, 8);
    c->dtype = types[pick(5)];
    c->q = random_elements(c->dtype, c->B * c->H * c->T * c->D);
    c->k = random_elements(c->dtype, c->B * c->Hk * c->S * c->D);
    c->v = random_elements(c->dtype, c->B * c->Hk * c->S * c->Dv);
    spoil_a_value(c);
    c->out = random_elements(c->dtype, c->B * c->H * c->T * c->Dv);
    c->again = random_elements(c->dtype, c->B * c->H * c->T * c->Dv);
    c->mask = calloc((size_t)(c->B * c->S), 1);
    assert_non_null(c->mask);
    attn_sdpa_args_init(&c->args);
    c->args.q = attn_bhtd(c->q, c->dtype, c->B, c->H, c->T, c->D);
    c->args.k = attn_bhtd(c->k, c->dtype, c->B, c->Hk, c->S, c->D);
    c->args.v = attn_bhtd(c->v, c->dtype, c->B, c->Hk, c->S, c->Dv);
    c->args.out = attn_bhtd(c->out, c->dtype, c->B, c->H, c->T, c->Dv);
    c->lse_view = attn_bhtd(c->lse, ATTN_F32, c->B, c->H, c->T, 1);
    c->args.lse = &c->lse_view;
    draw_options(c);
}

static void free_case(decode_case *c)
{
    char *all[] = {c->q, c->k, c->v, c->out, c->again, (char *)c->mask};
    for (int i = 0; i < 6; i++)
        free(all[i]);
}

static void *element(const attn_tensor *t, int64_t h, int64_t i)
{
    return (char *)t->data +
           (h * t->stride[1] + i * t->stride[2]) * (int64_t)attn_dtype_size(t->dtype);
}

/* Queries i0 .. i0+n-1 of heads h0 .. h0+heads-1 in a call of their own, written to `again`. The
 * offset of the causal rule and of the window is what it was: that of the whole call. */
static void part(attn_context *ctx, const decode_case *c, int64_t h0, int64_t heads, int64_t i0,
                 int64_t n)
{
    for (int64_t b = 0; b < c->B; b++) {
        attn_sdpa_args a = c->args;
        attn_tensor lse = c->lse_view, mask = c->mask_view, out = c->args.out;
        const int64_t G = c->H / c->Hk, S = c->args.key_lengths ? c->lengths[b] : c->S;
        lse.data = (void *)(uintptr_t)c->lse_again;
        out.data = c->again;
        attn_tensor *const rows[] = {&a.q, &out, &lse}, *const keys[] = {&a.k, &a.v};
        for (int t = 0; t < 3; t++) {
            rows[t]->data = (char *)element(rows[t], h0, i0) +
                            b * rows[t]->stride[0] * (int64_t)attn_dtype_size(rows[t]->dtype);
            rows[t]->shape[0] = 1, rows[t]->shape[1] = heads, rows[t]->shape[2] = n;
        }
        for (int t = 0; t < 2; t++) {
            keys[t]->data = (char *)element(keys[t], h0 / G, 0) +
                            b * keys[t]->stride[0] * (int64_t)attn_dtype_size(keys[t]->dtype);
            keys[t]->shape[0] = 1, keys[t]->shape[1] = heads < G ? 1 : heads / G;
        }
        mask.data = c->mask + b * c->S;
        mask.shape[0] = 1;
        a.out = out;
        a.lse = &lse;
        a.mask = c->args.mask ? &mask : NULL;
        a.key_lengths = c->args.key_lengths ? &c->lengths[b] : NULL;
        a.sink_logits = c->args.sink_logits ? c->sinks + h0 : NULL;
        if (a.causal == ATTN_CAUSAL_BOTTOM_RIGHT) {
            a.causal = ATTN_CAUSAL_OFFSET;
            a.causal_offset = S - c->T + i0;
        }
        attn_error err = {0};
        if (attn_sdpa_forward(ctx, &a, &err) != ATTN_OK)
            fail_msg("%s: %s", c->what, err.message);
    }
}

static void expect_same(const decode_case *c, const char *how, const char *isa, int threads)
{
    describe_case("%s, %s, %d threads, %s", c->what, isa, threads, how);
    expect_same_elements("out", c->dtype, c->again, c->out, c->B * c->H * c->T * c->Dv);
    expect_same_elements("lse", ATTN_F32, c->lse_again, c->lse, c->B * c->H * c->T);
}

static void forget(decode_case *c)
{
    memset(c->again, 0xA5, (size_t)(c->B * c->H * c->T * c->Dv) * attn_dtype_size(c->dtype));
    memset(c->lse_again, 0xA5, sizeof c->lse_again);
}

/* All queries at once, and their scores: then no task is too short to go all the way. */
static void with_scores(attn_context *ctx, const decode_case *c)
{
    attn_sdpa_args a = c->args;
    attn_tensor lse = c->lse_view;
    float *x = malloc((size_t)(c->B * c->H * c->T * c->S) * sizeof *x);
    assert_non_null(x);
    const attn_tensor scores = attn_bhtd(x, ATTN_F32, c->B, c->H, c->T, c->S);
    lse.data = (void *)(uintptr_t)c->lse_again;
    a.out.data = c->again, a.lse = &lse, a.scores = &scores;
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
    free(x);
}

static void decode_is_prefill(decode_case *c, const char *isa)
{
    for (int t = 0; t < THREADS; t++) {
        attn_context *ctx = NULL;
        attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
        options.isa = isa;
        options.threads = thread_counts[t];
        assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
        const int64_t G = c->H / c->Hk;
        if (t == 0)
            assert_int_equal(attn_sdpa_forward(ctx, &c->args, NULL), ATTN_OK);
        /* without a causal rule a window counts from query 0: only all queries at once say it */
        const bool together = c->args.causal == ATTN_CAUSAL_NONE && c->args.window_left >= 0;
        forget(c);
        for (int64_t i = 0; i < c->T; i += together ? c->T : 1)
            part(ctx, c, 0, c->H, i, together ? c->T : 1);
        expect_same(c, "one query at a time", isa, thread_counts[t]);
        forget(c);
        for (int64_t h = 0; h < c->H; h++)
            part(ctx, c, h, 1, 0, c->T);
        expect_same(c, "one head at a time", isa, thread_counts[t]);
        forget(c);
        for (int64_t h = 0; h < c->H; h += G)
            for (int64_t i = 0; i < c->T; i += together ? c->T : 3)
                part(ctx, c, h, G, i, together ? c->T : i + 3 < c->T ? 3 : c->T - i);
        expect_same(c, "three queries at a time", isa, thread_counts[t]);
        forget(c);
        with_scores(ctx, c);
        expect_same(c, "with scores", isa, thread_counts[t]);
        attn_context_destroy(ctx);
    }
}

static void test_decode_is_prefill(void **unused)
{
    (void)unused;
    for (int round = 0; round < ROUNDS; round++)
        for (int isa = 0; attn_isa(isa).name; isa++) {
            if (!attn_isa(isa).usable)
                continue;
            decode_case c;
            make_case(&c);
            decode_is_prefill(&c, attn_isa(isa).name);
            free_case(&c);
        }
}

/* What a cache has not filled yet may hold anything: it lies past key_lengths. */
static void test_unused_keys_change_no_bit(void **unused)
{
    (void)unused;
    enum { H = 8, S = 600, D = 64, SEEN = 301 };
    float *q = (float *)random_elements(ATTN_F32, H * D);
    float *k = (float *)random_elements(ATTN_F32, S * D);
    float *v = (float *)random_elements(ATTN_F32, S * D);
    static float out[H * D], again[H * D];
    const int64_t seen = SEEN;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, 1, H, 1, D);
    a.k = attn_bhtd(k, ATTN_F32, 1, 1, S, D);
    a.v = attn_bhtd(v, ATTN_F32, 1, 1, S, D);
    a.out = attn_bhtd(out, ATTN_F32, 1, H, 1, D);
    a.key_lengths = &seen;
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    static const float wild[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (int i = SEEN * D; i < S * D; i++)
        k[i] = wild[i % 4], v[i] = wild[i / 3 % 4];
    a.out.data = again;
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    assert_same_array(again, out, sizeof out);
    free(q), free(k), free(v);
}

/* Values without columns: there is nothing to write, `out` may be NULL, and its strides are not to
 * be added to it (a fault that the sanitizers see). */
static void test_no_columns_no_address(void **unused)
{
    (void)unused;
    enum { T = 3, S = 20, D = 16 };
    float *q = (float *)random_elements(ATTN_F32, T * D);
    float *k = (float *)random_elements(ATTN_F32, S * D);
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int n = 1; n <= T && attn_isa(isa).usable; n++) {
            attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
            options.isa = attn_isa(isa).name;
            attn_context *ctx = NULL;
            assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
            double lse[2][T];
            float column[S] = {0}, out[T];
            for (int Dv = 0; Dv < 2; Dv++) {
                attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
                attn_tensor l = attn_bhtd(lse[Dv], ATTN_F64, 1, 1, n, 1);
                a.q = attn_bhtd(q, ATTN_F32, 1, 1, n, D);
                a.k = attn_bhtd(k, ATTN_F32, 1, 1, S, D);
                a.v = attn_bhtd(Dv ? column : NULL, ATTN_F32, 1, 1, S, Dv);
                a.out = attn_bhtd(Dv ? out : NULL, ATTN_F32, 1, 1, n, Dv);
                a.out.stride[2] = Dv ? 1 : -7;
                a.lse = &l;
                assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
            }
            describe_case("%s, %d queries", attn_isa(isa).name, n);
            assert_same_array(lse[0], lse[1], (size_t)n * sizeof *lse[0]);
            attn_context_destroy(ctx);
        }
    free(q), free(k);
}

/* Rows that were cut off a cache lie in the same lines as those that are left, and are larger than
 * all of them by far: they still influence no result, whatever the length. */
static void test_rows_cut_off_do_not_count(void **state_)
{
    (void)state_;
    enum { MOST = 600, WIDEST = 128 };
    static const int64_t lengths[] = {1, 15, 33, 257, 300, 479, 480, 512};
    static const int64_t widths[] = {40, 64, 128};
    static float q[WIDEST], k[MOST * WIDEST], v[MOST * WIDEST], out[WIDEST], want[WIDEST];
    for (int index = 0; attn_isa(index).name; index++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
                const int64_t D = widths[w], S = lengths[n];
                const char *isa = attn_isa(index).name;
                if (!attn_isa(index).usable)
                    continue;
                attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
                attn_cache_options c = ATTN_CACHE_OPTIONS_INIT;
                attn_context *ctx;
                attn_cache *cache;
                o.threads = 1, o.isa = isa;
                c.B = c.Hk = 1, c.D = c.Dv = D, c.dtype = ATTN_F32, c.max_keys = MOST;
                assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
                assert_int_equal(attn_cache_create(&c, &cache, NULL), ATTN_OK);
                for (int64_t e = 0; e < D; e++)
                    q[e] = 1 + normal();
                for (int64_t e = 0; e < MOST * D; e++) {
                    k[e] = e < S * D ? normal() : 1000 * q[e % D];
                    v[e] = e < S * D ? normal() : 1e30f;
                }
                attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
                a.q = attn_matrix(q, ATTN_F32, 1, D);
                a.k = attn_matrix(k, ATTN_F32, S, D);
                a.v = attn_matrix(v, ATTN_F32, S, D);
                a.out = attn_matrix(want, ATTN_F32, 1, D);
                assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
                const attn_tensor all_k = attn_matrix(k, ATTN_F32, MOST, D);
                const attn_tensor all_v = attn_matrix(v, ATTN_F32, MOST, D);
                assert_int_equal(attn_cache_append(cache, 0, &all_k, &all_v, NULL), ATTN_OK);
                assert_int_equal(attn_cache_truncate(cache, 0, S, NULL), ATTN_OK);
                a.k = a.v = (attn_tensor){0};
                a.cache = cache;
                a.out = attn_matrix(out, ATTN_F32, 1, D);
                assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
                describe_case("%s, D = %d, %d keys", isa, (int)D, (int)S);
                assert_same_array(out, want, (size_t)D * sizeof *out);
                attn_cache_destroy(cache);
                attn_context_destroy(ctx);
            }
}

/* Scores of a block that are far above those of all blocks before it raise the maximum, so that the
 * sums are rescaled. If the keys are in a cache, the values of this block may be added while the
 * scores of the next chunk are computed. The scores must keep their maximum. */
static void test_each_block_can_raise_the_maximum(void **state_)
{
    (void)state_;
    enum { S = 1000, BLOCK = 64, WIDEST = 128, CALLS = ROUNDS < 60 ? 6 : 20 };
    static const int64_t widths[] = {40, 64, 128};
    static float q[WIDEST], k[S * WIDEST], v[S * WIDEST], out[WIDEST], plain[WIDEST];
    static double want[WIDEST];
    for (int index = 0; attn_isa(index).name; index++)
        for (int round = 0; round < CALLS && attn_isa(index).usable; round++) {
            const int64_t D = one_of(widths, 3);
            attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
            attn_cache_options c = ATTN_CACHE_OPTIONS_INIT;
            attn_context *ctx;
            attn_cache *cache;
            o.threads = 1, o.isa = attn_isa(index).name;
            c.B = c.Hk = 1, c.D = c.Dv = D, c.dtype = ATTN_F32, c.max_keys = S;
            assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
            assert_int_equal(attn_cache_create(&c, &cache, NULL), ATTN_OK);
            float level = 0; /* of a block's scores: they rise from -400 */
            for (int64_t e = 0; e < D; e++)
                q[e] = e == 0;
            for (int64_t e = 0; e < S * D; e++) {
                if (e % (BLOCK * D) == 0)
                    level = e == 0 ? -400 : level + (float)(pick(3) * 25);
                k[e] = normal() + (e % D == 0 ? level : 0);
                v[e] = normal();
            }
            attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
            a.scale = 1;
            a.q = attn_matrix(q, ATTN_F32, 1, D);
            a.k = attn_matrix(k, ATTN_F32, S, D);
            a.v = attn_matrix(v, ATTN_F32, S, D);
            a.out = attn_matrix(plain, ATTN_F32, 1, D);
            assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
            assert_true(ref_sdpa_forward(&a, &(ref_result){.out = want}));
            assert_int_equal(attn_cache_append(cache, 0, &a.k, &a.v, NULL), ATTN_OK);
            a.k = a.v = (attn_tensor){0};
            a.cache = cache;
            a.out = attn_matrix(out, ATTN_F32, 1, D);
            assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
            describe_case("%s, D = %d, round %d", o.isa, (int)D, round);
            assert_same_array(out, plain, (size_t)D * sizeof *out);
            for (int64_t e = 0; e < D; e++)
                assert_true(fabs((double)out[e] - want[e]) < 1e-4);
            attn_cache_destroy(cache);
            attn_context_destroy(ctx);
        }
}

/* A bool mask hides whole blocks between visible ones. A cache's pages lie in another order, so
 * that the visible blocks are neighbours in memory; or all values have one address. */
static void expect_hidden_blocks(attn_context *ctx, attn_dtype dtype, int64_t T, int64_t D)
{
    enum { S = 192, MOST = 64 };
    static double q[2 * 2 * MOST], k[S * MOST], v[S * MOST], out[2][2 * 2 * MOST], want[2 * MOST];
    static unsigned char mask[S];
    double lse[2][4];
    attn_cache_options c = ATTN_CACHE_OPTIONS_INIT;
    attn_cache *cache;
    c.B = 2, c.Hk = 1, c.D = c.Dv = D, c.dtype = dtype;
    c.max_keys = S, c.page_keys = 64, c.pages = 3;
    assert_int_equal(attn_cache_create(&c, &cache, NULL), ATTN_OK);
    attn_tensor views[] = {attn_bhtd(q, dtype, 2, 1, T, D), attn_bhtd(k, dtype, 1, 1, S, D),
                           attn_bhtd(v, dtype, 1, 1, S, D)};
    for (int n = 0; n < 3; n++)
        for (int64_t b = 0; b < views[n].shape[0]; b++)
            for (int64_t j = 0; j < views[n].shape[2]; j++)
                for (int64_t e = 0; e < D; e++)
                    check_store(&views[n], b, 0, j, e, n ? (double)normal() : (double)(e == 0));
    for (int j = 0; j < S; j++)
        mask[j] = j / 64 != 1;
    attn_tensor part[2][2]; /* keys 0..63 and 64..191: keys and values */
    for (int n = 0; n < 4; n++) {
        part[n / 2][n % 2] = views[1 + n % 2];
        part[n / 2][n % 2].shape[2] = n / 2 ? 128 : 64;
        part[n / 2][n % 2].data = element(&views[1 + n % 2], 0, n / 2 * 64);
    }
    /* Sequence 1 takes the first page and returns it. Sequence 0 gets pages 1, 0 and 2. */
    assert_int_equal(attn_cache_append(cache, 1, &part[0][0], &part[0][1], NULL), ATTN_OK);
    assert_int_equal(attn_cache_append(cache, 0, &part[0][0], &part[0][1], NULL), ATTN_OK);
    assert_int_equal(attn_cache_truncate(cache, 1, 0, NULL), ATTN_OK);
    assert_int_equal(attn_cache_append(cache, 0, &part[1][0], &part[1][1], NULL), ATTN_OK);
    const attn_tensor hide = {mask, ATTN_BOOL, {1, 1, 1, S}, {S, S, S, 1}};
    for (int same_value = 0; same_value < 2; same_value++) {
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.mask = &hide;
        a.q = views[0], a.k = views[1], a.v = views[2], a.q.shape[0] = 1;
        a.v.stride[2] = same_value ? 0 : a.v.stride[2];
        a.out = attn_bhtd(out[0], ATTN_F64, 1, 1, T, D);
        attn_tensor l = attn_bhtd(lse[0], ATTN_F64, 1, 1, T, 1);
        a.lse = &l;
        assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
        double want_lse[2];
        assert_true(ref_sdpa_forward(&a, &(ref_result){.out = want, .lse = want_lse}));
        for (int64_t e = 0; e < T * D; e++)
            assert_true(fabs(out[0][e] - want[e]) < 1e-2);
        for (int64_t i = 0; i < T; i++)
            assert_true(fabs(lse[0][i] - want_lse[i]) < 1e-2);
        if (same_value)
            continue;
        a.q.shape[0] = 2, a.k = a.v = (attn_tensor){0}, a.cache = cache;
        a.out = attn_bhtd(out[1], ATTN_F64, 2, 1, T, D);
        l = attn_bhtd(lse[1], ATTN_F64, 2, 1, T, 1);
        assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
        assert_same_array(out[1], out[0], (size_t)(T * D) * sizeof(double));
        assert_same_array(lse[1], lse[0], (size_t)T * sizeof(double));
    }
    attn_cache_destroy(cache);
}

static void test_hidden_blocks_between_visible_ones(void **state_)
{
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    (void)state_;
    for (int index = 0; attn_isa(index).name; index++)
        for (int n = 0; n < 16 && attn_isa(index).usable; n++) {
            const int64_t T = 1 + n % 2, D = n / 2 % 2 ? 64 : 4;
            attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
            attn_context *ctx;
            o.threads = 1, o.isa = attn_isa(index).name;
            assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
            describe_case("%s, %s, T=%d D=%d", o.isa, attn_dtype_name(dtypes[n / 4]), (int)T,
                          (int)D);
            expect_hidden_blocks(ctx, dtypes[n / 4], T, D);
            attn_context_destroy(ctx);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_is_prefill),
        cmocka_unit_test(test_unused_keys_change_no_bit),
        cmocka_unit_test(test_no_columns_no_address),
        cmocka_unit_test(test_rows_cut_off_do_not_count),
        cmocka_unit_test(test_each_block_can_raise_the_maximum),
        cmocka_unit_test(test_hidden_blocks_between_visible_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
