/* The operations on elements of f32 modules, against their definitions in double. */
#include "check_case.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

/* ------------------------------------------------------------------------------------- gelu */

/* A float at which GELU is neither 0 nor x, or, seldom, any float. */
static double gelu_argument(check_case *c, check_content content)
{
    return content == CHECK_PLAIN ? check_round(c, (double)check_between(c, -15000, 15000) * 1e-3)
                                  : check_value(c, content);
}

/* The largest error in ulp that this check accepts: of gelu(), and of its slope in gelu_grad(). A
 * few of all floats have a larger error, up to 5 ulp (kernel.h). */
#define GELU_ULPS 4

/* Numbers below 2^-122 may become 0. Returns what this adds to the bound of such a number. */
static double if_tiny(double x) { return fabs(x) < 0x1p-122 ? 0x1p-122 : 0; }

static double want_gelu(double x)
{
    const double below = erfc(-x / sqrt(2)) / 2;
    return below == 0 ? 0 : x * below;
}

void check_gelu(check_case *c)
{
    if (!c->kernels->gelu)
        return;
    const int64_t n = check_any_length(c);
    const check_content content = check_any_content(c);
    check_describe(c, "n=%" PRId64 " content=%d", n, (int)content);
    void *x = check_free(c, n), *out = check_free(c, n);
    for (int64_t i = 0; i < n; i++)
        check_set(c, x, i, gelu_argument(c, content));
    double *want = check_array(c, n), *bound = check_array(c, n);
    for (int64_t i = 0; i < n; i++) {
        want[i] = want_gelu(check_get(c, x, i));
        bound[i] = GELU_ULPS * check_ulp(ATTN_F32, want[i]) + if_tiny(want[i]);
    }
    c->kernels->gelu(out, x, n);
    check_expect_within(c, "out", out, want, bound, n, n);
    check_expect_intact(c);
    CHECK_BENCH(c, (double)n, c->kernels->gelu(out, x, n));
}

void check_gelu_grad(check_case *c)
{
    if (!c->kernels->gelu_grad)
        return;
    const int64_t n = check_any_length(c);
    const check_content content = check_any_content(c);
    check_describe(c, "n=%" PRId64 " content=%d", n, (int)content);
    void *x = check_free(c, n), *dout = check_filled(c, n, content), *dx = check_free(c, n);
    double *want = check_array(c, n), *bound = check_array(c, n);
    for (int64_t i = 0; i < n; i++) {
        check_set(c, x, i, gelu_argument(c, content));
        const double at = check_get(c, x, i), density = exp(-at * at / 2) / sqrt(2 * acos(-1));
        const double slope = erfc(-at / sqrt(2)) / 2 + (density == 0 ? 0 : at * density);
        if (fabs(check_get(c, dout, i)) > 1e38) /* no overflow, and no infinity times 0 */
            check_set(c, dout, i, 1e38);
        const double d = check_get(c, dout, i);
        want[i] = d * slope;
        /* A unit of the slope times d may be two units of the product. */
        bound[i] = (GELU_ULPS * check_ulp(ATTN_F32, slope) + if_tiny(slope)) * fabs(d) +
                   check_ulp(ATTN_F32, want[i]);
    }
    c->kernels->gelu_grad(dx, dout, x, n);
    check_expect_within(c, "dx", dx, want, bound, n, n);
    check_expect_intact(c);
    CHECK_BENCH(c, (double)n, c->kernels->gelu_grad(dx, dout, x, n));
}

/* ------------------------------------------------------------------------------------ adamw */

/* x, or infinity where x is beyond the range of float: the kernel's next results are, too. */
static double limited(double x) { return fabs(x) > FLT_MAX ? copysign(INFINITY, x) : x; }

/* The parameter after a step with the moments m and v. *bound is the most that it may be off: the
 * rounding of the result, and six units of what is subtracted. The quotient, the step, what is
 * subtracted and the result may each overflow. One within the bound of the largest float may also
 * be finite; then `got`, the kernel's result, is right with or without the overflow. */
