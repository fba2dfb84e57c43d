/* The operations on rows: exponentials of cross-entropy, layer norm, sums of columns, and rows of
 * an i8 cache. tile.inc.h includes this file for each instruction set, after elements.inc.h. The
 * contracts are in kernel.h. For float only, as in elements.inc.h. Long sums are in double;
 * norm_sums() and norm_columns() first add a few terms in float.
 *
 * Modules pass a row in pieces of ATTNI_PIECE elements (the last may be shorter) and add the sums
 * of the pieces in order. So, on one instruction set, the order of a sum over a row depends on the
 * row's length alone. norm_columns() and column_sums() sum each column over some rows; this order
 * depends on the number of rows alone. */
#if ATTNI_BITS == 32
#include "vec/wide.h"

/* -------------------------------------------------- maximum, exp_sum, exp_terms, multiply */

static float op_maximum(const void *x_, int64_t n)
{
    const R_any *x = x_;
    vec top = v_set1(-R_INF);
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        top = v_max(top, v_loadu(x + i));
    R lane[V_LANES];
    copy_part(lane, x + i, n - i, -R_INF);
    v_storeu(lane, v_max(top, v_loadu(lane)));
    UNROLL for (int half = V_LANES / 2; half > 0; half /= 2)
    {
        UNROLL for (int u = 0; u < half; u++) lane[u] =
            lane[u] > lane[u + half] ? lane[u] : lane[u + half];
    }
    return lane[0];
}

#define EXPONENTIALS 8 /* vectors of double, computed together */
/* e^x in double, of `count` vectors, for x <= 0, -inf or NaN. The relative error is at most 3e-14
 * for x >= -177, and at most 7e-14 for smaller x. A result that would be below 2^-1000 becomes
 * 2^-1000. e^0 is 1. Each result is a chain of dependent operations; each step is done for all
 * vectors before the next, so that they overlap. */
V_INLINE void wide_exp(v_wide *x, int count)
{
    typedef int64_t bits __attribute__((vector_size(sizeof(v_wide))));
    static const double c[] = {1.0148332630992549056e-7,   1.3258336150394957894e-6,
                               0.000015252990063684434119, 0.00015403440880630065387,
                               0.0013333557625371989833,   0.00961812918117002997,
                               0.055504108668416506809,    0.24022650695722789573,
                               0.69314718055988514687,     1};
    /* The low bits of y + magic are y, rounded to an integer. */
    const v_wide magic = v_wide_set1(0x1.8p52);
    v_wide sum[EXPONENTIALS], f[EXPONENTIALS], p[EXPONENTIALS];
    UNROLL for (int u = 0; u < count; u++)
    {
        /* 2^-1000 becomes 0 if it is rounded to float, and does not change a sum of 1 or more */
        const v_wide y = v_wide_max(v_wide_set1(-1000), x[u] * v_wide_set1(1.4426950408889634074));
        sum[u] = y + magic;
        f[u] = y - (sum[u] - magic);
        p[u] = v_wide_set1(c[0]);
    }
    UNROLL for (int i = 1; i < (int)(sizeof c / sizeof *c); i++)
    {
        UNROLL for (int u = 0; u < count; u++) p[u] = v_wide_fma(p[u], f[u], v_wide_set1(c[i]));
    }
    UNROLL for (int u = 0; u < count; u++) x[u] = (v_wide)((bits)p[u] + ((bits)sum[u] << 52));
}

/* Adds e^(x - top) of `count` vectors to the two sums, alternately. */
V_INLINE void exp_part(const R_any *x, v_wide top, v_wide sums[2], int count)
{
    v_wide e[EXPONENTIALS];
    UNROLL for (int u = 0; u < count; u++) e[u] = v_wide_load(x + u * V_WIDE_LANES) - top;
    wide_exp(e, count);
    UNROLL for (int u = 0; u < count; u++) sums[u % 2] += e[u];
}

/* n < V_LANES elements followed by -inf */
V_INLINE vec load_logits(const R_any *x, int64_t n)
{
    R lane[V_LANES];
    copy_part(lane, x, n, -R_INF);
    return v_loadu(lane);
}

static double op_exp_sum(const void *x_, double top_, int64_t n)
{
    const R_any *x = x_;
    const v_wide top = v_wide_set1(top_);
    v_wide sums[2] = {v_wide_set1(0), v_wide_set1(0)};
    int64_t i = 0;
    for (; i + EXPONENTIALS * V_WIDE_LANES <= n; i += EXPONENTIALS * V_WIDE_LANES)
        exp_part(x + i, top, sums, EXPONENTIALS);
    for (; i + V_LANES <= n; i += V_LANES)
        exp_part(x + i, top, sums, 2);
    if (i < n) {
        R lane[V_LANES];
        v_storeu(lane, load_logits(x + i, n - i));
        exp_part(lane, top, sums, 2);
    }
    return v_wide_sum(sums[0] + sums[1]);
}

