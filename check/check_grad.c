/* The operations of the backward: dots, weights_from_lse, score_grads and cap_grads, against their
 * formulas in double or a wider type. */
#include "check_case.h"

#include <inttypes.h>
#include <math.h>

static attn_dtype type_of(const check_case *c) { return c->bits == 32 ? ATTN_F32 : ATTN_F64; }

static double smallest(const check_case *c) { return c->bits == 32 ? 0x1p-126 : 0x1p-1022; }

/* ------------------------------------------------------------------------------------- dots */

void check_dots(check_case *c)
{
    int rows = (int)check_between(c, 0, ATTNI_BLOCK);
    int64_t D = check_chance(c, 80) ? check_between(c, 0, 40) : check_between(c, 41, 300);
    ptrdiff_t lda = (ptrdiff_t)(D + check_between(c, 0, 5));
    ptrdiff_t ldb = check_chance(c, 20) ? 0 : (ptrdiff_t)(D + check_between(c, 0, 5));
    int bad = check_chance(c, 30) && rows && D ? (int)check_between(c, 0, rows - 1) : -1;
    check_describe(c, "rows=%d D=%" PRId64 " bad=%d", rows, D, bad);
    int64_t na = rows ? (rows - 1) * (int64_t)lda + D : 0;
    int64_t nb = rows ? (rows - 1) * (int64_t)ldb + D : 0;
    void *a = check_free(c, na), *b = check_free(c, nb), *out = check_free(c, rows);
    check_fill(c, a, na, check_chance(c, 50) ? CHECK_PLAIN : CHECK_OUTLIERS);
    check_fill(c, b, nb, CHECK_PLAIN);
    if (bad >= 0)
        check_set(c, a, bad * (int64_t)lda + check_between(c, 0, D - 1), NAN);
    double *want = check_array(c, rows), *bound = check_array(c, rows);
    for (int i = 0; i < rows; i++) {
        long double sum = 0, size = 0;
        for (int64_t d = 0; d < D; d++) {
            long double x = (long double)check_get(c, a, i * (int64_t)lda + d) *
                            check_get(c, b, i * (int64_t)ldb + d);
            sum += x;
            size += fabsl(x);
        }
        want[i] = (double)sum;
        bound[i] = ((double)D + 8) * check_unit(type_of(c)) * (double)size;
        if (i == bad)
            bound[i] = 0; /* the result is NaN */
    }
    c->kernels->dots(out, a, lda, b, ldb, rows, D);
    check_expect_within(c, "out", out, want, bound, rows, 1);
    check_expect_intact(c);
    CHECK_BENCH(c, 2.0 * rows * (double)D, c->kernels->dots(out, a, lda, b, ldb, rows, D));
}

/* ------------------------------------------------------------------------- weights_from_lse */

void check_weights_from_lse(check_case *c)
{
    int n = (int)check_between(c, 0, ATTNI_BLOCK);
    bool in_place = check_chance(c, 50);
    double factor = check_round(c, exp2(2 * check_normal(c)));
    double spread = check_chance(c, 50) ? 8 : check_chance(c, 50) ? 60 : 1e6;
    int64_t count = (int64_t)n * c->W;
    check_describe(c, "n=%d in_place=%d factor=%g", n, in_place, factor);
    void *st = check_tile(c, n), *p = in_place ? st : check_tile(c, n), *lse = check_tile(c, 1);
    for (int i = 0; i < c->W; i++) {
        double middle = 30 * check_normal(c);
        check_set(c, lse, i, middle);
        for (int j = 0; j < n; j++) {
            double x = middle - fabs(spread * check_normal(c)) + (check_chance(c, 10) ? 40 : 0);
            x = check_chance(c, 20) ? -INFINITY : check_chance(c, 2) ? NAN : x;
            check_set(c, st, (int64_t)j * c->W + i, x);
        }
    }
    double *want = check_array(c, count), *bound = check_array(c, count);
    for (int64_t at = 0; at < count; at++) {
        double s = check_get(c, st, at);
        double x = check_round(c, check_round(c, s - check_get(c, lse, at % c->W)) * factor);
        want[at] = s == -INFINITY ? -1 : (double)exp2l((long double)(x > 16 ? 16 : x));
        bound[at] = s == -INFINITY ? 0
                    : want[at] < smallest(c)
                        ? smallest(c)
                        : check_ulp(type_of(c), want[at]) * (c->fused ? 1 : 1.25) * (1 + 0x1p-9);
    }
    c->kernels->weights_from_lse(p, st, lse, factor, n, c->nv);
    check_expect_within(c, "p", p, want, bound, count, c->W);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->weights_from_lse(p, st, lse, factor, n, c->nv));
}

