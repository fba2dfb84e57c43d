/* The parts of bf16 attention beside the products and the gradients; unit.h says what each
 * function computes. Plain AVX-512; the products are in unit_amx.c and unit_dot.c.
 *
 *   packing of queries and values
 *   maxima and weights of any block, whatever its scores
 *   merging a chunk into the total, and the result
 */
#if defined(__x86_64__)

#include <string.h>

#include "../kernel/vec/target_avx512.h"
#include "lanes.h"
#include "../kernel/vec/exp2.h"

INLINE __m512 never(void) { return _mm512_set1_ps(-__builtin_inff()); }
INLINE __mmask16 seen_something(__m512 x) { return _mm512_cmp_ps_mask(x, never(), _CMP_NEQ_UQ); }
INLINE __mmask16 beyond_near(__m512 x)
{
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps((float)ATTNI_BF16_NEAR), _CMP_GT_OQ);
}
/* Rounds x up. Near 0, the result is a multiple of 2^-12, which can be subtracted from ORIGIN
 * (lanes.h) exactly. Far from 0, it is an integer. */
INLINE __m512 maximum_of(__m512 x)
{
    const __m512 fine =
        _mm512_roundscale_ps(x, 12 << 4 | _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    return _mm512_mask_mov_ps(fine, beyond_near(fine), whole);
}

/* 2^d within a unit in the last place; 1 for d = 0. */
INLINE __m512 power_of_two(__m512 d) { return exp2_minus(d, v_set1(0)); }

/* ---------------------------------------------------------------------------- queries, values */

void attni_bf16_copy_row(attni_bf16 *to, const char *from, int64_t stride, int64_t n)
{
    if (stride == 1)
        memcpy(to, from, (size_t)n * 2);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i, from + i * stride * 2, 2);
}

/* Multiplies both elements of each pair by a power of two. Exact, unless the product is denormal,
 * which counts as 0 in tile products. */
INLINE __m512i scaled_pairs(__m512i x, __m512 power)
{
    const __m512 even = _mm512_mul_ps(as_float(_mm512_slli_epi32(x, 16)), power);
    const __m512 odd = _mm512_mul_ps(as_float(_mm512_and_si512(x, high_half())), power);
    return pair_rows(as_bits(even), as_bits(odd));
}

void attni_bf16_scale_row(attni_bf16 *to, const attni_bf16 *q, int64_t D, float power)
{
    for (int64_t d = 0; d == 0 || d < D; d += 32)
        _mm512_store_si512(to + d, scaled_pairs(_mm512_maskz_loadu_epi16(first32(D - d), q + d),
                                                _mm512_set1_ps(power)));
}

void attni_bf16_first_queries(attni_bf16 *to, const attni_bf16 *q, int64_t D, int rows, int nv)
{
    for (int64_t d = 0; d < D; d += 2, to += 2 * rows) {
        const attni_bf16 *pairs = q + d / 32 * nv * OPERAND + d % 32 * 16;
        if (rows == 1)
            memcpy(to, pairs, 4);
        for (int r = 0; r + 4 <= rows; r += 4)
            memcpy(to + 2 * r, pairs + 2 * r, 16);
    }
}

void attni_bf16_pack_queries(attni_bf16 *to, const attni_bf16 *q, ptrdiff_t ldq, int rows,
                             int64_t D, float power, int nv)
{
    const __m512 mul = _mm512_set1_ps(power);
    for (int64_t d = 0; d == 0 || d < D; d += 32) {
        const __mmask32 here = first32(D - d);
        for (int g = 0; g < nv; g++, to += OPERAND) {
            __m512 r[16];
            if (rows >= 16 * (g + 1) && D - d >= 32) {
                const v_rows from = v_rows_at((const char *)q + 2 * (16 * g * ldq + d), 2 * ldq);
                UNROLL for (int i = 0; i < 16; i += V_COLUMNS)
                    v_load_transposed(r + i, &from, 4 * i);
            } else {
                UNROLL for (int i = 0; i < 16; i++)
                {
                    const int row = g * 16 + i;
                    r[i] = _mm512_setzero_ps();
                    if (row < rows && here)
                        r[i] = as_float(
                            _mm512_maskz_loadu_epi16(here, (const char *)q + 2 * (row * ldq + d)));
                }
                v_transpose(r);
            }
            UNROLL for (int i = 0; i < 16; i++)
                _mm512_store_si512(to + 32 * i, scaled_pairs(as_bits(r[i]), mul));
        }
    }
}

