/* Gradients of bf16 by the matrix unit and by dot products agree with the definition.
 *
 * Tests the products and the pass over a block's scores against plain loops in double; whole calls
 * against the definition; the fast pass against the others, to the bit; which gradients a NaN
 * reaches; and which calls take this path. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check.h"
#include "check/check_call.h"
#include "check/check_signals.h"
#include "core/internal.h"
#include "bf16/unit.h"
#include "bf16/tile_ops.h"
#include "support/test.h"

static int isa; /* index of the instruction set that is tested */
static const attni_bf16_unit *unit;

static double value(attni_bf16 h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return (double)f;
}

static void run_property(void (*property)(check_case *), const char *name, int rounds)
{
    check_run_state r = {.out = stderr, .buffers = check_buffers_create()};
    struct check_signals *before = check_signals_catch();
    for (int i = 0; i < rounds && r.failed < 3; i++)
        check_one(&r, name, property, isa, 64, 0, 5000 + (uint64_t)i, NULL);
    check_signals_restore(before);
    check_contexts_destroy(&r);
    check_buffers_destroy(r.buffers);
    assert_int_equal(r.failed, 0);
    assert_number(r.passed, >, 0);
}

/* ------------------------------------------------------------------------------------- products */

#define MOST 128

/* C (+)= A B of every shape and of strides wider than the operands; nothing beside C changes. */
static void products(check_case *c)
{
    static attni_bf16 a[MOST * (MOST + 8)] __attribute__((aligned(64)));
    static attni_bf16 b[MOST * (MOST + 32)] __attribute__((aligned(64)));
    static float sums[MOST * (MOST + 16)] __attribute__((aligned(64))), was[MOST * (MOST + 16)];
    static float factors[MOST] __attribute__((aligned(64)));
    const int m = 16 * (int)check_between(c, 1, MOST / 16);
    const int n = 32 * (int)check_between(c, 1, MOST / 32);
    const int runs = (int)check_between(c, 1, MOST / 32), K = 32 * runs;
    const bool add = check_chance(c, 60), scaled = add && check_chance(c, 50);
    const int row = K + (check_chance(c, 50) ? 8 : 0),
              pair = 2 * n + (check_chance(c, 50) ? 32 : 0);
    const int ldc = n + 16;
    check_describe(c, "m=%d n=%d runs=%d add=%d scaled=%d", m, n, runs, add, scaled);
    for (int i = 0; i < m * row; i++)
        a[i] = check_to_bf16(check_normal(c));
    for (int i = 0; i < K / 2 * pair; i++)
        b[i] = check_to_bf16(check_normal(c));
    for (int i = 0; i < m * ldc; i++)
        sums[i] = was[i] = (float)check_normal(c);
    for (int j = 0; j < n; j++)
        factors[j] = (float)check_normal(c);
    const attni_bf16_product x = {.a = a,
                                  .row = row,
                                  .rows16 = 16 * row,
                                  .inner_stride = 32,
                                  .b = b,
                                  .pair = pair,
                                  .columns16 = 32,
                                  .pairs16 = 16 * pair,
                                  .c = sums,
                                  .ldc = ldc,
                                  .m = m,
                                  .n = n,
                                  .inner_tiles = runs,
                                  .add = add,
                                  .factors = scaled ? factors : NULL};
    unit->begin();
    unit->multiply(&x);
    unit->end();
    for (int i = 0; i < m; i++)
        for (int j = 0; j < ldc; j++) {
            double sum = 0, size = 0, got = (double)sums[i * ldc + j];
            for (int k = 0; k < K && j < n; k++) {
                const double y = value(a[i * row + k]) * value(b[k / 2 * pair + 2 * j + k % 2]);
                sum += y, size += fabs(y);
            }
            if (scaled)
                sum *= (double)factors[j < n ? j : 0], size *= fabs((double)factors[j < n ? j : 0]);
            if (add || j >= n)
                sum += (double)was[i * ldc + j], size += fabs((double)was[i * ldc + j]);
            if (j < n ? !(fabs(got - sum) <= 0x1p-23 * (K / 2 + 3) * size) : got != sum)
                check_fail(c, "c[%d][%d] is %.9g, want %.9g", i, j, got, sum);
        }
}

static void test_products(void **state)
{
    (void)state;
    run_property(products, "products", 100);
}

/* ------------------------------------------------------------------- the pass over the scores */

