/* bf16 attention by the dot products of AVX512-BF16, on CPUs where these are as fast as
 * multiply-adds of floats and therefore compute twice as many products: AMD since Zen 4.
 *
 * One vdpbf16ps adds two products to each of 16 floats. Operands have the shapes of unit.h. Values
 * are [32 pairs of keys][Dv][2]: each component of two successive keys is a pair. Pairs of a key's
 * components and pairs of values are broadcast; queries and weights are in SIMD lanes, as
 * everywhere (kernel.h). A score is one chain over all pairs of components, in order; a weighted
 * value is one chain over all pairs of keys of a chunk of 256. The decode path (rows.h) keeps this
 * order; there the lanes hold keys or components instead, and keys and values are not packed.
 *
 * Measured on a Zen 5 with 465 GFLOP/s of dot products alone (docs/decisions/0018): scores, 8 keys
 * x 32 queries at a time, reach 442 GFLOP/s (D = 64) and 457 (D = 128). 6 keys x 64 queries is not
 * faster, and the scores of 256 keys for 64 queries do not fit in L1.
 */
#if defined(__x86_64__)

#include "../kernel/kernel.h"
#include "../kernel/vec/target_avx512bf16.h"
#include "weigher.h"

#define FOR_U UNROLL for (int u = 0; u < mr; u++)
#define FOR_G UNROLL for (int g = 0; g < nv; g++)

/* dot: (c + a1 b1) + a0 b0, for the pairs of bf16 in each 32 bits. */
#ifdef ATTNI_AMX_EMULATED
/* Like the instruction: denormal numbers count as 0, sums round to nearest, nothing traps. The asm
 * statements keep the compiler from moving the arithmetic past a change of mode. The function is
 * not inlined: if C code stands in for AVX-512 (tests/amx/avx512), each inlined copy would take its
 * own part of the caller's stack frame. */