bool attni_bf16_pack_values(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                            bool zero)
{
    bool odd = false;
    for (int half = 0; half < 2; half++) {
        for (int64_t c = 0; c < Dv || c % 32; c += 16, vt += OPERAND) {
            const __mmask16 here = first16(Dv - c);
            __m512 r[16];
            for (int i = 0; i < 16; i++) {
                const int j = half * 32 + 2 * i;
                __m512i a = _mm512_setzero_si512(), b = a;
                const attni_bf16 *at = (const attni_bf16 *)((const char *)v + 2 * (j * ldv + c));
                if (j < n && here)
                    a = load_values(at, here, zero, &odd);
                if (j + 1 < n && here)
                    b = load_values((const attni_bf16 *)((const char *)at + 2 * ldv), here, zero,
                                    &odd);
                r[i] = as_float(_mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
            }
            v_transpose(r);
            UNROLL for (int i = 0; i < 16; i++)
                _mm512_store_ps((float *)(void *)(vt + 32 * i), r[i]);
        }
    }
    return odd;
}

bool attni_bf16_pack_pairs(attni_bf16 *vt, const attni_bf16 *v, ptrdiff_t ldv, int n, int64_t Dv,
                           bool zero)
{
    bool odd = false;
    for (int r = 0; r < ROWS; r += 2) {
        for (int64_t c = 0; c < Dv || c % 32; c += 16, vt += 32) {
            const __mmask16 here = first16(Dv - c);
            const attni_bf16 *at = (const attni_bf16 *)((const char *)v + 2 * (r * ldv + c));
            __m512i a = _mm512_setzero_si512(), b = a;
            if (r < n && here)
                a = load_values(at, here, zero, &odd);
            if (r + 1 < n && here)
                b = load_values((const attni_bf16 *)((const char *)at + 2 * ldv), here, zero, &odd);
            _mm512_store_si512(vt, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
        }
    }
    return odd;
}

int attni_bf16_exponent(const void *x, ptrdiff_t ld, int64_t rows, int64_t columns)
{
    __m512i top = _mm512_setzero_si512();
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    if (ld == 2 * columns) /* rows without gaps are one long row */
        columns *= rows, rows = 1;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < columns; d += 32) {
            const char *at = (const char *)x + r * ld + 2 * d;
            const __m512i here = columns - d < 32
                                     ? _mm512_maskz_loadu_epi16(first32(columns - d), at)
                                     : _mm512_loadu_si512(at);
            top = _mm512_max_epu16(top, _mm512_and_si512(magnitude, here));
        }
    const __m512i high = _mm512_srli_epi32(top, 16),
                  low = _mm512_and_si512(top, _mm512_set1_epi32(0xffff));
    return _mm512_reduce_max_epi32(_mm512_max_epi32(high, low)) >> 7;
}

/* ------------------------------------------------------------------------ maxima and weights */

/* x + ORIGIN, where x = s c - m. If m is near 0, this is the arithmetic of the fast kernel. If m is
 * so large that ORIGIN - m would lose the digits of ORIGIN, s c - m is computed first. There s c is
 * rounded, because m was computed from the rounded product. */
INLINE __m512 place(__m512 s, __m512 c, __m512 m, __m512 offset)
{
    const __mmask16 far = beyond_near(m);
    const __m512 near_t = _mm512_fmadd_ps(s, c, offset);
    const __m512 far_t =
        _mm512_add_ps(_mm512_sub_ps(_mm512_mul_ps(s, c), m), _mm512_set1_ps(ORIGIN));
    return _mm512_mask_mov_ps(near_t, far & seen_something(m), far_t);
}

bool attni_bf16_near(const attni_bf16_columns *columns, int nv)
{
    __mmask16 far = 0;
    for (int g = 0; g < nv; g++) {
        const __m512 m = _mm512_load_ps(columns->m + 16 * g);
        far |= beyond_near(m) & seen_something(m);
    }
    return far == 0;
}

bool attni_bf16_maxima(attni_bf16_columns *columns, float *st, int n, int nv)
{
    __mmask16 nonfinite = 0;
    for (int g = 0; g < nv; g++) {
        __m512 top = _mm512_load_ps(columns->top + 16 * g);
        for (int j = 0; j < n; j++) {
            const __m512 s = _mm512_load_ps(st + (j * nv + g) * 16);
            nonfinite |= _mm512_fpclass_ps_mask(s, 0x89); /* NaN, +inf */
            top = _mm512_max_ps(s, top);                  /* keeps top where s is NaN */
        }
        _mm512_store_ps(columns->top + 16 * g, top);
    }
    for (int j = n * nv; j < ROWS * nv; j++)
        _mm512_store_ps(st + j * 16, never());
    return nonfinite == 0;
}

/* The maximum m, in log2 units, from the largest score; weights are 2^(score - m). */
INLINE __m512 count_from(__m512 top, __m512 c) { return maximum_of(_mm512_mul_ps(top, c)); }

void attni_bf16_set_maxima(attni_bf16_columns *columns, int nv)
{
    for (int g = 0; g < nv; g++)
        _mm512_store_ps(columns->m + 16 * g, count_from(_mm512_load_ps(columns->top + 16 * g),
                                                        _mm512_load_ps(columns->c + 16 * g)));
}

bool attni_bf16_row_weights(attni_bf16 *p, attni_bf16_columns *columns, float *st, int n, int r)
{
    const __m512 c = _mm512_set1_ps(columns->c[r]);
    __mmask16 nonfinite = 0;
    __m512 top = never();
    for (int j = n - n % 16; j < n || j % 32; j += 16)
        _mm512_mask_store_ps(st + j, (__mmask16)~first16(n - j), never());
    for (int j = 0; j < n; j += 16) {
        const __m512 s = _mm512_load_ps(st + j);
        nonfinite |= _mm512_fpclass_ps_mask(s, 0x89); /* NaN, +inf */
        top = _mm512_max_ps(s, top);
    }
    columns->top[r] = _mm512_reduce_max_ps(top);
    const __m512 m = count_from(_mm512_set1_ps(columns->top[r]), c);
    columns->m[r] = _mm512_cvtss_f32(m);
    if (nonfinite || (beyond_near(m) & seen_something(m)))
        return false;
    const __m512 offset = offset_of(m), least = _mm512_set1_ps(ORIGIN + LOWEST);
    for (int j = 0; j < n; j += 32) {
        __m512i e[2];
        UNROLL for (int i = 0; i < 2; i++)
        {
            const __m512 t = _mm512_fmadd_ps(_mm512_load_ps(st + j + 16 * i), c, offset);
            e[i] = weight_bits(at_least(least, t));
            _mm256_store_si256((__m256i *)(void *)(p + j + 16 * i),
                               _mm512_cvtepi32_epi16(_mm512_srli_epi32(e[i], 16)));
        }
    }
    return true;
}

void attni_bf16_weigh(float *st, attni_bf16_columns *columns, bool add, uint32_t *seen, int nv)
{
    for (int j = 0; j < ROWS; j++)
        seen[j] = 0;
    for (int g = 0; g < nv; g++) {
        const __m512 c = _mm512_load_ps(columns->c + 16 * g),
                     m = _mm512_load_ps(columns->m + 16 * g);
        const __m512 offset = offset_of(m);
        __m512 l = _mm512_load_ps(columns->l + 16 * g);
        for (int j = 0; j < ROWS; j++) {
            float *at = st + (j * nv + g) * 16;
            const __m512 s = _mm512_load_ps(at);
            seen[j] |= (uint32_t)seen_something(s) << (16 * g);
            const __m512 t = at_least(_mm512_set1_ps(ORIGIN + LOWEST), place(s, c, m, offset));
            const __mmask16 nan = _mm512_cmp_ps_mask(t, t, _CMP_UNORD_Q);
            const __m512i e = _mm512_and_si512(weight_bits(t), high_half());
            const __m512 w = as_float(_mm512_mask_mov_epi32(e, nan, _mm512_set1_epi32(0x7fc00000)));
            l = _mm512_add_ps(l, w);
            _mm512_store_ps(at, w);
        }
        if (add)
            _mm512_store_ps(columns->l + 16 * g, l);
    }
}

void attni_bf16_scores_as_rows(float *rows, const float *st, int n, const float *l,
                               const uint32_t *seen, int nv)
{
    for (int g = 0; g < nv; g++) {
        const __m512 sums = l ? _mm512_load_ps(l + 16 * g) : _mm512_setzero_ps();
        for (int j = 0; j < n; j += 16) {
            __m512 r[16];
            for (int u = 0; u < 16; u++) {
                r[u] = _mm512_setzero_ps();
                if (j + u >= n)
                    continue;
                const __m512 s = _mm512_load_ps(st + ((j + u) * nv + g) * 16);
                if (l)
                    r[u] = _mm512_maskz_div_ps((__mmask16)(seen[j + u] >> 16 * g), s, sums);
                else /* bf16 products flush a small negative sum to -0 */
                    r[u] = _mm512_add_ps(s, _mm512_setzero_ps());
            }
            v_transpose(r);
            for (int i = 0; i < 16; i++)
                _mm512_store_ps(rows + (16 * g + i) * ROWS + j, r[i]);
        }
    }
}

void attni_bf16_pack_weights(attni_bf16 *p, const float *st, int nv)
{
    for (int half = 0; half < 2; half++)
        for (int g = 0; g < nv; g++, p += OPERAND)
            for (int r = 0; r < 16; r++) {
                const float *at = st + ((half * 32 + 2 * r) * nv + g) * 16;
                _mm512_store_si512(p + r * 32, pair_rows(as_bits(_mm512_load_ps(at)),
                                                         as_bits(_mm512_load_ps(at + 16 * nv))));
            }
}

/* -------------------------------------------------------------------------- sums, the result */

/* Updates M and L of 16 columns after a chunk. The total is to be multiplied by a, the chunk by
 * b. */
INLINE void join_sums(float *M, float *L, const float *m, const float *l, __m512 *a, __m512 *b)
{
    const __m512 before = _mm512_load_ps(M), here = _mm512_load_ps(m);
    const __m512 both = _mm512_max_ps(before, here);
    /* The factors are 2^(M - both) and 2^(m - both); 0 where no key was seen. */
    const __mmask16 had = seen_something(before), has = seen_something(here);
    *a = _mm512_maskz_mov_ps(had, power_of_two(_mm512_sub_ps(before, both)));
    *b = _mm512_maskz_mov_ps(has, power_of_two(_mm512_sub_ps(here, both)));
    _mm512_store_ps(L, _mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(L), *a),
                                     _mm512_mul_ps(_mm512_load_ps(l), *b)));
    _mm512_store_ps(M, both);
}

