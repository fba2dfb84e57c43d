/* The modules on f32 keep the bounds of docs/NUMERICS.md, on every instruction set.
 *
 * They are compared with long double, for each number of elements after the last whole vector. */
#include <float.h>

#include "nn_tensors.h"

typedef long double wide;

enum { MOST = 70 };
#define U 0x1p-24L /* half a unit of a number in 1..2 */

static const attn_tensor *row(attn_tensor *t, float *x, int n)
{
    *t = attn_matrix(x, ATTN_F32, 1, n);
    return t;
}

static wide ulp(wide x)
{
    const int exponent = x == 0 ? -126 : ilogbl(x);
    return ldexpl(1, (exponent < -126 ? -126 : exponent) - 23);
}

static void expect_within(float got, wide want, wide bound, const char *what, int n, int i)
{
    const bool same =
        isnan(want) ? isnan(got) : fabsl(want) > (wide)FLT_MAX && got == copysignl(INFINITY, want);
    if (!same && !(fabsl(got - want) <= bound))
        fail_msg("%s, element %d of %d: %.9g, want %.12Lg, bound %.3Lg", what, i, n, (double)got,
                 want, bound);
}

static void on_every_set(void (*test)(attn_context *ctx, int n))
{
    for (int isa = 0; attn_isa(isa).name; isa++) {
        if (!attn_isa(isa).usable)
            continue;
        attn_context *ctx = make_context(1, attn_isa(isa).name, NULL);
        for (int n = 1; n <= MOST; n++) {
            describe_case("%s, %d elements", attn_isa(isa).name, n);
            test(ctx, n);
        }
        test(ctx, 1000);
        attn_context_destroy(ctx);
    }
}

/* ----------------------------------------------------------------------------------------- GELU */

static const float special[] = {0.0F,     -0.0F,   NAN,      INFINITY,  -INFINITY,  FLT_MAX,
                                -FLT_MAX, FLT_MIN, -1e-40F,  0x1p-149F, -0x1p-149F, 14.9F,
                                -14.9F,   -13.2F,  -0.7518F, 1e-10F,    -1e-10F,    15,
                                -15,      -20,     20};

static float gelu_argument(int i)
{
    return i % 3 == 2 ? special[i / 3 % (int)COUNT(special)] : (float)(16 * uniform());
}

static wide below(wide x) { return erfcl(-x / sqrtl(2)) / 2; }

static wide slope(wide x)
{
    if (isnan(x) || fabsl(x) > 40)
        return isnan(x) ? x : x > 0;
    return below(x) + x * expl(-x * x / 2) / sqrtl(2 * acosl(-1));
}

static void gelu(attn_context *ctx, int n)
{
    static float x[1000], dout[1000], out[1000], dx[1000], one, one_dx;
    attn_tensor t[4];
    for (int i = 0; i < n; i++) {
        x[i] = gelu_argument(i + n);
        dout[i] = (float)uniform();
    }
    const attn_tensor *vx = row(&t[0], x, n), *vd = row(&t[1], dout, n);
    assert_int_equal(attn_gelu_forward(ctx, vx, row(&t[2], out, n), NULL), ATTN_OK);
    assert_int_equal(attn_gelu_backward(ctx, vd, vx, row(&t[3], dx, n), NULL), ATTN_OK);
    for (int i = 0; i < n; i++) {
        const wide want = x[i] == -INFINITY ? 0 : x[i] * below(x[i]), s = slope(x[i]);
        const wide tiny = 0x1p-122L;
        expect_within(out[i], want, 4 * ulp(want) + (fabsl(want) < tiny ? tiny : 0), "gelu", n, i);
        expect_within(dx[i], dout[i] * s,
                      5 * ulp(dout[i] * s) + (fabsl(s) < tiny ? tiny * fabsl(dout[i]) : 0),
                      "gelu's gradient", n, i);
        /* alone: the same bits */
        attn_gelu_forward(ctx, row(&t[0], x + i, 1), row(&t[2], &one, 1), NULL);
        attn_gelu_backward(ctx, row(&t[1], dout + i, 1), row(&t[0], x + i, 1),
                           row(&t[3], &one_dx, 1), NULL);
        assert_memory_equal(&one, out + i, sizeof one);
        assert_memory_equal(&one_dx, dx + i, sizeof one_dx);
    }
}

static void test_gelu(void **state)
{
    (void)state;
    test_state = 0x6e1;
    on_every_set(gelu);
}

/* ----------------------------------------------------------------------------------- Layer norm */

typedef struct norm_row {
    wide mean, r, mean_g, mean_gy, size_g, size_gy; /* size: of the absolute values */
} norm_row;

