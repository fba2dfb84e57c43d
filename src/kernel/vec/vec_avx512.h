/* Vector operations: AVX-512 (F, BW, DQ, VL), 64 bytes wide. isa_generic.c says what each means. */
#ifndef ATTNI_VEC_H
#define ATTNI_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define V_VECTORS 4
#define V_ACCUMULATORS 24 /* of 32 registers: 4 hold queries, 1 the broadcast */
#define V_INLINE static inline __attribute__((always_inline))

#if ATTNI_BITS == 32
typedef float R;
typedef __m512 vec;
typedef __mmask16 vmask;
#define V_LANES 16
#define V_(op) _mm512_##op##_ps
#define V_MASK(op) _mm512_##op##_ps_mask
#else
typedef double R;
typedef __m512d vec;
typedef __mmask8 vmask;
#define V_LANES 8
#define V_(op) _mm512_##op##_pd
#define V_MASK(op) _mm512_##op##_pd_mask
#endif
typedef R R_any __attribute__((aligned(1), may_alias));

V_INLINE vec v_set1(R x) { return V_(set1)(x); }
V_INLINE vec v_bcast(const R_any *p) { return V_(set1)(*p); }
V_INLINE vec v_load(const R *p) { return V_(load)(p); }
V_INLINE void v_store(R *p, vec a) { V_(store)(p, a); }
V_INLINE vec v_loadu(const R_any *p) { return V_(loadu)((const void *)p); }
V_INLINE vec v_load_first(const R_any *p, int n)
{
    return V_(maskz_loadu)((vmask)(0xffffu >> (16 - n)), (const void *)p);
}
V_INLINE void v_storeu(R_any *p, vec a) { V_(storeu)((void *)p, a); }
V_INLINE vec v_add(vec a, vec b) { return V_(add)(a, b); }
V_INLINE vec v_sub(vec a, vec b) { return V_(sub)(a, b); }
V_INLINE vec v_mul(vec a, vec b) { return V_(mul)(a, b); }
V_INLINE vec v_div(vec a, vec b) { return V_(div)(a, b); }
V_INLINE vec v_sqrt(vec a) { return V_(sqrt)(a); }
V_INLINE vec v_fma(vec a, vec b, vec c) { return V_(fmadd)(a, b, c); }

V_INLINE vmask v_lt(vec a, vec b) { return V_MASK(cmp)(a, b, _CMP_LT_OQ); }
V_INLINE vmask v_eq(vec a, vec b) { return V_MASK(cmp)(a, b, _CMP_EQ_OQ); }
V_INLINE vec v_select(vmask m, vec a, vec b) { return V_(mask_blend)(m, b, a); }
V_INLINE int v_any(vmask m) { return m != 0; }
#define V_LANES_OF_BITS
V_INLINE vmask v_lanes(unsigned bits) { return (vmask)bits; }
#define V_BITS_OF_BYTES
V_INLINE uint64_t v_bytes(const uint8_t *p)
{
    const __m512i x = _mm512_loadu_si512(p);
    return _mm512_test_epi8_mask(x, x);
}

V_INLINE vec v_max(vec a, vec b) { return V_(max)(a, b); }
V_INLINE vec v_min(vec a, vec b) { return V_(min)(a, b); }
#if ATTNI_BITS == 32
typedef __m512d v_wide;
V_INLINE v_wide v_wide_fma(v_wide a, v_wide b, v_wide c) { return _mm512_fmadd_pd(a, b, c); }
V_INLINE v_wide v_wide_load(const R_any *p)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps((const float *)p));
}
V_INLINE v_wide v_wide_max(v_wide a, v_wide b) { return _mm512_max_pd(a, b); }
V_INLINE float v_largest(vec a) { return _mm512_reduce_max_ps(a); }
V_INLINE void v_to_i8(int8_t *p, vec a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
V_INLINE void v_wide_to_i8(int8_t *p, v_wide a)
{
    const __m128i bytes = _mm256_cvtepi32_epi8(_mm512_cvtpd_epi32(a));
    _mm_storel_epi64((__m128i *)(void *)p, bytes);
}
#endif
V_INLINE vec v_round(vec a)
{
    return V_(roundscale)(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE vec v_ceil(vec a) { return V_(roundscale)(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }

V_INLINE vec v_scale2(vec p, vec k) { return V_(scalef)(p, k); }

V_INLINE vec v_iota(void)
{
#if ATTNI_BITS == 32
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return _mm512_setr_pd(0, 1, 2, 3, 4, 5, 6, 7);
#endif
}

#if ATTNI_BITS == 32
#define V_HALVES
V_INLINE vec v_from_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
V_INLINE vec v_from_bf16(const void *p)
{
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
V_INLINE vec v_from_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}
#include "bf16.h"
V_INLINE vec v_low_f16(vec a)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_castps_si512(a)));
}
V_INLINE vec v_high_f16(vec a)
{
    const __m512i high = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(high));
}
V_INLINE void v_to_f16(void *p, vec a)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
V_INLINE void v_to_bf16(void *p, vec a)
{
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)v_bits_bf16(a)));
}
#endif