#define KEYS 64
#define QUERIES 64

typedef struct block {
    float st[KEYS * QUERIES], dp[KEYS * QUERIES], lse[QUERIES], factor[QUERIES], delta[QUERIES];
    float largest[QUERIES];
} __attribute__((aligned(64))) block;

static void expect(check_case *c, const char *what, int j, int i, double got, double want,
                   double bound)
{
    if (isnan(want) ? !isnan(got) : !(fabs(got - want) <= bound))
        check_fail(c, "%s of key %d, query %d is %.9g, want %.9g", what, j, i, got, want);
}

/* A block of scores, and its weights and gradients by the definition. */
typedef struct scores_case {
    block x;
    int n, rows, nv, W;
    double size; /* of the gradients */
    double weight[KEYS][QUERIES], gradient[KEYS][QUERIES];
    double top[QUERIES]; /* the largest gradient of each query */
} scores_case;

static void make_scores(check_case *c, scores_case *s)
{
    block *x = &s->x;
    const int W = s->W;
    for (int i = 0; i < W; i++) {
        x->lse[i] = i < s->rows ? (float)(3 + check_normal(c)) : 0;
        x->factor[i] = i < s->rows ? 1 : 0;
        x->delta[i] = i < s->rows ? (float)(s->size * check_normal(c)) : 0;
        s->top[i] = 0;
    }
    for (int j = 0; j < KEYS; j++)
        for (int i = 0; i < W; i++) {
            float *st = &x->st[j * W + i], *g = &x->dp[j * W + i];
            double *weight = &s->weight[j][i], *gradient = &s->gradient[j][i];
            *st = check_chance(c, 10) ? -INFINITY : (float)(2 * check_normal(c));
            *g = (float)(s->size * check_normal(c));
            if (*st == -INFINITY || i >= s->rows) /* what is hidden, and what is not there */
                *g = check_chance(c, 50) ? NAN : *g;
            else if (check_chance(c, 1))
                *g = NAN;
            *weight = *gradient = 0;
            if (*st == -INFINITY || i >= s->rows || j >= s->n)
                continue;
            *weight = exp((double)*st - (double)x->lse[i]) * (double)x->factor[i];
            *gradient = *weight * ((double)*g - (double)x->delta[i]);
            s->top[i] = fmax(s->top[i], isnan(*gradient) ? 0 : fabs(*gradient));
        }
}

static void expect_scores(check_case *c, const scores_case *s)
{
    const block *x = &s->x;
    const int W = s->W;
    const attni_bf16 *st = (const attni_bf16 *)(const void *)x->st;
    const attni_bf16 *dp = (const attni_bf16 *)(const void *)x->dp;
    const double tiny = 0x1p-125;
    for (int i = 0; i < W; i++)
        expect(c, "the largest", 0, i, (double)x->largest[i],
               fmin(fmax(s->top[i], 0x1p-100), 0x1p100), 2e-6 * fmax(s->top[i], 0x1p-100));
    for (int j = 0; j < KEYS; j++)
        for (int i = 0; i < W; i++) {
            const attni_bf16 *at = st + (j * W / 32 + i / 32) * 64 + i % 32;
            const double w = s->weight[j][i], d = s->gradient[j][i], by = (double)x->largest[i];
            const double off = fabs(w) * 2e-6 * (fabs((double)x->delta[i]) + 6 * s->size);
            expect(c, "weight", j, i, value(at[0]), w, w * (0x1p-8 + 2e-6) + tiny);
            expect(c, "gradient", j, i, value(at[32]), d, fabs(d) * 0x1p-8 + 2 * off + tiny);
            expect(c, "pair", j, i, value(dp[j / 2 * 4 * W + 2 * i + j % 2]), d / by,
                   fabs(d / by) * 0x1p-8 + 2 * off / by + 0x1p-20 * fabs(d / by) + tiny);
        }
}