static norm_row norm_of(const float *x, const float *dout, const float *w, int n, double eps)
{
    norm_row s = {0};
    wide variance = 0;
    for (int i = 0; i < n; i++)
        s.mean += (wide)x[i] / n;
    for (int i = 0; i < n; i++)
        variance += (x[i] - s.mean) * (x[i] - s.mean) / n;
    s.r = 1 / sqrtl(variance + (wide)eps);
    for (int i = 0; i < n; i++) {
        const wide g = (wide)dout[i] * w[i], gy = g * ((x[i] - s.mean) * s.r);
        s.mean_g += g / n, s.size_g += fabsl(g) / n;
        s.mean_gy += gy / n, s.size_gy += fabsl(gy) / n;
    }
    return s;
}

static void norm_values(attn_context *ctx, int n, float mean, float spread, double eps)
{
    static float x[1000], dout[1000], w[1000], b[1000], out[1000], dx[1000], dw[1000], db[1000];
    attn_tensor t[8];
    for (int i = 0; i < n; i++) {
        x[i] = mean + spread * (float)uniform();
        dout[i] = (float)uniform(), w[i] = (float)uniform(), b[i] = (float)uniform();
    }
    const attn_tensor *vx = row(&t[0], x, n), *vd = row(&t[1], dout, n), *vw = row(&t[2], w, n);
    assert_int_equal(attn_layer_norm_forward(ctx, vx, vw, row(&t[3], b, n), eps, row(&t[4], out, n),
                                             NULL),
                     ATTN_OK);
    assert_int_equal(attn_layer_norm_backward(ctx, vd, vx, vw, eps, row(&t[5], dx, n),
                                              row(&t[6], dw, n), row(&t[7], db, n), NULL),
                     ATTN_OK);
    const norm_row s = norm_of(x, dout, w, n, eps);
    for (int i = 0; i < n; i++) {
        const wide y = (x[i] - s.mean) * s.r, g = (wide)dout[i] * w[i], want = y * w[i] + b[i];
        /* the last term: what double loses of a variance that is small beside x - x[0] */
        const wide off = 3 * U * fabsl(y) + 1e-12L * (1 + fabsl(y)) + ulp(0);
        expect_within(out[i], want, off * fabsl(w[i]) + U * (fabsl(want) + fabsl(b[i])),
                      "layer norm", n, i);
        expect_within(dx[i], s.r * (g - s.mean_g - y * s.mean_gy),
                      s.r * (U * (8 * fabsl(g) + 24 * s.size_g + (30 * fabsl(y) + 1) * s.size_gy) +
                             off * s.size_gy),
                      "layer norm, dx", n, i);
        expect_within(dw[i], dout[i] * y, fabsl(dout[i]) * (2 * off + U * fabsl(y)), "dweight", n,
                      i);
        expect_within(db[i], dout[i], 0, "dbias", n, i);
    }
}

static void layer_norm(attn_context *ctx, int n)
{
    norm_values(ctx, n, 0, 1, 1e-5);
    norm_values(ctx, n, 1e4F, 1, 1e-5);     /* a mean far from 0 */
    norm_values(ctx, n, 3e6F, 1, 1e-5);     /* rounding the mean to double would be too much */
    norm_values(ctx, n, 1e-3F, 1e-4F, 0.5); /* eps decides */
    norm_values(ctx, n, 0, 1e35F, 1e-5);    /* r is below 1e-30: in double */
    if (n > 3)
        norm_values(ctx, n, 0, 1e-39F, 0); /* denormal, and r is above 1e30: in double */
}

/* The first element is 1e8 times as large as the others, and the sums are relative to it. */
static void outlier(attn_context *ctx, int n)
{
    static float x[1000], out[1000];
    attn_tensor t[2];
    wide mean = 0, variance = 0;
    for (int i = 0; i < n; i++)
        mean += x[i] = i == 0 ? 1e8F : (float)uniform();
    mean /= n;
    for (int i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean) / n;
    attn_layer_norm_forward(ctx, row(&t[0], x, n), NULL, NULL, 1e-5, row(&t[1], out, n), NULL);
    for (int i = 0; i < n; i++) {
        const wide want = (x[i] - mean) / sqrtl(variance + 1e-5L);
        expect_within(out[i], want, 4 * U * fabsl(want), "outlier", n, i);
    }
}

