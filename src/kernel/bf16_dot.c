/* bf16 attention by the dot products of AVX512-BF16, where these are as fast as multiply-adds of
 * floats, so that there are twice as many products: AMD since Zen 4.
 *
 * One vdpbf16ps adds two products to each of 16 floats. Operands lie as for the matrix unit
 * (bf16/bf16.h), but that values are pairs of keys with all their components side by side: pairs of
 * a key's components and pairs of values are broadcast, and queries and weights stand in lanes, as
 * everywhere (kernel.h). A score is one chain over all pairs of components, in order; a weighted
 * value one over all pairs of keys of a chunk of 256. That order is also the one of a few queries
 * as rows, where lanes hold keys or components instead and nothing is packed.
 *
 * Measured on a Zen 5 at 475 GFLOP/s of dot products alone: 8 keys x 32 queries 442 (D = 64) and
 * 457 (D = 128), values 438 over 64 keys; 6 x 64 and 12 x 32 are within 2 % of that, but the scores
 * of 256 keys for 64 queries do not fit the first cache.
 */
#if defined(__x86_64__)

#include "kernel.h"
#include "vec/target_avx512bf16.h"
#include "bf16/weigher.h"

#define FEW 8 /* queries, at most, that are rows */
#define FOR_U UNROLL for (int u = 0; u < mr; u++)
#define FOR_G UNROLL for (int g = 0; g < nv; g++)
#define FOR_R UNROLL for (int r = 0; r < nr; r++)

/* c + a0 b0 + a1 b1 of the pairs of bf16 in each 32 bits. */
INLINE __m512 dot(__m512 c, __m512i a, __m512i b)
{
#ifdef ATTNI_AMX_EMULATED /* but for denormals, which the instruction takes for 0 */
    const __m512 high = _mm512_fmadd_ps(as_float(_mm512_and_si512(a, high_half())),
                                        as_float(_mm512_and_si512(b, high_half())), c);
    return _mm512_fmadd_ps(as_float(_mm512_slli_epi32(a, 16)), as_float(_mm512_slli_epi32(b, 16)),
                           high);
#else
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
#endif
}

INLINE __m512i pair_at(const attni_bf16 *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
}

/* --------------------------------------------------------------------------- whole tiles */

/* st[u][:] = sum over d of k[u][d] * q[d][:], of mr keys. */
INLINE void score_rows(float *st, __m512 *top, const attni_bf16 *q, const char *k, ptrdiff_t ldk,
                       int pairs, const int mr, const int nv)
{
    __m512 s[16][2];
    FOR_U FOR_G s[u][g] = _mm512_setzero_ps();
    for (int d = 0; d < pairs; d += 16, q += nv * OPERAND, k += 64) {
        const int n = pairs - d < 16 ? pairs - d : 16;
        for (int i = 0; i < n; i++) {
            __m512i x[2];
            FOR_G x[g] = _mm512_load_si512(q + g * OPERAND + i * 32);
            FOR_U
            {
                const __m512i a = pair_at((const attni_bf16 *)(k + u * ldk + i * 4));
                FOR_G s[u][g] = dot(s[u][g], a, x[g]);
            }
        }
    }
    FOR_U FOR_G
    {
        top[g] = _mm512_max_ps(top[g], s[u][g]);
        _mm512_store_ps(st + (u * nv + g) * 16, s[u][g]);
    }
}

/* The maxima that the step asks for are those of the block it scores: st_seen is st_next. */
INLINE void raise_top(const attni_bf16_step *x, const __m512 *top, const int nv)
{
    if (!x->st_seen)
        return;
    FOR_G
    {
        float *highest = x->highest->top + 16 * g;
        _mm512_store_ps(highest, _mm512_max_ps(_mm512_load_ps(highest), top[g]));
    }
}

INLINE void score_keys(const attni_bf16_step *x, const int mr, const int nv)
{
    __m512 top[2];
    FOR_G top[g] = _mm512_set1_ps(-__builtin_inff());
    for (int j = 0; j < x->to_score; j += mr)
        score_rows(x->st_next + j * nv * 16, top, x->q, (const char *)x->k + j * x->ldk, x->ldk,
                   x->pairs, mr, nv);
    raise_top(x, top, nv);
}