INLINE void join_vector(float *total, const float *acc, __m512 a, __m512 b)
{
    const __m512 x = _mm512_mul_ps(_mm512_load_ps(acc), b);
    _mm512_store_ps(total, _mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(total), a), x));
}

void attni_bf16_join(float *total, float *M, float *L, const float *acc,
                     const attni_bf16_columns *columns, int64_t rows, int nv)
{
    for (int g = 0; g < nv; g++) {
        __m512 a, b;
        join_sums(M + 16 * g, L + 16 * g, columns->m + 16 * g, columns->l + 16 * g, &a, &b);
        for (int64_t r = 0; r < rows; r++)
            join_vector(total + (r * nv + g) * 16, acc + (r * nv + g) * 16, a, b);
    }
}

void attni_bf16_join_rows(float *total, float *M, float *L, const float *sums,
                          const attni_bf16_columns *columns, int rows, int64_t n)
{
    __m512 a, b;
    join_sums(M, L, columns->m, columns->l, &a, &b);
    for (int r = 0; r < rows; r++, total += n, sums += n) {
        const __m512 x = _mm512_permutexvar_ps(_mm512_set1_epi32(r), a);
        const __m512 y = _mm512_permutexvar_ps(_mm512_set1_epi32(r), b);
        for (int64_t c = 0; c < n; c += 16)
            join_vector(total + c, sums + c, x, y);
    }
}

