/* The operations on rows of f32 modules (cross-entropy, layer norm), against their definitions in
 * double or a wider type. */
#include "check_case.h"

#include <inttypes.h>
#include <math.h>

/* n random doubles. */
static double *doubles(check_case *c, int64_t n)
{
    double *x = check_array(c, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = check_normal(c);
    return x;
}

/* Compares one number of type double. */
static void expect_double(check_case *c, const char *name, double got, long double want,
                          long double bound)
{
    const bool same = isnan(got) ? isnan(want) : got == (double)want;
    if (!same && !(fabsl(got - want) <= bound))
        check_fail(c, "%s %.17g want %.17Lg (bound %.3Lg)", name, got, want, bound);
}

/* ---------------------------------------------------------------------------- cross-entropy */

void check_maximum(check_case *c)
{
    if (!c->kernels->maximum)
        return;
    const int64_t n = check_any_length(c);
    const check_content content = check_any_content(c);
    check_describe(c, "n=%" PRId64 " content=%d", n, (int)content);
    const void *x = check_filled(c, n, content);
    double most = -INFINITY;
    bool bad = false;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, check_get(c, x, i));
        bad = bad || isnan(check_get(c, x, i));
    }
    const double got = (double)c->kernels->maximum(x, n);
    if (!bad && got != most)
        check_fail(c, "%g want %g", got, most);
    check_expect_intact(c);
}

/* Exponentials relative to the largest element: exp_terms() if `terms`, else exp_sum(). */
static void check_exps(check_case *c, bool terms)
{
    const int64_t n = check_any_length(c);
    const check_content content = terms ? CHECK_PLAIN : check_any_content(c);
    const double spread = check_chance(c, 50) ? 5 : 300;
    check_describe(c, "n=%" PRId64 " content=%d spread=%g", n, (int)content, spread);
    void *x = check_filled(c, n, content), *e = check_free(c, n);
    double *want = check_array(c, n), *bound = check_array(c, n), top = -INFINITY;
    long double sum = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        check_set(c, x, i, check_round(c, check_get(c, x, i) * spread));
        if (terms && check_chance(c, 5))
            check_set(c, x, i, check_chance(c, 30) ? NAN : -INFINITY);
        top = fmax(top, check_get(c, x, i));
    }
    if (terms && !(fabs(top) < INFINITY))
        return;
    for (int64_t i = 0; i < n; i++) {
        const long double term = expl((long double)check_get(c, x, i) - top);
        want[i] = (double)term;
        bound[i] = 2 * check_ulp(ATTN_F32, want[i]) + (want[i] < 0x1p-122 ? 0x1p-122 : 0);
        sum += term;
        off += terms ? (long double)bound[i] : 3e-14L * term + 1e-16L * n * term;
    }
    if (terms) {
        expect_double(c, "the sum", c->kernels->exp_terms(e, x, (float)top, n), sum, off);
        check_expect_within(c, "e", e, want, bound, n, n);
        CHECK_BENCH(c, (double)n, (void)c->kernels->exp_terms(e, x, (float)top, n));
    } else {
        expect_double(c, "the sum", c->kernels->exp_sum(x, top, n), sum, off);
        CHECK_BENCH(c, (double)n, (void)c->kernels->exp_sum(x, top, n));
    }
    check_expect_intact(c);
}

void check_exp_sum(check_case *c)
{
    if (c->kernels->exp_sum)
        check_exps(c, false);
}

void check_exp_terms(check_case *c)
{
    if (c->kernels->exp_terms)
        check_exps(c, true);
}

void check_multiply(check_case *c)
{
    if (!c->kernels->multiply)
        return;
    const int64_t n = check_any_length(c);
    check_describe(c, "n=%" PRId64, n);
    const double factor = check_round(c, check_normal(c));
    void *x = check_filled(c, n, check_any_content(c));
    double *want = check_array(c, n);
    for (int64_t i = 0; i < n; i++)
        want[i] = check_round(c, check_get(c, x, i) * factor);
    c->kernels->multiply(x, (float)factor, n);
    check_expect_same(c, "x", x, want, n, n, CHECK_ZERO_SIGNED);
    check_expect_intact(c);
}