static double want_param(double p, double m, double v, const attni_adamw *o, double got,
                         double *bound)
{
    const double size = sqrt(v) * o->root + o->eps, quotient = m / size, step = quotient * o->rate;
    const double decay = o->decay * p, taken = decay + step, want = p - taken;
    const double units = 6 * check_unit(ATTN_F32);
    *bound = check_rounding(ATTN_F32, want) + 0x1p-149 * (1 + (double)o->rate) +
             units * (fabs(decay) + fabs(step));
    if (!isfinite(want))
        return want;
    const double parts[] = {-quotient, -step, -taken, want};
    const double off[] = {units * fabs(quotient), units * fabs(step), *bound, *bound};
    for (int i = 0; i < 4; i++) {
        const double infinite = copysign(INFINITY, parts[i]);
        if (fabs(parts[i]) - off[i] > FLT_MAX ||
            (fabs(parts[i]) + off[i] > FLT_MAX && got == infinite))
            return infinite;
    }
    return want;
}

void check_adamw(check_case *c)
{
    if (!c->kernels->adamw)
        return;
    const int64_t n = check_any_length(c);
    const check_content content = check_any_content(c);
    const double beta1 = check_chance(c, 20) ? 0 : 1 - exp2(-3 * fabs(check_normal(c)));
    const double beta2 = check_chance(c, 20) ? 0 : 1 - exp2(-10 * fabs(check_normal(c)));
    const attni_adamw o = {.beta1 = {(float)beta1, (float)(beta1 - (double)(float)beta1)},
                           .beta2 = {(float)beta2, (float)(beta2 - (double)(float)beta2)},
                           .rest1 = (float)(1 - beta1),
                           .rest2 = (float)(1 - beta2),
                           .rate = (float)exp2(check_normal(c) * 4 - 8),
                           .root = (float)exp2((double)check_between(c, 0, 10)),
                           .eps = check_chance(c, 20) ? 0 : 1e-8F,
                           .decay = check_chance(c, 20) ? 0 : (float)exp2(check_normal(c) - 8)};
    check_describe(c, "n=%" PRId64 " content=%d beta1=%g beta2=%g rate=%g root=%g eps=%g decay=%g",
                   n, (int)content, beta1, beta2, (double)o.rate, (double)o.root, (double)o.eps,
                   (double)o.decay);
    void *param = check_filled(c, n, content), *grad = check_filled(c, n, content);
    void *m = check_filled(c, n, content), *v = check_filled(c, n, content);
    for (int64_t i = 0; i < n; i++)
        check_set(c, v, i, fabs(check_get(c, v, i)));
    const double *p0 = check_copy(c, param, n), *g = check_copy(c, grad, n);
    const double *m0 = check_copy(c, m, n), *v0 = check_copy(c, v, n);
    double *want_p = check_array(c, n), *want_m = check_array(c, n), *want_v = check_array(c, n);
    double *bound_p = check_array(c, n), *bound_m = check_array(c, n), *bound_v = check_array(c, n);
    const double rounds = c->fused ? 1.001 : 2.001;
    c->kernels->adamw(param, grad, m, v, n, &o);
    for (int64_t i = 0; i < n; i++) {
        const double before = fmin(v0[i], FLT_MAX), square = (1 - beta2) * (g[i] * g[i]);
        const double first = beta1 * m0[i], more = (1 - beta1) * g[i], u = check_unit(ATTN_F32);
        want_m[i] = limited(first + more);
        if (isinf(m0[i]) && isnan(check_get(c, m, i)))
            want_m[i] = NAN;
        want_v[i] = isnan(v0[i]) ? v0[i] : limited(beta2 * before + square);
        bound_m[i] = rounds * check_rounding(ATTN_F32, want_m[i]) + 0x1p-148 + 3 * u * fabs(more) +
                     (c->fused ? 0 : u * fabs(first));
        bound_v[i] = rounds * check_rounding(ATTN_F32, want_v[i]) + 0x1p-148 + 4 * u * square;
        want_p[i] = want_param(p0[i], check_get(c, m, i), check_get(c, v, i), &o,
                               check_get(c, param, i), &bound_p[i]);
    }
    check_expect_within(c, "m", m, want_m, bound_m, n, n);
    check_expect_within(c, "v", v, want_v, bound_v, n, n);
    check_expect_within(c, "param", param, want_p, bound_p, n, n);
    check_expect_same(c, "grad", grad, g, n, n, CHECK_ZERO_SIGNED);
    check_expect_intact(c);
    CHECK_BENCH(c, (double)n, c->kernels->adamw(param, grad, m, v, n, &o));
}
