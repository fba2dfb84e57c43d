/* attn_sdpa_jvp is the derivative of attn_sdpa_forward along tangents.
 *
 * labels: threads
 *
 * Compares with central differences of the reference in long double, on 300 small cases with every
 * option; and with attn_sdpa_backward, whose transpose it is, on larger calls of every type, layout
 * and instruction set. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"
#include "ref/attn_ref.h"
#include "small_attention.h"

/* -------------------------------------------------------------------------- central differences */

typedef struct direction {
    attn_sdpa_tangents t;
    attn_tensor tlse;
    double q[ROWS * MOST_D], k[MOST_B * MOST_H * MOST_S * MOST_D];
    double v[MOST_B * MOST_H * MOST_S * MOST_D], out[ROWS * MOST_D], lse[ROWS];
} direction;

static void make_direction(check_case *c, direction *d, const small *s)
{
    const attn_sdpa_args *a = &s->args;
    memset(d, 0, sizeof *d);
    attn_sdpa_tangents_init(&d->t);
    const attn_tensor *of[] = {&a->q, &a->k, &a->v};
    attn_tensor *to[] = {&d->t.tq, &d->t.tk, &d->t.tv};
    double *data[] = {d->q, d->k, d->v};
    for (int i = 0; i < 3; i++) {
        if (check_chance(c, 20))
            continue; /* does not move */
        fill(c, data[i], (int)check_count(of[i]));
        *to[i] = *of[i];
        to[i]->data = data[i];
    }
    d->t.tout = a->out;
    d->t.tout.data = d->out;
    d->tlse = *a->lse;
    d->tlse.data = d->lse;
    d->t.tlse = &d->tlse;
}

/* out and lse with q, k and v moved by `step` along the direction. */
static void moved(const small *s, const direction *d, double step, double *out, double *lse)
{
    static small at;
    at = *s;
    const attn_sdpa_args *a = &s->args;
    for (int64_t i = 0; i < check_count(&a->q); i++)
        at.q[i] += step * d->q[i];
    for (int64_t i = 0; i < check_count(&a->k); i++)
        at.k[i] += step * d->k[i];
    for (int64_t i = 0; i < check_count(&a->v); i++)
        at.v[i] += step * d->v[i];
    attn_sdpa_args moved_args = *a;
    moved_args.q.data = at.q, moved_args.k.data = at.k, moved_args.v.data = at.v;
    const ref_result result = {.out = out, .lse = lse};
    assert_true(ref_sdpa_forward_wide(&moved_args, &result));
}

/* The error of four points is of the order of step^4. */
static void expect_difference(uint64_t seed, const char *name, const double *got,
                              double y[4][ROWS * MOST_D], int64_t n, double step)
{
    for (int64_t i = 0; i < n; i++) {
        double want = (y[0][i] - 8 * y[1][i] + 8 * y[2][i] - y[3][i]) / (12 * step);
        if (!isfinite(y[0][i]))
            want = 0; /* lse of a row that sees nothing */
        const double tolerance = 3e-8 * (1 + fabs(want));
        if (!(fabs(got[i] - want) <= tolerance))
            fail_msg("case %" PRIu64 ": %s[%" PRId64 "] is %.17g, want %.17g by differences "
                     "(tolerance %g)",
                     seed, name, i, got[i], want, tolerance);
    }
}

static void test_differences(void **state)
{
    (void)state;
    static small s;
    static direction d;
    static check_case c;
    static double out[4][ROWS * MOST_D], lse[4][ROWS * MOST_D];
    const double step = 0x1p-11, steps[4] = {-2 * step, -step, step, 2 * step};
    for (uint64_t seed = 1; seed <= 300; seed++) {
        c = (check_case){.random = seed * 0x9E3779B97F4A7C15};
        make(&c, &s);
        make_direction(&c, &d, &s);
        attn_error err;
        if (attn_sdpa_forward(NULL, &s.args, &err) != ATTN_OK ||
            attn_sdpa_jvp(NULL, &s.args, &d.t, &err) != ATTN_OK)
            fail_msg("case %llu: %s", (unsigned long long)seed, err.message);
        for (int i = 0; i < 4; i++)
            moved(&s, &d, steps[i], out[i], lse[i]);
        expect_difference(seed, "tout", d.out, out, check_count(&s.args.out), step);
        expect_difference(seed, "tlse", d.lse, lse, check_count(s.args.lse), step);
    }
}

/* ------------------------------------------------------------------------------ two hard values */

