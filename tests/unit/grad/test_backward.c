/* The gradients of attn_sdpa_backward are the derivatives of attn_sdpa_forward.
 *
 * labels: slow
 *
 * Compares with central differences of the reference in long double, on 500 small cases with every
 * option, and with the promised accuracy. test_check compares more cases with the reference's
 * gradients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_case.h"
#include "check/check_tensor.h"
#include "ref/attn_ref.h"
#include "small_attention.h"
#include "support/test.h"

/* sum(out * dout) + sum(lse * dlse), the sum over rows that see something. */
static double loss(const small *s)
{
    double out[ROWS * MOST_D], lse[ROWS];
    const ref_result result = {.out = out, .lse = lse};
    assert_true(ref_sdpa_forward_wide(&s->args, &result));
    long double sum = 0;
    int64_t rows = check_count(&s->lse), n = check_count(&s->args.out);
    for (int64_t i = 0; i < n; i++)
        sum += (long double)out[i] * s->dout[i];
    for (int64_t i = 0; i < rows && s->grads.dlse; i++)
        sum += isfinite(lse[i]) ? (long double)lse[i] * s->dlses[i] : 0;
    return (double)sum;
}

/* The derivative of the loss by *x, from four values of it: the error is of the order of step^4. */
static double derivative_f64(const small *s, double *x)
{
    const double step = 0x1p-9, at = *x;
    double y[4];
    for (int i = 0; i < 4; i++) {
        *x = at + step * (i < 2 ? i - 2 : i - 1);
        y[i] = loss(s);
    }
    *x = at;
    return (y[0] - 8 * y[1] + 8 * y[2] - y[3]) / (12 * step);
}

static double derivative_f32(const small *s, float *x)
{
    const float step = 0x1p-9F, at = *x;
    double y[4], moved[4];
    for (int i = 0; i < 4; i++) {
        *x = at + step * (float)(i < 2 ? i - 2 : i - 1);
        moved[i] = (double)*x - (double)at; /* what is left of the step once it is rounded */
        y[i] = loss(s);
    }
    *x = at;
    return (8 * (y[2] - y[1]) / (moved[2] - moved[1]) * 2 -
            (y[3] - y[0]) / (moved[3] - moved[0]) * 4) /
           12;
}

static void expect_near(const char *name, int64_t at, double got, double want, uint64_t seed)
{
    const double tolerance = 2e-8 * (1 + fabs(want));
    if (!(fabs(got - want) <= tolerance))
        fail_msg("case %" PRIu64 ": %s[%" PRId64 "] is %.17g, want %.17g by differences "
                 "(tolerance %g)",
                 seed, name, at, got, want, tolerance);
}

static void expect_derivatives(small *s, const char *name, double *x, const double *dx, int64_t n,
                               uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            expect_near(name, i, dx[i], derivative_f64(s, &x[i]), seed);
        else if (dx[i] != 0)
            fail_msg("case %" PRIu64 ": %s[%" PRId64 "] is %g, want 0, since it is hidden", seed,
                     name, i, dx[i]);
}

static void test_differences(void **state)
{
    (void)state;
    static small s;
    static check_case c;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        c = (check_case){.random = seed * 0x9E3779B97F4A7C15};
        make(&c, &s);
        attn_error err;
        if (attn_sdpa_forward(NULL, &s.args, &err) != ATTN_OK ||
            attn_sdpa_backward(NULL, &s.args, &s.grads, &err) != ATTN_OK)
            fail_msg("case %llu: %s", (unsigned long long)seed, err.message);
        const int64_t H = s.args.q.shape[1];
        expect_derivatives(&s, "dq", s.q, s.dq, check_count(&s.args.q), seed);
        expect_derivatives(&s, "dk", s.k, s.dk, check_count(&s.args.k), seed);
        expect_derivatives(&s, "dv", s.v, s.dv, check_count(&s.args.v), seed);
        if (s.args.mask)
            expect_derivatives(&s, "dmask", s.bias, s.dbias, check_count(&s.mask), seed);
        for (int64_t h = 0; h < H && s.args.alibi_slopes; h++)
            expect_near("dalibi", h, s.dslope[h], derivative_f32(&s, &s.slope[h]), seed);
        for (int64_t h = 0; h < H && s.args.sink_logits; h++)
            expect_near("dsink", h, s.dsink[h], derivative_f32(&s, &s.sink[h]), seed);
    }
}