/* e^(x - top) as e^(-z / 2) with z = 2 (top - x), which is what exp_minus_half() computes. The
 * second argument of exp_minus_half() is the rounding error of z, by Knuth's exact subtraction. An
 * x below `lowest`, also -inf, is replaced by `lowest`, which is so far below top that the result
 * is 0. */
V_INLINE vec exp_below(vec x, vec top, vec lowest)
{
    const vec at = v_max(lowest, x), d = v_sub(top, at);
    const vec part = v_sub(d, top); /* -at, rounded */
    const vec error = v_sub(v_sub(top, v_sub(d, part)), v_add(at, part));
    return exp_minus_half(v_add(d, d), v_add(error, error));
}

V_INLINE void add_wide(v_wide sums[2], vec x)
{
    R lane[V_LANES];
    v_storeu(lane, x);
    sums[0] += v_wide_load(lane);
    sums[1] += v_wide_load(lane + V_WIDE_LANES);
}

static double op_exp_terms(void *e_, const void *x_, float top_, int64_t n)
{
    R_any *e = e_;
    const R_any *x = x_;
    const vec top = v_set1(top_), lowest = v_set1(top_ - 110 - (R)fabs((double)top_) * 0x1p-20f);
    v_wide sums[2] = {v_wide_set1(0), v_wide_set1(0)};
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) {
        const vec term = exp_below(v_loadu(x + i), top, lowest);
        v_storeu(e + i, term);
        add_wide(sums, term);
    }
    if (i < n) {
        const vec term = exp_below(load_logits(x + i, n - i), top, lowest);
        store_part(e + i, term, (int)(n - i));
        add_wide(sums, term);
    }
    return v_wide_sum(sums[0] + sums[1]);
}

static void op_multiply(void *x_, float factor, int64_t n)
{
    R_any *x = x_;
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        v_storeu(x + i, v_mul(v_loadu(x + i), v_set1(factor)));
    for (; i < n; i++)
        x[i] *= factor;
}

/* ------------------------------------------------------------------------------- layer norm */

V_INLINE void moments_part(const R_any *x, v_wide shift, v_wide sums[2], v_wide squares[2])
{
    for (int h = 0; h < 2; h++) {
        const v_wide d = v_wide_load(x + h * V_WIDE_LANES) - shift;
        sums[h] += d;
        squares[h] = v_wide_fma(d, d, squares[h]);
    }
}

/* Two rows: the chain of additions of one fills the waits in that of the other. */
static void op_moments(double sum[2], double square[2], const void *const x_[2],
                       const float shift[2], int64_t n)
{
    const R_any *const x[2] = {x_[0], x_[1]};
    const v_wide zero = v_wide_set1(0);
    v_wide from[2], sums[2][2] = {{zero, zero}, {zero, zero}};
    v_wide squares[2][2] = {{zero, zero}, {zero, zero}};
    UNROLL for (int r = 0; r < 2; r++) from[r] = v_wide_set1((double)shift[r]);
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        UNROLL for (int r = 0; r < 2; r++) moments_part(x[r] + i, from[r], sums[r], squares[r]);
    UNROLL for (int r = 0; r < 2; r++)
    {
        if (i < n) {
            R lane[V_LANES];
            copy_part(lane, x[r] + i, n - i, shift[r]); /* what is added is 0 */
            moments_part(lane, from[r], sums[r], squares[r]);
        }
        sum[r] = v_wide_sum(sums[r][0] + sums[r][1]);
        square[r] = v_wide_sum(squares[r][0] + squares[r][1]);
    }
}

V_INLINE vec normed(vec x, const attni_moments *m)
{
    return v_fma(v_sub(x, v_set1(m->mean)), v_set1(m->r), v_set1(m->rest));
}

V_INLINE vec norm_part(vec x, const attni_moments *m, const R_any *weight, const R_any *bias)
{
    const vec y = normed(x, m);
    if (weight && bias)
        return v_fma(y, v_loadu(weight), v_loadu(bias));
    return weight ? v_mul(y, v_loadu(weight)) : bias ? v_add(y, v_loadu(bias)) : y;
}

/* n < V_LANES elements followed by zeros, in `copy`; NULL if x is NULL. */
V_INLINE const R *padded(R *copy, const R_any *x, int64_t n)
{
    if (x)
        copy_part(copy, x, n, 0);
    return x ? copy : NULL;
}

