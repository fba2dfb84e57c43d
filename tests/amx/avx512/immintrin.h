/* The intrinsics of AVX-512 that src/kernel/ uses, in C, by halves or lane by lane: with
 * ATTNI_AVX512_EMULATED this folder is searched before the compiler's, and what is written for
 * AVX-512 is tested on machines with AVX2 and FMA. Slow, and for gcc, which computes with vectors
 * of any size.
 *
 * Meanings are those of Intel's manual, volume 2: where an operand is a NaN or an infinity, in
 * masked lanes and in rounding too. Memory of masked lanes is not touched; an aligned access of
 * memory that is not aligned ends the program. */
#ifndef ATTN_TESTS_AVX512_H
#define ATTN_TESTS_AVX512_H
#include_next <immintrin.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define IN_C static inline __attribute__((always_inline))
#define OUT_OF_LINE static __attribute__((noinline, unused))
#define LANES(n) for (int i_ = 0; i_ < (n); i_++)

typedef uint16_t c_16 __attribute__((vector_size(64)));
typedef int32_t c_32 __attribute__((vector_size(64)));
typedef uint32_t c_u32 __attribute__((vector_size(64)));
typedef uint64_t c_u64 __attribute__((vector_size(64)));
typedef uint16_t c_half __attribute__((vector_size(32)));

IN_C void c_aligned(const void *p)
{
    if ((uintptr_t)p % 64)
        abort();
}

/* --------------------------------------------------------- of float and of double: V_ of the vec
 */

/* A vector as two of AVX2, which keeps the code small; by lanes only what is seldom. */
#define OF_HALVES(ps, vec, half, name, parameters, first, second)                                  \
    IN_C vec c_##name##_##ps parameters                                                            \
    {                                                                                              \
        union {                                                                                    \
            vec v;                                                                                 \
            half h[2];                                                                             \
        } x = {a}, y = {b}, z = {c};                                                               \
        (void)y, (void)z;                                                                          \
        x.h[0] = first;                                                                            \
        x.h[1] = second;                                                                           \
        return x.v;                                                                                \
    }

/* To a multiple of 2^-(how >> 4), to the nearest (0) or upwards (2). */
OUT_OF_LINE double c_round(double x, int how, double whole)
{
    if (!(fabs(x) < whole))
        return x;
    const double size = (double)(1 << (how >> 4));
    return ((how & 3) == 2 ? ceil(x * size) : rint(x * size)) / size;
}

/* a * 2^floor(b), rounded once. ldexp alone would take half of the time of the tests. So the power
 * is made from its bits where it is a normal double, and is 0 where the result is 0 or -0. */
#define C_SCALE(ps, R, ldexp)                                                                      \
    OUT_OF_LINE R c_scale_any_##ps(R a, R b)                                                       \
    {                                                                                              \
        if (isnan(a) || isnan(b))                                                                  \
            return a + b;                                                                          \
        if (isinf(b) && (b > 0 ? a == 0 : isinf(a) != 0))                                          \
            return NAN;                                                                            \
        return ldexp(a, b > 9999 ? 9999 : b < -9999 ? -9999 : (int)floor(b));                      \
    }                                                                                              \
    IN_C R c_scale_##ps(R a, R b)                                                                  \
    {                                                                                              \
        uint64_t bits = 0;                                                                         \
        double power;                                                                              \
        if (b >= -1022 && b < 1024)                                                                \
            bits = (uint64_t)((int)floor(b) + 1023) << 52;                                         \
        else if (!(b < -3000 && a - a == 0)) /* a is finite */                                     \
            return c_scale_any_##ps(a, b);                                                         \
        memcpy(&power, &bits, sizeof power);                                                       \
        return (R)(a * power);                                                                     \
    }
C_SCALE(ps, float, ldexpf)
C_SCALE(pd, double, ldexp)

