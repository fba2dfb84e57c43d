/* update_max, rescale and weights: the running maximum and the exponential. The exponential is
 * compared with libm's in long double; `attn check --op exp2_all` compares all binary32 numbers. */
#include "check_case.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The exponentials are checked up to this exponent. In a call, scores in log2 units exceed the
 * running maximum by at most 16 (update_max in kernel.h). */
#define MOST_ABOVE 64

void check_update_max(check_case *c)
{
    bool calm = check_chance(c, 40); /* no score needs a new maximum */
    int odd = (int)check_between(c, 0, c->W - 1);
    void *m = check_tile(c, 1), *a = check_tile(c, 1), *top = check_tile(c, 1);
    void *mx = check_tile(c, 1), *scale = check_tile(c, 1);
    check_describe(c, "calm=%d odd=%d", calm, odd);
    for (int i = 0; i < c->W; i++) {
        double old = check_chance(c, 20) ? -INFINITY : (double)check_between(c, -200, 200);
        double factor = check_round(c, exp2(check_normal(c)));
        double x = old == -INFINITY ? 10 * check_normal(c) : old + 40 * check_normal(c);
        if (calm || check_chance(c, 20))
            x = old == -INFINITY ? -INFINITY : old - fabs(x - old);
        check_set(c, m, i, old);
        check_set(c, scale, i, factor);
        check_set(c, mx, i, x / factor);
        check_set(c, a, i, 3);
        check_set(c, top, i, 20 * check_normal(c));
    }
    if (calm && check_chance(c, 50)) { /* only one column needs a new maximum */
        check_set(c, m, odd, -10);
        check_set(c, mx, odd, 1000);
        calm = false;
    }

    double *old_m = check_copy(c, m, c->W), *want_m = check_copy(c, m, c->W);
    double *want_a = check_copy(c, a, c->W);
    double *want_top = check_copy(c, top, c->W);
    bool raised = false;
    for (int i = 0; i < c->W; i++) {
        double x = check_get(c, mx, i);
        const double up = check_round(c, x * check_get(c, scale, i));
        want_top[i] = fmax(want_top[i], x);
        want_m[i] = up > old_m[i] + 16 ? ceil(up) : old_m[i];
        raised = raised || want_m[i] != old_m[i];
    }
    int max_raised = c->kernels->update_max(m, a, top, mx, scale, c->nv);
    check_expect_same(c, "top", top, want_top, c->W, c->W, CHECK_ZERO_ANY);
    if (max_raised != raised)
        check_fail(c, "returned %d, want %d", max_raised, raised);
    for (int i = 0; i < c->W && max_raised; i++) {
        want_a[i] = want_m[i] == -INFINITY ? 1 : check_round(c, exp2(old_m[i] - want_m[i]));
        if (want_a[i] < (c->bits == 32 ? 0x1p-126 : 0x1p-1022) && check_get(c, a, i) == 0)
            want_a[i] = 0; /* too small to be a normal number: 0 is accepted */
    }
    check_expect_same(c, "m", m, want_m, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "a", a, want_a, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    CHECK_BENCH(c, c->W, c->kernels->update_max(m, a, top, mx, scale, c->nv));
}

void check_rescale(check_case *c)
{
    int64_t rows = check_between(c, 0, 130), count = rows * c->W;
    check_describe(c, "rows=%" PRId64, rows);
    void *x = check_tile(c, rows), *a = check_tile(c, 1);
    check_fill(c, x, count, check_any_content(c));
    for (int i = 0; i < c->W; i++)
        check_set(c, a, i, exp2((double)-check_between(c, 0, 140)));
    double *want = check_copy(c, x, count);
    for (int64_t i = 0; i < count; i++)
        want[i] = check_round(c, want[i] * check_get(c, a, i % c->W));
    c->kernels->rescale(x, rows, a, c->nv);
    check_expect_same(c, "x", x, want, count, c->W, CHECK_ZERO_SIGNED);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->rescale(x, rows, a, c->nv));
}

/* ---------------------------------------------------------------------------------- weights */

/* The allowed error of 2^x: one unit in the last place, or 1.25 where multiply-adds round twice;
 * plus the rounding of the reference. Below the normal numbers it is the smallest normal number. */