/* ---------------------------------------------------------------------------------- accuracy */

/* ||got - want|| / ||want||, and the largest error relative to the largest value. */
static void errors(const attn_tensor *got, const double *want, double *frobenius, double *largest)
{
    double error = 0, size = 0, worst = 0, top = 0;
    int64_t n = check_count(got);
    for (int64_t i = 0; i < n; i++) {
        const attn_tensor one = {.data =
                                     (char *)got->data + i * (int64_t)attn_dtype_size(got->dtype),
                                 .dtype = got->dtype,
                                 .shape = {1, 1, 1, 1}};
        double off = ref_get(&one, 0, 0, 0, 0) - want[i];
        error += off * off;
        size += want[i] * want[i];
        worst = fmax(worst, fabs(off));
        top = fmax(top, fabs(want[i]));
    }
    *frobenius = sqrt(error / size);
    *largest = worst / top;
}

static attn_tensor dense(attn_dtype dtype, int64_t T, int64_t D)
{
    void *data = calloc((size_t)(T * D), 8);
    assert_non_null(data);
    return attn_bhtd(data, dtype, 1, 1, T, D);
}

/* One head of 512 normal queries and keys, D = 64: the limits are PyTorch 2.13's own errors,
 * rounded up; in double, what is promised. */
static void expect_accurate(attn_dtype dtype, attn_causal causal, const char *isa,
                            const double frobenius[3], double largest)
{
    enum { N = 512, D = 64 };
    check_case c = {.random = 99};
    attn_tensor x[8];
    for (int i = 0; i < 8; i++) {
        x[i] = dense(dtype, N, D);
        for (int64_t row = 0; row < N && i < 4; row++)
            for (int64_t d = 0; d < D; d++)
                check_store(&x[i], 0, 0, row, d, check_normal(&c));
    }
    attn_tensor lse = dense(dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, N, 1);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    a.q = x[0], a.k = x[1], a.v = x[2], a.out = x[4], a.lse = &lse, a.causal = causal;
    g.dout = x[3], g.dq = x[5], g.dk = x[6], g.dv = x[7];
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx;
    options.isa = isa, options.threads = 1;
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
    assert_int_equal(attn_sdpa_backward(ctx, &a, &g, NULL), ATTN_OK);
    attn_context_destroy(ctx);
    double *want[3];
    for (int i = 0; i < 3; i++) {
        want[i] = calloc(N * D, sizeof(double));
        assert_non_null(want[i]);
    }
    const ref_grads result = {.dq = {want[0], NULL}, .dk = {want[1], NULL}, .dv = {want[2], NULL}};
    assert_true(dtype == ATTN_F64 ? ref_sdpa_backward_wide(&a, &g, &result)
                                  : ref_sdpa_backward(&a, &g, &result));
    for (int i = 0; i < 3; i++) {
        double f, l;
        errors(&x[5 + i], want[i], &f, &l);
        print_message("%-8s %-4s causal=%d d%c %.2e %.2e\n", isa, attn_dtype_name(dtype), causal,
                      "qkv"[i], f, l);
        if (!(f <= frobenius[i]) || !(l <= largest))
            fail_msg("%s, %s, causal=%d, d%c: relative error %g, limit %g; largest %g, limit %g",
                     isa, attn_dtype_name(dtype), causal, "qkv"[i], f, frobenius[i], l, largest);
        free(want[i]);
    }
    for (int i = 0; i < 8; i++)
        free(x[i].data);
    free(lse.data);
}

static void test_accuracy(void **state)
{
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int causal = 0; causal < 2 && attn_isa(isa).usable; causal++) {
            const char *name = attn_isa(isa).name;
            expect_accurate(ATTN_F32, (attn_causal)causal, name, (double[]){5e-7, 5e-7, 5e-7},
                            2e-5);
            expect_accurate(ATTN_F64, (attn_causal)causal, name, (double[]){1e-14, 1e-14, 1e-14},
                            1e-12);
            expect_accurate(ATTN_BF16, (attn_causal)causal, name,
                            (double[]){2.4e-3, 3.9e-3, 3.9e-3}, 2e-2);
        }
}

