/* Every operation of kernel.h, written once over the vector operations of isa_<isa>.c. These
 * files include this one at their end; ATTNI_BITS selects R. The contracts are in kernel.h and are
 * not repeated here. Tile arrays are [rows][W], W = nv * V_LANES.
 *
 * A micro-kernel keeps `mr` rows x `nv` vectors of sums in registers, which requires that both
 * loops are unrolled completely. GCC and clang have different pragmas for this; with GCC's alone,
 * clang keeps the sums in memory and runs at half the speed.
 */
#include "kernel.h"
#include "../core/internal.h"

#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* debug builds do not unroll */
#define UNROLL _Pragma("clang loop unroll(full)")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define NO_UNROLL _Pragma("GCC unroll 1")
#endif
#define FOR_V UNROLL for (int v = 0; v < nv; v++)
#define FOR_U UNROLL for (int u = 0; u < mr; u++)
#define MAX_ROWS 12

#ifdef __wasm__
#define PREFETCHES 0 /* no instruction for it */
#else
#define PREFETCHES 1
#endif

#define R_INF ((R)INFINITY)
#include "vec/exp2.h"

/* Runs `call` with nv as a constant, so that the compiler unrolls the loops over nv. */
#define CASE_NV(value, call)                                                                       \
    case value: {                                                                                  \
        enum { nv = value };                                                                       \
        call;                                                                                      \
    } break;
#define V_THREE (V_LANES == 16)
#if V_THREE
#define CASE_THREE(call) CASE_NV(3, call)
#else
#define CASE_THREE(call)
#endif
#if V_VECTORS == 4
#define CASE_FOUR(call) CASE_NV(4, call)
#else
#define CASE_FOUR(call)
#endif
#define WITH_NV(nv_, call)                                                                         \
    switch (nv_) {                                                                                 \
        CASE_NV(1, call) CASE_NV(2, call) CASE_THREE(call) CASE_FOUR(call)                         \
    }

/* The largest number of rows for scores_decode() and values_decode(). Three vectors per row must
 * fit in registers, and the rows must fit in the lanes of one vector. */
#define V_FEW_OF(rows) (V_ACCUMULATORS / 3 >= (rows) && V_LANES >= (rows))
#define V_MAX_DECODE_ROWS (V_FEW_OF(8) ? 8 : V_FEW_OF(4) ? 4 : 2)

/* Rows of a micro-kernel whose sums, nv vectors each, fit in registers. */
#define ROWS_OF(nv) (V_ACCUMULATORS / (nv) < MAX_ROWS ? V_ACCUMULATORS / (nv) : MAX_ROWS)

/* ------------------------------------------------------------------------------------- pack */

V_INLINE void pack_tile(R *qt, const R_any *q, ptrdiff_t ldq, int rows, int64_t D, R mul,
                        const int nv)
{
    const int W = nv * V_LANES;
    for (int v = 0; v < nv; v++) {
        const int first = v * V_LANES;
        const int n = rows - first < 0 ? 0 : rows - first < V_LANES ? rows - first : V_LANES;
        int64_t d = 0;
        for (; d + V_LANES <= D; d += V_LANES) {
            vec r[V_LANES];
            UNROLL for (int i = 0; i < V_LANES; i++)
            {
                r[i] = i < n ? v_loadu(q + (first + i) * ldq + d) : v_set1(0);
            }
            v_transpose(r);
            UNROLL for (int i = 0; i < V_LANES; i++)
                v_store(qt + (d + i) * W + first, v_mul(r[i], v_set1(mul)));
        }
        for (; d < D; d++) {
            R *to = qt + d * W + first;
            for (int i = 0; i < n; i++)
                to[i] = q[(first + i) * ldq + d] * mul;
            for (int i = n; i < V_LANES; i++)
                to[i] = 0;
        }
    }
}

static void op_pack(void *qt, const void *q, ptrdiff_t ldq, int rows, int64_t D, double mul, int nv)
{
    pack_tile(qt, q, ldq, rows, D, (R)mul, nv);
}

/* ----------------------------------------------------------------------------------- scores */

/* What a micro-kernel prefetches: at its steps the lines that contain `at`, at + step, at + 2 step,
 * and so on. */
