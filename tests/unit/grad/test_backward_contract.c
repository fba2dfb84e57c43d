/* Gradients have the same bits for any threads and outputs, and masks hide completely.
 *
 * labels: threads slow
 *
 * Any number of threads, repeats, threads of the caller's, and any subset of the gradients give the
 * same bits. Hidden numbers change no bit, NaN reaches only what uses it, and gradients of what
 * takes no part are exactly 0. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"

#if defined(EMULATED)
#define ROUNDS 2
#define REPEATS 3
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 4
#define REPEATS 10
#else
#define ROUNDS 30
#define REPEATS 100
#endif
#define WORK 1e6

static const int thread_counts[] = {1, 2, 3, 7};
static attn_context *contexts[CHECK_MAX_ISAS][5];

/* The caller's threads: one, and the bodies in the wrong order. */
static void backwards(void *user, int n, void (*body)(void *arg, int index), void *arg)
{
    (void)user;
    for (int i = n - 1; i >= 0; i--)
        body(arg, i);
}

static int create_contexts(void **state)
{
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int t = 0; t < 5 && attn_isa(isa).usable; t++) {
            attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
            options.isa = attn_isa(isa).name;
            options.threads = t < 4 ? thread_counts[t] : 5;
            options.parallel_for = t < 4 ? NULL : backwards;
            if (attn_context_create(&options, &contexts[isa][t], NULL) != ATTN_OK)
                return -1;
        }
    return 0;
}

static int destroy_contexts(void **state)
{
    (void)state;
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        for (int t = 0; t < 5; t++)
            attn_context_destroy(contexts[isa][t]);
    return 0;
}

/* ------------------------------------------------------------------------------------- one call */

enum { DQ, DK, DV, DMASK, RESULTS };
static const char *const names[] = {"dq", "dk", "dv", "dmask"};

/* A random call with its forward done, in double; every result is wanted. */
typedef struct problem {
    check_call call;
    check_tensor dout, dlse;
    attn_tensor mask;
    double *biased; /* [B,H,T,S]: -inf where hidden */
} problem;

typedef struct results {
    double *x[RESULTS];
    int64_t n[RESULTS];
    double dalibi[CHECK_MAX_HEADS], dsink[CHECK_MAX_HEADS];
} results;