/* acc[u][:] (+)= sum over the pairs of n keys of v[pair][u] * p[pair][:], of mr components. */
INLINE void value_rows(float *acc, const attni_bf16 *p, const attni_bf16 *vt, ptrdiff_t ldv, int n,
                       const bool first, const int mr, const int nv)
{
    __m512 s[16][2];
    FOR_U FOR_G s[u][g] = first ? _mm512_setzero_ps() : _mm512_load_ps(acc + (u * nv + g) * 16);
    for (; n > 0; n -= 32, p += nv * OPERAND)
        for (int i = 0; i < 16 && 2 * i < n; i++, vt += ldv) {
            __m512i x[2];
            FOR_G x[g] = _mm512_load_si512(p + g * OPERAND + i * 32);
            FOR_U
            {
                const __m512i a = pair_at(vt + 2 * u);
                FOR_G s[u][g] = dot(s[u][g], a, x[g]);
            }
        }
    FOR_U FOR_G _mm512_store_ps(acc + (u * nv + g) * 16, s[u][g]);
}

INLINE void add_values(const attni_bf16_step *x, const int mr, const int nv)
{
    const int Dv = x->panels * 16;
    for (int c = 0; c < x->components; c += mr)
        value_rows(x->acc + c * nv * 16, x->p_before, x->vt + 2 * c, 2 * Dv, x->to_add, x->first,
                   mr, nv);
}

/* ------------------------------------------------------------------------ the backward */

/* With the address hidden, or compilers keep those of all rows. */
#define NEXT_ROW(c, ld) __asm__("" : "=r"(c) : "0"((c) + (ld)))

/* mr rows of A by 16 nv columns of B: one chain of sums. */
INLINE void multiply_rows(const attni_bf16_product *x, int m, int n, const int mr, const int nv)
{
    const attni_bf16 *a = x->a + m / 16 * x->rows16 + m % 16 * x->row;
    const attni_bf16 *b = x->b + n / 16 * x->columns16;
    __m512 s[8][4];
    FOR_U FOR_G s[u][g] = _mm512_setzero_ps();
    for (int r = 0; r < x->runs; r++, a += x->run, b += x->pairs16) {
        const attni_bf16 *pair = b;
        for (int i = 0; i < 16; i++, pair += x->pair) {
            __m512i y[4];
            FOR_G y[g] = _mm512_load_si512(pair + g * x->columns16);
            FOR_U
            {
                const __m512i z = pair_at(a + u * x->row + 2 * i);
                FOR_G s[u][g] = dot(s[u][g], z, y[g]);
            }
        }
    }
    float *c = x->c + m * x->ldc + n;
    if (x->factors) {
        const float *f = x->factors + n;
        __m512 factor[4];
        FOR_G factor[g] = _mm512_load_ps(f + 16 * g);
        FOR_U
        {
            FOR_G _mm512_store_ps(c + 16 * g,
                                  _mm512_fmadd_ps(s[u][g], factor[g], _mm512_load_ps(c + 16 * g)));
            NEXT_ROW(c, x->ldc);
        }
    } else if (x->add) {
        FOR_U
        {
            FOR_G _mm512_store_ps(c + 16 * g, _mm512_add_ps(_mm512_load_ps(c + 16 * g), s[u][g]));
            NEXT_ROW(c, x->ldc);
        }
    } else {
        FOR_U
        {
            FOR_G _mm512_store_ps(c + 16 * g, s[u][g]);
            NEXT_ROW(c, x->ldc);
        }
    }
}

/* 4 x 64 is faster than 8 x 32: 8 loads for 16 dot products, not 10. */
static void multiply(const attni_bf16_product *product)
{
    const attni_bf16_product x = *product; /* or each store may have changed it */
    int n = 0;
    for (; n + 64 <= x.n; n += 64)
        for (int m = 0; m < x.m; m += 4)
            multiply_rows(&x, m, n, 4, 4);
    for (; n < x.n; n += 32)
        for (int m = 0; m < x.m; m += 8)
            multiply_rows(&x, m, n, 8, 2);
}

/* ----------------------------------------------------------------------- queries as rows */

/* Rows that are read later, asked for in the order of memory and spread over the arithmetic: see
 * few.inc.h. What lies behind a chunk's last rows are the next chunk's first, as a rule. */