/* ------------------------------------------------------------------------------- layer norm */

static attni_moments any_moments(check_case *c)
{
    return (attni_moments){.mean = (float)check_normal(c),
                           .r = (float)exp2(check_normal(c)),
                           .rest = (float)(check_normal(c) * 1e-7),
                           .mean_g = (float)check_normal(c),
                           .times_y = (float)check_normal(c)};
}

/* y of element x, and the most that the computed one is off. */
static double y_of(double x, const attni_moments *m, double *off)
{
    const double d = (x - (double)m->mean) * (double)m->r, y = d + (double)m->rest;
    *off = 2 * 0x1p-24 * fabs(d) + 0x1p-24 * fabs(y);
    return y;
}

void check_moments(check_case *c)
{
    if (!c->kernels->moments)
        return;
    const int64_t n = check_any_length(c);
    const check_content content = check_any_content(c);
    const void *x[2] = {check_filled(c, n, content), check_filled(c, n, content)};
    const float shift[2] = {n ? (float)check_get(c, x[0], 0) : 1,
                            n ? (float)check_get(c, x[1], 0) : 1};
    check_describe(c, "n=%" PRId64 " content=%d", n, (int)content);
    double sum[2], square[2];
    c->kernels->moments(sum, square, x, shift, n);
    for (int r = 0; r < 2; r++) {
        long double want[2] = {0}, size[2] = {0};
        for (int64_t i = 0; i < n; i++) {
            const long double d = (long double)check_get(c, x[r], i) - (long double)shift[r];
            want[0] += d, size[0] += fabsl(d);
            want[1] += d * d, size[1] += d * d;
        }
        const long double unit = (long double)(n + 2) * 0x1p-53L;
        if (isfinite((double)size[1]) || isnan((double)size[1])) {
            expect_double(c, "sum", sum[r], want[0], unit * size[0]);
            expect_double(c, "square", square[r], want[1], unit * size[1]);
        }
    }
    check_expect_intact(c);
    CHECK_BENCH(c, 2 * (double)n, c->kernels->moments(sum, square, x, shift, n));
}

void check_norm(check_case *c)
{
    if (!c->kernels->norm)
        return;
    const int64_t n = check_any_length(c);
    const attni_moments m = any_moments(c);
    const void *x = check_filled(c, n, CHECK_PLAIN);
    const void *weight = check_chance(c, 70) ? check_filled(c, n, CHECK_PLAIN) : NULL;
    const void *bias = check_chance(c, 70) ? check_filled(c, n, CHECK_PLAIN) : NULL;
    void *out = check_free(c, n);
    check_describe(c, "n=%" PRId64 " weight=%d bias=%d", n, weight != NULL, bias != NULL);
    double *want = check_array(c, n), *bound = check_array(c, n);
    for (int64_t i = 0; i < n; i++) {
        const double w = weight ? check_get(c, weight, i) : 1, b = bias ? check_get(c, bias, i) : 0;
        double off;
        want[i] = y_of(check_get(c, x, i), &m, &off) * w + b;
        bound[i] = off * fabs(w) + (c->fused ? 1 : 2) * 0x1p-24 * (fabs(want[i]) + fabs(b));
    }
    c->kernels->norm(out, x, &m, weight, bias, n);
    check_expect_within(c, "out", out, want, bound, n, n);
    check_expect_intact(c);
    CHECK_BENCH(c, (double)n, c->kernels->norm(out, x, &m, weight, bias, n));
}