/* The same bits in two steps, by the operations of the kernel table. */
static void expect_same_in_two_steps(check_case *c, const block *x, block *y, attni_bf16_grads *g)
{
    const attni_kernels *kernels = attni_kernels_of(isa, 32);
    const int n = g->n, nv = g->nv, W = 16 * nv;
    kernels->weights_from_lse(y->st, y->st, y->lse, (double)g->c, n, nv);
    kernels->rescale(y->st, n, y->factor, nv);
    kernels->score_grads(y->dp, y->st, NULL, y->delta, n, nv);
    g->ready = true, g->st = y->st, g->dp = y->dp, g->largest = y->largest;
    attni_bf16_score_grads(g);
    bool same = memcmp(x->st, y->st, sizeof(float) * (size_t)(KEYS * W)) == 0 &&
                memcmp(x->largest, y->largest, sizeof(float) * (size_t)W) == 0;
    for (int j = 0; j < KEYS; j += 2)
        same &= memcmp(x->dp + j * W, y->dp + j * W, sizeof(float) * (size_t)W) == 0;
    if (!same)
        check_fail(c, "other bits in one step than in two");
}

static void scores(check_case *c)
{
    static scores_case s;
    static block y;
    s.nv = check_chance(c, 50) ? 2 : 4;
    s.W = 16 * s.nv;
    s.n = (int)check_between(c, 1, KEYS);
    s.rows = (int)check_between(c, 1, s.W);
    s.size = check_chance(c, 20) ? 1e-33 : 1;
    check_describe(c, "n=%d rows=%d W=%d size=%g", s.n, s.rows, s.W, s.size);
    make_scores(c, &s);
    y = s.x;
    attni_bf16_grads pass = {.n = s.n,
                             .rows = s.rows,
                             .nv = s.nv,
                             .st = s.x.st,
                             .dp = s.x.dp,
                             .lse = s.x.lse,
                             .factor = s.x.factor,
                             .delta = s.x.delta,
                             .c = (float)1.4426950408889634,
                             .largest = s.x.largest};
    attni_bf16_score_grads(&pass);
    expect_scores(c, &s);
    expect_same_in_two_steps(c, &s.x, &y, &pass);
}

static void test_scores(void **state)
{
    (void)state;
    run_property(scores, "scores", 300);
}

/* ---------------------------------------------------------------------------------- whole calls */

static void test_random_options(void **state)
{
    (void)state;
    run_property(check_backward, "backward", 500);
    assert_false(attni_emulated_configured());
}

typedef struct problem {
    attn_sdpa_args args;
    attn_sdpa_grads grads;
    check_tensor x[9]; /* q, k, v, out, dout, dq, dk, dv, lse */
} problem;

static void make(check_case *c, problem *p, int64_t T, int64_t S, int64_t D, int64_t Dv,
                 attn_dtype dtype, attn_dtype dout)
{
    const int64_t shapes[9][4] = {{1, 2, T, D},  {1, 1, S, D},  {1, 1, S, Dv},
                                  {1, 2, T, Dv}, {1, 2, T, Dv}, {1, 2, T, D},
                                  {1, 1, S, D},  {1, 1, S, Dv}, {1, 2, T, 1}};
    for (int i = 0; i < 9; i++) {
        const attn_dtype type = i < 4 ? dtype : i == 4 ? dout : ATTN_F32;
        p->x[i] = check_tensor_new(c, type, shapes[i], CHECK_DENSE);
        for (int64_t h = 0; h < shapes[i][1] && i < 5; h++)
            for (int64_t j = 0; j < shapes[i][2]; j++)
                for (int64_t d = 0; d < shapes[i][3]; d++)
                    check_store(&p->x[i].view, 0, h, j, d, check_normal(c));
    }
    attn_sdpa_args_init(&p->args);
    attn_sdpa_grads_init(&p->grads);
    p->args.q = p->x[0].view, p->args.k = p->x[1].view, p->args.v = p->x[2].view;
    p->args.out = p->x[3].view, p->args.lse = &p->x[8].view;
    p->grads.dout = p->x[4].view, p->grads.dq = p->x[5].view;
    p->grads.dk = p->x[6].view, p->grads.dv = p->x[7].view;
}

static void run(check_case *c, problem *p)
{
    attn_context *ctx = check_context(c, 1);
    if (attn_sdpa_forward(ctx, &p->args, NULL) ||
        attn_sdpa_backward(ctx, &p->args, &p->grads, NULL))
        check_fail(c, "refused");
}

static void copy_gradients(check_case *c, const problem *p, double *to[3])
{
    for (int i = 0; i < 3; i++)
        to[i] = check_tensor_copy(c, &p->x[5 + i].view);
}

