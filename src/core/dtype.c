/* Storage types: sizes, names, and rows converted to and from the compute types float and double.
 *
 * Conversions are integer arithmetic and selects, without branches and without F16C, so that the
 * compiler vectorises the loops of stride 1 on every machine. Narrowing rounds to nearest even,
 * once, from every source type; a NaN stays a NaN (made quiet, its payload truncated) and never
 * becomes an infinity. Widening is exact and keeps the bits of a NaN. Rows of bool, i64 and i8 are
 * not converted: those calls do nothing.
 *
 * To add a storage type: a row in dtype.def; here, a type for its elements and four functions that
 * convert one element.
 */
#include "internal.h"

/* Elements in memory: of any alignment, and accessed whatever type the caller declared them
 * with. */
typedef double __attribute__((aligned(1), may_alias)) any_f64;
typedef float __attribute__((aligned(1), may_alias)) any_f32;
typedef uint32_t __attribute__((aligned(1), may_alias)) any_bits;
typedef uint16_t __attribute__((aligned(1), may_alias)) any_f16;
typedef uint16_t __attribute__((aligned(1), may_alias)) any_bf16;

static inline uint32_t bits_of(float x)
{
    union {
        float f;
        uint32_t u;
    } both = {.f = x};
    return both.u;
}

static inline float float_of(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } both = {.u = u};
    return both.f;
}

#define INF32 0x7f800000

/* yes ? a : b without a branch, which would keep the loops from being vectorised. */
static inline int32_t pick(bool yes, int32_t a, int32_t b) { return b ^ ((a ^ b) & -(int32_t)yes); }

/* ------------------------------------------------------------------------------ to float */

static inline float f64_to_f32(double x) { return (float)x; }

static inline float f32_to_f32(float x) { return x; }

static inline float bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }

/* binary16 has 5 exponent bits, bias 15, and 10 fraction bits; binary32 has 8, bias 127, and 23.
 * After a shift by 13 bits, the exponent of a finite number is too small by 112, that of an
 * infinity or NaN by 224. A denormal gets the exponent of 2^-14, and then 2^-14 is subtracted: this
 * is exact and has no denormal operand, so the processor's flush modes have no effect. */
static inline float f16_to_f32(uint16_t h)
{
    int32_t moved = (h & 0x7fff) << 13;
    int32_t denormal = (int32_t)bits_of(float_of((uint32_t)(moved + (113 << 23))) - 0x1p-14f);
    int32_t above = moved + pick(moved < (0x7c00 << 13), 112 << 23, 224 << 23);
    int32_t magnitude = pick(moved < (0x0400 << 13), denormal, above);
    return float_of((uint32_t)magnitude | (uint32_t)(h & 0x8000) << 16);
}

/* ---------------------------------------------------------------------------- from float */

static inline double f32_to_f64(float x) { return (double)x; }

/* Adds slightly less than half of the unit of the kept part, or exactly half if the kept part is
 * odd: this carries exactly when round-to-nearest-even rounds up. Past the largest number it
 * carries into infinity. */