typedef struct prefetch_step {
    uintptr_t at, step; /* step 0: always the same line, which costs nothing */
} prefetch_step;

/* Chooses what the next micro-kernel, of n steps, prefetches. In a region without gaps it advances
 * by `bytes` at each step, so that the lines are spread over the arithmetic. Of rows with gaps, it
 * prefetches the same line of the next n rows. Not inlined, since every variant of every
 * micro-kernel would contain a copy. */
static __attribute__((noinline)) prefetch_step next_prefetch(attni_prefetch *a, int n, int bytes)
{
    if (a->line >= a->lines)
        return (prefetch_step){(uintptr_t)a, 0};
    prefetch_step prefetch = {(uintptr_t)a->first + (uintptr_t)a->line * 64, (uintptr_t)bytes};
    if (a->rows == 1) {
        a->line += (n * bytes + 63) / 64;
        return prefetch;
    }
    prefetch.at += (uintptr_t)(a->row * a->ld);
    prefetch.step = (uintptr_t)a->ld;
    a->row += n;
    if (a->row >= a->rows)
        a->row = 0, a->line++;
    return prefetch;
}

/* The tiles of a task share each chunk, so each prefetches a part of the next one. A tile that is
 * alone must prefetch all of it, about as many bytes as it reads. A step of a micro-kernel reads
 * one element of each of its rows (x86: 6 rows in the widest tile, 12 in a narrower one). So at
 * each step it prefetches 8 elements in the widest tile, and a line of 64 bytes in a narrower one
 * (docs/decisions/0040). `nothing`: an address in cache, for calls that do not prefetch. */
#define NEXT_PREFETCH(a, n, nothing)                                                               \
    (PREFETCHES && (a) ? next_prefetch(a, n, nv < V_VECTORS ? 64 : 8 * (int)sizeof(R))             \
                       : (prefetch_step){(uintptr_t)(nothing), 0})

/* For mr keys and one run of D components: st[u][:] = sum_d k[u][d] * qt[d][:], added to st unless
 * it is the first run. The last run updates the maxima mx. */
V_INLINE void scores_rows(R *st, vec *mx, const R *qt, const R_any *k, ptrdiff_t ldk, int D,
                          const int first, const int last, attni_prefetch *hints, const int mr,
                          const int nv)
{
    const int W = nv * V_LANES;
    prefetch_step prefetch = NEXT_PREFETCH(hints, D, qt);
    vec s[MAX_ROWS][V_VECTORS];
    FOR_U FOR_V s[u][v] = v_set1(0);
    for (int d = 0; d < D; d++, prefetch.at += prefetch.step) {
        __builtin_prefetch((const void *)prefetch.at, 0, 2);
        vec q[V_VECTORS];
        FOR_V q[v] = v_load(qt + d * W + v * V_LANES);
        FOR_U
        {
            const vec a = v_bcast(k + u * ldk + d);
            FOR_V s[u][v] = v_fma(a, q[v], s[u][v]);
        }
    }
    FOR_U FOR_V
    {
        R *to = st + u * W + v * V_LANES;
        if (!first)
            s[u][v] = v_add(v_load(to), s[u][v]);
        if (last)
            mx[v] = v_max(mx[v], s[u][v]);
        v_store(to, s[u][v]);
    }
}

V_INLINE void scores_run(R *st, vec *mx, const R *qt, const R_any *k, ptrdiff_t ldk, int n, int D,
                         const int first, const int last, attni_prefetch *hints, const int nv)
{
    const int W = nv * V_LANES;
    int j = 0;
    /* the last 8 are done as 4 + 4: in 6 + 1 + 1, single rows are limited by the latency of
     * additions */
#define STEP(mr)                                                                                   \
    for (; j + (mr) <= n && ((mr) == 4 || n - j != 8); j += (mr))                                  \
    scores_rows(st + j * W, mx, qt, k + j * ldk, ldk, D, first, last, hints, mr, nv)
    STEP(ROWS_OF(nv));
    if (nv == 1) /* for calls with few keys */
        STEP(6);
    STEP(4);
    STEP(1);
#undef STEP
}