/* A NaN or an infinity makes its row NaN and no other; a constant row is its bias. */
static void odd_rows(attn_context *ctx, int n)
{
    static float x[3][1000], out[3][1000], w[1000];
    for (int i = 0; i < n; i++) {
        x[0][i] = 0.1F, x[1][i] = (float)uniform(), x[2][i] = 3, w[i] = 1;
    }
    x[1][n / 2] = n % 2 ? NAN : INFINITY;
    const attn_tensor vx = attn_bhtd(x, ATTN_F32, 1, 1, 3, 1000),
                      vw = attn_matrix(w, ATTN_F32, 1, n);
    attn_tensor some = vx, to = attn_bhtd(out, ATTN_F32, 1, 1, 3, 1000);
    some.shape[3] = to.shape[3] = n;
    assert_int_equal(attn_layer_norm_forward(ctx, &some, NULL, &vw, 1e-5, &to, NULL), ATTN_OK);
    for (int i = 0; i < n; i++) {
        assert_number(out[0][i], ==, 1);
        assert_true(isnan(out[1][i]));
        assert_number(out[2][i], ==, 1);
    }
    assert_int_equal(attn_layer_norm_forward(ctx, &some, NULL, &vw, 0, &to, NULL), ATTN_OK);
    assert_true(isnan(out[0][0])); /* 0 / 0 */
}

/* dx of a constant row of huge numbers, and of gradients whose sum float cannot hold. Weights, bias
 * and eps make y 0, so dx is r (dout - mean of dout). */
static void huge_rows(attn_context *ctx, int n)
{
    static float x[1000], dout[1000], dx[1000];
    attn_tensor t[3];
    for (int huge = 0; huge < 2; huge++) {
        wide mean = 0, size = 0; /* size: of the absolute values */
        for (int i = 0; i < n; i++) {
            x[i] = huge ? 1 : 0x1p121F;
            dout[i] = huge ? 1e38F + 1e37F * (float)uniform() : (float)uniform();
        }
        for (int i = 0; i < n; i++)
            mean += (wide)dout[i] / n, size += fabsl((wide)dout[i]) / n;
        assert_int_equal(attn_layer_norm_backward(ctx, row(&t[0], dout, n), row(&t[1], x, n), NULL,
                                                  1, row(&t[2], dx, n), NULL, NULL, NULL),
                         ATTN_OK);
        for (int i = 0; i < n; i++)
            expect_within(dx[i], dout[i] - mean, U * (8 * fabsl((wide)dout[i]) + 24 * size),
                          huge ? "dx, huge dout" : "dx, huge x", n, i);
    }
}

static void test_layer_norm(void **state)
{
    (void)state;
    test_state = 0x1a9;
    on_every_set(layer_norm);
    on_every_set(outlier);
    on_every_set(odd_rows);
    on_every_set(huge_rows);
}

/* -------------------------------------------------------------------------------- Cross-entropy */

static void entropy_values(attn_context *ctx, int n, double spread, double dloss)
{
    static float x[1000], d[1000];
    attn_tensor t[2];
    wide top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        x[i] = (float)(spread * uniform());
        top = fmaxl(top, x[i]);
    }
    for (int i = 0; i < n; i++)
        sum += expl(x[i] - top);
    const int64_t target = pick(n);
    double loss;
    assert_int_equal(attn_cross_entropy_forward(ctx, row(&t[0], x, n), &target, -100, &loss, NULL),
                     ATTN_OK);
    const wide want = logl(sum) + (top - x[target]);
    if (!(fabsl(loss - want) <= 1e-13L * (1 + fabsl(want))))
        fail_msg("the loss is %.17g, want %.20Lg", loss, want);
    assert_int_equal(attn_cross_entropy_backward(ctx, dloss, row(&t[0], x, n), &target, -100,
                                                 row(&t[1], d, n), NULL),
                     ATTN_OK);
    for (int i = 0; i < n; i++) {
        wide share = expl(x[i] - top) / sum;
        if (i == target) { /* 1 - share without cancellation */
            wide others = 0;
            for (int j = 0; j < n; j++)
                others += j == target ? 0 : expl(x[j] - top);
            share = -others / sum;
        }
        const wide size = fabsl((wide)dloss), d_want = (wide)dloss * share;
        wide bound = 7 * U * fabsl(d_want) + (i == target ? 1e-15L * size : 0);
        if (fabsl(share) < 0x1p-121L || fabsl(d_want) < 0x1p-125L)
            bound += 0x1p-149L + 0x1p-121L * size;
        expect_within(d[i], d_want, bound, "cross-entropy", n, i);
    }
}

static void cross_entropy(attn_context *ctx, int n)
{
    entropy_values(ctx, n, 3, 1);
    entropy_values(ctx, n, 30, -0.37);
    entropy_values(ctx, n, 3000, 1);
    entropy_values(ctx, n, 3, 1e-35); /* in double */
    entropy_values(ctx, n, 3, 1e35);
}

/* -inf is probability 0. A NaN, +inf, or a row of nothing but -inf, makes the loss and the row
 * NaN. */
