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

/* Weights as weights() returns them. If `careful`, some are marks of masked keys, whose values may
 * be anything. */
static void fill_weights(check_case *c, void *p, int64_t count, bool careful)
{
    for (int64_t i = 0; i < count; i++) {
        double w = check_chance(c, 10) ? 0 : exp2(4 * check_normal(c));
        check_set(c, p, i, careful && check_chance(c, 30) ? -1 : w);
    }
}

/* A case of one kernel of values: the one of full tiles, or the one of the decode path. On the
 * decode path, lanes without a query may hold anything. */
typedef struct values_case {
    bool decode;
    int in_rows; /* decode: the weights are in rows */
    int n, rows; /* keys; queries, at most W */
    int64_t Dv, count;
    ptrdiff_t ld;
    int flags;
    check_content content;
    const char *v, *v_stored; /* values of R; the same as the kernel reads them */
    attn_dtype type;          /* of v_stored */
    void *p, *acc, *total, *factors;
    void *sums;    /* decode: the running sums, a row per query */
    int64_t width; /* of such a row */
    void *lines;   /* decode: weights in rows */
    void *l;       /* sums of the weights, with in_rows */
    double *weight, *want_acc, *want, *want_l;
    attni_prefetch far_away, *hints;
    attni_next_rows next_rows; /* never read */
} values_case;

static values_case choose_values(check_case *c, bool decode)
{
    values_case s = {.decode = decode, .in_rows = decode && check_chance(c, 50)};
    s.n = (int)check_between(c, 0, s.in_rows ? ATTNI_CHUNK : ATTNI_BLOCK);
    s.rows = decode ? (int)check_between(c, 1, c->kernels->max_decode_rows) : c->W;
    s.Dv = CHECK_PICK(c, sizes);
    s.count = s.Dv * c->W;
    s.ld = check_any_stride(c, s.Dv);
    s.flags = (int)check_between(c, 0, 3);
    if (!decode && check_chance(c, 40))
        s.flags |= ATTNI_SKIP_MASKED;
    if (decode) /* values_decode() does not join */
        s.flags &= ATTNI_FIRST;
    s.content = check_any_content(c);
    check_describe(c, "n=%d Dv=%" PRId64 " ld=%td rows=%d flags=%d", s.n, s.Dv, s.ld, s.rows,
                   s.flags);
    return s;
}

static void make_sums(check_case *c, values_case *s)
{
    const int lanes = c->kernels->lanes, most = c->kernels->max_decode_rows;
    s->width = (s->Dv + lanes - 1) / lanes * lanes;
    s->sums = s->decode ? check_tile(c, s->width / lanes * most) : NULL;
    if (!(s->flags & ATTNI_FIRST)) /* else the contents must not matter: they are NaN */
        check_fill(c, s->acc, s->count, CHECK_PLAIN);
    for (int64_t at = 0; s->decode && at < s->width * most; at++) {
        const int64_t i = at / s->width, d = at % s->width;
        check_set(c, s->sums, at, d < s->Dv && i < c->W ? check_get(c, s->acc, d * c->W + i) : 0);
    }
}

/* Sets the weights in rows, and the sums of weights before the call. */
static void make_lines(check_case *c, values_case *s)
{
    const int most = c->kernels->max_decode_rows;
    s->lines = s->decode ? check_tile(c, ATTNI_CHUNK / c->kernels->lanes * most) : NULL;
    for (int64_t at = 0; s->in_rows && at < (int64_t)s->n * c->W; at++) {
        const int64_t j = at / c->W, block = j / ATTNI_BLOCK * most;
        if (at % c->W < most)
            check_set(c, s->lines, (block + at % c->W) * ATTNI_BLOCK + j % ATTNI_BLOCK,
                      s->weight[at]);
    }
    s->l = check_tile(c, 1);
    check_fill(c, s->l, c->W, CHECK_PLAIN);
}

