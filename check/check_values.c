/* drop, values, join and fold: how weights are applied to values, and how chunks add up. The order
 * of every sum is fixed and every product rounds in a known way. So both must be bit-identical to
 * the computation of one element at a time. */
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
    c->kernels->drop(weights, weights, n, seed, threshold, bh, i0, j0, kept, c->nv);
    check_expect_same(c, "p", weights, want, count, c->W, CHECK_ZERO_SIGNED);
    check_expect_intact(c);
    CHECK_BENCH(c, count,
                c->kernels->drop(weights, weights, n, seed, threshold, bh, i0, j0, kept, c->nv));
}

/* Weights as weights() returns them. With marks of masked keys, a value that meets a mark may be
 * anything. */
static void fill_weights(check_case *c, void *p, int64_t count, bool careful)
{
    for (int64_t i = 0; i < count; i++) {
        double w = check_chance(c, 10) ? 0 : exp2(4 * check_normal(c));
        check_set(c, p, i, careful && check_chance(c, 30) ? -1 : w);
    }
}

/* Checks both kernels of values: that of full tiles, and that of the decode path, whose other lanes
 * may hold anything. */
static void check_values_of(check_case *c, bool decode)
{
    const int in_rows = decode && check_chance(c, 50);
    int n = (int)check_between(c, 0, in_rows ? ATTNI_CHUNK : ATTNI_BLOCK);
    int rows = decode ? (int)check_between(c, 1, c->kernels->max_decode_rows) : c->W;
    int64_t Dv = CHECK_PICK(c, sizes), count = Dv * c->W;
    ptrdiff_t ld = check_chance(c, 60)   ? (ptrdiff_t)(Dv + check_between(c, 0, 9))
                   : check_chance(c, 50) ? -(ptrdiff_t)(Dv + check_between(c, 0, 9))
                                         : (ptrdiff_t)check_between(c, 0, 3);
    int flags = (int)check_between(c, 0, 3);
    if (!decode && check_chance(c, 40))
        flags |= ATTNI_SKIP_MASKED;
    if (decode) /* values_decode() does not join */
        flags &= ATTNI_FIRST;
    check_content content = check_any_content(c);
    check_describe(c, "n=%d Dv=%" PRId64 " ld=%td rows=%d flags=%d", n, Dv, ld, rows, flags);
    if (decode && c->nv != 1)
        return;

    int64_t reach = n > 1 ? (n - 1) * (int64_t)ld : 0, far = reach < 0 ? -reach : reach;
    int64_t span = n > 0 && Dv > 0 ? far + Dv : 0;
    char *memory = check_free(c, span);
    check_fill(c, memory, span, content);
    attn_dtype type;
    const char *halves = check_as_stored(c, memory, span, decode, &type);
    const char *v = span > 0 && reach < 0 ? memory + (size_t)far * c->size : memory;
    const char *v_stored = halves + (size_t)(v - memory) / c->size * attn_dtype_size(type);
    void *p = check_tile(c, n), *acc = check_tile(c, Dv), *total = check_tile(c, Dv);
    void *factors = check_tile(c, 2);
    fill_weights(c, p, (int64_t)n * c->W, flags & ATTNI_SKIP_MASKED);
    check_fill(c, total, count, CHECK_PLAIN);
    for (int i = 0; i < 2 * c->W; i++)
        check_set(c, factors, i, exp2((double)check_between(c, -30, 0)));
    /* The running sums of values_decode(), a row per query. */
    const int64_t width = (Dv + c->kernels->lanes - 1) / c->kernels->lanes * c->kernels->lanes;
    void *sums =
        decode ? check_tile(c, width / c->kernels->lanes * c->kernels->max_decode_rows) : NULL;
    if (!(flags & ATTNI_FIRST)) /* else the contents must not matter: they are NaN */
        check_fill(c, acc, count, CHECK_PLAIN);
    for (int64_t at = 0; decode && at < width * c->kernels->max_decode_rows; at++) {
        const int64_t i = at / width, d = at % width;
        check_set(c, sums, at, d < Dv && i < c->W ? check_get(c, acc, d * c->W + i) : 0);
    }

    double *want_acc = check_copy(c, acc, count), *want = check_copy(c, total, count);
    double *weight = check_copy(c, p, (int64_t)n * c->W);
    for (int64_t at = 0; at < count; at++) {
        const int64_t d = at / c->W, i = at % c->W;
        double s = 0;
        for (int j = 0; j == 0 || j < n; j += ATTNI_BLOCK) { /* one chain per block */
            const double before = s;
            s = 0;
            for (int u = j; u < n && u < j + ATTNI_BLOCK && i < rows; u++) {
                double w = weight[(int64_t)u * c->W + i];
                if (!(flags & ATTNI_SKIP_MASKED && w < 0))
                    s = check_fma(c, check_get(c, v, u * ld + d), w, s);
            }
            if (j > 0 || !(flags & ATTNI_FIRST))
                s = check_round(c, (j > 0 ? before : want_acc[at]) + s);
        }
        if (flags & ATTNI_LAST)
            want[at] = check_fma(c, want[at], check_get(c, factors, i),
                                 check_round(c, s * check_get(c, factors, c->W + i)));
        else
            want_acc[at] = s;
    }
    void *lines = decode
                      ? check_tile(c, ATTNI_CHUNK / c->kernels->lanes * c->kernels->max_decode_rows)
                      : NULL;
    for (int64_t at = 0; in_rows && at < (int64_t)n * c->W; at++) {
        const int64_t j = at / c->W, block = j / ATTNI_BLOCK * c->kernels->max_decode_rows;
        if (at % c->W < c->kernels->max_decode_rows)
            check_set(c, lines, (block + at % c->W) * ATTNI_BLOCK + j % ATTNI_BLOCK, weight[at]);
    }
    void *l = check_tile(c, 1);
    check_fill(c, l, c->W, CHECK_PLAIN);
    double *want_l = check_copy(c, l, c->W);
    for (int i = 0; in_rows && i < rows; i++)
        for (int j = 0; j == 0 || j < n; j += ATTNI_BLOCK) {
            double sum = 0;
            for (int u = j; u < n && u < j + ATTNI_BLOCK; u++)
                sum = check_round(c, sum + weight[(int64_t)u * c->W + i]);
            want_l[i] = check_round(c, want_l[i] + sum);
        }
    attni_prefetch far_away = check_far_away(c), *hints = check_chance(c, 50) ? &far_away : NULL;
    const attni_next_rows next_rows = {check_chance(c, 50) ? v_stored : NULL, ld,
                                       Dv}; /* never read */
    if (decode)
        c->kernels->values_decode(sums, l, v_stored, ld, type, in_rows ? lines : p, in_rows, n, Dv,
                                  rows, flags, &next_rows);
    else
        c->kernels->values(acc, total, factors, v, ld, p, n, Dv, c->nv, flags, hints);
    if (decode) /* its sums are in rows; the comparison below reads acc */
        for (int64_t at = 0; at < count; at++)
            if (at % c->W < rows)
                check_set(c, acc, at, check_get(c, sums, at % c->W * width + at / c->W));
    for (int64_t at = 0; at < count; at++)
        if (at % c->W >= rows) {
            want[at] = check_get(c, total, at);
            want_acc[at] = check_get(c, acc, at);
        }
    check_expect_same(c, "total", total, want, count, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "l", l, want_l, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "acc", acc, want_acc, count, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    if (decode)
        CHECK_BENCH(c, 2.0 * n * (double)Dv * rows,
                    c->kernels->values_decode(sums, l, v_stored, ld, type, p, 0,
                                              n < ATTNI_BLOCK ? n : ATTNI_BLOCK, Dv, rows, flags,
                                              &next_rows));
    else
        CHECK_BENCH(c, 2.0 * n * (double)count,
                    c->kernels->values(acc, total, factors, v, ld, p, n, Dv, c->nv, flags, hints));
}

void check_values(check_case *c) { check_values_of(c, false); }

void check_values_decode(check_case *c) { check_values_of(c, true); }

/* A chunk joins those before it: exponents change, and one multiplication and one addition
 * round. */
void check_join(check_case *c)
{
    check_describe(c, "W=%d", c->W);
    void *M = check_tile(c, 1), *L = check_tile(c, 1), *factors = check_tile(c, 2);
    void *m = check_tile(c, 1), *l = check_tile(c, 1);
    double *want = check_array(c, c->W), *sum = check_array(c, c->W);
    double *factor = check_array(c, 2 * c->W);
    for (int i = 0; i < c->W; i++) {
        const double before = check_chance(c, 20) ? -INFINITY : (double)check_between(c, -60, 60);
        const double now = check_chance(c, 20) ? -INFINITY : (double)check_between(c, -60, 60);
        const double old = before == -INFINITY ? 0 : check_round(c, exp2(4 * check_normal(c)));
        const double new = now == -INFINITY ? 0 : check_round(c, exp2(4 * check_normal(c)));
        check_set(c, M, i, before);
        check_set(c, L, i, old);
        check_set(c, m, i, now);
        check_set(c, l, i, new);
        want[i] = fmax(before, now);
        factor[i] = want[i] == -INFINITY ? 1 : exp2(before - want[i]);
        factor[c->W + i] = want[i] == -INFINITY ? 1 : exp2(now - want[i]);
        sum[i] = check_fma(c, old, factor[i], new *factor[c->W + i]);
    }
    c->kernels->join(M, L, factors, m, l, c->nv);
    check_expect_same(c, "M", M, want, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "factors", factors, factor, 2 * c->W, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "L", L, sum, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    CHECK_BENCH(c, c->W, c->kernels->join(M, L, factors, m, l, c->nv));
}

void check_fold(check_case *c)
{
    int64_t rows = check_between(c, 0, 130), count = rows * c->W;
    check_describe(c, "rows=%" PRId64, rows);
    void *total = check_tile(c, rows), *acc = check_tile(c, rows), *factors = check_tile(c, 2);
    check_fill(c, total, count, check_any_content(c));
    check_fill(c, acc, count, check_any_content(c));
    for (int i = 0; i < 2 * c->W; i++)
        check_set(c, factors, i, exp2((double)check_between(c, -140, 0)));
    double *want = check_copy(c, total, count);
    for (int64_t at = 0; at < count; at++)
        want[at] = check_fma(c, want[at], check_get(c, factors, at % c->W),
                             check_round(c, check_get(c, acc, at) *
                                                check_get(c, factors, c->W + at % c->W)));
    c->kernels->fold(total, acc, rows, factors, c->nv);
    check_expect_same(c, "total", total, want, count, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->fold(total, acc, rows, factors, c->nv));
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
