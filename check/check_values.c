/* drop and values: what weights do to values. Each sum's order is fixed and each product rounds in
 * a known way, so both are compared to the bit with one element at a time. */
#include "check_case.h"

#include "../ref/attn_ref.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const int64_t sizes[] = {0,  1,  2,  3,  4,  5,  7,  8,  11, 12, 13,  15,  16,
                                17, 23, 31, 33, 40, 59, 64, 65, 80, 96, 111, 128, 160};

void check_drop(check_case *c)
{
    static const double rates[] = {0.1, 0.5, 0.25, 0.9, 1e-5, 0.0001};
    int n = (int)check_between(c, 0, ATTNI_BLOCK);
    uint64_t seed = check_random(c), bh = (uint64_t)check_between(c, 0, 300);
    uint64_t i0 = (uint64_t)check_between(c, 0, 70000), j0 = (uint64_t)check_between(c, 0, 1000000);
    double p = CHECK_PICK(c, rates), kept = 1 / (1 - p);
    uint32_t threshold = (uint32_t)lround(p * 65536);
    check_describe(c, "n=%d p=%g bh=%d i0=%d j0=%d", n, p, (int)bh, (int)i0, (int)j0);

    int64_t count = (int64_t)n * c->W;
    void *weights = check_tile(c, n);
    for (int64_t i = 0; i < count; i++)
        check_set(c, weights, i, check_chance(c, 10) ? -1 : fabs(check_normal(c)));
    if (count > 0 && check_chance(c, 20))
        check_set(c, weights, check_between(c, 0, count - 1), NAN);

    double *want = check_copy(c, weights, count);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < c->W; i++) {
            double *w = &want[(int64_t)j * c->W + i];
            bool keep = ref_dropout_keep(seed, p, (int64_t)bh, (int64_t)i0 + i, (int64_t)j0 + j);
            if (!(*w < 0))
                *w = keep ? check_round(c, *w * check_round(c, kept)) : 0;
        }
    c->kernels->drop(weights, n, seed, threshold, bh, i0, j0, kept, c->nv);
    check_expect_same(c, "p", weights, want, count, c->W, CHECK_ZERO_SIGNED);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->drop(weights, n, seed, threshold, bh, i0, j0, kept, c->nv));
}

/* Weights as weights() makes them; with marks, a value that a mark meets may be anything. */
static void fill_weights(check_case *c, void *p, int64_t count, bool careful)
{
    for (int64_t i = 0; i < count; i++) {
        double w = check_chance(c, 10) ? 0 : exp2(4 * check_normal(c));
        check_set(c, p, i, careful && check_chance(c, 30) ? -1 : w);
    }
}

void check_values(check_case *c)
{
    int n = (int)check_between(c, 0, ATTNI_BLOCK);
    int64_t Dv = CHECK_PICK(c, sizes), count = Dv * c->W;
    ptrdiff_t ld = check_chance(c, 60)   ? (ptrdiff_t)(Dv + check_between(c, 0, 9))
                   : check_chance(c, 50) ? -(ptrdiff_t)(Dv + check_between(c, 0, 9))
                                         : (ptrdiff_t)check_between(c, 0, 3);
    int flags = (int)check_between(c, 0, 3) | (check_chance(c, 40) ? ATTNI_CAREFUL : 0);
    check_content content = check_any_content(c);
    check_describe(c, "n=%d Dv=%" PRId64 " ld=%td flags=%d", n, Dv, ld, flags);

    int64_t reach = n > 1 ? (n - 1) * (int64_t)ld : 0, far = reach < 0 ? -reach : reach;
    int64_t span = n > 0 && Dv > 0 ? far + Dv : 0;
    char *memory = check_free(c, span);
    check_fill(c, memory, span, content);
    const char *v = span > 0 && reach < 0 ? memory + (size_t)far * c->size : memory;
    void *p = check_tile(c, n), *acc = check_tile(c, Dv), *total = check_tile(c, Dv);
    fill_weights(c, p, (int64_t)n * c->W, flags & ATTNI_CAREFUL);
    check_fill(c, total, count, CHECK_PLAIN);
    if (!(flags & ATTNI_FIRST)) /* else what is there must not matter, and it is NaN */
        check_fill(c, acc, count, CHECK_PLAIN);

    double *want_acc = check_copy(c, acc, count), *want = check_copy(c, total, count);
    double *weight = check_copy(c, p, (int64_t)n * c->W);
    for (int64_t d = 0; d < Dv; d++)
        for (int i = 0; i < c->W; i++) {
            double s = 0;
            for (int j = 0; j < n; j++) {
                double w = weight[(int64_t)j * c->W + i];
                if (!(flags & ATTNI_CAREFUL && w < 0))
                    s = check_fma(c, check_get(c, v, j * ld + d), w, s);
            }
            if (!(flags & ATTNI_FIRST))
                s = check_round(c, want_acc[d * c->W + i] + s);
            if (flags & ATTNI_LAST)
                want[d * c->W + i] = check_round(c, want[d * c->W + i] + s);
            else
                want_acc[d * c->W + i] = s;
        }
    c->kernels->values(acc, total, v, ld, p, n, Dv, c->nv, flags);
    check_expect_same(c, "total", total, want, count, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "acc", acc, want_acc, count, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    CHECK_BENCH(c, 2.0 * n * (double)count,
                c->kernels->values(acc, total, v, ld, p, n, Dv, c->nv, flags));
}

void check_fma_loop(check_case *c)
{
    int64_t n = check_between(c, 0, 1000);
    double sink = NAN;
    check_describe(c, "n=%" PRId64, n);
    double flop = c->kernels->fma_loop(n, &sink);
    if (!(flop >= 2.0 * (double)n * c->kernels->lanes) || (n == 0 && flop != 0))
        check_fail(c, "says it did %g operations", flop);
    if (!isfinite(sink))
        check_fail(c, "ended at %g", sink);
    CHECK_BENCH(c, flop, c->kernels->fma_loop(n, &sink));
}