/* D is split into runs so that one run of the queries stays in L1 while all keys of the block are
 * processed, and so that rounding errors grow with 64 + D / 64 instead of D. */
V_INLINE void scores_tile(R *st, R *mx, const R *qt, const R_any *k, ptrdiff_t ldk, int n,
                          int64_t D, attni_prefetch *hints, const int nv)
{
    const int W = nv * V_LANES;
    vec top[V_VECTORS];
    FOR_V top[v] = v_set1(-R_INF);
    if (D <= ATTNI_D_CHAIN)
        scores_run(st, top, qt, k, ldk, n, (int)D, 1, 1, hints, nv);
    else
        for (int64_t d = 0; d < D; d += ATTNI_D_CHAIN)
            scores_run(st, top, qt + d * W, k + d, ldk, n,
                       D - d < ATTNI_D_CHAIN ? (int)(D - d) : ATTNI_D_CHAIN, d == 0,
                       D - d <= ATTNI_D_CHAIN, hints, nv);
    FOR_V v_store(mx + v * V_LANES, top[v]);
}

static void op_scores(void *st, void *mx, const void *qt, const void *k, ptrdiff_t ldk, int n,
                      int64_t D, int nv_, attni_prefetch *hints)
{
    WITH_NV(nv_, scores_tile(st, mx, qt, k, ldk, n, D, hints, nv))
}

V_INLINE void maxima_tile(R *mx, const R *st, int n, const int nv)
{
    vec top[V_VECTORS];
    FOR_V top[v] = v_set1(-R_INF);
    for (int j = 0; j < n; j++)
        FOR_V top[v] = v_max(top[v], v_load(st + (j * nv + v) * V_LANES));
    FOR_V v_store(mx + v * V_LANES, top[v]);
}

static void op_maxima(void *mx, const void *st, int n, int nv_)
{
    WITH_NV(nv_, maxima_tile(mx, st, n, nv))
}

/* ----------------------------------------------------------------- the exponential, and tanh */

/* tanh(s * C ln(2) / 2) = (e - 1) / (e + 1) with e = 2^(s*C), where e - 1 is computed without
 * cancellation near 0. There is only one rounded constant between score and exponent, which keeps
 * the error to a few ulp. */
V_INLINE vec tanh_scaled(vec s, vec C, vec limit)
{
    s = v_max(v_sub(v_set1(0), limit), s); /* NaN passes both selections */
    s = v_select(v_lt(limit, s), limit, s);
    const vec n = v_round(v_mul(s, C));
    const vec f = v_fma(s, C, v_sub(v_set1(0), n));
    const vec t = v_scale2(v_set1(1), n);
    const vec em1 = v_fma(t, v_mul(exp2m1_ratio(f), f), v_sub(t, v_set1(1)));
    return v_div(em1, v_add(em1, v_set1(2)));
}

static void op_scale_softcap(void *st_, int n, double r, double cap, int nv)
{
    R *st = st_;
    if (r == 1 && !(cap > 0)) /* a power of two as scale (D = 64) is applied by pack() */
        return;
    const double C = 2.8853900817779268147 * r / cap; /* 2 log2(e) */
    const double end = ATTNI_BITS == 32 ? 30 : 58;    /* 2^end + 1 rounds to 2^end, so tanh is 1 */
    const vec vr = v_set1((R)r), vcap = v_set1((R)cap), vC = v_set1((R)C);
    const vec limit = v_set1((R)fabs(end / C));
    for (int i = 0; i < n * nv; i++) {
        vec x = v_load(st + i * V_LANES);
        x = cap > 0 ? v_mul(vcap, tanh_scaled(x, vC, limit)) : v_mul(x, vr);
        v_store(st + i * V_LANES, x);
    }
}

#include "mask.inc.h"

/* -------------------------------------------------------------- running maximum and weights */