static void expect_gradients(check_case *c, const problem *p, double *want[3])
{
    for (int i = 0; i < 3; i++) {
        check_difference d;
        const attn_tensor *t = &p->x[5 + i].view;
        if (!check_same(check_tensor_copy(c, t), want[i], check_count(t), CHECK_ZERO_SIGNED, &d))
            check_fail(c, "d%c %d is %.9g, want %.9g", "qkv"[i], (int)d.at, d.got, d.want);
    }
}

/* A float mask of zeros, whose gradient is asked for: then the pass over the scores is made in
 * steps. */
static void fast_and_aside(check_case *c)
{
    static const int64_t widths[] = {1, 16, 32, 40, 64, 80, 96, 128, 160};
    problem p;
    const int64_t T = check_between(c, 1, 200), S = check_between(c, 1, 400);
    const int64_t D = CHECK_PICK(c, widths), Dv = CHECK_PICK(c, widths), mask[4] = {1, 1, T, S};
    check_describe(c, "T=%d S=%d D=%d Dv=%d", (int)T, (int)S, (int)D, (int)Dv);
    make(c, &p, T, S, D, Dv, ATTN_BF16, ATTN_BF16);
    check_tensor zeros = check_tensor_new(c, ATTN_F32, mask, CHECK_DENSE);
    check_tensor dmask = check_tensor_new(c, ATTN_F32, mask, CHECK_DENSE);
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j < S; j++)
            check_store(&zeros.view, 0, 0, i, j, 0);
    p.args.mask = &zeros.view;
    run(c, &p);
    double *want[3];
    copy_gradients(c, &p, want);
    p.grads.dmask = &dmask.view;
    run(c, &p);
    expect_gradients(c, &p, want);
}

static void test_two_ways(void **state)
{
    (void)state;
    run_property(fast_and_aside, "two ways", 60);
}

/* Few queries are computed by the functions of the decode path, if keys and values are rows without
 * gaps between elements. Otherwise they are copied, and multiplied as tiles are. */
static void expect_tiles_agree(check_case *c, problem *p)
{
    double *want[3];
    run(c, p);
    copy_gradients(c, p, want);
    for (int i = 1; i < 3; i++) {
        attn_tensor *rows = i == 1 ? &p->args.k : &p->args.v;
        const int64_t S = rows->shape[2], width = rows->shape[3], shape[4] = {1, 1, S, 2 * width};
        const double *from = check_tensor_copy(c, rows);
        attn_tensor apart = check_tensor_new(c, ATTN_BF16, shape, CHECK_DENSE).view;
        apart.shape[3] = width, apart.stride[3] = 2;
        for (int64_t at = 0; at < S * width; at++)
            check_store(&apart, 0, 0, at / width, at % width, from[at]);
        *rows = apart;
    }
    run(c, p);
    expect_gradients(c, p, want);
}

static void few_and_tiles(check_case *c)
{
    static const int64_t widths[] = {1, 7, 16, 32, 40, 64, 90, 128, 160};
    problem p;
    const int64_t T = check_between(c, 1, unit->rows), S = check_between(c, 1, 600);
    const int64_t D = CHECK_PICK(c, widths), Dv = CHECK_PICK(c, widths);
    const bool bad = check_chance(c, 20);
    check_describe(c, "T=%d S=%d D=%d Dv=%d%s", (int)T, (int)S, (int)D, (int)Dv,
                   bad ? ", NaN" : "");
    make(c, &p, T, S, D, Dv, ATTN_BF16, ATTN_BF16);
    p.args.causal = check_chance(c, 50) ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
    p.args.softcap = check_chance(c, 30) ? 5 : 0;
    if (bad)
        check_store(&p.x[check_chance(c, 50) ? 0 : 4].view, 0, 1, T - 1, 0, NAN);
    expect_tiles_agree(c, &p);
}

static void test_few_queries(void **state)
{
    (void)state;
    run_property(few_and_tiles, "few queries", 200);
}

/* A key with an infinity is in the first chunk, which therefore takes products of tiles. The other
 * chunks take the functions of the decode path, and must not see that key. */
static void few_after_bad_key(check_case *c)
{
    static const int64_t widths[] = {16, 40, 64};
    problem p;
    const int64_t T = check_between(c, 1, unit->rows), S = check_between(c, 257, 1000);
    const int64_t D = CHECK_PICK(c, widths), j = check_between(c, 0, 255);
    check_describe(c, "T=%d S=%d D=%d: k[%d]", (int)T, (int)S, (int)D, (int)j);
    make(c, &p, T, S, D, D, ATTN_BF16, ATTN_BF16);
    p.args.softcap = 5; /* the score of the key is finite */
    check_store(&p.x[1].view, 0, 0, j, 0, INFINITY);
    expect_tiles_agree(c, &p);
}