static void op_norm(void *out_, const void *x_, const attni_moments *m, const void *weight_,
                    const void *bias_, int64_t n)
{
    R_any *out = out_;
    const R_any *x = x_, *weight = weight_, *bias = bias_;
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        v_storeu(out + i,
                 norm_part(v_loadu(x + i), m, weight ? weight + i : NULL, bias ? bias + i : NULL));
    if (i < n) {
        R w[V_LANES], b[V_LANES];
        const vec y = norm_part(v_load_first(x + i, (int)(n - i)), m,
                                padded(w, weight ? weight + i : NULL, n - i),
                                padded(b, bias ? bias + i : NULL, n - i));
        store_part(out + i, y, (int)(n - i));
    }
}

V_INLINE vec weighted(const R_any *dout, const R_any *weight)
{
    return weight ? v_mul(v_loadu(dout), v_loadu(weight)) : v_loadu(dout);
}

#define NORM_CHAIN 16 /* vectors that are added in float before their sum is added in double */
V_INLINE void sums_part(vec *g_sum, vec *gy_sum, const R_any *x, vec g, const attni_moments *m)
{
    *g_sum = v_add(*g_sum, g);
    *gy_sum = v_fma(g, normed(v_loadu(x), m), *gy_sum);
}

/* Two rows, as in op_moments(). */
static void op_norm_sums(double sum_g[2], double sum_gy[2], const void *const x_[2],
                         const void *const dout_[2], const attni_moments m[2], const void *weight_,
                         int64_t n)
{
    const R_any *const x[2] = {x_[0], x_[1]}, *const dout[2] = {dout_[0], dout_[1]};
    const R_any *weight = weight_;
    const v_wide zero = v_wide_set1(0);
    v_wide g_sums[2][2] = {{zero, zero}, {zero, zero}},
           gy_sums[2][2] = {{zero, zero}, {zero, zero}};
    for (int64_t i = 0; i < n;) {
        vec g[2] = {v_set1(0), v_set1(0)}, gy[2] = {v_set1(0), v_set1(0)};
        for (int u = 0; u < NORM_CHAIN && i + V_LANES <= n; u++, i += V_LANES)
            UNROLL for (int r = 0; r < 2; r++)
                sums_part(&g[r], &gy[r], x[r] + i,
                          weighted(dout[r] + i, weight ? weight + i : NULL), &m[r]);
        if (n - i < V_LANES && i < n) {
            R d[V_LANES], w[V_LANES], at[V_LANES];
            /* If x is padded with the mean, y is near 0 there. If x were padded with 0, y might be
             * infinite, and 0 * y would be NaN. */
            const R *rest = padded(w, weight ? weight + i : NULL, n - i);
            UNROLL for (int r = 0; r < 2; r++)
            {
                copy_part(at, x[r] + i, n - i, m[r].mean);
                sums_part(&g[r], &gy[r], at, weighted(padded(d, dout[r] + i, n - i), rest), &m[r]);
            }
            i = n;
        }
        UNROLL for (int r = 0; r < 2; r++)
        {
            add_wide(g_sums[r], g[r]);
            add_wide(gy_sums[r], gy[r]);
        }
    }
    UNROLL for (int r = 0; r < 2; r++)
    {
        sum_g[r] = v_wide_sum(g_sums[r][0] + g_sums[r][1]);
        sum_gy[r] = v_wide_sum(gy_sums[r][0] + gy_sums[r][1]);
    }
}

V_INLINE vec norm_grad_part(vec x, vec g, const attni_moments *m)
{
    const vec centred = v_mul(v_sub(g, v_set1(m->mean_g)), v_set1(m->r));
    return v_fma(normed(x, m), v_set1(m->times_y), centred);
}

static void op_norm_grad(void *dx_, const void *x_, const void *dout_, const attni_moments *m,
                         const void *weight_, int64_t n)
{
    R_any *dx = dx_;
    const R_any *x = x_, *dout = dout_, *weight = weight_;
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        v_storeu(dx + i,
                 norm_grad_part(v_loadu(x + i), weighted(dout + i, weight ? weight + i : NULL), m));
    if (i < n) {
        R d[V_LANES], w[V_LANES];
        const vec g =
            weighted(padded(d, dout + i, n - i), padded(w, weight ? weight + i : NULL, n - i));
        store_part(dx + i, norm_grad_part(v_load_first(x + i, (int)(n - i)), g, m), (int)(n - i));
    }
}

