/* Tangents have the same bits for any number of threads, and masks hide completely.
 *
 * labels: threads
 *
 * The bits are the same with and without tlse. Hidden numbers change no bit, NaN reaches the rows
 * that see it and no other, and a row that sees nothing is 0. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"
#include "support/soiled.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 4
#define LARGE_ROUNDS 1
#else
#define ROUNDS 40
#define LARGE_ROUNDS 20
#endif
#define WORK 3e5
#define LARGE_WORK 8e6 /* enough for 16 threads to be woken */

static const int thread_counts[] = {1, 2, 3, 8, 16};
enum { COUNTS = 5 };
static attn_context *contexts[CHECK_MAX_ISAS][COUNTS];

static int create_contexts(void **state)
{
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int t = 0; t < COUNTS && attn_isa(isa).usable; t++) {
            attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
            options.isa = attn_isa(isa).name;
            options.threads = thread_counts[t];
            if (t > 0)
                options.allocate = soiled, options.release = clean;
            if (attn_context_create(&options, &contexts[isa][t], NULL) != ATTN_OK)
                return -1;
        }
    return 0;
}

static int destroy_contexts(void **state)
{
    (void)state;
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        for (int t = 0; t < COUNTS; t++)
            attn_context_destroy(contexts[isa][t]);
    return 0;
}

/* A random call with its forward done, and tangents of q, k and v; in one call of five one of these
 * does not move. */
typedef struct problem {
    check_call call;
    check_tensor tangents[3];
    bool moves[3];
    double *biased; /* [B,H,T,S]: -inf where hidden */
} problem;