typedef struct ahead {
    uintptr_t row;   /* an address, not a pointer: it may be anywhere */
    ptrdiff_t bytes; /* from row to row */
    ptrdiff_t at, n; /* bytes of a row: asked for, in all */
} ahead;

/* From `rows` rows on; each of n bytes. Rows without gaps are one long row. */
INLINE ahead look_ahead(const void *from, int rows, ptrdiff_t bytes, ptrdiff_t n)
{
    return (ahead){(uintptr_t)from + (uintptr_t)(rows * bytes), bytes, 0,
                   bytes == n ? PTRDIFF_MAX / 2 : n};
}

INLINE void ask_lines(ahead *a, const int lines)
{
    uintptr_t p = a->row + (uintptr_t)a->at;
    __asm__("" : "+r"(p)); /* one register, not one for each line */
    UNROLL for (int i = 0; i < lines; i++)
        __builtin_prefetch((const void *)(p + 64 * (uintptr_t)i));
    a->at += 64 * lines;
    a->row += a->at >= a->n ? (uintptr_t)a->bytes : 0;
    a->at = a->at >= a->n ? 0 : a->at;
}

#define TURNED_AHEAD 8192

/* kt[i]: components 2i and 2i+1 of 16 keys, of the last n < 32. Its code is here once. */
static __attribute__((noinline)) void turn_rest(__m512 kt[16], const char *k, ptrdiff_t ld, int n)
{
    __m512 r[16];
    UNROLL for (int i = 0; i < 16; i++) r[i] =
        as_float(_mm512_maskz_loadu_epi16(first32(n), k + i * ld));
    v_transpose(r);
    UNROLL for (int i = 0; i < 16; i++) kt[i] = r[i];
}

/* Scores of groups x 16 keys from key j on. */
INLINE void score_row_keys(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int j, int D,
                           const int nr, const int groups)
{
    const bool inside = j + ROWS / 2 < k->n;
    const char *from = (const char *)k->at + j * k->ld;
    ahead next = look_ahead(inside ? from : k->next, inside ? ROWS / 2 : j % (ROWS / 2), k->ld,
                            2 * (ptrdiff_t)D);
    __m512 s[2][FEW];
    UNROLL for (int g = 0; g < groups; g++) FOR_R s[g][r] = _mm512_setzero_ps();
    int d = 0;
    for (; d + 32 <= D; d += 32, q += 32 * nr, from += 64) {
        UNROLL for (int g = 0; g < groups; g++)
        {
            const v_rows rows = v_rows_at(from + g * 16 * k->ld, k->ld);
            UNROLL for (int c = 0; c < 16; c += V_COLUMNS)
            {
                __m512 kt[V_COLUMNS];
                v_load_transposed(kt, &rows, 4 * c);
                UNROLL for (int i = 0; i < V_COLUMNS; i++) FOR_R s[g][r] =
                    dot(s[g][r], as_bits(kt[i]), pair_at(q + 2 * ((c + i) * nr + r)));
                ask_lines(&next, V_COLUMNS);
            }
        }
    }
    UNROLL for (int g = 0; g < groups && d < D; g++)
    {
        __m512 kt[16];
        turn_rest(kt, from + g * 16 * k->ld, k->ld, D - d);
        for (int i = 0; i < (D - d + 1) / 2; i++)
            FOR_R s[g][r] = dot(s[g][r], as_bits(kt[i]), pair_at(q + 2 * (i * nr + r)));
    }
    UNROLL for (int g = 0; g < groups; g++)
        FOR_R _mm512_store_ps(st + r * ATTNI_CHUNK + j + g * 16, s[g][r]);
}

/* Of a group, whose lines are read in the order of their addresses. */
INLINE void score_row_group(float *st, const attni_bf16 *q, const char *line, uintptr_t ask,
                            int pairs, const int nr)
{
    __m512 s[FEW];
    FOR_R s[r] = _mm512_setzero_ps();
    for (int d = 0; d < pairs; d++, line += 64, ask += 64, q += 2 * nr) {
        __builtin_prefetch((const void *)ask);
        FOR_R s[r] = dot(s[r], _mm512_load_si512(line), pair_at(q + 2 * r));
    }
    FOR_R _mm512_store_ps(st + r * ATTNI_CHUNK, s[r]);
}

