/* values_and_next_scores: one query's scores for a block of interleaved keys, and its weighted
 * values for another block. The order of both sums is fixed, so both must be bit-identical to the
 * computation of one element at a time. */
#include "check_case.h"

#include <inttypes.h>
#include <math.h>

static double *want_scores(check_case *c, const void *q, const void *k, int64_t D)
{
    double *st = check_array(c, ATTNI_BLOCK);
    for (int j = 0; j < ATTNI_BLOCK; j++)
        for (int64_t begin = 0; begin < D; begin += ATTNI_D_CHAIN) {
            double run = 0;
            for (int64_t d = begin; d < begin + ATTNI_D_CHAIN; d++)
                run = check_fma(c, check_get(c, k, j * D + d), check_get(c, q, d), run);
            st[j] = begin ? check_round(c, st[j] + run) : run;
        }
    return st;
}

static double *want_sums(check_case *c, const void *sums, const void *p, const void *v,
                         ptrdiff_t ld, int64_t D, int flags)
{
    double *want = check_copy(c, sums, D);
    for (int64_t d = 0; d < D; d++) {
        double s = 0;
        for (int j = 0; j < ATTNI_BLOCK; j++)
            s = check_fma(c, check_get(c, v, j * ld + d), check_get(c, p, j), s);
        want[d] = flags & ATTNI_FIRST ? s : check_round(c, want[d] + s);
    }
    return want;
}

/* The largest score; any value if a score is NaN. */
static double *want_maximum(check_case *c, const void *mx, const double *st)
{
    double *want = check_copy(c, mx, c->W);
    double top = -INFINITY;
    for (int j = 0; j < ATTNI_BLOCK; j++)
        top = isnan(st[j]) || isnan(top) ? NAN : fmax(top, st[j]);
    if (!isnan(top))
        want[0] = top;
    return want;
}

void check_values_and_next_scores(check_case *c)
{
    const int64_t D = check_chance(c, 50) ? 64 : 128;
    const ptrdiff_t ld = (ptrdiff_t)(D + (check_chance(c, 50) ? 0 : check_between(c, 0, 9)));
    const int flags = check_chance(c, 50) ? ATTNI_FIRST : 0;
    const check_content content = check_any_content(c);
    check_describe(c, "D=%" PRId64 " ld=%td flags=%d", D, ld, flags);
    if (c->nv != 1 || !attni_has_values_and_next_scores(c->kernels, D))
        return;
    void *q = check_tile(c, D / c->W), *k = check_tile(c, D * ATTNI_BLOCK / c->W);
    void *v = check_free(c, (ATTNI_BLOCK - 1) * (int64_t)ld + D), *p = check_tile(c, 64 / c->W);
    void *st = check_chance(c, 50) ? p : check_tile(c, ATTNI_BLOCK / c->W), *mx = check_tile(c, 1);
    void *sums = check_tile(c, D / c->W), *l = check_tile(c, 1);
    check_fill(c, q, D, CHECK_PLAIN);
    check_fill(c, k, D * ATTNI_BLOCK, content);
    check_fill(c, v, (ATTNI_BLOCK - 1) * (int64_t)ld + D, content);
    for (int j = 0; j < ATTNI_BLOCK; j++)
        check_set(c, p, j, exp2(4 * check_normal(c)));
    if (flags == 0) /* else the contents must not matter: they are NaN */
        check_fill(c, sums, D, CHECK_PLAIN);
    check_fill(c, l, c->W, CHECK_PLAIN);
    const char *interleaved = check_interleave_keys(c, k, ATTN_F32, (ptrdiff_t)D, ATTNI_BLOCK, D);

    double *want_st = want_scores(c, q, k, D), *want = want_sums(c, sums, p, v, ld, D, flags);
    double *want_l = check_copy(c, l, c->W), sum = 0;
    for (int j = 0; j < ATTNI_BLOCK; j++)
        sum = check_round(c, sum + check_get(c, p, j));
    want_l[0] = check_round(c, want_l[0] + sum);
    c->kernels->values_and_next_scores(st, mx, q, interleaved, sums, l, v, ld, p, D, flags);
    check_expect_same(c, "st", st, want_st, ATTNI_BLOCK, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "mx", mx, want_maximum(c, mx, want_st), c->W, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "sums", sums, want, D, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "l", l, want_l, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    CHECK_BENCH(c, 4.0 * ATTNI_BLOCK * (double)D,
                c->kernels->values_and_next_scores(st, mx, q, interleaved, sums, l, v, ld, p, D,
                                                   flags));
}