static int op_update_max(void *m_, void *a_, void *top_, const void *mx_, const void *c_, int nv)
{
    R *m = m_, *a = a_, *top = top_;
    const R *mx = mx_, *c = c_;
    const vec threshold = v_set1(16), never = v_set1(-R_INF);
    int max_raised = 0;
    for (int i = 0; i < nv * V_LANES; i += V_LANES) {
        const vec x = v_mul(v_load(mx + i), v_load(c + i));
        v_store(top + i, v_max(v_load(top + i), v_load(mx + i)));
        max_raised |= v_any(v_lt(v_add(v_load(m + i), threshold), x));
    }
    if (!max_raised)
        return 0;
    for (int i = 0; i < nv * V_LANES; i += V_LANES) {
        const vec old = v_load(m + i);
        const vec x = v_mul(v_load(mx + i), v_load(c + i));
        const vec up = v_select(v_lt(v_add(old, threshold), x), v_ceil(x), old);
        const vec factor = v_scale2(v_set1(1), v_sub(old, up));
        v_store(a + i, v_select(v_eq(up, never), v_set1(1), factor));
        v_store(m + i, up);
    }
    return 1;
}

static void op_rescale(void *x_, int64_t rows, const void *a_, int nv)
{
    R *x = x_;
    const R *a = a_;
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < nv; v++) {
            R *to = x + (r * nv + v) * V_LANES;
            v_store(to, v_mul(v_load(to), v_load(a + v * V_LANES)));
        }
}

/* Merges a chunk's sum into the total: see join() and fold() in kernel.h. */
V_INLINE vec joined(vec total, vec sum, const R *join, int W)
{
    return v_fma(total, v_load(join), v_mul(sum, v_load(join + W)));
}

static void op_join(void *M_, void *L_, void *join_, const void *m_, const void *l_, int nv)
{
    R *M = M_, *L = L_, *join = join_;
    const R *m = m_, *l = l_;
    const int W = nv * V_LANES;
    const vec never = v_set1(-R_INF), one = v_set1(1);
    for (int i = 0; i < W; i += V_LANES) {
        const vec before = v_load(M + i), chunk = v_load(m + i);
        const vec after = v_select(v_lt(before, chunk), chunk, before);
        const vmask empty = v_eq(after, never);
        const vec a = v_select(empty, one, v_scale2(one, v_sub(before, after)));
        const vec b = v_select(empty, one, v_scale2(one, v_sub(chunk, after)));
        v_store(M + i, after);
        v_store(join + i, a);
        v_store(join + W + i, b);
        v_store(L + i, joined(v_load(L + i), v_load(l + i), join + i, W));
    }
}

static void op_fold(void *total_, const void *acc_, int64_t rows, const void *join_, int nv)
{
    R *total = total_;
    const R *acc = acc_, *join = join_;
    const int W = nv * V_LANES;
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < W; i += V_LANES)
            v_store(total + r * W + i,
                    joined(v_load(total + r * W + i), v_load(acc + r * W + i), join + i, W));
}

/* The weights of nv vectors of a tile of W lanes. */
V_INLINE void weights_tile(R *p, R *l, const R *st, const R *c, const R *m, int n, const int W,
                           const int nv, const int masked, const int skip_masked)
{
    vec sum[V_VECTORS], scale[V_VECTORS], max[V_VECTORS];
    const vec never = v_set1(-R_INF);
    FOR_V
    {
        sum[v] = v_set1(0);
        scale[v] = v_load(c + v * V_LANES);
        max[v] = v_load(m + v * V_LANES);
        max[v] = v_select(v_eq(max[v], never), v_set1(0), max[v]);
    }
    for (int j = 0; j < n; j++)
        FOR_V
        {
            const vec s = v_load(st + j * W + v * V_LANES);
            vec x = v_mul(s, scale[v]);
            if (masked)
                x = v_max(v_set1(R_LOWEST), x);
            vec e = exp2_minus(x, max[v]);
            sum[v] = v_add(sum[v], e);
            if (skip_masked)
                e = v_select(v_eq(s, never), v_set1(-1), e);
            v_store(p + j * W + v * V_LANES, e);
        }
    FOR_V v_store(l + v * V_LANES, v_add(v_load(l + v * V_LANES), sum[v]));
}

