/* Gradients have the same bits wherever they and the inputs lie in memory.
 *
 * labels: threads
 *
 * Tests any strides of each type, any subset of the gradients, any batch, and the caller's
 * workspace, on three threads. The expected bits are those of all gradients by one thread, in dense
 * tensors. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 5
#else
#define ROUNDS 40
#endif
#define WORK 3e5

enum { DQ, DK, DV, DMASK, DALIBI, DSINK, RESULTS };
static const char *const names[] = {"dq", "dk", "dv", "dmask", "dalibi", "dsink"};
#define ALL 63U

/* A call with all that its backward reads; the forward is done before each backward. */
typedef struct problem {
    attn_sdpa_args args;
    attn_tensor dout, dlse, mask;
    attn_dtype types[4]; /* of dq, dk, dv, dmask */
} problem;

typedef struct results {
    double *x[RESULTS]; /* NULL: not asked for */
    int64_t n[RESULTS];
} results;

static const int64_t *rows_of(const attn_sdpa_args *a, int64_t shape[4])
{
    memcpy(shape, a->q.shape, 4 * sizeof *shape);
    shape[3] = 1;
    return shape;
}

static void make(check_case *c, check_call *call, problem *p)
{
    *p = (problem){.dlse = {0}};
    do {
        check_call_random(c, call, WORK);
    } while (check_count(&call->args.q) == 0 || check_count(&call->args.v) == 0);
    p->args = call->args;
    p->args.scores = p->args.lse = NULL;
    int64_t rows[4];
    check_tensor dout = check_tensor_new(c, p->args.q.dtype, p->args.out.shape, CHECK_DENSE);
    check_tensor dlse = check_tensor_new(c, ATTN_F64, rows_of(&p->args, rows), CHECK_DENSE);
    check_call_fill(c, &dout, 1), check_call_fill(c, &dlse, 1);
    p->dout = dout.view, p->dlse = dlse.view;
    for (int i = 0; i < 4; i++)
        p->types[i] = i < 3 && check_chance(c, 60) ? p->args.q.dtype
                      : check_chance(c, 70)        ? ATTN_F32
                                                   : ATTN_F64;
}

static bool has(const problem *p, int which)
{
    const attn_sdpa_args *a = &p->args;
    return which == DMASK    ? a->mask && a->mask->dtype != ATTN_BOOL
           : which == DALIBI ? a->alibi_slopes != NULL
           : which == DSINK  ? a->sink_logits != NULL
                             : true;
}

/* Forward and backward with outputs of `layout`, of those that `wanted` has a bit for. */
static results run(check_case *c, const problem *p, check_layout layout, unsigned wanted,
                   bool workspace)
{
    const bool plain = layout == CHECK_DENSE && wanted == ALL && !workspace;
    attn_sdpa_args a = p->args;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    results r = {{NULL}, {0}};
    int64_t rows[4];
    check_tensor out = check_tensor_new(c, a.out.dtype, a.out.shape, CHECK_DENSE);
    check_tensor lse = check_tensor_new(c, ATTN_F64, rows_of(&a, rows), CHECK_DENSE), x[4];
    a.out = out.view, a.lse = &lse.view;
    const int64_t *shapes[] = {a.q.shape, a.k.shape, a.v.shape, a.mask ? a.mask->shape : rows};
    attn_tensor *views[] = {&g.dq, &g.dk, &g.dv};
    double sums[2][CHECK_MAX_HEADS] = {{0}};
    for (int i = 0; i < 4; i++) {
        x[i] = check_tensor_new(c, p->types[i], shapes[i], layout);
        if (i < 3 && wanted >> i & 1)
            *views[i] = x[i].view;
    }
    g.dout = p->dout, g.dlse = &p->dlse;
    wanted &= ~((has(p, DMASK) ? 0U : 1U << DMASK) | (has(p, DALIBI) ? 0U : 1U << DALIBI) |
                (has(p, DSINK) ? 0U : 1U << DSINK));
    g.dmask = wanted >> DMASK & 1 ? &x[DMASK].view : NULL;
    g.dalibi_slopes = wanted >> DALIBI & 1 ? sums[0] : NULL;
    g.dsink_logits = wanted >> DSINK & 1 ? sums[1] : NULL;
    attn_error err = {0};
    attn_context *ctx = check_context(c, plain ? 1 : 3);
    if (attn_sdpa_forward(ctx, &a, &err))
        check_fail(c, "%s", err.message);
    attn_plan_info info = {.struct_size = sizeof info};
    if (workspace) {
        if (attn_sdpa_backward_plan(ctx, &a, &g, &info, &err))
            check_fail(c, "%s", err.message);
        a.workspace_bytes = info.scratch_bytes;
        a.workspace = check_buffers_take(c->run->buffers, info.scratch_bytes, 1, CHECK_SHIFT,
                                         (size_t)check_between(c, 0, 63));
    }
    if (attn_sdpa_backward(ctx, &a, &g, &err))
        check_fail(c, "%s", err.message);
    for (int i = 0; i < RESULTS; i++) {
        if (!(wanted >> i & 1))
            continue;
        r.n[i] = i < 4 ? check_count(&x[i].view) : a.q.shape[1];
        r.x[i] = i < 4 ? check_tensor_copy(c, &x[i].view) : check_array(c, r.n[i]);
        if (i >= 4)
            memcpy(r.x[i], sums[i - 4], (size_t)r.n[i] * sizeof(double));
    }
    return r;
}