static void make_values(check_case *c, values_case *s)
{
    check_rows v = check_rows_new(c, s->n, s->Dv, s->ld);
    check_fill(c, v.memory, v.count, s->content);
    s->v = v.first;
    s->v_stored = check_rows_stored(c, &v, s->decode, &s->type);
    s->p = check_tile(c, s->n);
    s->acc = check_tile(c, s->Dv);
    s->total = check_tile(c, s->Dv);
    s->factors = check_tile(c, 2);
    fill_weights(c, s->p, (int64_t)s->n * c->W, s->flags & ATTNI_SKIP_MASKED);
    check_fill(c, s->total, s->count, CHECK_PLAIN);
    for (int i = 0; i < 2 * c->W; i++)
        check_set(c, s->factors, i, exp2((double)check_between(c, -30, 0)));
    make_sums(c, s);
    s->weight = check_copy(c, s->p, (int64_t)s->n * c->W);
    make_lines(c, s);
    s->far_away = check_far_away(c);
    s->hints = check_chance(c, 50) ? &s->far_away : NULL;
    s->next_rows = check_next_rows(c, s->v_stored, s->ld, s->Dv);
}

/* The sum of component d of query i: one chain for each block, added to `sum`. */
static double expected_value(const check_case *c, const values_case *s, int64_t d, int64_t i,
                             double sum)
{
    for (int j = 0; j == 0 || j < s->n; j += ATTNI_BLOCK) {
        double chain = 0;
        for (int u = j; u < s->n && u < j + ATTNI_BLOCK && i < s->rows; u++) {
            const double w = s->weight[(int64_t)u * c->W + i];
            if (!(s->flags & ATTNI_SKIP_MASKED && w < 0))
                chain = check_fma(c, check_get(c, s->v, u * s->ld + d), w, chain);
        }
        sum = j > 0 || !(s->flags & ATTNI_FIRST) ? check_round(c, sum + chain) : chain;
    }
    return sum;
}

static void expect_values(check_case *c, values_case *s)
{
    s->want_acc = check_copy(c, s->acc, s->count);
    s->want = check_copy(c, s->total, s->count);
    s->want_l = check_copy(c, s->l, c->W);
    for (int64_t at = 0; at < s->count; at++) {
        const int64_t d = at / c->W, i = at % c->W;
        const double sum = expected_value(c, s, d, i, s->want_acc[at]);
        if (s->flags & ATTNI_LAST)
            s->want[at] = check_fma(c, s->want[at], check_get(c, s->factors, i),
                                    check_round(c, sum * check_get(c, s->factors, c->W + i)));
        else
            s->want_acc[at] = sum;
    }
    for (int i = 0; s->in_rows && i < s->rows; i++)
        for (int j = 0; j == 0 || j < s->n; j += ATTNI_BLOCK) {
            double sum = 0;
            for (int u = j; u < s->n && u < j + ATTNI_BLOCK; u++)
                sum = check_round(c, sum + s->weight[(int64_t)u * c->W + i]);
            s->want_l[i] = check_round(c, s->want_l[i] + sum);
        }
}

static void run_values(const check_case *c, const values_case *s, int in_rows, int n)
{
    if (s->decode)
        c->kernels->values_decode(s->sums, s->l, s->v_stored, s->ld, s->type,
                                  in_rows ? s->lines : s->p, in_rows, n, s->Dv, s->rows, s->flags,
                                  &s->next_rows);
    else
        c->kernels->values(s->acc, s->total, s->factors, s->v, s->ld, s->p, n, s->Dv, c->nv,
                           s->flags, s->hints);
}

static void check_values_of(check_case *c, bool decode)
{
    values_case s = choose_values(c, decode);
    if (decode && c->nv != 1)
        return;
    make_values(c, &s);
    expect_values(c, &s);
    run_values(c, &s, s.in_rows, s.n);
    for (int64_t at = 0; at < s.count; at++) {
        const int64_t d = at / c->W, i = at % c->W;
        if (i >= s.rows) {
            s.want[at] = check_get(c, s.total, at);
            s.want_acc[at] = check_get(c, s.acc, at);
        } else if (decode) { /* its sums are in rows; the comparison below reads acc */
            check_set(c, s.acc, at, check_get(c, s.sums, i * s.width + d));
        }
    }
    check_expect_same(c, "total", s.total, s.want, s.count, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "l", s.l, s.want_l, c->W, c->W, CHECK_ZERO_ANY);
    check_expect_same(c, "acc", s.acc, s.want_acc, s.count, c->W, CHECK_ZERO_ANY);
    check_expect_intact(c);
    const int n = s.n < ATTNI_BLOCK ? s.n : ATTNI_BLOCK;
    CHECK_BENCH(c, 2.0 * n * (double)s.Dv * s.rows, run_values(c, &s, 0, n));
}

void check_values(check_case *c) { check_values_of(c, false); }

void check_values_decode(check_case *c) { check_values_of(c, true); }

/* A chunk joins those before it. The factors are powers of two, so only the addition rounds. */
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