typedef uint64_t v_u64 __attribute__((vector_size(64)));
#define V_U64_LANES 8
V_INLINE v_u64 v_mul_u32(v_u64 a, v_u64 b)
{
    return (v_u64)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}

V_INLINE void v_transpose(vec r[V_LANES])
{
    vec a[V_LANES];
#if ATTNI_BITS == 32
    for (int i = 0; i < 16; i += 2) { /* pairs of rows */
        a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* quads: r[i + j] holds columns j, 4+j, 8+j, 12+j */
        r[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int j = 0; j < 4; j++) { /* 128-bit quarters across the four groups of rows */
        a[j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        a[4 + j] = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        a[8 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        a[12 + j] = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    }
    for (int j = 0; j < 4; j++) {
        r[j] = _mm512_shuffle_f32x4(a[j], a[8 + j], 0x88);
        r[8 + j] = _mm512_shuffle_f32x4(a[j], a[8 + j], 0xdd);
        r[4 + j] = _mm512_shuffle_f32x4(a[4 + j], a[12 + j], 0x88);
        r[12 + j] = _mm512_shuffle_f32x4(a[4 + j], a[12 + j], 0xdd);
    }
#else
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    for (int j = 0; j < 2; j++) { /* a[2p + j] holds columns j, 2+j, 4+j, 6+j of rows 2p, 2p+1 */
        const vec t0 = _mm512_shuffle_f64x2(a[j], a[2 + j], 0x88);
        const vec t1 = _mm512_shuffle_f64x2(a[j], a[2 + j], 0xdd);
        const vec t2 = _mm512_shuffle_f64x2(a[4 + j], a[6 + j], 0x88);
        const vec t3 = _mm512_shuffle_f64x2(a[4 + j], a[6 + j], 0xdd);
        r[j] = _mm512_shuffle_f64x2(t0, t2, 0x88);
        r[4 + j] = _mm512_shuffle_f64x2(t0, t2, 0xdd);
        r[2 + j] = _mm512_shuffle_f64x2(t1, t3, 0x88);
        r[6 + j] = _mm512_shuffle_f64x2(t1, t3, 0xdd);
    }
#endif
}

/* r[i][j] = element i of row j, from byte `at` of V_LANES rows on, i < V_COLUMNS.
 * Quarters of vectors go to their places as they are loaded, which costs no shuffle. */
#if ATTNI_BITS == 32
#define V_COLUMNS 4
typedef struct v_rows {
    const char *p[4]; /* rows 0, 4, 8, 12; x86 addressing reaches the three rows after each */
    ptrdiff_t bytes, thrice;
} v_rows;
V_INLINE v_rows v_rows_at(const char *p, ptrdiff_t bytes)
{
    v_rows rows = {{p, p + 4 * bytes, p + 8 * bytes, p + 12 * bytes}, bytes, 3 * bytes};
    __asm__("" /* or compilers keep sixteen pointers */
            : "+r"(rows.p[0]), "+r"(rows.p[1]), "+r"(rows.p[2]), "+r"(rows.p[3]),
              "+r"(rows.thrice));
    return rows;
}
V_INLINE vec v_load_quarters(const v_rows *rows, ptrdiff_t at)
{
    vec x = _mm512_castps128_ps512(_mm_loadu_ps((const float *)(rows->p[0] + at)));
    x = _mm512_insertf32x4(x, _mm_loadu_ps((const float *)(rows->p[1] + at)), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps((const float *)(rows->p[2] + at)), 2);
    return _mm512_insertf32x4(x, _mm_loadu_ps((const float *)(rows->p[3] + at)), 3);
}
V_INLINE void v_load_transposed(vec r[V_COLUMNS], const v_rows *rows, int at)
{
    const vec a[4] = {/* rows j, 4+j, 8+j, 12+j */
                      v_load_quarters(rows, at), v_load_quarters(rows, rows->bytes + at),
                      v_load_quarters(rows, 2 * rows->bytes + at),
                      v_load_quarters(rows, rows->thrice + at)};
    const vec t0 = _mm512_unpacklo_ps(a[0], a[1]), t1 = _mm512_unpackhi_ps(a[0], a[1]);
    const vec t2 = _mm512_unpacklo_ps(a[2], a[3]), t3 = _mm512_unpackhi_ps(a[2], a[3]);
    r[0] = _mm512_shuffle_ps(t0, t2, 0x44);
    r[1] = _mm512_shuffle_ps(t0, t2, 0xee);
    r[2] = _mm512_shuffle_ps(t1, t3, 0x44);
    r[3] = _mm512_shuffle_ps(t1, t3, 0xee);
}
#endif

#undef V_
#undef V_MASK
#endif