/* An infinite tangent of a value passes on with its sign: one row, every instruction set. */
static void test_infinite_tangent_keeps_its_sign(void **state)
{
    (void)state;
    double q[1] = {1}, k[2] = {0.5, 0.25}, v[2] = {1, 2}, out[1] = {0}, lse[1] = {0}, tout[1] = {0};
    double tv[2] = {0, INFINITY};
    attn_tensor l = attn_bhtd(lse, ATTN_F64, 1, 1, 1, 1);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F64, 1, 1, 1, 1);
    a.k = attn_bhtd(k, ATTN_F64, 1, 1, 2, 1);
    a.v = attn_bhtd(v, ATTN_F64, 1, 1, 2, 1);
    a.out = attn_bhtd(out, ATTN_F64, 1, 1, 1, 1);
    a.lse = &l;
    attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
    t.tv = attn_bhtd(tv, ATTN_F64, 1, 1, 2, 1);
    t.tout = attn_bhtd(tout, ATTN_F64, 1, 1, 1, 1);
    for (int sign = -1; sign <= 1; sign += 2) {
        tv[1] = sign * (double)INFINITY;
        assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
        assert_int_equal(attn_sdpa_jvp(NULL, &a, &t, NULL), ATTN_OK);
        if (tout[0] != tv[1])
            fail_msg("tout is %g, want %g", tout[0], tv[1]);
    }
}

/* With scores near 10^5, rounding lse to float loses up to 2^-6. A factor of the weights makes up
 * for this loss, so tangents of the values that are all equal come out unchanged. All scores are
 * exact floats, and lse is computed here, in double: forward would round scores in log2 units. */
static void test_large_lse_is_not_rounded_away(void **state)
{
    (void)state;
    enum { T = 8, S = 3 };
    float q[T], k[S] = {70000, 69999.5f, 69999}, v[S] = {1, 2, 3}, out[T] = {0};
    float tv[S] = {1, 1, 1}, tout[T] = {0};
    double lse[T];
    for (int i = 0; i < T; i++) {
        q[i] = (float)(1 + i);
        lse[i] = q[i] * 70000. + log(1 + exp(-0.5 * q[i]) + exp(-1.0 * q[i]));
    }
    attn_tensor l = attn_bhtd(lse, ATTN_F64, 1, 1, T, 1);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, 1, 1, T, 1);
    a.k = attn_bhtd(k, ATTN_F32, 1, 1, S, 1);
    a.v = attn_bhtd(v, ATTN_F32, 1, 1, S, 1);
    a.out = attn_bhtd(out, ATTN_F32, 1, 1, T, 1);
    a.lse = &l;
    a.scale = 1;
    attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
    t.tv = attn_bhtd(tv, ATTN_F32, 1, 1, S, 1);
    t.tout = attn_bhtd(tout, ATTN_F32, 1, 1, T, 1);
    assert_int_equal(attn_sdpa_jvp(NULL, &a, &t, NULL), ATTN_OK);
    for (int i = 0; i < T; i++)
        if (!(fabs((double)tout[i] - 1) < 1e-5))
            fail_msg("tout[%d] is %.9g, want 1", i, (double)tout[i]);
}

/* -------------------------------------------------------------------------------- the transpose */

typedef struct dot {
    double sum, size;
} dot;

static void add_dot(check_case *c, dot *to, const check_tensor *x, const check_tensor *y)
{
    const double *a = check_tensor_copy(c, &x->view), *b = check_tensor_copy(c, &y->view);
    for (int64_t i = 0; i < check_count(&x->view); i++) {
        to->sum += a[i] * b[i];
        to->size += fabs(a[i] * b[i]);
    }
}

/* Sums of products of tangents and gradients are the same at either end; and the bits of tout for
 * any number of threads. */