/* Where an instruction set has a unit for bf16, half of the cases are its. */
static void make(check_case *c, problem *p)
{
    attn_sdpa_args *a = &p->call.args;
    const char *isa = attn_isa(c->isa).name;
    const bool narrow = strcmp(isa, "amx") == 0 || strcmp(isa, "avx512bf16") == 0;
    do {
        check_call_random(c, &p->call, WORK);
    } while (check_count(&a->q) == 0 || check_count(&a->v) == 0 ||
             (narrow && c->seed % 2 && (a->q.dtype != ATTN_BF16 || a->precision)));
    const int64_t rows[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
    p->dout = check_tensor_new(c, a->q.dtype, a->out.shape, CHECK_DENSE);
    check_call_fill(c, &p->dout, 1);
    p->dlse = check_tensor_new(c, ATTN_F64, rows, CHECK_DENSE);
    check_call_fill(c, &p->dlse, 1);
    p->call.lse = check_tensor_new(c, ATTN_F64, rows, CHECK_DENSE);
    a->lse = &p->call.lse.view;
    a->scores = NULL;
    ref_result forward = {0};
    p->biased = forward.stages[ATTN_STAGE_BIASED] =
        check_array(c, rows[0] * rows[1] * rows[2] * a->k.shape[2]);
    if (!ref_sdpa_forward(a, &forward))
        check_abandon(c, "out of memory");
}

/* Forward and backward by context t, into new outputs; `wanted` has a bit for each of names. */
static results run(check_case *c, const problem *p, int t, unsigned wanted)
{
    const attn_sdpa_args *a = &p->call.args;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    results r = {.dalibi = {0}};
    check_tensor x[RESULTS];
    const int64_t *shapes[RESULTS] = {a->q.shape, a->k.shape, a->v.shape,
                                      a->mask ? a->mask->shape : a->q.shape};
    attn_tensor *views[] = {&g.dq, &g.dk, &g.dv};
    const bool has_dmask = a->mask && a->mask->dtype != ATTN_BOOL && wanted >> DMASK & 1;
    for (int i = 0; i < RESULTS; i++) {
        x[i] = check_tensor_new(c, ATTN_F32, shapes[i], CHECK_LOOSE);
        if (i < DMASK && wanted >> i & 1)
            *views[i] = x[i].view;
    }
    g.dout = p->dout.view;
    g.dlse = &p->dlse.view;
    g.dmask = has_dmask ? &x[DMASK].view : NULL;
    g.dalibi_slopes = a->alibi_slopes ? r.dalibi : NULL;
    g.dsink_logits = a->sink_logits ? r.dsink : NULL;
    attn_error err = {0};
    if (attn_sdpa_forward(contexts[c->isa][t], a, &err) != ATTN_OK ||
        attn_sdpa_backward(contexts[c->isa][t], a, &g, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    for (int i = 0; i < RESULTS; i++)
        if (wanted >> i & 1 && (i < DMASK || has_dmask)) {
            r.x[i] = check_tensor_copy(c, &x[i].view);
            r.n[i] = check_count(&x[i].view);
        }
    return r;
}

static void expect_equal(check_case *c, const char *what, const results *got, const results *want)
{
    check_difference d;
    for (int i = 0; i < RESULTS; i++)
        if (got->x[i] && !check_same(got->x[i], want->x[i], want->n[i], CHECK_ZERO_SIGNED, &d))
            check_fail(c, "%s: %s %lld is %.17g, want %.17g", what, names[i], (long long)d.at,
                       d.got, d.want);
    const int64_t H = CHECK_MAX_HEADS;
    if (!check_same(got->dalibi, want->dalibi, H, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: dalibi %lld is %.17g, want %.17g", what, (long long)d.at, d.got, d.want);
    if (!check_same(got->dsink, want->dsink, H, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: dsink %lld is %.17g, want %.17g", what, (long long)d.at, d.got, d.want);
}

#define ALL 15U

/* ----------------------------------------------------------------------------------- properties */

static void same_for_any_thread_count(check_case *c)
{
    problem p;
    make(c, &p);
    const results want = run(c, &p, 0, ALL);
    for (int t = 0; t < 5; t++) {
        const results got = run(c, &p, t, ALL);
        expect_equal(c, t < 4 ? "threads" : "the caller's threads", &got, &want);
    }
}

static void same_whatever_is_wanted(check_case *c)
{
    problem p;
    make(c, &p);
    const results want = run(c, &p, 1, ALL);
    for (unsigned i = 0; i < RESULTS; i++) {
        const results got = run(c, &p, 1, 1U << i);
        expect_equal(c, "alone", &got, &want);
    }
}

/* Does query (b,h,i) see key j? */
static bool sees(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_sdpa_args *a = &p->call.args;
    const int64_t row = (b * a->q.shape[1] + h) * a->q.shape[2] + i;
    return p->biased[row * a->k.shape[2] + j] != -INFINITY;
}

static bool repeats(const attn_tensor *t)
{
    for (int d = 0; d < 4; d++)
        if (t->stride[d] == 0 && t->shape[d] > 1)
            return true;
    return false;
}

static void poison(check_case *c, const attn_tensor *t, int64_t b, int64_t h, int64_t i)
{
    static const double what[] = {NAN, INFINITY, -INFINITY, 1e38, -1e38};
    for (int64_t d = 0; d < t->shape[3]; d++)
        check_store(t, b, h, i, d, CHECK_PICK(c, what));
}

/* Rows that see nothing, and keys that are not seen: their gradients are 0, and whatever their data
 * is, no bit of any gradient changes. */
static void hidden_is_not_touched(check_case *c)
{
    problem p;
    make(c, &p);
    const attn_sdpa_args *a = &p.call.args;
    const int64_t B = a->q.shape[0], H = a->q.shape[1], T = a->q.shape[2], S = a->k.shape[2];
    const int64_t Hk = a->k.shape[1], D = a->q.shape[3], Dv = a->v.shape[3];
    if (repeats(&a->q) || repeats(&a->k) || repeats(&a->v))
        return;
    const results want = run(c, &p, 2, ALL);
    for (int64_t row = 0; row < B * H * T; row++) {
        const int64_t b = row / T / H, h = row / T % H, i = row % T;
        bool any = false;
        for (int64_t j = 0; j < S && !any; j++)
            any = sees(&p, b, h, i, j);
        for (int64_t d = 0; d < D && !any; d++)
            if (want.x[DQ][row * D + d] != 0)
                check_fail(c, "dq of a row that sees nothing: %g", want.x[DQ][row * D + d]);
        if (!any) {
            poison(c, &a->q, b, h, i);
            poison(c, &p.dout.view, b, h, i);
        }
    }
    for (int64_t at = 0; at < B * Hk * S; at++) {
        const int64_t b = at / S / Hk, g = at / S % Hk, j = at % S;
        bool any = false;
        for (int64_t n = 0; n < H / Hk * T && !any; n++)
            any = sees(&p, b, g * (H / Hk) + n / T, n % T, j);
        for (int64_t d = 0; d < D && !any; d++)
            if (want.x[DK][at * D + d] != 0)
                check_fail(c, "dk of a key that is not seen: %g", want.x[DK][at * D + d]);
        for (int64_t d = 0; d < Dv && !any; d++)
            if (want.x[DV][at * Dv + d] != 0)
                check_fail(c, "dv of a key that is not seen: %g", want.x[DV][at * Dv + d]);
        if (!any) {
            poison(c, &a->k, b, g, j);
            poison(c, &a->v, b, g, j);
        }
    }
    const results got = run(c, &p, 2, ALL);
    expect_equal(c, "poisoned", &got, &want);
}

/* A row of a result keeps its bits. */
static void expect_row(check_case *c, int which, int64_t row, int64_t width, const results *got,
                       const results *want)
{
    check_difference d;
    if (!check_same(got->x[which] + row * width, want->x[which] + row * width, width,
                    CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s row %lld column %lld is %.17g, want %.17g", names[which], (long long)row,
                   (long long)d.at, d.got, d.want);
}

/* One key that some queries see and others do not becomes NaN: queries that do not see it keep the
 * bits of dq, and keys that only such queries see those of dk and dv. Likewise one query. */
static void poison_goes_no_further(check_case *c)
{
    problem p;
    make(c, &p);
    const attn_sdpa_args *a = &p.call.args;
    const int64_t H = a->q.shape[1], T = a->q.shape[2], S = a->k.shape[2], Hk = a->k.shape[1];
    const int64_t D = a->q.shape[3], Dv = a->v.shape[3], G = H / Hk;
    if (repeats(&a->q) || repeats(&a->k) || repeats(&a->v))
        return;
    const results want = run(c, &p, 1, ALL);
    const int64_t b = check_between(c, 0, a->q.shape[0] - 1), g = check_between(c, 0, Hk - 1);
    const int64_t key = check_between(c, 0, S - 1), query = check_between(c, 0, T - 1);
    const int64_t head = g * G + check_between(c, 0, G - 1);
    const int which = (int)check_between(c, 0, 3);
    const bool is_key = which < 2;
    const attn_tensor *targets[] = {&a->k, &a->v, &a->q, &p.dout.view};
    poison(c, targets[which], b, is_key ? g : head, is_key ? key : query);
    const results got = run(c, &p, 1, ALL);
    for (int64_t h = g * G; h < (g + 1) * G; h++)
        for (int64_t i = 0; i < T; i++)
            if (is_key ? !sees(&p, b, h, i, key) : h != head || i != query)
                expect_row(c, DQ, (b * H + h) * T + i, D, &got, &want);
    for (int64_t j = 0; j < S; j++) {
        bool touched = false;
        for (int64_t n = 0; n < G * T && !touched; n++) {
            const int64_t h = g * G + n / T, i = n % T;
            const bool bad = is_key ? sees(&p, b, h, i, key) : h == head && i == query;
            touched = bad && sees(&p, b, h, i, j);
        }
        if (touched)
            continue;
        expect_row(c, DK, (b * Hk + g) * S + j, D, &got, &want);
        expect_row(c, DV, (b * Hk + g) * S + j, Dv, &got, &want);
    }
}

static void test_threads(void **state)
{
    (void)state;
    run_property(same_for_any_thread_count, "threads", ROUNDS);
}

static void test_wanted(void **state)
{
    (void)state;
    run_property(same_whatever_is_wanted, "wanted", ROUNDS);
}

static void test_hidden(void **state)
{
    (void)state;
    run_property(hidden_is_not_touched, "hidden", ROUNDS);
}

static void test_poison(void **state)
{
    (void)state;
    run_property(poison_goes_no_further, "poison", ROUNDS);
}

/* ---------------------------------------------------------------------- many chunks, many times */

enum { H = 4, HK = 2, T = 700, S = 1300, D = 24 };
static float q[H * T * D], k[HK * S * D], v[HK * S * D], out[H * T * D], dout[H * T * D];
static float lse[H * T], mask[T * S], dq[2][H * T * D], dk[2][HK * S * D], dv[2][HK * S * D];
static float dmask[2][T * S];
static double dalibi[2][H];

static void repeat_once(attn_context *ctx, int into)
{
    const float slopes[H] = {0.5F, 0.25F, 0.125F, 0.0625F};
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    const attn_tensor t_lse = attn_bhtd(lse, ATTN_F32, 1, H, T, 1);
    const attn_tensor t_mask = attn_bhtd(mask, ATTN_F32, 1, 1, T, S);
    const attn_tensor t_dmask = attn_bhtd(dmask[into], ATTN_F32, 1, 1, T, S);
    a.q = attn_bhtd(q, ATTN_F32, 1, H, T, D), a.k = attn_bhtd(k, ATTN_F32, 1, HK, S, D);
    a.v = attn_bhtd(v, ATTN_F32, 1, HK, S, D), a.out = attn_bhtd(out, ATTN_F32, 1, H, T, D);
    a.lse = &t_lse, a.mask = &t_mask, a.alibi_slopes = slopes;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT, a.dropout = 0.1;
    g.dout = attn_bhtd(dout, ATTN_F32, 1, H, T, D);
    g.dq = attn_bhtd(dq[into], ATTN_F32, 1, H, T, D);
    g.dk = attn_bhtd(dk[into], ATTN_F32, 1, HK, S, D);
    g.dv = attn_bhtd(dv[into], ATTN_F32, 1, HK, S, D);
    g.dmask = &t_dmask, g.dalibi_slopes = dalibi[into];
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_backward(ctx, &a, &g, NULL), ATTN_OK);
}

/* Six chunks of keys, whose tasks wait for each other, and a mask that all heads add to. */
static void test_repeats(void **state)
{
    (void)state;
    attn_rng rng;
    attn_rng_seed(&rng, 3);
    attn_rng_randn(&rng, q, H * T * D), attn_rng_randn(&rng, k, HK * S * D);
    attn_rng_randn(&rng, v, HK * S * D), attn_rng_randn(&rng, dout, H * T * D);
    attn_rng_randn(&rng, mask, T * S);
    int best = 0;
    while (attn_isa(best + 1).name && attn_isa(best + 1).usable)
        best++;
    repeat_once(contexts[best][0], 0);
    for (int i = 0; i < REPEATS; i++) {
        describe_case("%s, repeat %d", attn_isa(best).name, i);
        repeat_once(contexts[best][i % 5], 1);
        assert_same_array(dq[1], dq[0], sizeof dq[0]);
        assert_same_array(dk[1], dk[0], sizeof dk[0]);
        assert_same_array(dv[1], dv[0], sizeof dv[0]);
        assert_same_array(dmask[1], dmask[0], sizeof dmask[0]);
        assert_same_array(dalibi[1], dalibi[0], sizeof dalibi[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads), cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_hidden),  cmocka_unit_test(test_poison),
        cmocka_unit_test(test_repeats),
    };
    return cmocka_run_group_tests(tests, create_contexts, destroy_contexts);
}