static double power_bound(const check_case *c, double power)
{
    attn_dtype type = c->bits == 32 ? ATTN_F32 : ATTN_F64;
    double smallest = c->bits == 32 ? 0x1p-126 : 0x1p-1022;
    return power < smallest ? smallest
                            : check_ulp(type, power) * (c->fused ? 1 : 1.25) * (1 + 0x1p-9);
}

/* The running maximum, factor and scores of one column, as update_max() and the masks leave
 * them. */
static void fill_column(check_case *c, int i, int n, void *st, void *scale, void *m, int flags)
{
    bool masked = flags & (ATTNI_MASKED | ATTNI_SKIP_MASKED), empty = masked && check_chance(c, 10);
    double factor = check_round(c, exp2(2 * check_normal(c)));
    double top = empty ? -INFINITY : (double)check_between(c, -30, 30);
    double spread = check_chance(c, 50) ? 8 : check_chance(c, 50) ? 60 : 1e6;
    check_set(c, scale, i, factor);
    check_set(c, m, i, top);
    for (int j = 0; j < n; j++) {
        double x = top - fabs(spread * check_normal(c)) + (check_chance(c, 10) ? 12 : 0);
        if (masked && (empty || check_chance(c, 30)))
            x = -INFINITY;
        else if (check_chance(c, 1))
            x = check_chance(c, 50) || !masked ? NAN : c->bits == 32 ? -0x1p126 : -0x1p1000;
        check_set(c, st, (int64_t)j * c->W + i, isfinite(x) ? x / factor : x);
    }
}

