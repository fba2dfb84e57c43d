/* scores, maxima, scale_softcap and alibi: the tile of scores S^T, [keys][W].
 *
 * The order of a score's sum is fixed. So scores must be bit-identical to the same chain of
 * multiply-adds, computed one element at a time. Results of tanh are compared within a number of
 * units in the last place. */
#include "check_case.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const int64_t sizes[] = {0,  1,  2,  3,  5,  7,  8,  15, 16,  17,  31,  32,  33,
                                40, 59, 63, 64, 65, 72, 80, 96, 111, 112, 128, 160, 257};

/* The number of keys in a block: none, one, all, or any remainder in between. */
static int some_keys(check_case *c)
{
    int64_t edges[] = {0,           1,
                       2,           3,
                       4,           5,
                       11,          12,
                       13,          ATTNI_BLOCK - 1,
                       ATTNI_BLOCK, check_between(c, 0, ATTNI_BLOCK)};
    return (int)CHECK_PICK(c, edges);
}

/* The maximum of each column; NaN if the column has a NaN, because its maximum is then
 * unspecified. */
static double *column_maxima(check_case *c, const double *st, int n)
{
    double *mx = check_array(c, c->W);
    for (int i = 0; i < c->W; i++) {
        mx[i] = -INFINITY;
        for (int j = 0; j < n; j++)
            if (isnan(st[j * c->W + i]) || st[j * c->W + i] > mx[i])
                mx[i] = st[j * c->W + i];
    }
    for (int i = 0; i < c->W; i++)
        for (int j = 0; j < n; j++)
            if (isnan(st[j * c->W + i]))
                mx[i] = NAN;
    return mx;
}

/* Expects the right mx, except for columns with a NaN, whose maximum is unspecified. */
static void expect_maxima(check_case *c, const void *mx, const double *st, int n, int columns)
{
    double *want = column_maxima(c, st, n);
    for (int i = 0; i < c->W; i++)
        if (isnan(want[i]) || i >= columns)
            want[i] = check_get(c, mx, i);
    check_expect_same(c, "mx", mx, want, c->W, c->W, CHECK_ZERO_ANY);
}

/* The index at which scores_decode and weights_decode store key j of query i, in rows. */
static int64_t row_place(const check_case *c, int j, int64_t i)
{
    return (j / ATTNI_BLOCK * c->kernels->max_decode_rows + i) * ATTNI_BLOCK + j % ATTNI_BLOCK;
}

typedef enum scores_form { FULL, DECODE, INTERLEAVED } scores_form;

/* A case of one kernel of scores: the one of full tiles, or one of the decode path. On the decode
 * path, lanes without a query may hold anything. */
typedef struct scores_case {
    scores_form form;
    int n, rows; /* keys; queries, at most W */
    int64_t D;
    ptrdiff_t ld;
    check_content content;
    const char *k, *k_stored; /* keys of R; the same as the kernel reads them */
    attn_dtype type;          /* of k_stored */
    void *qt, *st;            /* queries and scores as tiles */
    char *mx;
    void *lines, *row; /* decode: scores in rows; the first query alone */
    attni_prefetch far_away, *hints;
    attni_next_rows next_rows; /* never read */
} scores_case;

static scores_case choose_scores(check_case *c, scores_form form)
{
    const bool decode = form != FULL;
    scores_case s = {.form = form};
    s.n = decode && check_chance(c, 40) ? (int)check_between(c, 0, ATTNI_CHUNK) : some_keys(c);
    s.rows = decode ? (int)check_between(c, 1, c->kernels->max_decode_rows) : c->W;
    s.D = CHECK_PICK(c, sizes);
    s.ld = check_any_stride(c, s.D);
    s.content = check_any_content(c);
    check_describe(c, "n=%d D=%" PRId64 " ld=%td rows=%d", s.n, s.D, s.ld, s.rows);
    return s;
}

static void make_scores(check_case *c, scores_case *s)
{
    const bool decode = s->form != FULL;
    check_rows k = check_rows_new(c, s->n, s->D, s->ld);
    check_fill(c, k.memory, k.count, s->content);
    s->k = k.first;
    s->k_stored = check_rows_stored(c, &k, decode, &s->type);
    s->qt = check_tile(c, s->D + 1);
    s->st = check_tile(c, s->n);
    s->mx = check_tile(c, decode ? ATTNI_BLOCKS : 1);
    check_fill(c, s->qt, s->D * c->W, s->content == CHECK_WILD ? CHECK_PLAIN : s->content);
    if (s->form == INTERLEAVED)
        s->k_stored = check_interleave_keys(c, s->k_stored, s->type, s->ld, s->n, s->D);
    for (int i = 0; s->form == INTERLEAVED && i < c->W; i++)
        check_set(c, s->qt, s->D * c->W + i, 0);
    if (decode)
        s->lines = check_tile(c, ATTNI_CHUNK / c->kernels->lanes * c->kernels->max_decode_rows);
    s->far_away = check_far_away(c);
    s->hints = check_chance(c, 50) ? &s->far_away : NULL;
    s->next_rows = check_next_rows(c, s->k_stored, s->ld, s->D);
    s->row = decode ? check_tile(c, s->D / c->kernels->lanes + 1) : NULL;
    for (int64_t d = 0; decode && d <= s->D; d++)
        check_set(c, s->row, d, d < s->D ? check_get(c, s->qt, d * c->W) : 0);
}

