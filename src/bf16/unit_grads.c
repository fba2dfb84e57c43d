/* The backward's pass over a block of scores where products are of bf16; grad/backward_bf16.c calls
 * attni_bf16_score_grads().
 *
 *   for each 32 queries
 *     weights and gradients by the arithmetic of grad.inc.h (or taken as they are, if `ready`)
 *     rounded to bf16 rows, for the products that read rows
 *     gradients divided by each query's largest in the block, rounded to pairs of rows, for dq
 *
 * For dq the values that are rounded are each query's gradients divided by the largest of the
 * block. The largest is then 1 and has no rounding error. It also has the largest weight, so the
 * error of rounding is a third smaller: on normal data (S = 512, D = 64) 1.16e-3 of dq instead of
 * 1.71e-3.
 */
#if defined(__x86_64__)

#include "../kernel/vec/target_avx512bf16.h"
#include "lanes.h"
#include "../kernel/vec/exp2.h"

/* Rounds 32 elements to nearest even, in order; denormal numbers count as 0. */
#ifdef ATTNI_AMX_EMULATED
INLINE __m256i narrowed_half(__m512 x)
{
    const __m512 zero = as_float(_mm512_and_si512(as_bits(x), _mm512_set1_epi32(INT32_MIN)));
    const __mmask16 denormal =
        _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0x1p-126F), _CMP_LT_OQ);
    return _mm512_cvtepi32_epi16((__m512i)v_bits_bf16(_mm512_mask_mov_ps(x, denormal, zero)));
}

INLINE __m512i narrowed(__m512 low, __m512 high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(narrowed_half(low)), narrowed_half(high), 1);
}
#else
INLINE __m512i narrowed(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
#endif

typedef struct column {
    __m512 lse, factor, delta, largest;
    __mmask16 live;
} column;

/* Weights and gradients of one vector of scores. */
INLINE void differentiate(const attni_bf16_grads *x, column *k, int at, __m512 *weight,
                          __m512 *gradient, const bool ready)
{
    const __m512 s = _mm512_load_ps(x->st + at), g = _mm512_load_ps(x->dp + at);
    if (ready) {
        *weight = _mm512_maskz_mov_ps(k->live, s);
        *gradient = _mm512_maskz_mov_ps(k->live, g);
    } else {
        const __mmask16 seen =
            _mm512_mask_cmp_ps_mask(k->live, s, v_set1(-__builtin_inff()), _CMP_NEQ_UQ);
        *weight = _mm512_maskz_mul_ps(seen, recalled(s, k->lse, v_set1(x->c)), k->factor);
        *gradient = _mm512_maskz_mul_ps(seen, *weight, _mm512_sub_ps(g, k->delta));
    }
    _mm512_store_ps(x->dp + at, *gradient);
    k->largest = _mm512_max_ps(_mm512_abs_ps(*gradient), k->largest); /* a NaN is ignored */
}

/* One row of 32 gradients, times `factors`. */
INLINE __m512i scaled_row(const float *ds, const __m512 *factors)
{
    return narrowed(_mm512_mul_ps(factors[0], _mm512_load_ps(ds)),
                    _mm512_mul_ps(factors[1], _mm512_load_ps(ds + 16)));
}

/* Writes the gradients of rows j and j + 1 of 32 queries as pairs, in place of row j. */
INLINE void pair_gradients(float *ds, int W, const __m512 *factors, bool both)
{
    static const uint16_t order[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                       37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                       11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_loadu_si512(order),
                  high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i even = scaled_row(ds, factors);
    const __m512i odd = both ? scaled_row(ds + W, factors) : _mm512_setzero_si512();
    _mm512_store_si512(ds, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_store_si512(ds + 16, _mm512_permutex2var_epi16(even, high, odd));
}

/* Processes 32 queries, from group g on; if `vectors` is 1, the second 16 do not exist. */
INLINE void columns(const attni_bf16_grads *x, int g, const bool ready, const int vectors)
{
    const int W = 16 * x->nv, n = x->n;
    float *st = x->st + 16 * g, *ds = x->dp + 16 * g;
    column k[2];
    UNROLL for (int v = 0; v < 2; v++)
    {
        const int i = 16 * (g + v);
        k[v].live = first16(x->rows - i);
        k[v].largest = _mm512_setzero_ps();
        if (!ready && v < vectors) {
            k[v].lse = _mm512_load_ps(x->lse + i);
            k[v].factor = _mm512_load_ps(x->factor + i);
            k[v].delta = _mm512_load_ps(x->delta + i);
        }
    }
    for (int j = 0; j < n; j++) {
        __m512 weight[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        __m512 gradient[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        UNROLL for (int v = 0; v < vectors; v++)
            differentiate(x, &k[v], j * W + 16 * (g + v), &weight[v], &gradient[v], ready);
        if (vectors == 1)
            _mm512_store_ps(ds + j * W + 16, gradient[1]);
        _mm512_store_si512(st + j * W, narrowed(weight[0], weight[1]));
        _mm512_store_si512(st + j * W + 16, narrowed(gradient[0], gradient[1]));
    }
    __m512 factors[2];
    UNROLL for (int v = 0; v < 2; v++)
    {
        const __m512 largest =
            _mm512_min_ps(_mm512_max_ps(k[v].largest, v_set1(0x1p-100f)), v_set1(0x1p100f));
        _mm512_store_ps(x->largest + 16 * (g + v), largest);
        factors[v] = _mm512_div_ps(v_set1(1), largest);
    }
    for (int j = 0; j + 1 < n; j += 2)
        pair_gradients(ds + j * W, W, factors, true);
    if (n % 2)
        pair_gradients(ds + (n - 1) * W, W, factors, false);
    for (int j = n; j < ROWS; j++) {
        _mm512_store_ps(st + j * W, _mm512_setzero_ps());
        _mm512_store_ps(st + j * W + 16, _mm512_setzero_ps());
        if (j % 2 == 0) {
            _mm512_store_ps(ds + j * W, _mm512_setzero_ps());
            _mm512_store_ps(ds + j * W + 16, _mm512_setzero_ps());
        }
    }
}

void attni_bf16_score_grads(const attni_bf16_grads *x)
{
    for (int g = 0; g < x->nv; g += 2)
        if (x->ready)
            columns(x, g, true, 2);
        else if (x->rows <= 16 * (g + 1))
            columns(x, g, false, 1);
        else
            columns(x, g, false, 2);
}

void attni_bf16_add_scaled_rows(float *total, const float *sums, const float *factor, int rows,
                                int64_t n)
{
    for (int r = 0; r < rows; r++, total += n, sums += n)
        for (int64_t c = 0; c < n; c += 16)
            _mm512_store_ps(total + c, _mm512_fmadd_ps(_mm512_load_ps(sums + c), v_set1(factor[r]),
                                                       _mm512_load_ps(total + c)));
}

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
