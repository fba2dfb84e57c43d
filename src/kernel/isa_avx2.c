/* AVX2 with FMA, 32 bytes wide: float; isa_avx2_f64.c includes this file for double. isa_generic.c
 * says what each operation means. */
#if defined(__x86_64__)
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME avx2

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC optimize("fp-contract=off") /* a plain cc must not fuse separate operations */
#pragma GCC target("avx2,fma,f16c")
#endif
#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define V_VECTORS 2
#define V_ACCUMULATORS 12 /* of 16 registers: 2 hold queries, 1 the broadcast */
#define V_INLINE static inline __attribute__((always_inline))

#if ATTNI_BITS == 32
typedef float R;
typedef __m256 vec;
#define V_LANES 8
#define V_(op) _mm256_##op##_ps
#else
typedef double R;
typedef __m256d vec;
#define V_LANES 4
#define V_(op) _mm256_##op##_pd
#endif
typedef vec vmask; /* all ones where true */
typedef R R_any __attribute__((aligned(1), may_alias));

V_INLINE vec v_set1(R x) { return V_(set1)(x); }
V_INLINE vec v_bcast(const R_any *p) { return V_(set1)(*p); }
V_INLINE vec v_load(const R *p) { return V_(load)(p); }
V_INLINE void v_store(R *p, vec a) { V_(store)(p, a); }
V_INLINE vec v_loadu(const R_any *p) { return V_(loadu)((const R *)p); }
/* Without masked loads: emulators touch the memory after the elements. */
#if ATTNI_BITS == 32
V_INLINE __m128 v_quarter_first(const R_any *p, int n) /* 0 < n <= 4 */
{
    if (n == 4)
        return _mm_loadu_ps((const float *)p);
    if (n == 1)
        return _mm_set_ss(*p);
    const __m128 two = _mm_castsi128_ps(_mm_loadl_epi64((const void *)p));
    return n == 2 ? two : _mm_movelh_ps(two, _mm_set_ss(p[2]));
}
V_INLINE vec v_load_first(const R_any *p, int n)
{
    if (n <= 4)
        return _mm256_zextps128_ps256(v_quarter_first(p, n));
    const vec low = _mm256_castps128_ps256(_mm_loadu_ps((const float *)p));
    return _mm256_insertf128_ps(low, v_quarter_first(p + 4, n - 4), 1);
}
#else
V_INLINE vec v_load_first(const R_any *p, int n)
{
    if (n == 1)
        return _mm256_zextpd128_pd256(_mm_set_sd(*p));
    if (n == 2)
        return _mm256_zextpd128_pd256(_mm_loadu_pd((const double *)p));
    if (n == 4)
        return v_loadu(p);
    const vec low = _mm256_castpd128_pd256(_mm_loadu_pd((const double *)p));
    return _mm256_insertf128_pd(low, _mm_set_sd(p[2]), 1);
}
#endif
V_INLINE void v_storeu(R_any *p, vec a) { V_(storeu)((R *)p, a); }
V_INLINE vec v_add(vec a, vec b) { return V_(add)(a, b); }
V_INLINE vec v_sub(vec a, vec b) { return V_(sub)(a, b); }
V_INLINE vec v_mul(vec a, vec b) { return V_(mul)(a, b); }
V_INLINE vec v_div(vec a, vec b) { return V_(div)(a, b); }
V_INLINE vec v_sqrt(vec a) { return V_(sqrt)(a); }
V_INLINE vec v_fma(vec a, vec b, vec c) { return V_(fmadd)(a, b, c); }

V_INLINE vmask v_lt(vec a, vec b) { return V_(cmp)(a, b, _CMP_LT_OQ); }
V_INLINE vmask v_eq(vec a, vec b) { return V_(cmp)(a, b, _CMP_EQ_OQ); }
V_INLINE vec v_select(vmask m, vec a, vec b) { return V_(blendv)(b, a, m); }
V_INLINE int v_any(vmask m) { return V_(movemask)(m) != 0; }
#define V_LANES_OF_BITS
V_INLINE vmask v_lanes(unsigned bits)
{
#if ATTNI_BITS == 32
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32((int)bits);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, each), each));
#else
    const __m256i each = _mm256_setr_epi64x(1, 2, 4, 8), all = _mm256_set1_epi64x(bits);
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(all, each), each));
#endif
}
#define V_BITS_OF_BYTES
V_INLINE uint64_t v_bytes(const uint8_t *p)
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i low = _mm256_loadu_si256((const __m256i_u *)p);
    const __m256i high = _mm256_loadu_si256((const __m256i_u *)(p + 32));
    const unsigned l = (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, zero));
    const unsigned h = (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, zero));
    return ~((uint64_t)h << 32 | l);
}