static void transpose(check_case *c)
{
    check_call call;
    check_call_random(c, &call, 3e5);
    attn_sdpa_args *a = &call.args;
    const int64_t rows[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], 1};
    check_tensor lse = check_tensor_new(c, ATTN_F64, rows, CHECK_DENSE);
    check_tensor dlse = check_tensor_new(c, ATTN_F64, rows, CHECK_DENSE);
    check_tensor tlse = check_tensor_new(c, ATTN_F64, rows, CHECK_LOOSE);
    check_tensor out = check_tensor_new(c, ATTN_F64, a->out.shape, CHECK_DENSE);
    a->lse = &lse.view, a->out = out.view, a->scores = NULL;
    const attn_tensor *shapes[4] = {&a->q, &a->k, &a->v, &a->out};
    check_tensor t[4], d[4];
    for (int i = 0; i < 4; i++) {
        t[i] = check_tensor_new(c, i == 3 ? ATTN_F64 : a->q.dtype, shapes[i]->shape, CHECK_LOOSE);
        d[i] = check_tensor_new(c, i == 3 ? a->q.dtype : ATTN_F64, shapes[i]->shape, CHECK_LOOSE);
        check_call_fill(c, i == 3 ? &d[i] : &t[i], 1);
    }
    check_call_fill(c, &dlse, 1);
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    attn_sdpa_tangents x = ATTN_SDPA_TANGENTS_INIT;
    g.dout = d[3].view, g.dlse = &dlse.view, g.dq = d[0].view, g.dk = d[1].view, g.dv = d[2].view;
    x.tq = t[0].view, x.tk = t[1].view, x.tv = t[2].view, x.tout = t[3].view, x.tlse = &tlse.view;
    attn_error err = {0};
    attn_context *ctx = check_context(c, 3);
    if (attn_sdpa_forward(ctx, a, &err) || attn_sdpa_backward(ctx, a, &g, &err) ||
        attn_sdpa_jvp(ctx, a, &x, &err))
        check_fail(c, "%s", err.message);
    dot left = {0, 0}, right = {0, 0};
    for (int i = 0; i < 3; i++)
        add_dot(c, &right, &t[i], &d[i]);
    add_dot(c, &left, &t[3], &d[3]);
    add_dot(c, &left, &tlse, &dlse);
    const double unit = call.compute == ATTN_F64 ? 0x1p-53 : 0x1p-24;
    const double bound = 1e4 * unit * (left.size + right.size) + 1e-30;
    if (isfinite(left.sum) != isfinite(right.sum))
        check_fail(c, "the outputs' products sum to %g, want the inputs' %g", left.sum, right.sum);
    if (isfinite(left.sum) && !call.outliers && fabs(left.sum - right.sum) > bound)
        check_fail(c, "the outputs' products sum to %.17g, want the inputs' %.17g (tolerance %g)",
                   left.sum, right.sum, bound);
    const double *all = check_tensor_copy(c, &t[3].view);
    if (attn_sdpa_jvp(check_context(c, 1), a, &x, &err))
        check_fail(c, "%s", err.message);
    check_difference worst;
    if (!check_same(check_tensor_copy(c, &t[3].view), all, check_count(&t[3].view),
                    CHECK_ZERO_SIGNED, &worst))
        check_fail(c, "threads: tout %lld differs", (long long)worst.at);
    check_expect_intact(c);
}

static void test_transpose(void **state)
{
    (void)state;
    run_property(transpose, "transpose", 60);
}

/* ------------------------------------------------------------------------------------ arguments */

static void expect_refused(const attn_sdpa_args *a, const attn_sdpa_tangents *t, attn_status want,
                           const char *argument)
{
    attn_error err = {0};
    assert_int_equal(attn_sdpa_jvp(NULL, a, t, &err), want);
    assert_string_equal(err.argument, argument);
    assert_true(strncmp(err.message, argument, strlen(argument)) == 0);
}

static void test_errors(void **state)
{
    (void)state;
    static small s;
    static direction d;
    static check_case c = {.random = 11};
    make(&c, &s);
    do {
        make_direction(&c, &d, &s);
    } while (!d.t.tq.data || !d.t.tk.data || !d.t.tv.data);
    attn_sdpa_args a = s.args;
    attn_sdpa_tangents t = d.t;
    expect_refused(NULL, &t, ATTN_ERR_ARGUMENT, "args");
    expect_refused(&a, NULL, ATTN_ERR_ARGUMENT, "tangents");
    a.lse = NULL;
    expect_refused(&a, &t, ATTN_ERR_ARGUMENT, "lse");
    a = s.args, t.struct_size = 8;
    expect_refused(&a, &t, ATTN_ERR_ARGUMENT, "struct_size");
    t = d.t, t.tq.data = NULL;
    expect_refused(&a, &t, ATTN_ERR_ARGUMENT, "tq");
    t = d.t, t.tk.shape[3]++;
    expect_refused(&a, &t, ATTN_ERR_SHAPE, "tk");
    t = d.t, t.tv.dtype = ATTN_F16;
    expect_refused(&a, &t, ATTN_ERR_DTYPE, "tv");
    t = d.t, memset(&t.tout, 0, sizeof t.tout);
    expect_refused(&a, &t, ATTN_ERR_DTYPE, "tout");
    t = d.t;
    assert_int_equal(attn_sdpa_jvp(NULL, &a, &t, NULL), ATTN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_infinite_tangent_keeps_its_sign),
        cmocka_unit_test(test_large_lse_is_not_rounded_away),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