static void op_weights(void *p, void *l, const void *st, const void *c, const void *m, int n,
                       int nv_, int flags)
{
    /* This sweep is rare, so one vector is done at a time: one copy of the loop instead of four. */
    if (flags & ATTNI_SKIP_MASKED)
        for (int i = 0; i < nv_ * V_LANES; i += V_LANES)
            weights_tile((R *)p + i, (R *)l + i, (const R *)st + i, (const R *)c + i,
                         (const R *)m + i, n, nv_ * V_LANES, 1, 1, 1);
    else if (flags & ATTNI_MASKED)
        WITH_NV(nv_, weights_tile(p, l, st, c, m, n, nv * V_LANES, nv, 1, 0))
    else
        WITH_NV(nv_, weights_tile(p, l, st, c, m, n, nv * V_LANES, nv, 0, 0))
}

#include "dropout.inc.h"

/* ----------------------------------------------------------------------------------- values */

/* s[u][:] = sum_j v[j][u] * p[j][:] for mr components of v, keys in order, for nv vectors of a tile
 * of W lanes. */
V_INLINE void values_rows(R *acc, R *total, const R *join, const R_any *val, ptrdiff_t ldv,
                          const R *p, int n, int flags, attni_prefetch *hints,
                          const int skip_masked, const int mr, const int W, const int nv)
{
    prefetch_step prefetch = NEXT_PREFETCH(hints, n, p);
    vec s[MAX_ROWS][V_VECTORS];
    FOR_U FOR_V s[u][v] = v_set1(0);
    for (int j = 0; j < n; j++, prefetch.at += prefetch.step) {
        __builtin_prefetch((const void *)prefetch.at, 0, 2);
        vec w[V_VECTORS];
        FOR_V w[v] = v_load(p + j * W + v * V_LANES);
        FOR_U
        {
            const vec a = v_bcast(val + j * ldv + u);
            FOR_V
            {
                const vec t = v_fma(a, w[v], s[u][v]);
                s[u][v] = skip_masked ? v_select(v_lt(w[v], v_set1(0)), s[u][v], t) : t;
            }
        }
    }
    if (!(flags & ATTNI_FIRST))
        FOR_U FOR_V s[u][v] = v_add(v_load(acc + u * W + v * V_LANES), s[u][v]);
    R *to = flags & ATTNI_LAST ? total : acc;
    if (flags & ATTNI_LAST)
        FOR_U FOR_V s[u][v] =
            joined(v_load(total + u * W + v * V_LANES), s[u][v], join + v * V_LANES, W);
    FOR_U FOR_V v_store(to + u * W + v * V_LANES, s[u][v]);
}

V_INLINE void values_tile(R *acc, R *total, const R *join, const R_any *val, ptrdiff_t ldv,
                          const R *p, int n, int64_t Dv, int flags, attni_prefetch *hints,
                          const int skip_masked, const int W, const int nv)
{
    int64_t c = 0;
#define STEP(mr) /* the last 8 as in scores_run() */                                               \
    for (; c + (mr) <= Dv && ((mr) == 4 || Dv - c != 8); c += (mr))                                \
    values_rows(acc + c * W, total + c * W, join, val + c, ldv, p, n, flags, hints, skip_masked,   \
                mr, W, nv)
    STEP(ROWS_OF(nv));
    STEP(4);
    STEP(1);
#undef STEP
}

static void op_values(void *acc, void *total, const void *join, const void *val, ptrdiff_t ldv,
                      const void *p, int n, int64_t Dv, int nv_, int flags, attni_prefetch *hints)
{
    const int W = nv_ * V_LANES;
    if (flags & ATTNI_SKIP_MASKED) /* as in op_weights() */
        for (int i = 0; i < W; i += V_LANES)
            values_tile((R *)acc + i, (R *)total + i, (const R *)join + i, val, ldv,
                        (const R *)p + i, n, Dv, flags, hints, 1, W, 1);
    else
        WITH_NV(nv_, values_tile(acc, total, join, val, ldv, p, n, Dv, flags, hints, 0,
                                 nv * V_LANES, nv))
}

/* ----------------------------------------------------------------------------------- finish */

/* n / l, with r = 1 / l: the product n * r, corrected once by its remainder (Markstein). Without
 * the correction 1 / 3 and 2 / 6 could differ in their last bit. A division takes about ten times
 * as long. Where the correction is NaN (l is infinite, or the quotient overflows), the product is
 * the result. -0 becomes 0. */