static void test_few_queries_after_a_bad_key(void **state)
{
    (void)state;
    run_property(few_after_bad_key, "few queries after a bad key", 30);
}

/* A NaN in row i0 of q or dout, under a causal mask, reaches what that row's arithmetic reaches,
 * and changes no bit of other rows. */
static void bad_rows(check_case *c)
{
    static const int64_t widths[] = {1, 16, 40, 64, 96, 128};
    problem p;
    const int64_t T = check_between(c, 1, 200), D = CHECK_PICK(c, widths);
    const int64_t Dv = CHECK_PICK(c, widths), i0 = check_between(c, 0, T - 1);
    const int64_t h0 = check_between(c, 0, 1), d0 = check_between(c, 0, (D < Dv ? D : Dv) - 1);
    const bool in_q = check_chance(c, 50);
    check_describe(c, "T=%d D=%d Dv=%d: %s[%d,%d,%d]", (int)T, (int)D, (int)Dv, in_q ? "q" : "dout",
                   (int)h0, (int)i0, (int)d0);
    make(c, &p, T, T, D, Dv, ATTN_BF16, ATTN_BF16);
    p.args.causal = ATTN_CAUSAL_TOP_LEFT;
    run(c, &p);
    double *clean[3];
    copy_gradients(c, &p, clean);
    check_store(in_q ? &p.x[0].view : &p.x[4].view, 0, h0, i0, d0, NAN);
    run(c, &p);
    for (int n = 0; n < 3; n++) {
        const attn_tensor *t = &p.x[5 + n].view;
        const double *got = check_tensor_copy(c, t);
        for (int64_t at = 0; at < check_count(t); at++) {
            const int64_t d = at % t->shape[3], row = at / t->shape[3] % T,
                          h = at / t->shape[3] / T;
            const bool row_of_it = n == 0 ? h == h0 && row == i0 : row <= i0;
            const bool reached = row_of_it && (n < 2 || in_q || d == d0);
            /* beside it in a row of dv, weights are not rounded to bf16 */
            const double slack = row_of_it ? 0.02 * (1 + fabs(clean[n][at])) : 0;
            if (reached ? !isnan(got[at]) : !(fabs(got[at] - clean[n][at]) <= slack))
                check_fail(c, "d%c[%d,%d,%d] is %g, want %g", "qkv"[n], (int)h, (int)row, (int)d,
                           got[at], clean[n][at]);
        }
    }
}

static void test_bad_rows(void **state)
{
    (void)state;
    run_property(bad_rows, "bad rows", 100);
}

/* dv of key 0, to which two heads add 1.5 * 2^-126 and -1.25 * 2^-126. Key 1 is hidden. */
static float tiny_sum(attn_context *ctx, int last_stride, bool nan_in_hidden_key)
{
    enum { S = 2, D = 2 };
    static const int64_t one_key[] = {1};
    uint16_t q[2 * D] = {0x3f80, 0, 0x3f80, 0}, k[2 * S * D] = {0}, v[2 * S * D] = {0};
    uint16_t dout[2 * D] = {0x00c0, 0x00c0, 0x80a0, 0x80a0};
    float out[2 * D], lse[2], dv[S * D];
    k[D * last_stride] = nan_in_hidden_key ? 0x7fc0 : 0;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.key_lengths = one_key;
    a.q = attn_bhtd(q, ATTN_BF16, 1, 2, 1, D), a.out = attn_bhtd(out, ATTN_F32, 1, 2, 1, D);
    a.k = attn_bhtd(k, ATTN_BF16, 1, 1, S, D), a.v = attn_bhtd(v, ATTN_BF16, 1, 1, S, D);
    a.k.stride[3] = last_stride, a.k.stride[2] = D * last_stride;
    const attn_tensor l = attn_bhtd(lse, ATTN_F32, 1, 2, 1, 1);
    a.lse = &l;
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = attn_bhtd(dout, ATTN_BF16, 1, 2, 1, D), g.dv = attn_bhtd(dv, ATTN_F32, 1, 1, S, D);
    assert_int_equal(attn_sdpa_backward(ctx, &a, &g, NULL), ATTN_OK);
    return dv[0];
}