static void expect_equal(check_case *c, const char *what, results got, results want)
{
    check_difference d;
    for (int i = 0; i < RESULTS; i++)
        if (got.x[i] && !check_same(got.x[i], want.x[i], want.n[i], CHECK_ZERO_SIGNED, &d))
            check_fail(c, "%s: %s %" PRId64 " is %.17g, want %.17g", what, names[i], d.at, d.got,
                       d.want);
}

static void same_in_any_layout(check_case *c)
{
    check_call call;
    problem p;
    make(c, &call, &p);
    const results want = run(c, &p, CHECK_DENSE, ALL, false);
    for (int n = 0; n < 3; n++) {
        problem moved = p;
        moved.args.q = copied(c, &p.args.q), moved.args.k = copied(c, &p.args.k);
        moved.args.v = copied(c, &p.args.v), moved.dout = copied(c, &p.dout);
        moved.dlse = copied(c, &p.dlse);
        if (p.args.mask) {
            moved.mask = copied(c, p.args.mask);
            moved.args.mask = &moved.mask;
        }
        expect_equal(c, "other strides", run(c, &moved, CHECK_LOOSE, ALL, false), want);
    }
}

static void same_whatever_is_wanted(check_case *c)
{
    check_call call;
    problem p;
    make(c, &call, &p);
    const results want = run(c, &p, CHECK_DENSE, ALL, false);
    for (int n = 0; n < 8; n++) {
        const unsigned some = (unsigned)check_between(c, 1, (int64_t)ALL);
        char what[32];
        snprintf(what, sizeof what, "wanted %x", some);
        expect_equal(c, what, run(c, &p, CHECK_DENSE, some, false), want);
    }
}

static void same_in_a_workspace(check_case *c)
{
    check_call call;
    problem p;
    make(c, &call, &p);
    const results want = run(c, &p, CHECK_DENSE, ALL, false);
    for (int n = 0; n < 3; n++)
        expect_equal(c, "own workspace", run(c, &p, CHECK_DENSE, ALL, true), want);
}

/* A view of index b of the first dimension; a size of 1 in a mask stays. */
static attn_tensor one_of(attn_tensor t, int64_t b)
{
    if (t.shape[0] == 1)
        return t;
    t.data = (char *)t.data + b * t.stride[0] * (int64_t)attn_dtype_size(t.dtype);
    t.shape[0] = 1;
    return t;
}

/* dq, dk and dv of one sequence of the batch alone. What all of a batch adds to has other sums. */
static void same_alone_and_in_a_batch(check_case *c)
{
    check_call call;
    problem p;
    make(c, &call, &p);
    p.args.dropout = 0; /* counts from the tensor's start */
    const unsigned wanted = 1U << DQ | 1U << DK | 1U << DV;
    const results all = run(c, &p, CHECK_DENSE, wanted, false);
    for (int64_t b = 0; b < p.args.q.shape[0]; b++) {
        problem one = p;
        one.args.q = one_of(p.args.q, b), one.args.k = one_of(p.args.k, b);
        one.args.v = one_of(p.args.v, b), one.args.out.shape[0] = 1;
        one.dout = one_of(p.dout, b), one.dlse = one_of(p.dlse, b);
        if (p.args.mask) {
            one.mask = one_of(*p.args.mask, b);
            one.args.mask = &one.mask;
        }
        if (p.args.key_lengths)
            one.args.key_lengths = p.args.key_lengths + b;
        const results got = run(c, &one, CHECK_DENSE, wanted, false);
        results want = got;
        for (int i = 0; i < 3; i++)
            want.x[i] = all.x[i] + b * got.n[i];
        expect_equal(c, "alone", got, want);
    }
}

/* ------------------------------------------------------------------------------------ the tests */

static void test_layouts(void **state)
{
    (void)state;
    run_property(same_in_any_layout, "gradients: layouts", ROUNDS);
}

static void test_wanted(void **state)
{
    (void)state;
    run_property(same_whatever_is_wanted, "gradients: wanted", ROUNDS);
}

static void test_workspace(void **state)
{
    (void)state;
    run_property(same_in_a_workspace, "gradients: workspace", ROUNDS);
}

static void test_batch(void **state)
{
    (void)state;
    run_property(same_alone_and_in_a_batch, "gradients: batch", ROUNDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
