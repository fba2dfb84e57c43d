/* A float mask's numbers in places that another rule hides are never added.
 *
 * NaN, infinities and 1e38 there, in masks of each float type and any broadcast, change no bit of
 * the forward, of gradients or of tangents. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 10
#else
#define ROUNDS 80
#endif
#define WORK 2e5

/* A random call with a float mask, beside which another rule hides something. */
typedef struct problem {
    check_call call;
    check_tensor mask, dout, lse;
    double *visible; /* [B,H,T,S] without the mask: -inf where hidden */
} problem;

static void make(check_case *c, problem *p)
{
    static const attn_dtype floats[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    attn_sdpa_args *a = &p->call.args;
    bool hides;
    do {
        check_call_random(c, &p->call, WORK);
        hides = a->causal || a->window_left >= 0 || a->window_right >= 0 || a->key_lengths ||
                a->cu_seqlens_q;
    } while (!hides || check_count(&a->q) == 0 || check_count(&a->v) == 0 || a->k.shape[2] == 0);
    const int64_t full[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->k.shape[2]};
    const int64_t rows[4] = {full[0], full[1], full[2], 1};
    int64_t shape[4];
    a->mask = NULL, a->scores = NULL;
    ref_result r = {0};
    p->visible = r.stages[ATTN_STAGE_BIASED] =
        check_array(c, full[0] * full[1] * full[2] * full[3]);
    if (!ref_sdpa_forward(a, &r))
        check_abandon(c, "out of memory");
    for (int d = 0; d < 4; d++)
        shape[d] = check_chance(c, d < 2 ? 50 : 20) ? 1 : full[d];
    p->mask = check_tensor_new(c, CHECK_PICK(c, floats), shape, CHECK_LOOSE);
    check_call_fill(c, &p->mask, 1);
    p->dout = check_tensor_new(c, a->q.dtype, a->out.shape, CHECK_DENSE);
    check_call_fill(c, &p->dout, 1);
    p->lse = check_tensor_new(c, ATTN_F64, rows, CHECK_DENSE);
    a->mask = &p->mask.view, a->lse = &p->lse.view;
    check_call_say(c, attn_dtype_name(p->mask.view.dtype));
}

/* Is an element of the mask used by no visible pair? */
static bool unused(const problem *p, const int64_t at[4])
{
    const attn_sdpa_args *a = &p->call.args;
    const int64_t n[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->k.shape[2]};
    int64_t first[4], end[4];
    for (int d = 0; d < 4; d++) {
        const bool all = p->mask.view.shape[d] == 1;
        first[d] = all ? 0 : at[d], end[d] = all ? n[d] : at[d] + 1;
    }
    for (int64_t b = first[0]; b < end[0]; b++)
        for (int64_t h = first[1]; h < end[1]; h++)
            for (int64_t i = first[2]; i < end[2]; i++)
                for (int64_t j = first[3]; j < end[3]; j++)
                    if (p->visible[((b * n[1] + h) * n[2] + i) * n[3] + j] != -INFINITY)
                        return false;
    return true;
}

static void poison(check_case *c, const problem *p)
{
    static const double what[] = {NAN, INFINITY, 1e38, -1e38, NAN};
    const int64_t *n = p->mask.view.shape;
    for (int64_t e = 0; e < check_count(&p->mask.view); e++) {
        const int64_t at[4] = {e / n[3] / n[2] / n[1], e / n[3] / n[2] % n[1], e / n[3] % n[2],
                               e % n[3]};
        if (unused(p, at))
            check_store(&p->mask.view, at[0], at[1], at[2], at[3], CHECK_PICK(c, what));
    }
}

/* ---------------------------------------------------------------------------------- properties */

typedef struct results {
    double *x[5];
    int64_t n[5];
} results;

static results copies(check_case *c, const check_tensor *t, int count)
{
    results r = {{NULL}, {0}};
    for (int i = 0; i < count; i++)
        r.x[i] = check_tensor_copy(c, &t[i].view), r.n[i] = check_count(&t[i].view);
    return r;
}

static void expect_equal(check_case *c, const char *const *names, results got, results want)
{
    check_difference d;
    for (int i = 0; i < 5 && got.x[i]; i++)
        if (!check_same(got.x[i], want.x[i], want.n[i], CHECK_ZERO_SIGNED, &d))
            check_fail(c, "%s %" PRId64 " is %.17g, want %.17g", names[i], d.at, d.got, d.want);
}

static void forward(check_case *c, const problem *p)
{
    attn_error err = {0};
    if (attn_sdpa_forward(check_context(c, p->call.threads), &p->call.args, &err))
        check_fail(c, "%s", err.message);
}

static results run_forward(check_case *c, problem *p)
{
    attn_sdpa_args *a = &p->call.args;
    const int64_t shape[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->k.shape[2]};
    const check_tensor scores = check_tensor_new(c, ATTN_F32, shape, CHECK_DENSE);
    a->scores = &scores.view;
    a->scores_stage = c->seed & 2 ? ATTN_STAGE_BIASED : ATTN_STAGE_WEIGHTS;
    forward(c, p);
    a->scores = NULL;
    const check_tensor all[] = {{.view = a->out}, p->lse, scores};
    return copies(c, all, 3);
}

static results run_gradients(check_case *c, problem *p)
{
    const attn_sdpa_args *a = &p->call.args;
    const check_tensor x[] = {check_tensor_new(c, ATTN_F32, a->q.shape, CHECK_DENSE),
                              check_tensor_new(c, ATTN_F32, a->k.shape, CHECK_DENSE),
                              check_tensor_new(c, ATTN_F32, a->v.shape, CHECK_DENSE),
                              check_tensor_new(c, ATTN_F64, a->mask->shape, CHECK_DENSE)};
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = p->dout.view, g.dq = x[0].view, g.dk = x[1].view, g.dv = x[2].view;
    g.dmask = &x[3].view;
    attn_error err = {0};
    forward(c, p);
    if (attn_sdpa_backward(check_context(c, p->call.threads), a, &g, &err))
        check_fail(c, "%s", err.message);
    return copies(c, x, 4);
}

static results run_tangents(check_case *c, problem *p)
{
    const attn_sdpa_args *a = &p->call.args;
    const check_tensor x[] = {check_tensor_new(c, ATTN_F64, a->out.shape, CHECK_DENSE),
                              check_tensor_new(c, ATTN_F64, a->lse->shape, CHECK_DENSE)};
    attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
    t.tq = a->q, t.tk = a->k, t.tv = a->v; /* along themselves */
    t.tout = x[0].view, t.tlse = &x[1].view;
    attn_error err = {0};
    forward(c, p);
    if (attn_sdpa_jvp(check_context(c, p->call.threads), a, &t, &err))
        check_fail(c, "%s", err.message);
    return copies(c, x, 2);
}

static void property(check_case *c, results run(check_case *, problem *), const char *const *names)
{
    problem p;
    make(c, &p);
    const results want = run(c, &p);
    poison(c, &p);
    expect_equal(c, names, run(c, &p), want);
}

static void in_the_forward(check_case *c)
{
    property(c, run_forward, (const char *const[]){"out", "lse", "scores"});
}

static void in_gradients(check_case *c)
{
    property(c, run_gradients, (const char *const[]){"dq", "dk", "dv", "dmask"});
}

static void in_tangents(check_case *c)
{
    property(c, run_tangents, (const char *const[]){"tout", "tlse"});
}

static void test_forward(void **state)
{
    (void)state;
    run_property(in_the_forward, "hidden bias", ROUNDS);
}

static void test_gradients(void **state)
{
    (void)state;
    run_property(in_gradients, "hidden bias: gradients", ROUNDS);
}

static void test_tangents(void **state)
{
    (void)state;
    run_property(in_tangents, "hidden bias: tangents", ROUNDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_tangents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