/* ------------------------------------------------------------------------------ score_grads */

void check_score_grads(check_case *c)
{
    int n = (int)check_between(c, 0, ATTNI_BLOCK);
    bool drops = check_chance(c, 50);
    int64_t count = (int64_t)n * c->W;
    check_describe(c, "n=%d drops=%d", n, drops);
    void *dp = check_tile(c, n), *p = check_tile(c, n), *kept = check_tile(c, n);
    void *delta = check_tile(c, 1);
    check_fill(c, dp, count, check_chance(c, 50) ? CHECK_PLAIN : CHECK_SPECIAL);
    check_fill(c, delta, c->W, CHECK_PLAIN);
    for (int64_t at = 0; at < count; at++) {
        double w = check_round(c, exp2(-fabs(8 * check_normal(c))));
        check_set(c, p, at, check_chance(c, 20) ? -1 : check_chance(c, 1) ? NAN : w);
        check_set(c, kept, at, check_get(c, p, at) < 0 ? -1 : check_chance(c, 20) ? 0 : 1.25 * w);
    }
    double *want = check_array(c, count), *bound = check_array(c, count);
    double *want_p = check_copy(c, p, count), *want_kept = check_copy(c, kept, count);
    for (int64_t at = 0; at < count; at++) {
        double w = want_p[at], k = want_kept[at], g = check_get(c, dp, at);
        double d = check_get(c, delta, at % c->W), unit = 3 * check_unit(type_of(c));
        if (w < 0) {
            want_p[at] = want_kept[at] = 0;
            continue;
        }
        want[at] = check_round(c, drops ? k * g - w * d : w * (g - d));
        bound[at] =
            isfinite(want[at])
                ? unit * (drops ? fabs(k * g) + fabs(w * d) : w * (fabs(g) + fabs(d))) + smallest(c)
                : 0;
    }
    c->kernels->score_grads(dp, p, drops ? kept : NULL, delta, n, c->nv);
    check_expect_within(c, "dp", dp, want, bound, count, c->W);
    check_expect_same(c, "p", p, want_p, count, c->W, CHECK_ZERO_SIGNED);
    if (drops)
        check_expect_same(c, "kept", kept, want_kept, count, c->W, CHECK_ZERO_SIGNED);
    check_expect_intact(c);
    check_fill(c, dp, count, CHECK_PLAIN);
    CHECK_BENCH(c, count, c->kernels->score_grads(dp, p, drops ? kept : NULL, delta, n, c->nv));
}

/* -------------------------------------------------------------------------------- cap_grads */

void check_cap_grads(check_case *c)
{
    static const double factors[] = {1, 1.3362306209562122, 1.99, 1.125};
    static const double caps[] = {1, 0.5, 30, 50, 1e-3};
    int n = (int)check_between(c, 0, ATTNI_BLOCK);
    double r = check_round(c, CHECK_PICK(c, factors)), cap = check_round(c, CHECK_PICK(c, caps));
    double spread = check_chance(c, 50) ? 1 : check_chance(c, 50) ? 1e-6 : 100;
    int64_t count = (int64_t)n * c->W;
    check_describe(c, "n=%d r=%g cap=%g spread=%g", n, r, cap, spread);
    void *ds = check_tile(c, n), *raw = check_tile(c, n);
    check_fill(c, ds, count, CHECK_PLAIN);
    for (int64_t at = 0; at < count; at++) {
        check_set(c, raw, at, spread * check_normal(c));
        if (check_chance(c, 5)) { /* masked, whatever its score is */
            check_set(c, ds, at, 0);
            check_set(c, raw, at, check_chance(c, 50) ? NAN : INFINITY);
        }
    }
    double *want = check_array(c, count), *bound = check_array(c, count);
    for (int64_t at = 0; at < count; at++) {
        long double y = (long double)check_get(c, raw, at) * r / cap, g = check_get(c, ds, at);
        long double slope = 1 / (coshl(y) * coshl(y));
        want[at] = g == 0 ? 0 : check_round(c, (double)(g * slope));
        double halvings = g == 0 ? 0 : (double)(2.9L * fabsl(y));
        bound[at] = g == 0 ? 0
                           : (8 + halvings) * check_unit(type_of(c)) * 2 * fabs(want[at]) +
                                 8 * smallest(c) * (1 + fabs((double)g));
    }
    c->kernels->cap_grads(ds, raw, n, r, cap, c->nv);
    check_expect_within(c, "ds", ds, want, bound, count, c->W);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->cap_grads(ds, raw, n, r, cap, c->nv));
}