/* A single query scores two groups of rows at once: one chain of sums would wait for its own
 * additions. Of turned keys, two groups are a quarter faster from the second cache, and 5 to 15 %
 * slower from memory, where they are two places. */
INLINE void score_rows_of(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int D,
                          const int nr)
{
    const int groups = (k->n + 15) / 16, pairs = (D + 1) / 2;
    if (k->turned) {
        const ptrdiff_t bytes = (ptrdiff_t)pairs * 64;
        ptrdiff_t at = TURNED_AHEAD;
        for (int g = 0; g < groups; g++, at += bytes)
            score_row_group(st + g * 16, q, (const char *)k->at + g * bytes,
                            at < groups * bytes
                                ? (uintptr_t)k->at + (uintptr_t)at
                                : (uintptr_t)k->next + (uintptr_t)(at - groups * bytes),
                            pairs, nr);
        return;
    }
    int j = 0;
    if (nr == 1)
        for (; j + 32 <= k->n; j += 32)
            score_row_keys(st, q, k, j, D, nr, 2);
    for (; j < k->n; j += 16)
        score_row_keys(st, q, k, j, D, nr, 1);
}

/* Runs `call` with nr, queries rounded up, as a constant. */
#define WITH_NR(queries, call)                                                                     \
    do {                                                                                           \
        if ((queries) <= 1) {                                                                      \
            enum { nr = 1 };                                                                       \
            call;                                                                                  \
        } else if ((queries) <= 4) {                                                               \
            enum { nr = 4 };                                                                       \
            call;                                                                                  \
        } else {                                                                                   \
            enum { nr = FEW };                                                                     \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

static void row_scores(float *st, const attni_bf16 *q, const attni_bf16_rows *k, int D, int queries)
{
    WITH_NR(queries, score_rows_of(st, q, k, D, nr));
}

/* 32 components in order, from what _mm512_unpack*_epi16 leaves of them; and back. */
INLINE void order_sums(__m512 s[2])
{
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const __m512 first = _mm512_permutex2var_ps(s[0], low, s[1]);
    s[1] = _mm512_permutex2var_ps(s[0], high, s[1]);
    s[0] = first;
}

INLINE void disorder_sums(__m512 s[2])
{
    const __m512i even =
        _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(4));
    const __m512 first = _mm512_permutex2var_ps(s[0], even, s[1]);
    s[1] = _mm512_permutex2var_ps(s[0], odd, s[1]);
    s[0] = first;
}

INLINE __m512i load32(const char *p, __mmask32 here, const bool whole)
{
    return whole ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(here, p);
}

/* groups x 32 components, from component c on; less than 32 if not `whole`. */
INLINE void value_row_part(float *sums, float *l, const attni_bf16 *p, const attni_bf16_rows *v,
                           int64_t c, int64_t Dv, const bool first, const int nr, const int groups,
                           const bool whole)
{
    const __mmask32 here = whole ? 0xffffffff : first32(Dv - c);
    const int64_t apart = attni_bf16_padded(Dv);
    const char *at = (const char *)v->at + 2 * c;
    const uintptr_t ld = (uintptr_t)v->ld, next = (uintptr_t)v->next + 2 * (uintptr_t)c;
    uintptr_t ask = v->n > ROWS / 2 ? (uintptr_t)at + ROWS / 2 * ld : next;
    __m512 sum[FEW], s[FEW][8];
    sums += c;
    FOR_R
    {
        sum[r] = _mm512_set1_ps(l[r]);
        UNROLL for (int g = 0; g < 2 * groups; g++) s[r][g] =
            first ? _mm512_setzero_ps() : _mm512_load_ps(sums + r * apart + g * 16);
        UNROLL for (int g = 0; g < groups; g++) disorder_sums(s[r] + 2 * g);
    }
    for (int j = 0; j < v->n; j += 2, at += 2 * v->ld, ask += 2 * ld) {
        const char *second = j + 1 < v->n ? at + v->ld : at; /* the same once more, times 0 */
        __m512i pair[8];
        ask = j == ROWS / 2 ? next : ask;
        UNROLL for (int g = 0; g < groups; g++)
        {
            __builtin_prefetch((const void *)(ask + 64 * (uintptr_t)g));
            __builtin_prefetch((const void *)(ask + ld + 64 * (uintptr_t)g));
            const __m512i a = load32(at + g * 64, here, whole);
            const __m512i b = load32(second + g * 64, here, whole);
            pair[2 * g] = _mm512_unpacklo_epi16(a, b);
            pair[2 * g + 1] = _mm512_unpackhi_epi16(a, b);
        }
        FOR_R
        {
            const __m512i w = pair_at(p + r * ATTNI_CHUNK + j);
            UNROLL for (int g = 0; g < 2 * groups; g++) s[r][g] = dot(s[r][g], pair[g], w);
            if (c == 0) { /* on the way: a chain of its own would hold everything up */
                sum[r] = _mm512_add_ps(sum[r], as_float(_mm512_slli_epi32(w, 16)));
                sum[r] = _mm512_add_ps(sum[r], as_float(_mm512_and_si512(w, high_half())));
            }
        }
    }
    FOR_R
    {
        UNROLL for (int g = 0; g < groups; g++) order_sums(s[r] + 2 * g);
        UNROLL for (int g = 0; g < 2 * groups; g++)
            _mm512_store_ps(sums + r * apart + g * 16, s[r][g]);
        l[r] = _mm512_cvtss_f32(sum[r]);
    }
}

INLINE void value_rows_of(float *sums, float *l, const attni_bf16 *p, const attni_bf16_rows *v,
                          int64_t Dv, bool first, const int nr)
{
    int64_t c = 0;
#define STEP(groups)                                                                               \
    for (; c + 32 * (groups) <= Dv; c += 32 * (groups))                                            \
    value_row_part(sums, l, p, v, c, Dv, first, nr, groups, true)
    if (nr == 1)
        STEP(4);
    if (nr <= 4)
        STEP(2);
    STEP(1);
#undef STEP
    if (c < Dv)
        value_row_part(sums, l, p, v, c, Dv, first, nr, 1, false);
}

static void row_values(float *sums, float *l, const attni_bf16 *p, const attni_bf16_rows *v,
                       int64_t Dv, bool first, int queries)
{
    WITH_NR(queries, value_rows_of(sums, l, p, v, Dv, first, nr));
}

/* ----------------------------------------------------------------------------------- run */

static void nothing(void) {}

INLINE void weigh(const attni_bf16_step *x, const int nv)
{
    weigher w;
    weigh_begin(&w, x, nv);
    w.st_seen = NULL; /* no step has both (bf16.h): the compiler may leave maxima out */
    weigh_end(&w, x, x->to_weigh, 4, nv);
}

static void run(const attni_bf16_step *x)
{
    if (x->k && x->nv == 1)
        score_keys(x, 16, 1);
    else if (x->k)
        score_keys(x, 8, 2);
    if (x->p_before) {
        if (x->nv == 1)
            add_values(x, 16, 1);
        else
            add_values(x, 8, 2);
    }
    if (x->st && x->nv == 1)
        weigh(x, 1);
    else if (x->st)
        weigh(x, 2);
}

static double peak(int64_t n, double *sink)
{
    enum { chains = 16 }; /* more are not faster on a Zen 5 */
    __m512 s[chains];
    UNROLL for (int i = 0; i < chains; i++) s[i] = _mm512_set1_ps((float)i);
    const __m512i a = _mm512_set1_epi32(0x3f803f80);
    for (int64_t r = 0; r < n; r++) {
        __m512i b = _mm512_set1_epi32((int)(r & 0x3f)); /* so small that sums stay as they are */
        UNROLL for (int i = 0; i < chains; i++) s[i] = dot(s[i], a, b);
    }
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < chains; i++)
        sum = _mm512_add_ps(sum, s[i]);
    *sink = (double)_mm512_reduce_add_ps(sum);
    return 4.0 * 16 * chains * (double)n;
}

const attni_bf16_unit attni_bf16_dot = {
    .rows = FEW,
    .granule = 2,
    .keys = 16,
    .begin = nothing,
    .end = nothing,
    .run = run,
    .pack_values = attni_bf16_pack_pairs,
    .multiply = multiply,
    .row_scores = row_scores,
    .row_values = row_values,
    .peak = peak,
};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
