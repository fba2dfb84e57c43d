/* Finite input gives finite output, and errors do not grow with the number of keys.
 *
 * labels: slow
 * timeout: 900
 *
 * Random calls of every type and option have numbers from the smallest to the largest of the type,
 * as long as no score is too large (docs/NUMERICS.md, "NaN and infinity"). */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "support/property.h"

static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};

typedef struct extremes {
    attn_sdpa_args args;
    check_tensor q, k, v, out, lse, scores, mask;
    float sinks[4], slopes[4];
    double largest, limit; /* of the type; of a score */
} extremes;

/* Any number of the type, or of a few sizes of it alone. */
static double number(check_case *c, double largest, unsigned sizes)
{
    static const double all[] = {0, 5e-324, 1e-310, 1e-45, 1e-40, 6e-8, 1e-20, 0.1,
                                 1, 3,      1e3,    1e9,   1e18,  1e30, 1e38,  1e300};
    double x;
    do {
        const int n = (int)check_between(c, 0, 16);
        x = n == 16 ? largest : all[n] * (1 + (double)check_between(c, 0, 7) / 8);
        if (!(sizes >> n & 1))
            x = 0.5;
    } while (x > largest);
    return check_chance(c, 50) ? x : -x;
}

static check_tensor drawn(check_case *c, attn_dtype dtype, const int64_t shape[4], double largest)
{
    const unsigned sizes = check_chance(c, 40) ? 0x1ffff : (unsigned)check_random(c);
    check_tensor t =
        check_tensor_new(c, dtype, shape, check_chance(c, 70) ? CHECK_DENSE : CHECK_LOOSE);
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t i = 0; i < shape[2]; i++)
                for (int64_t j = 0; j < shape[3]; j++)
                    check_store(&t.view, b, h, i, j, number(c, largest, sizes));
    return t;
}

/* The largest sum of |q_t k_t|. */
static long double reach_of(const attn_sdpa_args *a)
{
    long double most = 0;
    const int64_t G = a->q.shape[1] / a->k.shape[1];
    for (int64_t h = 0; h < a->q.shape[1]; h++)
        for (int64_t i = 0; i < a->q.shape[2]; i++)
            for (int64_t j = 0; j < a->k.shape[2]; j++) {
                long double sum = 0;
                for (int64_t d = 0; d < a->q.shape[3]; d++)
                    sum += fabsl((long double)ref_get(&a->q, 0, h, i, d) *
                                 (long double)ref_get(&a->k, 0, h / G, j, d));
                most = fmaxl(most, sum);
            }
    return most;
}

static double largest_in(const attn_tensor *t)
{
    double most = 0;
    for (int64_t h = 0; h < t->shape[1]; h++)
        for (int64_t i = 0; i < t->shape[2]; i++)
            for (int64_t j = 0; j < t->shape[3]; j++)
                most = fmax(most, fabs(ref_get(t, 0, h, i, j)));
    return most;
}

/* A scale, of any size, of which no score exceeds `limit`. */
static void choose_scale(check_case *c, attn_sdpa_args *a, double limit)
{
    static const double scales[] = {0, 1, 0.3, 2, 8, 1e-30, 1e-300, 1e10, 1e37, 1e200};
    const long double most = reach_of(a);
    a->scale = CHECK_PICK(c, scales);
    if ((a->scale != 0 ? (long double)a->scale : 1) * most > (long double)limit)
        a->scale = (double)((long double)limit / most) * (check_chance(c, 50) ? 0.99 : 1e-3);
    for (int64_t i = 0; a->scale == 0 && most > (long double)limit && i < check_count(&a->q); i++) {
        const int64_t *n = a->q.shape, row = i / n[3]; /* no number is small enough */
        check_store(&a->q, 0, row / n[2], row % n[2], i % n[3], 0);
    }
    if (check_chance(c, 30))
        a->scale = -a->scale;
}