/* For `parts` vectors of columns from `at` on: sums dout * y and dout over the rows, in float, and
 * adds these sums to dweight and dbias, in double. Two vectors share the loads of a row's
 * moments. */
V_INLINE void columns_part(double *dweight, double *dbias, const R_any *const *x,
                           const R_any *const *dout, int64_t at, const attni_moments *m, int rows,
                           const int parts)
{
    vec w[2][2], b[2][2]; /* of the even and of the odd rows: two short chains */
    UNROLL for (int u = 0; u < parts; u++) w[0][u] = w[1][u] = b[0][u] = b[1][u] = v_set1(0);
    for (int r = 0; r < rows; r += 2)
        UNROLL for (int k = 0; k < 2; k++)
        {
            if (r + k == rows)
                break;
            UNROLL for (int u = 0; u < parts; u++)
            {
                const vec d = v_loadu(dout[r + k] + at + u * V_LANES);
                const vec y = normed(v_loadu(x[r + k] + at + u * V_LANES), &m[r + k]);
                w[k][u] = v_fma(d, y, w[k][u]);
                b[k][u] = v_add(b[k][u], d);
            }
        }
    UNROLL for (int u = 0; u < parts; u++)
    {
        v_wide_add(dweight + at + u * V_LANES, v_add(w[0][u], w[1][u]));
        v_wide_add(dbias + at + u * V_LANES, v_add(b[0][u], b[1][u]));
    }
}

static void op_norm_columns(double *dweight, double *dbias, const void *const *x_,
                            const void *const *dout_, const attni_moments *m, int rows, int64_t n)
{
    const R_any *x[ATTNI_NORM_ROWS], *dout[ATTNI_NORM_ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = x_[r], dout[r] = dout_[r];
    int64_t i = 0;
    for (; i + 2 * V_LANES <= n; i += 2 * V_LANES)
        columns_part(dweight, dbias, x, dout, i, m, rows, 2);
    for (; i + V_LANES <= n; i += V_LANES)
        columns_part(dweight, dbias, x, dout, i, m, rows, 1);
    if (i == n)
        return;
    R rest[2][ATTNI_NORM_ROWS][V_LANES];
    double w[V_LANES] = {0}, b[V_LANES] = {0};
    for (int r = 0; r < rows; r++) {
        x[r] = padded(rest[0][r], x[r] + i, n - i);
        dout[r] = padded(rest[1][r], dout[r] + i, n - i);
    }
    memcpy(w, dweight + i, (size_t)(n - i) * sizeof *w);
    memcpy(b, dbias + i, (size_t)(n - i) * sizeof *b);
    columns_part(w, b, x, dout, 0, m, rows, 1);
    memcpy(dweight + i, w, (size_t)(n - i) * sizeof *w);
    memcpy(dbias + i, b, (size_t)(n - i) * sizeof *b);
}

/* Adds all rows to the sums of the next `parts` wide vectors of columns. The sums stay in
 * registers. */
V_INLINE void add_columns(double *sums, const R_any *x, ptrdiff_t ld, int rows, const int parts)
{
    v_wide s[4];
    UNROLL for (int u = 0; u < parts; u++) s[u] = v_wide_get(sums + u * V_WIDE_LANES);
    for (int r = 0; r < rows; r++, x += ld)
        UNROLL for (int u = 0; u < parts; u++) s[u] += v_wide_load(x + u * V_WIDE_LANES);
    UNROLL for (int u = 0; u < parts; u++) v_wide_put(sums + u * V_WIDE_LANES, s[u]);
}

static void op_column_sums(double *sums, const void *x_, ptrdiff_t ld, int rows, int64_t n)
{
    const R_any *x = x_;
    int64_t i = 0;
    for (; i + 4 * V_WIDE_LANES <= n; i += 4 * V_WIDE_LANES)
        add_columns(sums + i, x + i, ld, rows, 4);
    for (; i + V_WIDE_LANES <= n; i += V_WIDE_LANES)
        add_columns(sums + i, x + i, ld, rows, 1);
    for (; i < n; i++)
        for (int r = 0; r < rows; r++)
            sums[i] += (double)x[r * ld + i];
}

/* -------------------------------------------------------------------------- rows of an i8 cache */

V_INLINE void largest_part(vec x, vec *most, vec *lost)
{
    *most = v_max(*most, magnitude(x));
    *lost = v_fma(x, v_set1(0), *lost); /* 0, or NaN if x is not finite */
}

/* When rows are appended to an i8 cache, this operation is the first to read them (scale_of_row()
 * in cache.c), so it prefetches. If rows follow each other in memory, the prefetch, 2 KB ahead,
 * reaches later rows. */
static float op_largest(const void *x_, int64_t n)
{
    const R_any *x = x_;
    vec most = v_set1(0), lost = most;
    int64_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) {
        __builtin_prefetch((const void *)((uintptr_t)(x + i) + 2048), 0, 3);
        largest_part(v_loadu(x + i), &most, &lost);
    }
    if (i < n) {
        R lane[V_LANES];
        copy_part(lane, x + i, n - i, 0);
        largest_part(v_loadu(lane), &most, &lost);
    }
    if (v_any(v_lt(v_set1(0), v_select(v_eq(lost, lost), v_set1(0), v_set1(1)))))
        return (float)NAN;
    return v_largest(most);
}

