/* Helpers on vectors of 16 columns, shared by unit_amx.c, unit_dot.c, unit_grads.c and
 * unit_shared.c. All of them compute weights with weight_bits(), because the weights of a block
 * must have the same bits whichever file computes them.
 *
 * The weight of a score s is 2^x, where x = s c - m in log2 units:
 *
 *   t = x + 448            in [256, 512) for every x that matters: the last bit of t is 2^-15
 *   z = bits of t << 8     fraction of x (15 bits, at the top of a float's 23); above it, the whole
 *                          part of x: no rounding, no conversion, no subtraction
 *   p = 2^fraction * 2^64  a minimax polynomial of degree 3
 *   bits of the weight     bits of p + whole part in the exponent (an integer addition)
 *
 * The polynomial's relative error is 7.5e-5; bf16's own rounding is 3.9e-3. The factor 2^64 makes
 * the biases of the three exponents (of t, of 448 and of a float) cancel modulo 2^32. The
 * polynomial's constant already contains half a unit in the last place of bf16: cutting the lower
 * 16 bits then rounds to nearest, ties up.
 *
 * Weights below 2^-126 are 0: t is held above 448 - 127, which gives an exponent of 0 and a
 * fraction that is cut to 0. This includes scores of -inf, so masked keys need no special
 * treatment.
 *
 * The including file first sets the target (AVX-512 F, BW, DQ, VL).
 */
#ifndef ATTNI_BF16_LANES_H
#define ATTNI_BF16_LANES_H

#include <immintrin.h>

#include "unit.h"
#define ATTNI_BITS 32
#include "../kernel/vec/vec_avx512.h"

#define ROWS 64     /* keys in a block */
#define OPERAND 512 /* elements of one tile operand */

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define NO_UNROLL _Pragma("GCC unroll 1")
#endif

#define ORIGIN 448.0f /* t = x + ORIGIN */
#define LOWEST -127.0f

/* Ones in the bits of a float that bf16 keeps. */
INLINE __m512i high_half(void) { return _mm512_set1_epi32((int)0xffff0000); }
INLINE __m512 as_float(__m512i x) { return _mm512_castsi512_ps(x); }
INLINE __m512i as_bits(__m512 x) { return _mm512_castps_si512(x); }

/* A pair of bf16 in each 32 bits. */
INLINE __m512i pair_at(const attni_bf16 *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
}

/* ORIGIN - m, with 0 for the m of a column that has seen no key. */
INLINE __m512 offset_of(__m512 m)
{
    const __mmask16 never = _mm512_cmp_ps_mask(m, _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
    return _mm512_sub_ps(_mm512_set1_ps(ORIGIN), _mm512_mask_mov_ps(m, never, _mm512_setzero_ps()));
}

/* The bits of 2^(t - ORIGIN), before the lower 16 are cut. A NaN in t is lost here. */
INLINE __m512i weight_bits(__m512 t)
{
    const __m512i z = _mm512_slli_epi32(as_bits(t), 8);
    /* (z & 0x007fffff) | 1.0f */
    const __m512 g =
        as_float(_mm512_ternarylogic_epi32(z, _mm512_set1_epi32(0x007fffff),
                                           _mm512_castps_si512(_mm512_set1_ps(1)), 0xea));
    __m512 p = _mm512_set1_ps(0x1.3f96a4p+60f);
    p = _mm512_fmadd_ps(p, g, _mm512_set1_ps(-0x1.065aa4p+57f));
    p = _mm512_fmadd_ps(p, g, _mm512_set1_ps(0x1.e93d46p+62f));
    p = _mm512_fmadd_ps(p, g, _mm512_set1_ps(0x1.d2fc4cp+62f)); /* includes 2^-8 of 2^64 */
    return _mm512_add_epi32(as_bits(p), _mm512_and_si512(z, _mm512_set1_epi32((int)0xff800000)));
}

/* max(a, t), but t where t is NaN. */
INLINE __m512 at_least(__m512 a, __m512 t) { return _mm512_max_ps(a, t); }

/* Combines two rows of weights into the pairs that a tile product reads. */
INLINE __m512i pair_rows(__m512i even, __m512i odd)
{
    /* The bits of `odd` where high_half has ones, else of even >> 16. */
    return _mm512_ternarylogic_epi32(odd, _mm512_srli_epi32(even, 16), high_half(), 0xe4);
}

/* Mask of the first n of 16 or 32 elements, for any n. */
INLINE __mmask16 first16(int64_t n)
{
    return (__mmask16)(n <= 0 ? 0 : n >= 16 ? 0xffff : (1u << n) - 1);
}
INLINE __mmask32 first32(int64_t n)
{
    return (__mmask32)(n <= 0 ? 0 : n >= 32 ? 0xffffffff : (1u << n) - 1);
}
INLINE __mmask16 not_finite(__m512 x) { return _mm512_fpclass_ps_mask(x, 0x99); }

/* Loads 16 elements of a row as 32 bits each. If `zero`, NaN and infinity become 0, and *nonfinite
 * becomes true if there was one. */
INLINE __m512i load_values(const attni_bf16 *v, __mmask16 here, bool zero, bool *nonfinite)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(here, v));
    if (zero) {
        const __mmask16 mask = not_finite(as_float(_mm512_slli_epi32(x, 16)));
        *nonfinite |= mask != 0;
        x = _mm512_mask_mov_epi32(x, mask, _mm512_setzero_si512());
    }
    return x;
}

#endif