static void choose_options(check_case *c, extremes *x, double bias, double sink)
{
    static const double caps[] = {0, 0, 0, 5, 1e-300, 1e-39, 1e-10, 1e20, 1e38, 1e39, 1e300};
    attn_sdpa_args *a = &x->args;
    const int64_t H = a->q.shape[1], T = a->q.shape[2], S = a->k.shape[2];
    const double f32 = fmin(bias, FLT_MAX);
    a->softcap = CHECK_PICK(c, caps);
    a->causal = check_chance(c, 50) ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_BOTTOM_RIGHT;
    a->window_left = check_chance(c, 80) ? -1 : 20;
    a->precision = check_chance(c, 50) ? ATTN_PRECISION_DEFAULT : ATTN_PRECISION_ACCURATE;
    if (check_chance(c, 40)) {
        const attn_dtype dtype = CHECK_PICK(c, dtypes);
        const int64_t shape[4] = {1, check_chance(c, 50) ? 1 : H, check_chance(c, 50) ? 1 : T, S};
        const double top = dtype == ATTN_F16 ? 65504 : dtype == ATTN_BF16 ? 0x1.fep127 : FLT_MAX;
        x->mask = drawn(c, dtype, shape, dtype == ATTN_F64 ? bias : fmin(bias, top));
        a->mask = &x->mask.view;
    }
    for (int h = 0; h < 4; h++) {
        x->sinks[h] = (float)number(c, sink, 0x1ffff);
        x->slopes[h] = (float)number(c, 1e-3 * f32, 0x1ffff);
    }
    a->sink_logits = check_chance(c, 40) ? x->sinks : NULL;
    a->alibi_slopes = check_chance(c, 15) ? x->slopes : NULL;
    if (check_chance(c, 20) && largest_in(&a->v) < 0.5 * x->largest) /* it makes values larger */
        a->dropout = 0.4, a->dropout_seed = 3;
}

static void make(check_case *c, extremes *x, double most, double bias, double sink)
{
    static const int64_t queries[] = {1, 2, 5, 20, 40}, keys[] = {1, 3, 9, 40, 65, 300};
    static const int64_t widths[] = {1, 2, 8, 24}, heads[] = {1, 2, 4};
    const attn_dtype dtype = CHECK_PICK(c, dtypes);
    const int64_t H = CHECK_PICK(c, heads), Hk = check_chance(c, 50) ? 1 : H;
    const int64_t T = CHECK_PICK(c, queries), S = CHECK_PICK(c, keys), D = CHECK_PICK(c, widths);
    *x = (extremes){.args = ATTN_SDPA_ARGS_INIT};
    x->largest = dtype == ATTN_F64   ? DBL_MAX
                 : dtype == ATTN_F32 ? (double)FLT_MAX
                 : dtype == ATTN_F16 ? 65504
                                     : 0x1.fep127;
    x->limit = fmin(most, dtype == ATTN_F64 ? 1e308 : 2.9e38);
    const double part = 0.3 * x->limit; /* for scores, a mask, slopes */
    x->q = drawn(c, dtype, (const int64_t[]){1, H, T, D}, x->largest);
    x->k = drawn(c, dtype, (const int64_t[]){1, Hk, S, D}, x->largest);
    x->v = drawn(c, dtype, (const int64_t[]){1, Hk, S, D}, x->largest);
    x->out = check_tensor_new(c, dtype, (const int64_t[]){1, H, T, D}, CHECK_DENSE);
    x->lse = check_tensor_new(c, ATTN_F64, (const int64_t[]){1, H, T, 1}, CHECK_DENSE);
    attn_sdpa_args *a = &x->args;
    a->q = x->q.view, a->k = x->k.view, a->v = x->v.view, a->out = x->out.view;
    a->lse = &x->lse.view;
    choose_scale(c, a, part);
    choose_options(c, x, fmin(bias, part), sink);
    check_describe(c,
                   "%s H %d Hk %d T %d S %d D %d scale %a cap %g causal %d window %d mask %s "
                   "sinks %g alibi %d dropout %g precision %d",
                   attn_dtype_name(dtype), (int)H, (int)Hk, (int)T, (int)S, (int)D, a->scale,
                   a->softcap, a->causal, (int)a->window_left,
                   a->mask ? attn_dtype_name(a->mask->dtype) : "none",
                   a->sink_logits ? (double)x->sinks[0] : 0, a->alibi_slopes != NULL, a->dropout,
                   a->precision);
}