static void entropy_edges(attn_context *ctx, int n)
{
    static float x[1000], d[1000];
    attn_tensor t[2];
    double loss;
    const int64_t target = n - 1;
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < n; i++)
            x[i] = k == 3 ? -INFINITY : i % 2 ? 0.5F : -INFINITY;
        x[target] = k == 3 ? -INFINITY : 0.5F;
        if (k == 1 || k == 2)
            x[n / 2] = k == 1 ? NAN : INFINITY;
        attn_cross_entropy_forward(ctx, row(&t[0], x, n), &target, -100, &loss, NULL);
        attn_cross_entropy_backward(ctx, 1, row(&t[0], x, n), &target, -100, row(&t[1], d, n),
                                    NULL);
        if (k > 0)
            assert_true(isnan(loss));
        else
            assert_near(loss, log((double)(n / 2 + n % 2)), <=, 1e-14);
        for (int i = 0; i < n; i++)
            if (k > 0)
                assert_true(isnan(d[i]));
            else if (x[i] == -INFINITY)
                assert_number(d[i], ==, 0);
    }
}

static void test_cross_entropy(void **state)
{
    (void)state;
    test_state = 0xce1;
    on_every_set(cross_entropy);
    on_every_set(entropy_edges);
}

/* ---------------------------------------------------------------------------------------- AdamW */

static void adamw_values(attn_context *ctx, int n, attn_adamw_options o, int64_t step, wide moved)
{
    static float p[1000], g[1000], m[1000], v[1000], was[3][1000];
    attn_tensor t[4];
    for (int i = 0; i < n; i++) {
        p[i] = was[0][i] = (float)uniform(), g[i] = (float)uniform();
        m[i] = was[1][i] = (float)uniform() / 8, v[i] = was[2][i] = (float)fabs(uniform()) / 64;
    }
    assert_int_equal(attn_adamw_step(ctx, &o, step, row(&t[0], p, n), row(&t[1], g, n),
                                     row(&t[2], m, n), row(&t[3], v, n), NULL),
                     ATTN_OK);
    const wide c1 = 1 - powl((wide)o.beta1, step), c2 = 1 - powl((wide)o.beta2, step);
    for (int i = 0; i < n; i++) {
        const wide first = (wide)o.beta1 * was[1][i] + (1 - (wide)o.beta1) * g[i];
        const wide second = (wide)o.beta2 * was[2][i] + (1 - (wide)o.beta2) * ((wide)g[i] * g[i]);
        const wide decay = (wide)o.lr * (wide)o.weight_decay * was[0][i];
        const wide change = (wide)o.lr * (m[i] / c1) / (sqrtl(v[i] / c2) + (wide)o.eps);
        /* a second rounding without fused multiply-adds, of m before the sum */
        const wide size = (wide)o.beta1 * fabsl(was[1][i]) + 3 * (1 - (wide)o.beta1) * fabsl(g[i]);
        expect_within(m[i], first, 0.501L * ulp(first) + U * size, "m", n, i);
        expect_within(v[i], second, 0.501L * ulp(second) + 4 * U * second, "v", n, i);
        const wide want = was[0][i] - decay - change;
        expect_within(p[i], want, ulp(want) / 2 + moved * U * (fabsl(decay) + fabsl(change)),
                      "param", n, i);
    }
}

static void adamw(attn_context *ctx, int n)
{
    attn_adamw_options o = ATTN_ADAMW_OPTIONS_INIT;
    adamw_values(ctx, n, o, 1, 9);
    adamw_values(ctx, n, o, 1000, 9);
    o.eps = 0, o.weight_decay = 0, o.lr = 0.3;
    adamw_values(ctx, n, o, 7, 9);
    o.eps = 1e-36; /* does not fit float: in double */
    adamw_values(ctx, n, o, 7, 2);
    o.eps = 1e35, o.lr = 1e35;
    adamw_values(ctx, n, o, 7, 2);
}

/* With eps = 0, gradients whose squares are 0 in float move a parameter by the learning rate. */
static void tiny_gradients(attn_context *ctx, int n)
{
    static float p[1000], g[1000], m[1000], v[1000];
    attn_tensor t[4];
    attn_adamw_options o = ATTN_ADAMW_OPTIONS_INIT;
    o.eps = 0, o.weight_decay = 0, o.lr = 0.25;
    for (int i = 0; i < n; i++)
        p[i] = 1, g[i] = 1e-19F, m[i] = v[i] = 0;
    assert_int_equal(attn_adamw_step(ctx, &o, 1, row(&t[0], p, n), row(&t[1], g, n),
                                     row(&t[2], m, n), row(&t[3], v, n), NULL),
                     ATTN_OK);
    for (int i = 0; i < n; i++)
        expect_within(p[i], 0.75L, U, "param", n, i);
}

static void test_adamw(void **state)
{
    (void)state;
    test_state = 0xad1;
    on_every_set(adamw);
    on_every_set(tiny_gradients);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_adamw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