V_INLINE vec quotient(vec n, vec minus_l, vec r)
{
#ifdef V_NO_FMA
    (void)r;
    return v_add(v_div(v_sub(v_set1(0), n), minus_l), v_set1(0));
#else
    const vec q = v_mul(n, r), better = v_fma(v_fma(q, minus_l, n), r, q);
    return v_add(v_select(v_eq(better, better), better, q), v_set1(0));
#endif
}

V_INLINE void store_part(R_any *to, vec x, int n)
{
    R lane[V_LANES];
    v_storeu(lane, x);
    for (int i = 0; i < n; i++)
        to[i] = lane[i];
}

/* Divides after the transpose, since only rows in use are divided then: rows * Dv / V_LANES
 * vectors. Before it, there are Dv vectors, however few of their lanes are in use. */
static int op_finish(void *out_, ptrdiff_t ldo, const void *total_, const void *l_, int rows,
                     int64_t Dv, int nv)
{
    R_any *out = out_;
    const R *total = total_, *l = l_;
    const int W = nv * V_LANES;
    const vec zero = v_set1(0);
    vec bad = zero; /* y * 0 is NaN if y is NaN or infinite */
    for (int first = 0; first < rows; first += V_LANES) {
        const int n = rows - first < V_LANES ? rows - first : V_LANES;
        R inverse[V_LANES];
        v_storeu(inverse, v_div(v_set1(1), v_load(l + first)));
        for (int64_t c = 0; c < Dv; c += V_LANES) {
            const int columns = Dv - c < V_LANES ? (int)(Dv - c) : V_LANES;
            vec x[V_LANES]; /* padding is 0, and 0 / l is NaN only if the row is NaN too */
            UNROLL for (int u = 0; u < V_LANES; u++)
            {
                x[u] = u < columns ? v_load(total + (c + u) * W + first) : zero;
            }
            v_transpose(x);
            for (int i = 0; i < n; i++) {
                const vec minus_l = v_sub(zero, v_bcast(l + first + i));
                const vec y = quotient(x[i], minus_l, v_bcast(inverse + i));
                bad = v_add(bad, v_mul(y, zero));
                R_any *to = out + (first + i) * ldo + c;
                if (columns == V_LANES)
                    v_storeu(to, y);
                else
                    store_part(to, y, columns);
            }
        }
    }
    return v_any(v_lt(zero, v_select(v_eq(bad, bad), zero, v_set1(1))));
}

/* ---------------------------------------------------------------------------------- fma_loop */

static double op_fma_loop(int64_t n, double *sink)
{
    vec s[V_ACCUMULATORS];
    UNROLL for (int i = 0; i < V_ACCUMULATORS; i++) s[i] = v_set1((R)(1 + i * 1e-3));
#ifdef V_NO_FMA
    const vec b = v_set1((R)0.999), c = v_set1((R)0.001);
    for (int64_t r = 0; r < n; r++)
        UNROLL for (int i = 0; i < V_ACCUMULATORS; i++) s[i] = v_fma(s[i], b, c);
#else
    /* Each step adds a product to a sum, as in scores() and values(), because some instruction sets
     * have no other form of a multiply-add. The product changes at each step and has a factor that
     * is unknown at compile time, so it cannot be moved out of the loop. b is so small that the
     * sums stay near their first values. */
    const vec b = v_set1((R)1e-10 / (R)(n + 1));
    for (int64_t r = 0; r < n; r++)
        UNROLL for (int i = 0; i < V_ACCUMULATORS; i++) s[i] =
            v_fma(b, s[(i + 1) % V_ACCUMULATORS], s[i]);
#endif
    vec sum = v_set1(0);
    UNROLL for (int i = 0; i < V_ACCUMULATORS; i++) sum = v_add(sum, s[i]);
    R lane[V_LANES];
    v_storeu(lane, sum);
    *sink = (double)lane[0];
    return 2.0 * V_LANES * V_ACCUMULATORS * (double)n;
}

#include "decode.inc.h"
#include "interleaved.inc.h"
#include "linear.inc.h"
#include "grad.inc.h"
#include "elements.inc.h"
#include "rows.inc.h"

#include "table.inc.h"