static void forward(check_case *c, extremes *x)
{
    attn_error err = {0};
    if (attn_sdpa_forward(check_context(c, check_chance(c, 50) ? 1 : 3), &x->args, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
}

static void expect_finite(check_case *c, const char *name, const attn_tensor *t, double most)
{
    const double *got = check_tensor_copy(c, t);
    for (int64_t i = 0; i < check_count(t); i++)
        if (!(fabs(got[i]) <= most))
            check_fail(c, "%s[%d] is %g, want at most %g", name, (int)i, got[i], most);
}

/* A result is a mean of values, and no larger than the largest. */
static void outputs(check_case *c)
{
    for (int n = 0; n < 60; n++) {
        extremes x;
        make(c, &x, INFINITY, INFINITY, (double)FLT_MAX);
        attn_sdpa_args *a = &x.args;
        if (check_chance(c, 40)) {
            const int64_t *q = a->q.shape, all[4] = {1, q[1], q[2], a->k.shape[2]};
            x.scores = check_tensor_new(c, ATTN_F64, all, CHECK_DENSE);
            a->scores = &x.scores.view;
            a->scores_stage = (attn_stage)check_between(c, 0, 3);
        }
        forward(c, &x);
        expect_finite(c, "out", &x.out.view,
                      fmin(x.largest, largest_in(&a->v) / (1 - a->dropout) * 1.01 + 1e-30));
        const double *lse = check_tensor_copy(c, &x.lse.view);
        for (int64_t i = 0; i < check_count(&x.lse.view); i++)
            if (!(lse[i] < INFINITY))
                check_fail(c, "lse[%d] is %g, want less than infinity", (int)i, lse[i]);
        const double *scores = a->scores ? check_tensor_copy(c, a->scores) : NULL;
        for (int64_t i = 0; a->scores && i < check_count(a->scores); i++)
            if (!(scores[i] < INFINITY))
                check_fail(c, "scores[%d], stage %d, is %g, want less than infinity", (int)i,
                           a->scores_stage, scores[i]);
        check_buffers_reset(c->run->buffers);
    }
}

/* Gradients and tangents, where what they are sums of stays in the type's range. */
static void derivatives(check_case *c)
{
    for (int n = 0; n < 40; n++) {
        extremes x;
        make(c, &x, 1e6, 1e6, (double)FLT_MAX);
        attn_sdpa_args *a = &x.args;
        const int64_t *q = a->q.shape, *k = a->k.shape, S = k[2], D = q[3];
        const attn_dtype own = a->q.dtype, to = check_chance(c, 50) ? ATTN_F64 : ATTN_F32;
        const double scale = a->scale != 0 ? fabs(a->scale) : 1;
        const double wide = fmax(fmax(largest_in(&a->q), largest_in(&a->k)), 1) * fmax(scale, 1);
        const double terms = (double)(q[1] * q[2] * S * D) * 1e3;
        const double room = own == ATTN_F64 && to == ATTN_F64 ? 1e307 : 1e38;
        const double size = fmin(room / terms / wide / fmax(largest_in(&a->v), 1), 1);
        forward(c, &x);
        check_tensor dout = check_tensor_new(c, own, q, CHECK_DENSE);
        check_tensor tk = check_tensor_new(c, own, k, CHECK_DENSE);
        for (int64_t h = 0; h < q[1]; h++)
            for (int64_t i = 0; i < q[2]; i++)
                for (int64_t d = 0; d < D; d++)
                    check_store(&dout.view, 0, h, i, d, size * check_value(c, CHECK_PLAIN));
        for (int64_t h = 0; h < k[1]; h++)
            for (int64_t i = 0; i < S; i++)
                for (int64_t d = 0; d < D; d++)
                    check_store(&tk.view, 0, h, i, d, size * check_value(c, CHECK_PLAIN));
        check_tensor dq = check_tensor_new(c, to, q, CHECK_DENSE);
        check_tensor dk = check_tensor_new(c, to, k, CHECK_DENSE);
        check_tensor dv = check_tensor_new(c, to, k, CHECK_DENSE);
        check_tensor dmask;
        double dsinks[4] = {0}, dslopes[4] = {0};
        attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
        g.dout = dout.view, g.dq = dq.view, g.dk = dk.view, g.dv = dv.view;
        if (a->mask) {
            dmask = check_tensor_new(c, to, a->mask->shape, CHECK_DENSE);
            g.dmask = &dmask.view;
        }
        g.dsink_logits = a->sink_logits ? dsinks : NULL;
        g.dalibi_slopes = a->alibi_slopes ? dslopes : NULL;
        attn_error err = {0};
        if (attn_sdpa_backward(check_context(c, 1), a, &g, &err) != ATTN_OK)
            check_fail(c, "%s", err.message);
        expect_finite(c, "dq", &dq.view, DBL_MAX), expect_finite(c, "dk", &dk.view, DBL_MAX);
        expect_finite(c, "dv", &dv.view, DBL_MAX);
        if (g.dmask)
            expect_finite(c, "dmask", g.dmask, DBL_MAX);
        for (int h = 0; h < 4; h++)
            if (!isfinite(dsinks[h]) || !isfinite(dslopes[h]))
                check_fail(c, "head %d: dsink is %g, dslope is %g, want finite numbers", (int)h,
                           dsinks[h], dslopes[h]);
        attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
        t.tq = dout.view, t.tk = tk.view, t.tv = tk.view, t.tout = dq.view;
        check_tensor tlse = check_tensor_new(c, to, x.lse.view.shape, CHECK_DENSE);
        t.tlse = &tlse.view;
        if (attn_sdpa_jvp(check_context(c, 1), a, &t, &err) != ATTN_OK)
            check_fail(c, "%s", err.message);
        expect_finite(c, "tout", &dq.view, DBL_MAX), expect_finite(c, "tlse", t.tlse, DBL_MAX);
        check_buffers_reset(c->run->buffers);
    }
}

/* Many keys: the bound is that of a few. */
static void many_keys(check_case *c)
{
    static const int64_t keys[] = {4096, 7001, 20000};
    for (int n = 0; n < 4 * 3 * 2; n++) {
        check_call call = {.args = ATTN_SDPA_ARGS_INIT, .threads = n / 12 ? 3 : 1};
        const attn_dtype dtype = dtypes[n % 4];
        const int64_t S = keys[n / 4 % 3], T = n / 12 ? 1 : 18, D = 8;
        check_describe(c, "%s T %d S %d", attn_dtype_name(dtype), (int)T, (int)S);
        attn_sdpa_args *a = &call.args;
        call.q = check_tensor_new(c, dtype, (const int64_t[]){1, 1, T, D}, CHECK_DENSE);
        call.k = check_tensor_new(c, dtype, (const int64_t[]){1, 1, S, D}, CHECK_DENSE);
        call.v = check_tensor_new(c, dtype, (const int64_t[]){1, 1, S, D}, CHECK_DENSE);
        call.out = check_tensor_new(c, dtype, (const int64_t[]){1, 1, T, D}, CHECK_DENSE);
        call.lse = check_tensor_new(c, ATTN_F64, (const int64_t[]){1, 1, T, 1}, CHECK_DENSE);
        check_call_fill(c, &call.q, 1), check_call_fill(c, &call.k, 1);
        check_call_fill(c, &call.v, 1);
        a->q = call.q.view, a->k = call.k.view, a->v = call.v.view, a->out = call.out.view;
        a->lse = &call.lse.view;
        call.compute = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
        ref_result want;
        check_call_reference(c, &call, &want);
        attn_error err = {0};
        if (attn_sdpa_forward(check_context(c, call.threads), a, &err) != ATTN_OK)
            check_fail(c, "%s", err.message);
        check_call_judge(c, &call, &want);
        check_buffers_reset(c->run->buffers);
    }
}

static void test_outputs(void **state)
{
    (void)state;
    run_property(outputs, "outputs", 30);
}

static void test_derivatives(void **state)
{
    (void)state;
    run_property(derivatives, "derivatives", 30);
}

static void test_many_keys(void **state)
{
    (void)state;
    run_property(many_keys, "many_keys", 1);
}

/* Scores up to the largest double, as those of a row whose keys all have torch.finfo(float64).min
 * in a mask: finite in natural units, but not in log2 units. All keys have the weight 1/S. */
static void test_scores_beyond_log2_units(void **state)
{
    (void)state;
    static const double scores[] = {1e300, 1.2e308, 1.25e308, DBL_MAX, -1e300, -1.25e308, -DBL_MAX};
    double q[] = {1}, k[] = {0, 0, 0, 0}, v[] = {10, 20, 30, 40}, mask[4], out = 0, lse = 0;
    double weights[4] = {0};
    float q32[] = {1}, k32[] = {0, 0, 0, 0}, v32[] = {10, 20, 30, 40}, out32 = 0;
    attn_error e;
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        describe_case("score %g", scores[i]);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        const attn_tensor m = attn_bhtd(mask, ATTN_F64, 1, 1, 1, 4);
        const attn_tensor l = attn_bhtd(&lse, ATTN_F64, 1, 1, 1, 1);
        const attn_tensor w = attn_bhtd(weights, ATTN_F64, 1, 1, 1, 4);
        for (int j = 0; j < 4; j++)
            mask[j] = scores[i];
        a.q = attn_bhtd(q, ATTN_F64, 1, 1, 1, 1), a.k = attn_bhtd(k, ATTN_F64, 1, 1, 4, 1);
        a.v = attn_bhtd(v, ATTN_F64, 1, 1, 4, 1), a.out = attn_bhtd(&out, ATTN_F64, 1, 1, 1, 1);
        a.mask = &m, a.lse = &l, a.scores = &w, a.scores_stage = ATTN_STAGE_WEIGHTS;
        assert_int_equal(attn_sdpa_forward(NULL, &a, &e), ATTN_OK);
        assert_near(out, 25, <, 1e-13);
        assert_near(lse / scores[i], 1, <, 1e-15);
        for (int j = 0; j < 4; j++)
            assert_near(weights[j], 0.25, <, 1e-15);
        a.q = attn_bhtd(q32, ATTN_F32, 1, 1, 1, 1), a.k = attn_bhtd(k32, ATTN_F32, 1, 1, 4, 1);
        a.v = attn_bhtd(v32, ATTN_F32, 1, 1, 4, 1), a.out = attn_bhtd(&out32, ATTN_F32, 1, 1, 1, 1);
        a.scores = NULL, a.precision = ATTN_PRECISION_ACCURATE;
        assert_int_equal(attn_sdpa_forward(NULL, &a, &e), ATTN_OK);
        assert_near(out32, 25, <, 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_derivatives),
        cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_scores_beyond_log2_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