/* A sum that is denormal has the same bits with any stride and with NaN in a hidden key, which
 * decide whether few queries are multiplied by tile products or by row_products(). */
static void test_denormal_sums(void **state)
{
    (void)state;
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx;
    o.threads = 1, o.isa = attn_isa(isa).name;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    const float dense = tiny_sum(ctx, 1, false);
    assert_true(dense == 0x1p-128F);
    assert_true(tiny_sum(ctx, 2, false) == dense);
    assert_true(tiny_sum(ctx, 1, true) == dense);
    attn_context_destroy(ctx);
}

/* ------------------------------------------------------------------------------------- the plan */

/* With a soft cap, the score of a key with an infinity is finite. The derivative of the cap is 0
 * there, and 0 times the infinite component makes dq NaN in this component, and in no other. */
static void bad_key(check_case *c)
{
    static const int64_t widths[] = {16, 40, 64, 128};
    problem p;
    const int64_t T = check_between(c, 1, 40), S = check_between(c, 2, 300);
    const int64_t D = CHECK_PICK(c, widths), d0 = check_between(c, 0, D - 1);
    const int64_t j0 = check_between(c, 0, S - 1);
    check_describe(c, "T=%d S=%d D=%d: k[%d,%d]", (int)T, (int)S, (int)D, (int)j0, (int)d0);
    make(c, &p, T, S, D, 16, ATTN_BF16, ATTN_BF16);
    p.args.softcap = 5;
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < T; i++)
            check_store(&p.x[0].view, 0, h, i, d0, 0.5);
    check_store(&p.x[1].view, 0, 0, j0, d0, check_chance(c, 50) ? INFINITY : -INFINITY);
    run(c, &p);
    const double *dq = check_tensor_copy(c, &p.x[5].view);
    for (int64_t at = 0; at < 2 * T * D; at++)
        if (at % D == d0 ? !isnan(dq[at]) : !isfinite(dq[at]))
            check_fail(c, "dq[%d,%d,%d] is %g", (int)(at / D / T), (int)(at / D % T), (int)(at % D),
                       dq[at]);
}

static void test_bad_key(void **state)
{
    (void)state;
    run_property(bad_key, "bad key", 100);
}

static void expect_plan(check_case *c, const problem *p, const char *operands)
{
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    char want[48];
    snprintf(want, sizeof want, "%s %s ", attn_isa(isa).name, operands);
    if (attn_sdpa_backward_plan(check_context(c, 1), &p->args, &p->grads, &info, NULL))
        check_fail(c, "refused");
    if (strncmp(info.kernel, want, strlen(want)) != 0)
        check_fail(c, "the plan is %s, want %s", info.kernel, want);
}

static void choices(check_case *c)
{
    problem p;
    make(c, &p, 5, 9, 8, 8, ATTN_BF16, ATTN_BF16);
    expect_plan(c, &p, "bf16");
    p.args.precision = ATTN_PRECISION_ACCURATE;
    expect_plan(c, &p, "f32");
    make(c, &p, 5, 9, 8, 8, ATTN_BF16, ATTN_F32);
    expect_plan(c, &p, "f32");
    make(c, &p, 5, 9, 8, 8, ATTN_F16, ATTN_F16);
    expect_plan(c, &p, "f32");
    make(c, &p, 5, 9, 8, 8, ATTN_F64, ATTN_F64);
    expect_plan(c, &p, "f64");
}

static void test_choices(void **state)
{
    (void)state;
    run_property(choices, "choices", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),       cmocka_unit_test(test_scores),
        cmocka_unit_test(test_random_options), cmocka_unit_test(test_two_ways),
        cmocka_unit_test(test_few_queries),    cmocka_unit_test(test_few_queries_after_a_bad_key),
        cmocka_unit_test(test_bad_rows),       cmocka_unit_test(test_bad_key),
        cmocka_unit_test(test_choices),        cmocka_unit_test(test_denormal_sums),
    };
    static const char *const names[] = {"amx", "avx512bf16"};
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        isa = attni_isa_find(names[i]);
        unit = attni_bf16_unit_of(names[i]);
        if (attni_isa_usable(isa))
            failed += cmocka_run_group_tests(tests, NULL, NULL);
        else
            printf("not run: this build has no usable %s\n", names[i]);
    }
    return failed;
}