V_INLINE vec v_max(vec a, vec b) { return V_(max)(a, b); }
V_INLINE vec v_min(vec a, vec b) { return V_(min)(a, b); }
#if ATTNI_BITS == 32
typedef __m256d v_wide;
V_INLINE v_wide v_wide_fma(v_wide a, v_wide b, v_wide c) { return _mm256_fmadd_pd(a, b, c); }
V_INLINE v_wide v_wide_load(const R_any *p)
{
    return _mm256_cvtps_pd(_mm_loadu_ps((const float *)p));
}
V_INLINE v_wide v_wide_max(v_wide a, v_wide b) { return _mm256_max_pd(a, b); }
V_INLINE float v_largest(vec a)
{
    const __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 y = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
V_INLINE void v_to_i8(int8_t *p, vec a)
{
    const __m256i n = _mm256_cvtps_epi32(a);
    const __m128i low = _mm256_castsi256_si128(n), high = _mm256_extracti128_si256(n, 1);
    const __m128i words = _mm_packs_epi32(low, high);
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(words, words));
}
V_INLINE void v_wide_to_i8(int8_t *p, v_wide a)
{
    const __m128i n = _mm256_cvtpd_epi32(a), words = _mm_packs_epi32(n, n);
    const int bytes = _mm_cvtsi128_si32(_mm_packs_epi16(words, words));
    __builtin_memcpy(p, &bytes, sizeof bytes);
}
#endif
V_INLINE vec v_round(vec a) { return V_(round)(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
V_INLINE vec v_ceil(vec a) { return V_(round)(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }

V_INLINE vec v_scale2(vec p, vec k)
{
#if ATTNI_BITS == 32
    k = v_max(k, v_set1(-127)); /* 2^-127 has no normal number: its bits are those of 0 */
    k = _mm256_min_ps(k, v_set1(127));
    const __m256i n = _mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127));
    return v_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(n, 23)));
#else
    k = v_max(k, v_set1(-1023));
    k = _mm256_min_pd(k, v_set1(1023));
    const __m256i n =
        _mm256_cvtepi32_epi64(_mm_add_epi32(_mm256_cvtpd_epi32(k), _mm_set1_epi32(1023)));
    return v_mul(p, _mm256_castsi256_pd(_mm256_slli_epi64(n, 52)));
#endif
}

V_INLINE vec v_iota(void)
{
#if ATTNI_BITS == 32
    return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
#else
    return _mm256_setr_pd(0, 1, 2, 3);
#endif
}

#if ATTNI_BITS == 32
#define V_HALVES
V_INLINE vec v_from_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
V_INLINE vec v_from_bf16(const void *p)
{
    const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
V_INLINE vec v_from_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}
#include "vec/bf16.h"
V_INLINE __m128i v_words(__m256i a) /* of 32 bits each, none above 2^16 - 1 */
{
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, a), 0x08);
    return _mm256_castsi256_si128(words);
}
V_INLINE vec v_low_f16(vec a)
{
    const __m256i low = _mm256_set1_epi32(0xffff);
    return _mm256_cvtph_ps(v_words(_mm256_and_si256(_mm256_castps_si256(a), low)));
}
V_INLINE vec v_high_f16(vec a)
{
    return _mm256_cvtph_ps(v_words(_mm256_srli_epi32(_mm256_castps_si256(a), 16)));
}
V_INLINE void v_to_f16(void *p, vec a)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
V_INLINE void v_to_bf16(void *p, vec a) { _mm_storeu_si128(p, v_words((__m256i)v_bits_bf16(a))); }
#endif

typedef uint64_t v_u64 __attribute__((vector_size(32)));
#define V_U64_LANES 4
V_INLINE v_u64 v_mul_u32(v_u64 a, v_u64 b)
{
    return (v_u64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

V_INLINE void v_transpose(vec r[V_LANES])
{
#if ATTNI_BITS == 32
    vec a[8], b[8];
    for (int i = 0; i < 8; i += 2) { /* pairs of rows, then of pairs, then of 128-bit halves */
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
#else
    const vec a0 = _mm256_unpacklo_pd(r[0], r[1]), a1 = _mm256_unpackhi_pd(r[0], r[1]);
    const vec a2 = _mm256_unpacklo_pd(r[2], r[3]), a3 = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a0, a2, 0x20);
    r[1] = _mm256_permute2f128_pd(a1, a3, 0x20);
    r[2] = _mm256_permute2f128_pd(a0, a2, 0x31);
    r[3] = _mm256_permute2f128_pd(a1, a3, 0x31);
#endif
}

/* r[i][j] = element i of row j, from byte `at` of V_LANES rows on, i < V_COLUMNS.
 * Halves of vectors go to their places as they are loaded, which costs no shuffle. */
#if ATTNI_BITS == 32
#define V_COLUMNS 4
typedef struct v_rows {
    const char *p[4]; /* rows 0 to 3; x86 addressing reaches four rows further */
    ptrdiff_t bytes;
} v_rows;
V_INLINE v_rows v_rows_at(const char *p, ptrdiff_t bytes)
{
    v_rows rows = {{p, p + bytes, p + 2 * bytes, p + 3 * bytes}, bytes};
    __asm__("" : "+r"(rows.p[0]), "+r"(rows.p[1]), "+r"(rows.p[2]), "+r"(rows.p[3])); /* or eight */
    return rows;
}
V_INLINE void v_load_transposed(vec r[V_COLUMNS], const v_rows *rows, int at)
{
    vec a[4];
    for (int j = 0; j < 4; j++) { /* rows j, 4+j */
        const char *p = rows->p[j] + at;
        const vec x = _mm256_castps128_ps256(_mm_loadu_ps((const float *)p));
        a[j] = _mm256_insertf128_ps(x, _mm_loadu_ps((const float *)(p + 4 * rows->bytes)), 1);
    }
    const vec t0 = _mm256_unpacklo_ps(a[0], a[1]), t1 = _mm256_unpackhi_ps(a[0], a[1]);
    const vec t2 = _mm256_unpacklo_ps(a[2], a[3]), t3 = _mm256_unpackhi_ps(a[2], a[3]);
    r[0] = _mm256_shuffle_ps(t0, t2, 0x44);
    r[1] = _mm256_shuffle_ps(t0, t2, 0xee);
    r[2] = _mm256_shuffle_ps(t1, t3, 0x44);
    r[3] = _mm256_shuffle_ps(t1, t3, 0xee);
}
#endif

#undef V_

#include "tile.inc.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
