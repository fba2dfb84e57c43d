/* Gradients and tangents are right if scale is below the normal numbers of a float.
 *
 * A scale of 1e-46 times queries and keys of 1e23 gives usual scores and gradients. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "attn.h"
#include "ref/attn_ref.h"
#include "support/test.h"

enum { T = 3, S = 20, D = 4 };

static attn_context *context(int isa)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    options.isa = attn_isa(isa).name;
    options.threads = 1;
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    return ctx;
}

static void fill(float *x, int n, double size)
{
    for (int i = 0; i < n; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(int64_t)random_state * 0x1p-63 * size);
    }
}

static void expect_near(const char *name, const float *x, const double *want, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs(want[i]));
    assert_true(most > (double)FLT_MIN);
    for (int i = 0; i < n; i++)
        if (!(fabs((double)x[i] - want[i]) <= 4e-6 * most))
            fail_msg("%s[%d] is %g, expected %g", name, i, (double)x[i], want[i]);
}

static void compare_gradients(attn_context *ctx, double scale, double size)
{
    float q[T * D], k[S * D], v[S * D], out[T * D], dout[T * D], dq[T * D], dk[S * D], dv[S * D];
    double lse[T] = {0}, want[3][S * D] = {0};
    fill(q, T * D, size), fill(k, S * D, size), fill(v, S * D, 1), fill(dout, T * D, 1);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    const attn_tensor l = attn_matrix(lse, ATTN_F64, T, 1);
    a.scale = scale, a.lse = &l;
    a.q = attn_matrix(q, ATTN_F32, T, D), a.out = attn_matrix(out, ATTN_F32, T, D);
    a.k = attn_matrix(k, ATTN_F32, S, D), a.v = attn_matrix(v, ATTN_F32, S, D);
    assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = attn_matrix(dout, ATTN_F32, T, D), g.dq = attn_matrix(dq, ATTN_F32, T, D);
    g.dk = attn_matrix(dk, ATTN_F32, S, D), g.dv = attn_matrix(dv, ATTN_F32, S, D);
    assert_int_equal(attn_sdpa_backward(ctx, &a, &g, NULL), ATTN_OK);
    const ref_grads r = {.dq.x = want[0], .dk.x = want[1], .dv.x = want[2]};
    assert_true(ref_sdpa_backward(&a, &g, &r));
    expect_near("dq", dq, want[0], T * D);
    expect_near("dk", dk, want[1], S * D);
    expect_near("dv", dv, want[2], S * D);
}

static void gradients_with_a_scale_below_the_normal_numbers(void **state)
{
    static const struct {
        double scale, size; /* of queries and keys; size^2 * scale is about 1 */
    } cases[] = {{1e-37, 3e18}, {1e-40, 1e20}, {1e-43, 3e21},
                 {2e-45, 2e22}, {1e-46, 1e23}, {-1e-60, 1e30}};
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int i = 0; i < (int)(sizeof cases / sizeof *cases) && attn_isa(isa).usable; i++) {
            attn_context *ctx = context(isa);
            describe_case("%s, scale %g", attn_isa(isa).name, cases[i].scale);
            compare_gradients(ctx, cases[i].scale, cases[i].size);
            attn_context_destroy(ctx);
        }
}

/* One key beside a sink of 9. The score is 0, so lse is ln(1 + e^9), and the weight is
 * 1 / (1 + e^9). */
static void weights_from_lse_with_the_least_scale(void **state)
{
    const double weight = 1 / (1 + exp(9));
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int power = -275; power <= -120 && attn_isa(isa).usable; power++) {
            float q = 1, k = 1, v = 1, tv = 1, dout = 1, sink = 9, out, tout, dv;
            double lse = 0;
            attn_context *ctx = context(isa);
            attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
            const attn_tensor l = attn_matrix(&lse, ATTN_F64, 1, 1);
            a.scale = ldexp(1, power), a.lse = &l, a.sink_logits = &sink;
            a.q = attn_matrix(&q, ATTN_F32, 1, 1), a.k = attn_matrix(&k, ATTN_F32, 1, 1);
            a.v = attn_matrix(&v, ATTN_F32, 1, 1), a.out = attn_matrix(&out, ATTN_F32, 1, 1);
            assert_int_equal(attn_sdpa_forward(ctx, &a, NULL), ATTN_OK);
            attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
            t.tv = attn_matrix(&tv, ATTN_F32, 1, 1), t.tout = attn_matrix(&tout, ATTN_F32, 1, 1);
            assert_int_equal(attn_sdpa_jvp(ctx, &a, &t, NULL), ATTN_OK);
            attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
            g.dout = attn_matrix(&dout, ATTN_F32, 1, 1), g.dv = attn_matrix(&dv, ATTN_F32, 1, 1);
            assert_int_equal(attn_sdpa_backward(ctx, &a, &g, NULL), ATTN_OK);
            describe_case("%s, scale 2^%d", attn_isa(isa).name, power);
            expect_near("out", &out, &weight, 1);
            expect_near("tout", &tout, &weight, 1);
            expect_near("dv", &dv, &weight, 1);
            attn_context_destroy(ctx);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_with_a_scale_below_the_normal_numbers),
        cmocka_unit_test(weights_from_lse_with_the_least_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