static inline uint16_t f32_to_bf16(float x)
{
    uint32_t u = bits_of(x);
    int32_t rounded = (int32_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    int32_t nan = (int32_t)(u >> 16) | 0x40;
    return (uint16_t)pick((int32_t)(u & 0x7fffffff) > INF32, nan, rounded);
}

/* Below 2^-14 the result is a multiple of 2^-24, which is one ulp of the numbers in [0.5, 1): so
 * the addition of 0.5 does the rounding. */
static inline uint16_t f32_to_f16(float x)
{
    uint32_t u = bits_of(x);
    int32_t m = (int32_t)(u & 0x7fffffff);
    int32_t denormal = (int32_t)bits_of(float_of((uint32_t)m) + 0.5f) - (126 << 23);
    int32_t normal = (m - (112 << 23) + 0xfff + (m >> 13 & 1)) >> 13;
    int32_t special = pick(m > INF32, 0x7e00 | (m >> 13 & 0x3ff), 0x7c00);
    int32_t above = pick(m < (143 << 23), normal, special); /* 2^16 */
    int32_t magnitude = pick(m < (113 << 23), denormal, above);
    return (uint16_t)((uint32_t)magnitude | (u >> 16 & 0x8000));
}

/* --------------------------------------------------------------------------- from double */

static inline double f64_to_f64(double x) { return x; }

static inline double f16_to_f64(uint16_t h) { return (double)f16_to_f32(h); }

static inline double bf16_to_f64(uint16_t h) { return (double)bf16_to_f32(h); }

/* To float, rounded to odd: truncated towards 0, and the last bit is set if anything was lost.
 * Rounding the result to nearest even with at least two bits fewer gives the same as rounding x
 * itself (Boldo and Melquiond 2008); rounding the nearest float would round twice. */
static inline float to_odd(double x)
{
    float f = (float)x;
    double back = (double)f;
    bool beyond = (back < 0 ? -back : back) > (x < 0 ? -x : x);
    uint32_t u = bits_of(f) - (uint32_t)beyond;
    return float_of(u | (uint32_t)(back != x));
}

static inline uint16_t f64_to_f16(double x) { return f32_to_f16(to_odd(x)); }

static inline uint16_t f64_to_bf16(double x) { return f32_to_bf16(to_odd(x)); }

/* ---------------------------------------------------------------------------------- rows
 *
 * dst[i] = src[i], where one of the two is strided. Stride 1 has a loop of its own, which is
 * vectorised. The remainder loop is not unrolled: unrolled, it took more code than the vector loop,
 * and rows seldom have a remainder. */
#define CONVERT(to, d, from, s, ds, ss, convert)                                                   \
    do {                                                                                           \
        to *restrict out = (to *)(d);                                                              \
        const from *restrict in = (const from *)(s);                                               \
        if ((ds) == 1 && (ss) == 1)                                                                \
            _Pragma("GCC unroll 1") for (int64_t i = 0; i < n; i++) out[i] = convert(in[i]);       \
        else                                                                                       \
            _Pragma("GCC unroll 1") for (int64_t i = 0; i < n; i++) out[i * (ds)] =                \
                convert(in[i * (ss)]);                                                             \
    } while (0)

#define ATTNI_FLOAT(type, name, bytes)                                                             \
    static void load_##name##_f32(float *dst, const void *src, int64_t stride, int64_t n)          \
    {                                                                                              \
        CONVERT(any_f32, dst, any_##name, src, 1, stride, name##_to_f32);                          \
    }                                                                                              \
    static void load_##name##_f64(double *dst, const void *src, int64_t stride, int64_t n)         \
    {                                                                                              \
        CONVERT(any_f64, dst, any_##name, src, 1, stride, name##_to_f64);                          \
    }                                                                                              \
    static void store_##name##_f32(void *dst, int64_t stride, const float *src, int64_t n)         \
    {                                                                                              \
        CONVERT(any_##name, dst, any_f32, src, stride, 1, f32_to_##name);                          \
    }                                                                                              \
    static void store_##name##_f64(void *dst, int64_t stride, const double *src, int64_t n)        \
    {                                                                                              \
        CONVERT(any_##name, dst, any_f64, src, stride, 1, f64_to_##name);                          \
    }
#include "dtype.def"

static const struct {
    const char *name;
    void (*load_f32)(float *dst, const void *src, int64_t stride, int64_t n);
    void (*load_f64)(double *dst, const void *src, int64_t stride, int64_t n);
    void (*store_f32)(void *dst, int64_t stride, const float *src, int64_t n);
    void (*store_f64)(void *dst, int64_t stride, const double *src, int64_t n);
} types[] = {
#define ATTNI_FLOAT(type, name, bytes)                                                             \
    [type] = {#name, load_##name##_f32, load_##name##_f64, store_##name##_f32, store_##name##_f64},
#define ATTNI_OTHER(type, name, bytes) [type] = {#name, NULL, NULL, NULL, NULL},
#include "dtype.def"
};

static bool known(attn_dtype dtype)
{
    return (unsigned)dtype < sizeof types / sizeof types[0] && types[dtype].name;
}

size_t attn_dtype_size(attn_dtype dtype) { return attni_dtype_size(dtype); }

const char *attn_dtype_name(attn_dtype dtype)
{
    return known(dtype) ? types[dtype].name : "unknown dtype";
}

bool attni_dtype_is_float(attn_dtype dtype) { return known(dtype) && types[dtype].load_f32; }

void attni_load_row_f32(float *dst, const void *src, attn_dtype dtype, int64_t stride, int64_t n)
{
    if (attni_dtype_is_float(dtype))
        types[dtype].load_f32(dst, src, stride, n);
}

void attni_load_row_f64(double *dst, const void *src, attn_dtype dtype, int64_t stride, int64_t n)
{
    if (attni_dtype_is_float(dtype))
        types[dtype].load_f64(dst, src, stride, n);
}

void attni_store_row_f32(void *dst, attn_dtype dtype, int64_t stride, const float *src, int64_t n)
{
    if (attni_dtype_is_float(dtype))
        types[dtype].store_f32(dst, stride, src, n);
}

void attni_store_row_f64(void *dst, attn_dtype dtype, int64_t stride, const double *src, int64_t n)
{
    if (attni_dtype_is_float(dtype))
        types[dtype].store_f64(dst, stride, src, n);
}

void attni_clear_signs(void *row, attn_dtype dtype, int64_t stride, int64_t n)
{
    any_f64 *wide = row;
    any_bits *single = row;
    any_f16 *half = row;
    for (; dtype == ATTN_F64 && n > 0; n--, wide += stride)
        *wide += 0;
    for (; dtype == ATTN_F32 && n > 0; n--, single += stride)
        if (*single == 0x80000000)
            *single = 0;
    for (; n > 0; n--, half += stride)
        if (*half == 0x8000)
            *half = 0;
}