void check_norm_sums(check_case *c)
{
    if (!c->kernels->norm_sums)
        return;
    const int64_t n = check_any_length(c);
    const attni_moments m[2] = {any_moments(c), any_moments(c)};
    const void *x[2] = {check_filled(c, n, CHECK_PLAIN), check_filled(c, n, CHECK_PLAIN)};
    const void *dout[2] = {check_filled(c, n, CHECK_PLAIN), check_filled(c, n, CHECK_PLAIN)};
    const void *weight = check_chance(c, 70) ? check_filled(c, n, CHECK_PLAIN) : NULL;
    check_describe(c, "n=%" PRId64 " weight=%d", n, weight != NULL);
    double sum_g[2], sum_gy[2];
    c->kernels->norm_sums(sum_g, sum_gy, x, dout, m, weight, n);
    for (int r = 0; r < 2; r++) {
        double want[2] = {0}, bound[2] = {0};
        for (int64_t i = 0; i < n; i++) {
            const double g = check_get(c, dout[r], i) * (weight ? check_get(c, weight, i) : 1);
            double off;
            const double y = y_of(check_get(c, x[r], i), &m[r], &off);
            want[0] += g, want[1] += g * y;
            bound[0] += 17 * 0x1p-24 * fabs(g);
            bound[1] += 18 * 0x1p-24 * fabs(g * y) + off * fabs(g);
        }
        expect_double(c, "sum of g", sum_g[r], want[0], bound[0]);
        expect_double(c, "sum of gy", sum_gy[r], want[1], bound[1]);
    }
    check_expect_intact(c);
    CHECK_BENCH(c, 2 * (double)n, c->kernels->norm_sums(sum_g, sum_gy, x, dout, m, weight, n));
}

void check_norm_grad(check_case *c)
{
    if (!c->kernels->norm_grad)
        return;
    const int64_t n = check_any_length(c);
    const attni_moments m = any_moments(c);
    const void *x = check_filled(c, n, CHECK_PLAIN), *dout = check_filled(c, n, CHECK_PLAIN);
    const void *weight = check_chance(c, 70) ? check_filled(c, n, CHECK_PLAIN) : NULL;
    void *dx = check_free(c, n);
    check_describe(c, "n=%" PRId64 " weight=%d", n, weight != NULL);
    double *want = check_array(c, n), *bound = check_array(c, n);
    for (int64_t i = 0; i < n; i++) {
        const double g = check_get(c, dout, i) * (weight ? check_get(c, weight, i) : 1);
        double off;
        const double r = (double)m.r, y = y_of(check_get(c, x, i), &m, &off);
        const double by_y = y * (double)m.times_y;
        want[i] = (g - (double)m.mean_g) * r + by_y;
        bound[i] = 4 * 0x1p-24 * (r * (fabs(g) + fabs((double)m.mean_g)) + fabs(by_y)) +
                   off * fabs((double)m.times_y);
    }
    c->kernels->norm_grad(dx, x, dout, &m, weight, n);
    check_expect_within(c, "dx", dx, want, bound, n, n);
    check_expect_intact(c);
    CHECK_BENCH(c, (double)n, c->kernels->norm_grad(dx, x, dout, &m, weight, n));
}

void check_column_sums(check_case *c)
{
    if (!c->kernels->column_sums)
        return;
    const int64_t n = check_any_length(c), ld = n + check_between(c, 0, 9);
    const int rows = (int)check_between(c, 1, 40);
    check_describe(c, "n=%" PRId64 " ld=%" PRId64 " rows=%d", n, ld, rows);
    const void *x = check_filled(c, (rows - 1) * ld + n, CHECK_PLAIN);
    double *got = doubles(c, n), *want = check_array(c, n);
    for (int64_t i = 0; i < n; i++) {
        want[i] = got[i];
        for (int r = 0; r < rows; r++)
            want[i] += check_get(c, x, r * ld + i);
    }
    c->kernels->column_sums(got, x, (ptrdiff_t)ld, rows, n);
    for (int64_t i = 0; i < n; i++)
        expect_double(c, "sums", got[i], want[i], 0);
    check_expect_intact(c);
    CHECK_BENCH(c, (double)(rows * n), c->kernels->column_sums(got, x, (ptrdiff_t)ld, rows, n));
}