void attni_bf16_one_key(attni_bf16_columns *columns, int nv)
{
    for (int g = 0; g < nv; g++) {
        const __m512 x = _mm512_mul_ps(_mm512_load_ps(columns->top + 16 * g),
                                       _mm512_load_ps(columns->c + 16 * g));
        const __m512 m = maximum_of(x);
        const __mmask16 seen = seen_something(x);
        _mm512_store_ps(columns->m + 16 * g, m);
        _mm512_store_ps(columns->l + 16 * g,
                        _mm512_maskz_mov_ps(seen, power_of_two(_mm512_sub_ps(x, m))));
    }
}

/* Writes 16 components from `at` on, of which those in `here` exist. Returns the lanes that are not
 * finite. */
INLINE __mmask16 finish_vector(void *to, bool narrow, int64_t at, __m512 total, float l,
                               float factor, __mmask16 here)
{
    const __m512 x = l != 0 ? _mm512_div_ps(total, _mm512_set1_ps(l)) : _mm512_setzero_ps();
    const __m512 y = _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(factor)), _mm512_setzero_ps());
    if (narrow) {
        const __m512i bits = (__m512i)v_bits_bf16(y);
        const __mmask16 rest = _mm512_cmpneq_epi32_mask(bits, _mm512_set1_epi32(0x8000));
        _mm256_mask_storeu_epi16((char *)to + 2 * at, here,
                                 _mm512_cvtepi32_epi16(_mm512_maskz_mov_epi32(rest, bits)));
    } else
        _mm512_mask_storeu_ps((char *)to + 4 * at, here, y);
    return not_finite(y) & here;
}