static double *expected_scores(check_case *c, const scores_case *s)
{
    double *q = check_copy(c, s->qt, s->D * c->W), *want = check_array(c, (int64_t)s->n * c->W);
    for (int j = 0; j < s->n; j++)
        for (int i = 0; i < s->rows; i++) {
            double sum = 0, run = 0;
            for (int64_t d = 0; d < s->D; d++) {
                run = check_fma(c, check_get(c, s->k, j * s->ld + d), q[d * c->W + i], run);
                if ((d + 1) % ATTNI_D_CHAIN == 0 || d + 1 == s->D) {
                    sum = d < ATTNI_D_CHAIN ? run : check_round(c, sum + run);
                    run = 0;
                }
            }
            want[j * c->W + i] = sum;
        }
    return want;
}

static void run_scores(const check_case *c, const scores_case *s)
{
    const attni_kernels *k = c->kernels;
    const void *q = s->rows == 1 ? s->row : s->qt;
    if (s->form == INTERLEAVED)
        k->scores_interleaved(s->lines, s->mx, q, s->k_stored, s->type, s->n, s->D, s->rows,
                              &s->next_rows);
    else if (s->form == DECODE)
        k->scores_decode(s->lines, s->mx, q, s->k_stored, s->ld, s->type, s->n, s->D, s->rows,
                         &s->next_rows);
    else
        k->scores(s->st, s->mx, s->qt, s->k, s->ld, s->n, s->D, c->nv, s->hints);
}

static void check_scores_of(check_case *c, scores_form form)
{
    const bool decode = form != FULL;
    scores_case s = choose_scores(c, form);
    if (decode && (c->nv != 1 || (form == INTERLEAVED && !c->kernels->scores_interleaved)))
        return;
    make_scores(c, &s);
    double *want = expected_scores(c, &s);
    run_scores(c, &s);
    for (int64_t at = 0; at < (int64_t)s.n * c->W; at++) {
        const int64_t j = at / c->W, i = at % c->W;
        if (i >= s.rows)
            want[at] = check_get(c, s.st, at);
        else if (decode)
            check_set(c, s.st, at, check_get(c, s.lines, row_place(c, (int)j, i)));
    }
    check_expect_same(c, "st", s.st, want, (int64_t)s.n * c->W, c->W, CHECK_ZERO_ANY);
    const int block = decode && s.n > ATTNI_BLOCK ? ATTNI_BLOCK : s.n;
    for (int j = 0; j == 0 || j < s.n; j += block ? block : 1)
        expect_maxima(c, s.mx + (size_t)(j / ATTNI_BLOCK * c->W) * c->size,
                      want + (size_t)j * (size_t)c->W, s.n - j < block ? s.n - j : block, s.rows);
    check_expect_intact(c);
    CHECK_BENCH(c, 2.0 * s.n * (double)s.D * s.rows, run_scores(c, &s));
}

void check_scores(check_case *c) { check_scores_of(c, FULL); }

void check_scores_decode(check_case *c) { check_scores_of(c, DECODE); }

void check_scores_interleaved(check_case *c) { check_scores_of(c, INTERLEAVED); }

void check_maxima(check_case *c)
{
    int n = some_keys(c);
    check_content content = check_any_content(c);
    check_describe(c, "n=%d", n);
    void *st = check_tile(c, n), *mx = check_tile(c, 1);
    check_fill(c, st, (int64_t)n * c->W, content);
    c->kernels->maxima(mx, st, n, c->nv);
    expect_maxima(c, mx, check_copy(c, st, (int64_t)n * c->W), n, c->W);
    check_expect_intact(c);
    CHECK_BENCH(c, n * c->W, c->kernels->maxima(mx, st, n, c->nv));
}

/* How far cap * tanh(y), y = s r / cap, may be off, relative to the result, in units of u, half the
 * unit in the last place of 1. Each rounding of the kernel is one u. The list says how much of it
 * reaches the result:
 *
 *   C = 2 log2(e) r / cap    3 in double (three roundings), 1 in float (one). The relative error of
 *                            a factor of y reaches the result times 2y / sinh(2y) <= 1.
 *   f = s C - n, |f| <= 1/2  f is off by 1. This makes p off by f ln(2) 2^f / (2^f - 1) <= 1.2.
 *   p = 2^f - 1              2.7 more: 1 for the polynomial's last sum, 0.4 for the sums before it,
 *                            0.3 for the constants, 1 for the product with f. So p is off by 3.9.
 *   e = t p + (t - 1), t = 2^n
 *                            An error of p reaches e times |t p / e|, and an error of e reaches
 *                            e / (e + 2) times 2 / (e + 2). The product of both factors is at most
 *                            1.18, at n = 1, p = -0.29. So p adds 3.9 * 1.18 = 4.6. The rounding of
 *                            e (none for n = 0) adds 0.83 there. Elsewhere it adds up to 2, for e
 *                            near -1, but there p and C add hardly anything.
 *   e + 2, the quotient and the product with cap
 *                            3
 *
 * The sum is 11.4 for double, 9.4 for float. Without fused multiply-adds, f is off by 1 of s C
 * instead of 1 of f; what reaches the result is no larger. */