#define OF_TYPE(ps, vec, half, R, N, mask, whole)                                                  \
    IN_C vec c_set1_##ps(R x)                                                                      \
    {                                                                                              \
        const half h = _mm256_set1_##ps(x);                                                        \
        vec r;                                                                                     \
        memcpy(&r, &h, 32);                                                                        \
        memcpy((char *)&r + 32, &h, 32);                                                           \
        return r;                                                                                  \
    }                                                                                              \
    IN_C vec c_loadu_##ps(const void *p)                                                           \
    {                                                                                              \
        vec r;                                                                                     \
        memcpy(&r, p, 64);                                                                         \
        return r;                                                                                  \
    }                                                                                              \
    IN_C void c_storeu_##ps(void *p, vec a) { memcpy(p, &a, 64); }                                 \
    IN_C vec c_load_##ps(const void *p)                                                            \
    {                                                                                              \
        c_aligned(p);                                                                              \
        return c_loadu_##ps(p);                                                                    \
    }                                                                                              \
    IN_C void c_store_##ps(void *p, vec a)                                                         \
    {                                                                                              \
        c_aligned(p);                                                                              \
        c_storeu_##ps(p, a);                                                                       \
    }                                                                                              \
    IN_C vec c_add_##ps(vec a, vec b) { return a + b; }                                            \
    IN_C vec c_sub_##ps(vec a, vec b) { return a - b; }                                            \
    IN_C vec c_mul_##ps(vec a, vec b) { return a * b; }                                            \
    IN_C vec c_div_##ps(vec a, vec b) { return a / b; }                                            \
    OF_HALVES(ps, vec, half, fmadd, (vec a, vec b, vec c),                                         \
              _mm256_fmadd_##ps(x.h[0], y.h[0], z.h[0]),                                           \
              _mm256_fmadd_##ps(x.h[1], y.h[1], z.h[1]))                                           \
    OF_HALVES(ps, vec, half, max3, (vec a, vec b, vec c), _mm256_max_##ps(x.h[0], y.h[0]),         \
              _mm256_max_##ps(x.h[1], y.h[1]))                                                     \
    OF_HALVES(ps, vec, half, min3, (vec a, vec b, vec c), _mm256_min_##ps(x.h[0], y.h[0]),         \
              _mm256_min_##ps(x.h[1], y.h[1]))                                                     \
    OF_HALVES(ps, vec, half, unpacklo3, (vec a, vec b, vec c),                                     \
              _mm256_unpacklo_##ps(x.h[0], y.h[0]), _mm256_unpacklo_##ps(x.h[1], y.h[1]))          \
    OF_HALVES(ps, vec, half, unpackhi3, (vec a, vec b, vec c),                                     \
              _mm256_unpackhi_##ps(x.h[0], y.h[0]), _mm256_unpackhi_##ps(x.h[1], y.h[1]))          \
    OF_HALVES(ps, vec, half, sqrt3, (vec a, vec b, vec c), _mm256_sqrt_##ps(x.h[0]),               \
              _mm256_sqrt_##ps(x.h[1]))                                                            \
    IN_C vec c_sqrt_##ps(vec a) { return c_sqrt3_##ps(a, a, a); }                                  \
    IN_C vec c_max_##ps(vec a, vec b) { return c_max3_##ps(a, b, b); }                             \
    IN_C vec c_min_##ps(vec a, vec b) { return c_min3_##ps(a, b, b); }                             \
    IN_C vec c_unpacklo_##ps(vec a, vec b) { return c_unpacklo3_##ps(a, b, b); }                   \
    IN_C vec c_unpackhi_##ps(vec a, vec b) { return c_unpackhi3_##ps(a, b, b); }                   \
    OUT_OF_LINE vec c_roundscale_##ps(vec a, int how)                                              \
    {                                                                                              \
        LANES(N)                                                                                   \
        a[i_] = (R)c_round(a[i_], how, whole);                                                     \
        return a;                                                                                  \
    }                                                                                              \
    OUT_OF_LINE vec c_scalef_##ps(vec a, vec b)                                                    \
    {                                                                                              \
        LANES(N)                                                                                   \
        a[i_] = c_scale_##ps(a[i_], b[i_]);                                                        \
        return a;                                                                                  \
    }                                                                                              \
    IN_C mask c_cmp_##ps##_mask(vec a, vec b, int how)                                             \
    {                                                                                              \
        half h[2], g[2];                                                                           \
        memcpy(h, &a, 64), memcpy(g, &b, 64);                                                      \
        unsigned r = 0;                                                                            \
        for (int i = 0; i < 2; i++) {                                                              \
            half x;                                                                                \
            switch (how) {                                                                         \
            case _CMP_EQ_OQ: x = _mm256_cmp_##ps(h[i], g[i], _CMP_EQ_OQ); break;                   \
            case _CMP_LT_OQ: x = _mm256_cmp_##ps(h[i], g[i], _CMP_LT_OQ); break;                   \
            case _CMP_GT_OQ: x = _mm256_cmp_##ps(h[i], g[i], _CMP_GT_OQ); break;                   \
            case _CMP_NEQ_UQ: x = _mm256_cmp_##ps(h[i], g[i], _CMP_NEQ_UQ); break;                 \
            case _CMP_UNORD_Q: x = _mm256_cmp_##ps(h[i], g[i], _CMP_UNORD_Q); break;               \
            default: abort();                                                                      \
            }                                                                                      \
            r |= (unsigned)_mm256_movemask_##ps(x) << (N / 2 * i);                                 \
        }                                                                                          \
        return (mask)r;                                                                            \
    }                                                                                              \
    OUT_OF_LINE vec c_mask_blend_##ps(mask m, vec a, vec b)                                        \
    {                                                                                              \
        LANES(N)                                                                                   \
        b[i_] = m >> i_ & 1 ? b[i_] : a[i_];                                                       \
        return b;                                                                                  \
    }

OF_TYPE(ps, __m512, __m256, float, 16, __mmask16, 0x1p23)
OF_TYPE(pd, __m512d, __m256d, double, 8, __mmask8, 0x1p52)

/* ---------------------------------------------------------------------------------- of float alone
 */

IN_C __m512 c_setzero_ps(void) { return c_set1_ps(0); }
IN_C float c_cvtss_f32(__m512 a) { return a[0]; }
IN_C __m512 c_abs_ps(__m512 a) { return (__m512)((c_u32)a & 0x7fffffffu); }
IN_C __m512 c_mask_mov_ps(__m512 a, __mmask16 m, __m512 b) { return c_mask_blend_ps(m, a, b); }
IN_C __m512 c_maskz_mov_ps(__mmask16 m, __m512 a) { return c_mask_blend_ps(m, c_setzero_ps(), a); }
IN_C __m512 c_maskz_mul_ps(__mmask16 m, __m512 a, __m512 b) { return c_maskz_mov_ps(m, a * b); }
IN_C __m512 c_maskz_div_ps(__mmask16 m, __m512 a, __m512 b) { return c_maskz_mov_ps(m, a / b); }
IN_C __mmask16 c_mask_cmp_ps_mask(__mmask16 m, __m512 a, __m512 b, int how)
{
    return m & c_cmp_ps_mask(a, b, how);
}
OUT_OF_LINE void c_mask_storeu_ps(void *p, __mmask16 m, __m512 a)
{
    LANES(16)
    if (m >> i_ & 1)
        memcpy((char *)p + 4 * i_, (const char *)&a + 4 * i_, 4);
}
IN_C void c_mask_store_ps(void *p, __mmask16 m, __m512 a)
{
    c_aligned(p);
    c_mask_storeu_ps(p, m, a);
}
/* NaN 0x01 and 0x80, +inf 0x08, -inf 0x10 */
OUT_OF_LINE __mmask16 c_fpclass_ps_mask(__m512 a, int which)
{
    unsigned r = 0;
    LANES(16)
    r |= (unsigned)(((which & 0x81) == 0x81 && isnan(a[i_])) ||
                    (which & 0x08 && a[i_] == INFINITY) || (which & 0x10 && a[i_] == -INFINITY))
         << i_;
    return (__mmask16)r;
}
IN_C float c_reduce_add_ps(__m512 a)
{
    for (int n = 8; n; n /= 2)
        LANES(n)
    a[i_] += a[i_ + n];
    return a[0];
}
IN_C float c_reduce_max_ps(__m512 a)
{
    for (int n = 8; n; n /= 2)
        LANES(n)
    a[i_] = a[i_] > a[i_ + n] ? a[i_] : a[i_ + n];
    return a[0];
}

/* ------------------------------------------------------------------------------- lanes change
 * place */

OUT_OF_LINE __m512 c_permutex2var_ps(__m512 a, __m512i at, __m512 b)
{
    __m512 r;
    LANES(16)
    {
        const unsigned n = ((c_u32)at)[i_] & 31;
        r[i_] = n < 16 ? a[n] : b[n - 16];
    }
    return r;
}
IN_C __m512 c_permutexvar_ps(__m512i at, __m512 a)
{
    return c_permutex2var_ps(a, (__m512i)((c_u32)at & 15), a);
}
OUT_OF_LINE __m512i c_permutex2var_epi16(__m512i a, __m512i at, __m512i b)
{
    c_16 r;
    LANES(32)
    {
        const unsigned n = ((c_16)at)[i_] & 63;
        r[i_] = n < 32 ? ((c_16)a)[n] : ((c_16)b)[n - 32];
    }
    return (__m512i)r;
}
/* Of each 128 bits: the lower or upper half of a and of b, in turn. */
#define UNPACK(name, vec, as, n, from)                                                             \
    IN_C vec c_##name(vec a, vec b)                                                                \
    {                                                                                              \
        as r;                                                                                      \
        LANES(4 * (n))                                                                             \
        r[i_] = ((as)(i_ % 2 ? b : a))[i_ / (n) * (n) + (from) + i_ % (n) / 2];                    \
        return (vec)r;                                                                             \
    }
UNPACK(unpacklo_epi16, __m512i, c_16, 8, 0)
UNPACK(unpackhi_epi16, __m512i, c_16, 8, 4)
/* `how` is a constant */
#define c_shuffle_ps(a, b, how)                                                                    \
    ({                                                                                             \
        const __m512 a_ = (a), b_ = (b);                                                           \
        __m256 h_[2], g_[2];                                                                       \
        memcpy(h_, &a_, 64), memcpy(g_, &b_, 64);                                                  \
        h_[0] = _mm256_shuffle_ps(h_[0], g_[0], how);                                              \
        h_[1] = _mm256_shuffle_ps(h_[1], g_[1], how);                                              \
        c_loadu_ps(h_);                                                                            \
    })
/* 128 bits at a time */
IN_C c_u64 c_quarters(c_u64 a, c_u64 b, int how)
{
    c_u64 r;
    for (int i = 0; i < 4; i++)
        memcpy((char *)&r + 16 * i, (const char *)(i < 2 ? &a : &b) + 16 * (how >> 2 * i & 3), 16);
    return r;
}
IN_C __m512 c_shuffle_f32x4(__m512 a, __m512 b, int how)
{
    return (__m512)c_quarters((c_u64)a, (c_u64)b, how);
}
IN_C __m512d c_shuffle_f64x2(__m512d a, __m512d b, int how)
{
    return (__m512d)c_quarters((c_u64)a, (c_u64)b, how);
}
IN_C __m512 c_insertf32x4(__m512 a, __m128 b, int at)
{
    memcpy((char *)&a + 16 * at, &b, 16);
    return a;
}
IN_C __m512 c_castps128_ps512(__m128 b) { return c_insertf32x4(c_set1_ps(NAN), b, 0); }
IN_C __m512i c_inserti64x4(__m512i a, __m256i b, int at)
{
    memcpy((char *)&a + 32 * at, &b, 32);
    return a;
}

/* --------------------------------------------------------------------------------------- integers
 */

IN_C __m512i c_set1_epi32(int x)
{
    float same;
    memcpy(&same, &x, 4);
    return (__m512i)c_set1_ps(same);
}
IN_C __m512i c_set1_epi16(short x) { return c_set1_epi32((int)((uint32_t)(uint16_t)x * 0x10001u)); }
IN_C __m512i c_setzero_si512(void) { return c_set1_epi32(0); }
IN_C __m512i c_castsi256_si512(__m256i b) { return c_inserti64x4(c_set1_epi32(-1), b, 0); }
IN_C __m512i c_loadu_si512(const void *p) { return (__m512i)c_loadu_ps(p); }
IN_C __m512i c_load_si512(const void *p) { return (__m512i)c_load_ps(p); }
IN_C void c_store_si512(void *p, __m512i a) { c_store_ps(p, (__m512)a); }
IN_C __m512i c_and_si512(__m512i a, __m512i b) { return a & b; }
IN_C __m512i c_or_si512(__m512i a, __m512i b) { return a | b; }
IN_C __m512i c_add_epi32(__m512i a, __m512i b) { return (__m512i)((c_u32)a + (c_u32)b); }
IN_C __m512i c_add_epi16(__m512i a, __m512i b) { return (__m512i)((c_16)a + (c_16)b); }
IN_C __m512i c_slli_epi32(__m512i a, int n) { return (__m512i)((c_u32)a << n); }
IN_C __m512i c_srli_epi32(__m512i a, int n) { return (__m512i)((c_u32)a >> n); }
IN_C __m512i c_mul_epu32(__m512i a, __m512i b)
{
    return (__m512i)(((c_u64)a & 0xffffffffu) * ((c_u64)b & 0xffffffffu));
}
IN_C __m512i c_max_epu16(__m512i a, __m512i b)
{
    c_16 r = (c_16)b;
    LANES(32)
    r[i_] = ((c_16)a)[i_] > r[i_] ? ((c_16)a)[i_] : r[i_];
    return (__m512i)r;
}
IN_C __m512i c_max_epi32(__m512i a, __m512i b)
{
    c_32 r = (c_32)b;
    LANES(16)
    r[i_] = ((c_32)a)[i_] > r[i_] ? ((c_32)a)[i_] : r[i_];
    return (__m512i)r;
}
IN_C int c_reduce_max_epi32(__m512i a)
{
    int r = ((c_32)a)[0];
    LANES(16)
    r = ((c_32)a)[i_] > r ? ((c_32)a)[i_] : r;
    return r;
}
/* bit n of `table` is the result where the bits of a, b and c are those of n */
IN_C __m512i c_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table)
{
    __m512i r = c_setzero_si512();
    for (int n = 0; n < 8; n++)
        if (table >> n & 1)
            r |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
    return r;
}
OUT_OF_LINE __mmask64 c_test_epi8_mask(__m512i a, __m512i b)
{
    const __m512i both = a & b;
    uint64_t r = 0;
    LANES(64)
    r |= (uint64_t)(((const unsigned char *)&both)[i_] != 0) << i_;
    return r;
}
IN_C __m512i c_mask_mov_epi32(__m512i a, __mmask16 m, __m512i b)
{
    return (__m512i)c_mask_blend_ps(m, (__m512)a, (__m512)b);
}
IN_C __m512i c_maskz_mov_epi32(__mmask16 m, __m512i a)
{
    return c_mask_mov_epi32((__m512i)(c_32){0}, m, a);
}
IN_C __mmask16 c_cmpneq_epi32_mask(__m512i a, __m512i b)
{
    __mmask16 differ = 0;
    for (int i = 0; i < 16; i++)
        differ |= (__mmask16)((((c_32)a)[i] != ((c_32)b)[i]) << i);
    return differ;
}
IN_C __mmask32 c_cmpeq_epi16_mask(__m512i a, __m512i b)
{
    __mmask32 equal = 0;
    LANES(32)
    equal |= (__mmask32)(((c_16)a)[i_] == ((c_16)b)[i_]) << i_;
    return equal;
}
IN_C __m512i c_maskz_mov_epi16(__mmask32 m, __m512i a)
{
    c_16 r;
    LANES(32)
    r[i_] = m >> i_ & 1 ? ((c_16)a)[i_] : 0;
    return (__m512i)r;
}
OUT_OF_LINE __m512 c_maskz_loadu_ps(__mmask16 m, const void *p)
{
    __m512 r = {0};
    LANES(16)
    if (m >> i_ & 1)
        memcpy((char *)&r + 4 * i_, (const char *)p + 4 * i_, 4);
    return r;
}
OUT_OF_LINE __m512d c_maskz_loadu_pd(__mmask8 m, const void *p)
{
    __m512d r = {0};
    LANES(8)
    if (m >> i_ & 1)
        memcpy((char *)&r + 8 * i_, (const char *)p + 8 * i_, 8);
    return r;
}
OUT_OF_LINE __m512i c_maskz_loadu_epi16(__mmask32 m, const void *p)
{
    __m512i r = c_setzero_si512();
    LANES(32)
    if (m >> i_ & 1)
        memcpy((char *)&r + 2 * i_, (const char *)p + 2 * i_, 2);
    return r;
}
OUT_OF_LINE __m256i c_half_maskz_loadu_epi16(__mmask16 m, const void *p)
{
    __m256i r = {0};
    LANES(16)
    if (m >> i_ & 1)
        memcpy((char *)&r + 2 * i_, (const char *)p + 2 * i_, 2);
    return r;
}
OUT_OF_LINE void c_half_mask_storeu_epi16(void *p, __mmask16 m, __m256i a)
{
    LANES(16)
    if (m >> i_ & 1)
        memcpy((char *)p + 2 * i_, (const char *)&a + 2 * i_, 2);
}

/* ------------------------------------------------------------------------------------ conversions
 */

OUT_OF_LINE __m512 c_cvtepi32_ps(__m512i a)
{
    __m512 r;
    LANES(16)
    r[i_] = (float)((c_32)a)[i_];
    return r;
}
OUT_OF_LINE __m512i c_cvtepi8_epi32(__m128i a)
{
    c_32 r;
    LANES(16)
    r[i_] = ((const signed char *)&a)[i_];
    return (__m512i)r;
}
OUT_OF_LINE __m512i c_cvtps_epi32(__m512 a) /* to nearest even */
{
    c_32 r;
    LANES(16)
    r[i_] = (int32_t)lrintf(a[i_]);
    return (__m512i)r;
}
OUT_OF_LINE __m128i c_cvtepi32_epi8(__m512i a)
{
    __m128i r;
    LANES(16)
    ((char *)&r)[i_] = (char)((c_32)a)[i_];
    return r;
}
OUT_OF_LINE __m256i c_cvtpd_epi32(__m512d a) /* to nearest even */
{
    int32_t lane[8];
    __m256i r;
    LANES(8)
    lane[i_] = (int32_t)lrint(a[i_]);
    memcpy(&r, lane, sizeof r);
    return r;
}
OUT_OF_LINE __m128i c_half_cvtepi32_epi8(__m256i a)
{
    __m128i r = {0};
    LANES(8)
    ((char *)&r)[i_] = (char)((const int32_t *)&a)[i_];
    return r;
}
OUT_OF_LINE __m512i c_cvtepu16_epi32(__m256i a)
{
    c_u32 r;
    LANES(16)
    r[i_] = ((c_half)a)[i_];
    return (__m512i)r;
}
OUT_OF_LINE __m256i c_cvtepi32_epi16(__m512i a)
{
    c_half r;
    LANES(16)
    r[i_] = (uint16_t)((c_u32)a)[i_];
    return (__m256i)r;
}
IN_C __m512d c_cvtps_pd(__m256 a) { return __builtin_convertvector(a, __m512d); }
IN_C __m256 c_cvtpd_ps(__m512d a) { return __builtin_convertvector(a, __m256); }
IN_C __m512 c_cvtph_ps(__m256i a)
{
    const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(a));
    const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1));
    __m512 r;
    memcpy(&r, &low, 32);
    memcpy((char *)&r + 32, &high, 32);
    return r;
}
IN_C __m256i c_cvtps_ph(__m512 a) /* to nearest even */
{
    __m256 half[2];
    memcpy(half, &a, 64);
    const __m128i low = _mm256_cvtps_ph(half[0], _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(half[1], _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

#include "names.h"
#endif