void check_weights(check_case *c)
{
    static const int modes[] = {0, ATTNI_MASKED, ATTNI_MASKED | ATTNI_SKIP_MASKED,
                                ATTNI_SKIP_MASKED};
    int n = (int)check_between(c, 0, ATTNI_BLOCK), flags = CHECK_PICK(c, modes);
    bool in_place = check_chance(c, 50);
    int64_t count = (int64_t)n * c->W;
    check_describe(c, "n=%d flags=%d in_place=%d", n, flags, in_place);

    void *st = check_tile(c, n), *p = in_place ? st : check_tile(c, n);
    void *l = check_tile(c, 1), *scale = check_tile(c, 1), *m = check_tile(c, 1);
    for (int i = 0; i < c->W; i++) {
        fill_column(c, i, n, st, scale, m, flags);
        check_set(c, l, i, check_chance(c, 50) ? 0 : exp2(4 * check_normal(c)));
    }

    double *want = check_array(c, count), *bound = check_array(c, count);
    for (int64_t at = 0; at < count; at++) {
        double x = check_get(c, st, at), top = check_get(c, m, at % c->W);
        double exponent = check_round(c, x * check_get(c, scale, at % c->W));
        long double power = exp2l((long double)exponent - (top == -INFINITY ? 0 : top));
        want[at] = (double)power;
        bound[at] = x == -INFINITY ? 0 : power_bound(c, want[at]);
        if (x == -INFINITY && flags & ATTNI_SKIP_MASKED)
            want[at] = -1;
    }
    double *before = check_copy(c, l, c->W), *sum = check_array(c, c->W);
    c->kernels->weights(p, l, st, scale, m, n, c->nv, flags);
    check_expect_within(c, "p", p, want, bound, count, c->W);

    /* The sums are of the weights as computed, in order. */
    for (int64_t at = 0; at < count; at++) {
        double w = check_get(c, p, at);
        if (!(w < 0))
            sum[at % c->W] = check_round(c, sum[at % c->W] + w);
    }
    for (int i = 0; i < c->W; i++)
        sum[i] = check_round(c, before[i] + sum[i]);
    check_expect_same(c, "l", l, sum, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    for (int64_t at = 0; at < count && in_place; at++) /* so that repeated calls stay finite */
        check_set(c, st, at, 0);
    CHECK_BENCH(c, count, c->kernels->weights(p, l, st, scale, m, n, c->nv, flags));
}

/* The weights in rows must be bit-identical to those in columns, which check_weights compares with
 * libm. */
void check_weights_decode(check_case *c)
{
    const int n = (int)check_between(c, 0, ATTNI_BLOCK), lanes = c->kernels->lanes;
    const int rows = (int)check_between(c, 1, c->kernels->max_decode_rows);
    const bool in_place = check_chance(c, 50);
    check_describe(c, "n=%d rows=%d in_place=%d", n, rows, in_place);
    if (c->nv != 1)
        return;
    void *st = check_tile(c, n), *p = check_tile(c, n);
    void *lines = check_tile(c, ATTNI_BLOCK / lanes * c->kernels->max_decode_rows);
    void *got = in_place ? lines : check_tile(c, ATTNI_BLOCK / lanes * c->kernels->max_decode_rows);
    void *l = check_tile(c, 1), *scale = check_tile(c, 1), *m = check_tile(c, 1);
    for (int i = 0; i < c->W; i++) {
        fill_column(c, i, n, st, scale, m, 0);
        check_set(c, l, i, 0);
        for (int j = 0; j < n && i < rows; j++)
            check_set(c, lines, i * ATTNI_BLOCK + j, check_get(c, st, j * c->W + i));
    }
    c->kernels->weights(p, l, st, scale, m, n, c->nv, 0);
    c->kernels->weights_decode(got, lines, scale, m, n, rows);
    for (int i = 0; i < c->W; i++) {
        for (int j = 0; j < n && i < rows; j++)
            check_set(c, st, j * c->W + i, check_get(c, got, i * ATTNI_BLOCK + j));
        for (int j = 0; j < n && i >= rows; j++)
            check_set(c, st, j * c->W + i, check_get(c, p, j * c->W + i));
    }
    const int64_t count = (int64_t)n * c->W;
    check_expect_same(c, "p", st, check_copy(c, p, count), count, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
}

/* ------------------------------------------------------------------ all numbers, one by one */

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Checks 2^x for every `step`-th binary32 x, in order from -inf up to MOST_ABOVE: within one unit
 * in the last place, never decreasing by more than that, and 0 at -inf. The reference is computed
 * in double, which is exact enough to check a float. */
static void sweep(check_case *c, uint32_t first, uint32_t step)
{
    int n = ATTNI_BLOCK;
    void *st = check_tile(c, n), *p = check_tile(c, n), *l = check_tile(c, 1);
    void *scale = check_tile(c, 1), *m = check_tile(c, 1);
    for (int i = 0; i < c->W; i++) {
        check_set(c, scale, i, 1);
        check_set(c, m, i, 0);
    }
    const uint32_t lowest = 0xFF800000, positive = 0x42800000; /* -inf, MOST_ABOVE */
    uint64_t total = (uint64_t)(lowest - 0x80000000) + positive, at = first;
    double last = 0;
    while (at <= total && !c->failed) {
        int count = 0;
        for (; count < n * c->W && at <= total; at += step) {
            uint64_t down = lowest - 0x80000000;
            uint32_t bits = at <= down ? lowest - (uint32_t)at : (uint32_t)(at - down);
            check_set(c, st, count++, float_of(bits));
        }
        for (int i = count; i < n * c->W; i++)
            check_set(c, st, i, 0);
        for (int i = 0; i < c->W; i++)
            check_set(c, l, i, 0);
        c->kernels->weights(p, l, st, scale, m, n, c->nv, ATTNI_MASKED);
        for (int i = 0; i < count && !c->failed; i++) {
            double x = check_get(c, st, i), got = check_get(c, p, i), want = exp2(x);
            if (!(fabs(got - want) <= (x == -INFINITY ? 0 : power_bound(c, want))))
                check_fail(c, "2^%.9g: %.9g want %.9g", x, got, want);
            if (last - got > power_bound(c, got))
                check_fail(c, "2^%.9g: %.17g falls from %.17g", x, got, last);
            last = got;
        }
    }
}

void check_exp2(check_case *c)
{
    uint32_t first = (uint32_t)check_between(c, 0, 65536);
    check_describe(c, "first=%u", first);
    if (c->nv == 1)
        sweep(c, first, 65537);
}

void check_exp2_all(check_case *c)
{
    check_describe(c, "all");
    if (c->nv == 1 && c->bits == 32)
        sweep(c, 0, 1);
}