void check_norm_columns(check_case *c)
{
    if (!c->kernels->norm_columns)
        return;
    const int64_t n = check_any_length(c);
    const int rows = (int)check_between(c, 1, ATTNI_NORM_ROWS);
    attni_moments m[ATTNI_NORM_ROWS];
    const void *x[ATTNI_NORM_ROWS], *dout[ATTNI_NORM_ROWS];
    for (int r = 0; r < rows; r++) {
        m[r] = any_moments(c);
        x[r] = check_filled(c, n, CHECK_PLAIN);
        dout[r] = check_filled(c, n, CHECK_PLAIN);
    }
    check_describe(c, "n=%" PRId64 " rows=%d", n, rows);
    double *got[2] = {doubles(c, n), doubles(c, n)}, *before[2] = {doubles(c, n), doubles(c, n)};
    for (int64_t i = 0; i < n; i++)
        got[0][i] = before[0][i], got[1][i] = before[1][i];
    c->kernels->norm_columns(got[0], got[1], x, dout, m, rows, n);
    for (int64_t i = 0; i < n; i++) {
        double want[2] = {before[0][i], before[1][i]}, bound[2] = {1e-15, 1e-15};
        for (int r = 0; r < rows; r++) {
            double off;
            const double d = check_get(c, dout[r], i);
            const double y = y_of(check_get(c, x[r], i), &m[r], &off);
            want[0] += d * y, want[1] += d;
            bound[0] += 11 * 0x1p-24 * fabs(d * y) + off * fabs(d);
            bound[1] += 10 * 0x1p-24 * fabs(d);
        }
        expect_double(c, "dweight", got[0][i], want[0], bound[0]);
        expect_double(c, "dbias", got[1][i], want[1], bound[1]);
    }
    check_expect_intact(c);
}

/* ------------------------------------------------------------------------- rows of an i8 cache */

void check_largest(check_case *c)
{
    if (!c->kernels->largest)
        return;
    const int64_t n = check_any_length(c);
    const check_content content = check_any_content(c);
    check_describe(c, "n=%" PRId64 " content=%d", n, (int)content);
    const void *x = check_filled(c, n, content);
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = isfinite(check_get(c, x, i)) ? fmax(most, fabs(check_get(c, x, i))) : INFINITY;
    const double got = (double)c->kernels->largest(x, n);
    if (isfinite(most) ? got != most : !isnan(got))
        check_fail(c, "%g want %g", got, most);
    check_expect_intact(c);
    CHECK_BENCH(c, (double)n, (void)c->kernels->largest(x, n));
}

/* Quotients with long double division. Half of the elements are multiples of scale / 2, where the
 * quotient decides between two integers; if scale has few bits, they are exact. */
void check_quantise(check_case *c)
{
    if (!c->kernels->quantise)
        return;
    const int64_t n = check_any_length(c);
    const float few = (float)check_between(c, 256, 511) / 256;
    const float many = (float)(1 + fabs(check_normal(c)));
    const float scale = ldexpf(check_chance(c, 50) ? few : many, (int)check_between(c, -126, 115));
    check_describe(c, "n=%" PRId64 " scale=%a", n, (double)scale);
    void *x = check_free(c, n);
    const int64_t elements = (n + (int64_t)c->size - 1) / (int64_t)c->size;
    int8_t *to = check_free(c, elements); /* memory after its end is out of bounds */
    to += elements * (int64_t)c->size - n;
    for (int64_t i = 0; i < n; i++) {
        const double quotient = check_chance(c, 50) ? (double)check_between(c, -254, 254) / 2
                                                    : fmod(40 * check_normal(c), 127);
        check_set(c, x, i, (double)(float)((double)scale * quotient));
    }
    c->kernels->quantise(to, x, scale, n);
    for (int64_t i = 0; i < n; i++) {
        const long double exact = (long double)check_get(c, x, i) / (long double)scale;
        if (to[i] != (int)rintl(exact))
            check_fail(c, "to[%" PRId64 "] is %d, want %d: %a", i, to[i], (int)rintl(exact),
                       check_get(c, x, i));
    }
    check_expect_intact(c);
    CHECK_BENCH(c, (double)n, c->kernels->quantise(to, x, scale, n));
}