static double natural_units(const check_case *c) { return c->bits == 32 ? 10 : 12; }

/* Expects errors that are centred around 0. Roundings go up as often as down, except those of C,
 * which are the same throughout a call. So the mean of many errors is far smaller than the bound of
 * one error, and it reveals an operation that is always off by a unit or two. The random roundings
 * together have a standard deviation of 1.5, so 9 / sqrt(n) is 6 times that of their mean. 1 is
 * added for errors that are not random: those of the polynomial's constants. */
static void expect_centred(check_case *c, const void *st, const double *want, int64_t count)
{
    const double own = c->bits == 32 ? 1 : 3;
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabs(want[i]) > (c->bits == 32 ? 1e-30 : 1e-300) && fabs(want[i]) < INFINITY) {
            sum += (check_get(c, st, i) - want[i]) / want[i];
            n++;
        }
    const double mean = n ? sum / (double)n / check_unit(c->bits == 32 ? ATTN_F32 : ATTN_F64) : 0;
    if (n >= 64 && !(fabs(mean) <= own + 1 + 9 / sqrt((double)n)))
        check_fail(c, "st: the mean of %" PRId64 " errors is %.2f half units", n, mean);
}

void check_scale_softcap(check_case *c)
{
    static const double factors[] = {1, 0.125, 0.13363062095621219, -2, 1e-3, 30};
    static const double caps[] = {0, 0, 1, 0.5, 30, 50, 1e-3};
    int n = some_keys(c);
    double r = check_round(c, CHECK_PICK(c, factors)), cap = check_round(c, CHECK_PICK(c, caps));
    double spread = check_chance(c, 50) ? 1 : check_chance(c, 50) ? 1e-6 : 20;
    check_content content = check_any_content(c);
    check_describe(c, "n=%d r=%g cap=%g", n, r, cap);

    int64_t count = (int64_t)n * c->W;
    void *st = check_tile(c, n);
    check_fill(c, st, count, content);
    if (content == CHECK_PLAIN)
        for (int64_t i = 0; i < count; i++)
            check_set(c, st, i, check_get(c, st, i) * spread);

    const attn_dtype type = c->bits == 32 ? ATTN_F32 : ATTN_F64;
    double *want = check_array(c, count), *bound = check_array(c, count);
    for (int64_t i = 0; i < count; i++) {
        long double x = (long double)check_get(c, st, i) * r;
        if (cap > 0)
            x = cap * tanhl(x / cap);
        want[i] = cap > 0 ? (double)x : check_round(c, (double)x);
        /* below the normal numbers, x / cap has lost bits before the tanh */
        bound[i] = cap > 0 ? natural_units(c) * check_unit(type) * fabs(want[i]) +
                                 (2 * cap + 1) * check_ulp(type, 0) + 0x1p-53 * fabs(want[i])
                           : check_ulp(type, want[i]);
    }
    c->kernels->scale_softcap(st, n, r, cap, c->nv);
    check_expect_within(c, "st", st, want, bound, count, c->W);
    if (content == CHECK_PLAIN && cap > 0)
        expect_centred(c, st, want, count);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->scale_softcap(st, n, r, cap, c->nv));
}

void check_alibi(check_case *c)
{
    int n = some_keys(c);
    double slope = check_round(c, check_normal(c));
    double first = (double)check_between(c, -3000, 3000);
    bool symmetric = check_chance(c, 50);
    check_content content = check_any_content(c);
    check_describe(c, "n=%d slope=%g first=%g%s", n, slope, first, symmetric ? " symmetric" : "");

    int64_t count = (int64_t)n * c->W;
    void *st = check_tile(c, n);
    check_fill(c, st, count, content);
    double *want = check_array(c, count), *bound = check_array(c, count);
    attn_dtype type = c->bits == 32 ? ATTN_F32 : ATTN_F64;
    for (int j = 0; j < n; j++)
        for (int i = 0; i < c->W; i++) {
            int64_t at = (int64_t)j * c->W + i;
            double d = symmetric ? -fabs(first + j - i) : first + j - i;
            double product = slope * d; /* exact in double, or nearly */
            want[at] = check_get(c, st, at) + product;
            bound[at] = check_rounding(type, product) + check_rounding(type, want[at]) +
                        (c->bits == 64 ? check_rounding(type, want[at]) : 0);
        }
    c->kernels->alibi(st, n, slope, first, symmetric, c->nv);
    check_expect_within(c, "st", st, want, bound, count, c->W);
    check_expect_intact(c);
    CHECK_BENCH(c, count, c->kernels->alibi(st, n, slope, first, symmetric, c->nv));
}