static void make(check_case *c, problem *p, double work)
{
    attn_sdpa_args *a = &p->call.args;
    do {
        check_call_random(c, &p->call, work);
    } while (check_count(&a->q) == 0 || check_count(&a->v) == 0);
    const int64_t rows[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
    const attn_tensor *of[3] = {&a->q, &a->k, &a->v};
    for (int i = 0; i < 3; i++) {
        const attn_dtype type = check_chance(c, 70) ? a->q.dtype : ATTN_F64;
        p->tangents[i] = check_tensor_new(c, type, of[i]->shape, CHECK_LOOSE);
        check_call_fill(c, &p->tangents[i], 1);
        p->moves[i] = !check_chance(c, 7);
    }
    p->call.lse = check_tensor_new(c, ATTN_F64, rows, CHECK_LOOSE);
    a->lse = &p->call.lse.view;
    a->scores = NULL;
    ref_result forward = {0};
    p->biased = forward.stages[ATTN_STAGE_BIASED] =
        check_array(c, rows[0] * rows[1] * rows[2] * a->k.shape[2]);
    if (!ref_sdpa_forward(a, &forward))
        check_abandon(c, "out of memory");
}

typedef struct results {
    double *tout, *tlse;
    int64_t outs, rows;
} results;

/* Forward by one thread, then forward mode by context t, into new outputs. */
static results run(check_case *c, const problem *p, int t, bool wants_tlse)
{
    const attn_sdpa_args *a = &p->call.args;
    attn_sdpa_tangents x = ATTN_SDPA_TANGENTS_INIT;
    attn_tensor *views[3] = {&x.tq, &x.tk, &x.tv};
    for (int i = 0; i < 3; i++)
        if (p->moves[i])
            *views[i] = p->tangents[i].view;
    check_tensor tout = check_tensor_new(c, ATTN_F64, a->out.shape, CHECK_LOOSE);
    check_tensor tlse = check_tensor_new(c, ATTN_F64, a->lse->shape, CHECK_LOOSE);
    x.tout = tout.view;
    x.tlse = wants_tlse ? &tlse.view : NULL;
    attn_error err = {0};
    if (attn_sdpa_forward(contexts[c->isa][0], a, &err) != ATTN_OK ||
        attn_sdpa_jvp(contexts[c->isa][t], a, &x, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    return (results){check_tensor_copy(c, &tout.view),
                     wants_tlse ? check_tensor_copy(c, &tlse.view) : NULL, check_count(&tout.view),
                     check_count(&tlse.view)};
}

static void expect_equal(check_case *c, const char *what, results got, results want)
{
    check_difference d;
    if (!check_same(got.tout, want.tout, want.outs, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: tout %" PRId64 " is %.17g, want %.17g", what, d.at, d.got, d.want);
    if (got.tlse && !check_same(got.tlse, want.tlse, want.rows, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: tlse %" PRId64 " is %.17g, want %.17g", what, d.at, d.got, d.want);
}

static void same_for_any_thread_count(check_case *c)
{
    problem p;
    make(c, &p, LARGE_WORK);
    const results want = run(c, &p, 0, true);
    for (int t = 0; t < COUNTS; t++) {
        char what[32];
        snprintf(what, sizeof what, "%d threads", thread_counts[t]);
        expect_equal(c, what, run(c, &p, t, true), want);
    }
    expect_equal(c, "without tlse", run(c, &p, 1, false), want);
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

/* Does query (b,h,i) see key j? */
static bool sees(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_sdpa_args *a = &p->call.args;
    const int64_t row = (b * a->q.shape[1] + h) * a->q.shape[2] + i;
    return p->biased[row * a->k.shape[2] + j] != -INFINITY;
}

/* Poisons q and tq of rows that see nothing, whose results must be +0. */
static void poison_blind_rows(check_case *c, const problem *p, results want)
{
    const attn_sdpa_args *a = &p->call.args;
    const int64_t H = a->q.shape[1], T = a->q.shape[2], Dv = a->v.shape[3];
    for (int64_t row = 0; row < want.rows; row++) {
        const int64_t b = row / T / H, h = row / T % H, i = row % T;
        bool any = false;
        for (int64_t j = 0; j < a->k.shape[2] && !any; j++)
            any = sees(p, b, h, i, j);
        if (any)
            continue;
        double sum = 0;
        for (int64_t d = 0; d < Dv; d++)
            sum += fabs(want.tout[row * Dv + d]) + signbit(want.tout[row * Dv + d]);
        if (sum != 0 || want.tlse[row] != 0 || signbit(want.tlse[row]))
            check_fail(c, "a row that sees nothing: tout %g, tlse %g", want.tout[row * Dv],
                       want.tlse[row]);
        poison(c, &a->q, b, h, i);
        poison(c, &p->tangents[0].view, b, h, i);
    }
}

/* Poisons k, v, tk and tv of keys that no query sees. */
static void poison_unseen_keys(check_case *c, const problem *p)
{
    const attn_sdpa_args *a = &p->call.args;
    const int64_t Hk = a->k.shape[1], G = a->q.shape[1] / Hk, T = a->q.shape[2], S = a->k.shape[2];
    for (int64_t at = 0; at < a->q.shape[0] * Hk * S; at++) {
        const int64_t b = at / S / Hk, g = at / S % Hk, j = at % S;
        bool any = false;
        for (int64_t n = 0; n < G * T && !any; n++)
            any = sees(p, b, g * G + n / T, n % T, j);
        if (any)
            continue;
        poison(c, &a->k, b, g, j), poison(c, &a->v, b, g, j);
        poison(c, &p->tangents[1].view, b, g, j), poison(c, &p->tangents[2].view, b, g, j);
    }
}

static bool inputs_repeat(const attn_sdpa_args *a)
{
    return repeats(&a->q) || repeats(&a->k) || repeats(&a->v);
}

static void hidden_is_not_touched(check_case *c)
{
    problem p;
    make(c, &p, WORK);
    if (inputs_repeat(&p.call.args))
        return;
    const results want = run(c, &p, 1, true);
    poison_blind_rows(c, &p, want);
    poison_unseen_keys(c, &p);
    expect_equal(c, "poisoned", run(c, &p, 2, true), want);
}

/* One row of k, v, tk or tv that some queries see and others do not becomes NaN, or one of q or tq:
 * queries that do not see it keep their bits. */
static void poison_goes_no_further(check_case *c)
{
    problem p;
    make(c, &p, WORK);
    const attn_sdpa_args *a = &p.call.args;
    if (inputs_repeat(a))
        return;
    const int64_t H = a->q.shape[1], T = a->q.shape[2], S = a->k.shape[2], Dv = a->v.shape[3];
    const int64_t G = H / a->k.shape[1];
    const results want = run(c, &p, 1, true);
    const attn_tensor *targets[] = {
        &a->k, &a->v, &a->q, &p.tangents[1].view, &p.tangents[2].view, &p.tangents[0].view};
    const int which = (int)check_between(c, 0, 5);
    const bool is_key = which % 3 < 2;
    const int64_t b = check_between(c, 0, a->q.shape[0] - 1), h = check_between(c, 0, H - 1);
    const int64_t at = check_between(c, 0, (is_key ? S : T) - 1);
    if (at < 0)
        return; /* no keys */
    for (int64_t d = 0; d < targets[which]->shape[3]; d++)
        check_store(targets[which], b, is_key ? h / G : h, at, d, NAN);
    const results got = run(c, &p, 1, true);
    for (int64_t row = 0; row < want.rows; row++) {
        const int64_t of_b = row / T / H, of_h = row / T % H, i = row % T;
        const bool uses = of_b == b && (is_key ? of_h / G == h / G && sees(&p, b, of_h, i, at)
                                               : of_h == h && i == at);
        check_difference d;
        if (!uses &&
            (!check_same(got.tout + row * Dv, want.tout + row * Dv, Dv, CHECK_ZERO_SIGNED, &d) ||
             !check_same(got.tlse + row, want.tlse + row, 1, CHECK_ZERO_SIGNED, &d)))
            check_fail(c, "row %" PRId64 " is %.17g, want %.17g: it does not use the number", row,
                       d.got, d.want);
    }
}

static void test_threads(void **state)
{
    (void)state;
    run_property(same_for_any_thread_count, "jvp threads", LARGE_ROUNDS);
}

static void test_hidden(void **state)
{
    (void)state;
    run_property(hidden_is_not_touched, "jvp hidden", ROUNDS);
}

static void test_poison(void **state)
{
    (void)state;
    run_property(poison_goes_no_further, "jvp poison", ROUNDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_poison),
    };
    return cmocka_run_group_tests(tests, create_contexts, destroy_contexts);
}