/* --------------------------------------------------------------------------------------- sinks */

/* dsink = -e^(sink - lse) (dout . out - dlse). If out holds a NaN, dsink is NaN even where the
 * weight of the sink underflows to 0, as the gradients of the keys are. A sink of -inf is
 * absent. */
static void test_a_nan_reaches_the_gradient_of_a_sink_whose_weight_underflows(void **state)
{
    (void)state;
    float q = 1, k = 1, v = NAN, dout = 1, out, lse;
    for (int present = 0; present < 2; present++) {
        const float sink = present ? -1e30F : -INFINITY;
        attn_tensor rows = attn_bhtd(&lse, ATTN_F32, 1, 1, 1, 1);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
        double gradient = 7;
        a.q = attn_bhtd(&q, ATTN_F32, 1, 1, 1, 1);
        a.k = attn_bhtd(&k, ATTN_F32, 1, 1, 1, 1);
        a.v = attn_bhtd(&v, ATTN_F32, 1, 1, 1, 1);
        a.out = attn_bhtd(&out, ATTN_F32, 1, 1, 1, 1);
        a.lse = &rows, a.sink_logits = &sink;
        g.dout = attn_bhtd(&dout, ATTN_F32, 1, 1, 1, 1);
        g.dsink_logits = &gradient;
        assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
        assert_int_equal(attn_sdpa_backward(NULL, &a, &g, NULL), ATTN_OK);
        if (present)
            assert_true(isnan(gradient));
        else
            assert_number(gradient, ==, 0);
    }
}

/* ------------------------------------------------------------------------------- hidden keys */

/* A NaN or an infinity in the dout of row 0 does not reach key 1, which row 0 does not see. */
static void test_dout_that_is_not_finite_reaches_no_hidden_key(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float q[] = {1, 2}, k[] = {0.5F, -1}, v[] = {3, 4}, out[2], lse[2], dq[2], dk[2], dv[2];
    for (int i = 0; i < 4; i++) {
        float dout[] = {i < 3 ? bad[i] : 1, 0.75F};
        static float want[3];
        attn_tensor rows = attn_bhtd(lse, ATTN_F32, 1, 1, 2, 1);
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
        a.q = attn_bhtd(q, ATTN_F32, 1, 1, 2, 1), a.k = attn_bhtd(k, ATTN_F32, 1, 1, 2, 1);
        a.v = attn_bhtd(v, ATTN_F32, 1, 1, 2, 1), a.out = attn_bhtd(out, ATTN_F32, 1, 1, 2, 1);
        a.lse = &rows, a.causal = ATTN_CAUSAL_TOP_LEFT;
        g.dout = attn_bhtd(dout, ATTN_F32, 1, 1, 2, 1);
        g.dq = attn_bhtd(dq, ATTN_F32, 1, 1, 2, 1);
        g.dk = attn_bhtd(dk, ATTN_F32, 1, 1, 2, 1);
        g.dv = attn_bhtd(dv, ATTN_F32, 1, 1, 2, 1);
        assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
        assert_int_equal(attn_sdpa_backward(NULL, &a, &g, NULL), ATTN_OK);
        const double weight = exp(2 * -1) / (exp(2 * -1) + exp(2 * 0.5)); /* of key 1 in row 1 */
        assert_true(fabs(dv[1] - 0.75 * weight) < 1e-6);
        if (i == 0)
            want[0] = dk[1], want[1] = dv[1], want[2] = dq[1];
        assert_true(isfinite(want[0]) && isfinite(want[2]));
        assert_true(dk[1] == want[0] && dv[1] == want[1] && dq[1] == want[2]);
        assert_int_equal(isfinite(dv[0]), i == 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dout_that_is_not_finite_reaches_no_hidden_key),
        cmocka_unit_test(test_a_nan_reaches_the_gradient_of_a_sink_whose_weight_underflows),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_accuracy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