bool attni_bf16_finish(void *to, bool narrow, ptrdiff_t ldo, const float *total, const float *l,
                       float factor, int rows, int64_t Dv, int nv)
{
    __mmask16 nonfinite = 0;
    for (int g = 0; g * 16 < rows; g++)
        for (int64_t c = 0; c < Dv; c += 16) {
            __m512 r[16];
            UNROLL for (int u = 0; u < 16; u++) r[u] =
                _mm512_load_ps(total + ((c + u) * nv + g) * 16);
            v_transpose(r);
            for (int i = g * 16; i < g * 16 + 16 && i < rows; i++)
                nonfinite |= finish_vector(to, narrow, i * ldo + c, r[i % 16], l[i], factor,
                                           first16(Dv - c));
        }
    return nonfinite != 0;
}

bool attni_bf16_finish_rows(void *to, bool narrow, ptrdiff_t ldo, const float *total,
                            const float *l, int rows, int64_t Dv)
{
    __mmask16 nonfinite = 0;
    for (int i = 0; i < rows; i++, total += attni_bf16_padded(Dv))
        for (int64_t c = 0; c < Dv; c += 16)
            nonfinite |= finish_vector(to, narrow, i * ldo + c, _mm512_load_ps(total + c), l[i], 1,
                                       first16(Dv - c));
    return nonfinite != 0;
}

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