/* x / scale, or a number that rounds to the same integer: the product with 1 / scale, which is
 * faster. Product and quotient may differ in their last bits. This matters only if the quotient is
 * halfway between two integers, because every other quotient of two floats is at least 2^-25 away
 * from all such middles. So `nearest` is computed, the multiple of 1/2 nearest to x * inverse. If
 * nearest * scale, which is exact, equals x, then `nearest` is the quotient, and is returned. */
V_INLINE v_wide quotient_to_round(v_wide x, v_wide scale, v_wide inverse)
{
    typedef int64_t bits __attribute__((vector_size(sizeof(v_wide))));
    const v_wide magic = v_wide_set1(0x1.8p52); /* adding it rounds to an integer */
    const v_wide y = x * inverse;
    const v_wide nearest = ((y + y + magic) - magic) * v_wide_set1(0.5);
    const bits exact = (bits)(nearest * scale == x);
    return (v_wide)(((bits)nearest & exact) | ((bits)y & ~exact));
}

/* Two vectors. Products in float are within 2^-16 of the quotients: |quotient| < 127.5, and two
 * roundings change a quotient by at most a little more than 2^-23 of it, that of the inverse (to
 * double, then to float) and, without fused multiply-adds, that of the product. So product and
 * quotient round to the same integer, unless a product is within 2^-15 of the middle between two
 * integers: then both vectors are computed in double. */
V_INLINE void quantise_vectors(int8_t *to, const R_any *x, v_wide scale, v_wide inverse, vec times)
{
    const vec magic = v_set1(0x1.8p23F); /* adding it rounds to an integer */
    const vec minus_times = v_sub(v_set1(0), times);
    vec nearest[2], off = v_set1(0);
    UNROLL for (int u = 0; u < 2; u++)
    {
        const vec part = v_loadu(x + u * V_LANES);
        nearest[u] = v_sub(v_fma(part, times, magic), magic);
        off = v_max(off, magnitude(v_fma(part, minus_times, nearest[u])));
    }
    if (!v_any(v_lt(v_set1((R)(0.5 - 0x1p-15)), off))) {
        UNROLL for (int u = 0; u < 2; u++) v_to_i8(to + u * V_LANES, nearest[u]);
        return;
    }
    for (int i = 0; i < 2 * V_LANES; i += V_WIDE_LANES)
        v_wide_to_i8(to + i, quotient_to_round(v_wide_load(x + i), scale, inverse));
}

static void op_quantise(int8_t *to, const void *x_, float scale_, int64_t n)
{
    const R_any *x = x_;
    const double inverse_ = 1 / (double)scale_;
    const v_wide scale = v_wide_set1((double)scale_), inverse = v_wide_set1(inverse_);
    const vec times = v_set1((R)inverse_);
    int64_t i = 0;
    /* The portable code (V_ACCUMULATORS is 8) omits this loop, to stay small. */
    for (; V_ACCUMULATORS > 8 && i + 2 * V_LANES <= n; i += 2 * V_LANES)
        quantise_vectors(to + i, x + i, scale, inverse, times);
    for (; i + V_WIDE_LANES <= n; i += V_WIDE_LANES)
        v_wide_to_i8(to + i, quotient_to_round(v_wide_load(x + i), scale, inverse));
    if (i < n) {
        R lane[V_LANES];
        int8_t rest[V_WIDE_LANES];
        copy_part(lane, x + i, n - i, 0);
        v_wide_to_i8(rest, quotient_to_round(v_wide_load(lane), scale, inverse));
        memcpy(to + i, rest, (size_t)(n - i));
    }
}
#else
#define op_largest NULL
#define op_quantise NULL
#define op_maximum NULL
#define op_exp_sum NULL
#define op_exp_terms NULL
#define op_multiply NULL
#define op_moments NULL
#define op_norm NULL
#define op_norm_sums NULL
#define op_norm_grad NULL
#define op_norm_columns NULL
#define op_column_sums NULL
#endif