static __attribute__((noinline)) __m512 dot(__m512 c, __m512i a, __m512i b)
{
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(ATTNI_BF16_MXCSR);
    __asm__ volatile("" : "+m"(a), "+m"(b), "+m"(c));
    const __m512 high = _mm512_fmadd_ps(as_float(_mm512_and_si512(a, high_half())),
                                        as_float(_mm512_and_si512(b, high_half())), c);
    __m512 sum = _mm512_fmadd_ps(as_float(_mm512_slli_epi32(a, 16)),
                                 as_float(_mm512_slli_epi32(b, 16)), high);
    __asm__ volatile("" : "+m"(sum));
    _mm_setcsr(mode);
    return sum;
}
#else
INLINE __m512 dot(__m512 c, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
#endif

/* --------------------------------------------------------------------------- whole tiles */

/* st[u][:] = sum over d of k[u][d] * q[d][:], for mr keys. */
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

INLINE void raise_top(const attni_bf16_scores *x, const __m512 *top, const int nv)
{
    if (!x->highest)
        return;
    FOR_G
    {
        float *highest = x->highest->top + 16 * g;
        _mm512_store_ps(highest, _mm512_max_ps(_mm512_load_ps(highest), top[g]));
    }
}

INLINE void score_keys(const attni_bf16_scores *x, const int mr, const int nv)
{
    __m512 top[2];
    FOR_G top[g] = _mm512_set1_ps(-__builtin_inff());
    for (int j = 0; j < x->n; j += mr)
        score_rows(x->st + j * nv * 16, top, x->q, (const char *)x->k + j * x->ldk, x->ldk,
                   x->pairs, mr, nv);
    raise_top(x, top, nv);
}

/* acc[u][:] (+)= sum over the pairs of n keys of v[pair][u] * p[pair][:], for mr components. */
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

INLINE void add_values(const attni_bf16_values *x, const int mr, const int nv)
{
    const int Dv = x->panels * 16;
    for (int c = 0; c < x->components; c += mr)
        value_rows(x->acc + c * nv * 16, x->blocks->p, x->blocks->vt + 2 * c, 2 * Dv, x->blocks->n,
                   x->first, mr, nv);
}

/* ------------------------------------------------------------------------ the backward */

/* Moves c to the next row. The asm hides the addition from the compiler, which would otherwise
 * compute the addresses of all rows first and keep them in registers. */
#define NEXT_ROW(c, ld) __asm__("" : "=r"(c) : "0"((c) + (ld)))

/* Multiplies mr rows of A by 16 nv columns of B: one chain of sums per element. */
INLINE void multiply_rows(const attni_bf16_product *x, int m, int n, const int mr, const int nv)
{
    const attni_bf16 *a = x->a + m / 16 * x->rows16 + m % 16 * x->row;
    const attni_bf16 *b = x->b + n / 16 * x->columns16;
    __m512 s[8][4];
    FOR_U FOR_G s[u][g] = _mm512_setzero_ps();
    for (int r = 0; r < x->inner_tiles; r++, a += x->inner_stride, b += x->pairs16) {
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

/* 4 x 64 is faster than 8 x 32: 8 loads, not 10, for 16 dot products. */
static void multiply(const attni_bf16_product *product)
{
    const attni_bf16_product x = *product; /* a copy, which no store can change */
    int n = 0;
    for (; n + 64 <= x.n; n += 64)
        for (int m = 0; m < x.m; m += 4)
            multiply_rows(&x, m, n, 4, 4);
    for (; n < x.n; n += 32)
        for (int m = 0; m < x.m; m += 8)
            multiply_rows(&x, m, n, 8, 2);
}

/* The order of sums in the decode path (rows.h): one chain. */
#define MAX_DECODE_ROWS 16
#define CHAINS_HAVE_A_MODE 0
typedef __m512 chain;
INLINE chain chain_from(__m512 sums) { return sums; }
INLINE chain chain_dot(chain c, __m512i a, __m512i b) { return dot(c, a, b); }
INLINE chain chain_end_run(chain c) { return c; }
INLINE __m512 chain_sums(chain c) { return c; }
INLINE unsigned chain_mode(void) { return 0; }
INLINE void chain_mode_end(unsigned mode) { (void)mode; }
#include "rows.h"

/* ------------------------------------------------------------------------------- the unit */

static void nothing(void) {}

static void scores(const attni_bf16_scores *x)
{
    if (x->nv == 1)
        score_keys(x, 16, 1);
    else
        score_keys(x, 8, 2);
}

static void weights(const attni_bf16_weights *x)
{
    if (x->nv == 1)
        weigh_block(x, x->n, 1);
    else
        weigh_block(x, x->n, 2);
}

static void values(const attni_bf16_values *x)
{
    if (x->nv == 1)
        add_values(x, 16, 1);
    else
        add_values(x, 8, 2);
}

static double peak(int64_t n, double *sink)
{
    enum { chains = 16 }; /* more are not faster on a Zen 5 */
    __m512 s[chains];
    UNROLL for (int i = 0; i < chains; i++) s[i] = _mm512_set1_ps((float)i);
    const __m512i a = _mm512_set1_epi32(0x3f803f80);
    for (int64_t r = 0; r < n; r++) {
        __m512i b = _mm512_set1_epi32((int)(r & 0x3f)); /* so small that the sums do not change */
        UNROLL for (int i = 0; i < chains; i++) s[i] = dot(s[i], a, b);
    }
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < chains; i++)
        sum = _mm512_add_ps(sum, s[i]);
    *sink = (double)_mm512_reduce_add_ps(sum);
    return 4.0 * 16 * chains * (double)n;
}

const attni_bf16_unit attni_bf16_dot = {
    .rows = MAX_DECODE_ROWS,
    .granule = 2,
    .keys = 16,
    .blocks = 1,
    .tile_bytes = 512 * 1024,
    .prefetch_values = true,
    .begin = nothing,
    .end = nothing,
    .scores = scores,
    .weights = weights,
    .values = values,
    .pack_values = attni_bf16_pack_pairs,
    .multiply = multiply,
    .row_scores = row_scores,
    .row_values = row_values,
    .row_products = row_products,
    .row_values_and_next_scores = row_values_and_next_scores,
    .peak = peak,
};

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
