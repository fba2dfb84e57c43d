/* AArch64 NEON, part of every AArch64 processor, 16 bytes wide: float; isa_neon_f64.c includes this
 * file for double. isa_generic.c says what each operation means. */
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME neon

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a plain cc must not fuse separate operations */
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <arm_neon.h>
#include <math.h>
#include <stdint.h>

#define V_VECTORS 4
/* Of 32 registers. A fused multiply-add takes its factor from one lane of a register, and GCC and
 * clang load all of a step's factors before they use the first: with 24 sums (6 x 4, 4 queries, 6
 * factors) both keep some of the sums in memory, with 20 none. Sixteen are in flight at most (four
 * units, four cycles). */
#define V_ACCUMULATORS 20
#define V_INLINE static inline __attribute__((always_inline))

#if ATTNI_BITS == 32
typedef float R;
typedef float32x4_t vec;
typedef uint32x4_t vmask; /* all ones where true */
#define V_LANES 4
#define V_(op) op##_f32
#else
typedef double R;
typedef float64x2_t vec;
typedef uint64x2_t vmask;
#define V_LANES 2
#define V_(op) op##_f64
#endif
typedef R R_any __attribute__((aligned(1), may_alias));
typedef vec vec_any __attribute__((aligned(1), may_alias)); /* the load is one ldr all the same */

V_INLINE vec v_set1(R x) { return V_(vdupq_n)(x); }
V_INLINE vec v_bcast(const R_any *p) { return V_(vdupq_n)(*p); }
V_INLINE vec v_load(const R *p) { return V_(vld1q)(p); }
V_INLINE void v_store(R *p, vec a) { V_(vst1q)(p, a); }
V_INLINE vec v_loadu(const R_any *p) { return *(const vec_any *)p; }
V_INLINE vec v_load_first(const R_any *p, int n)
{
    vec x = v_set1(0);
    for (int i = 0; i < n; i++)
        x[i] = p[i];
    return x;
}
V_INLINE void v_storeu(R_any *p, vec a) { *(vec_any *)p = a; }
V_INLINE vec v_add(vec a, vec b) { return V_(vaddq)(a, b); }
V_INLINE vec v_sub(vec a, vec b) { return V_(vsubq)(a, b); }
V_INLINE vec v_mul(vec a, vec b) { return V_(vmulq)(a, b); }
V_INLINE vec v_div(vec a, vec b) { return V_(vdivq)(a, b); }
V_INLINE vec v_sqrt(vec a) { return V_(vsqrtq)(a); }
V_INLINE vec v_fma(vec a, vec b, vec c) { return V_(vfmaq)(c, a, b); }

V_INLINE vmask v_lt(vec a, vec b) { return V_(vcltq)(a, b); }
V_INLINE vmask v_eq(vec a, vec b) { return V_(vceqq)(a, b); }
V_INLINE vec v_select(vmask m, vec a, vec b) { return V_(vbslq)(m, a, b); }
V_INLINE int v_any(vmask m)
{
#if ATTNI_BITS == 32
    return vmaxvq_u32(m) != 0;
#else
    return vmaxvq_u32(vreinterpretq_u32_u64(m)) != 0;
#endif
}

/* Not fmax or fmaxnm, which choose otherwise where one side is NaN. */
V_INLINE vec v_max(vec a, vec b) { return V_(vbslq)(V_(vcgtq)(a, b), a, b); }
V_INLINE vec v_min(vec a, vec b) { return V_(vbslq)(V_(vcltq)(a, b), a, b); }
#if ATTNI_BITS == 32
typedef float64x2_t v_wide;
V_INLINE v_wide v_wide_fma(v_wide a, v_wide b, v_wide c) { return vfmaq_f64(c, a, b); }
typedef float32x2_t halves_of_vec __attribute__((aligned(1), may_alias));
V_INLINE v_wide v_wide_load(const R_any *p) { return vcvt_f64_f32(*(const halves_of_vec *)p); }
V_INLINE v_wide v_wide_max(v_wide a, v_wide b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
V_INLINE float v_largest(vec a) { return vmaxvq_f32(a); }
V_INLINE void v_to_i8(int8_t *p, vec a)
{
    for (int i = 0; i < V_LANES; i++)
        p[i] = (int8_t)a[i];
}
V_INLINE void v_wide_to_i8(int8_t *p, v_wide a)
{
    const double magic = 0x1.8p52; /* adding it rounds to an integer */
    for (int i = 0; i < V_LANES / 2; i++)
        p[i] = (int8_t)((a[i] + magic) - magic);
}
#endif
V_INLINE vec v_round(vec a) { return V_(vrndnq)(a); }
V_INLINE vec v_ceil(vec a) { return V_(vrndpq)(a); }

V_INLINE vec v_scale2(vec p, vec k)
{
    /* 1.5 * 2^23 (2^52) + bias + k has k's biased exponent in its lowest bits: one addition instead
     * of a conversion to an integer and an addition there. fmaxnm takes the number beside a NaN. */
#if ATTNI_BITS == 32
    k = vminq_f32(vmaxnmq_f32(k, v_set1(-127)), v_set1(127)); /* 2^-127: its bits are those of 0 */
    const uint32x4_t n = vreinterpretq_u32_f32(v_add(k, v_set1(12582912.0f + 127)));
    return v_mul(p, vreinterpretq_f32_u32(vshlq_n_u32(n, 23)));
#else
    k = vminq_f64(vmaxnmq_f64(k, v_set1(-1023)), v_set1(1023));
    const uint64x2_t n = vreinterpretq_u64_f64(v_add(k, v_set1(6755399441055744.0 + 1023)));
    return v_mul(p, vreinterpretq_f64_u64(vshlq_n_u64(n, 52)));
#endif
}

V_INLINE vec v_iota(void)
{
#if ATTNI_BITS == 32
    return (vec){0, 1, 2, 3};
#else
    return (vec){0, 1};
#endif
}

#if ATTNI_BITS == 32
#define V_HALVES
typedef uint16x4_t halves_any __attribute__((aligned(1), may_alias));
V_INLINE vec v_from_f16(const void *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(*(const halves_any *)p));
}
V_INLINE vec v_from_bf16(const void *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(*(const halves_any *)p, 16));
}
V_INLINE vec v_from_i8(const void *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
#include "vec/bf16.h"
V_INLINE vec v_low_f16(vec a)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_f32(a))));
}
V_INLINE vec v_high_f16(vec a)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(vreinterpretq_u32_f32(a), 16)));
}
V_INLINE void v_to_f16(void *p, vec a) { *(halves_any *)p = vreinterpret_u16_f16(vcvt_f16_f32(a)); }
V_INLINE void v_to_bf16(void *p, vec a) { *(halves_any *)p = vmovn_u32(v_bits_bf16(a)); }
#endif

typedef uint64_t v_u64 __attribute__((vector_size(16)));
#define V_U64_LANES 2
V_INLINE v_u64 v_mul_u32(v_u64 a, v_u64 b)
{
    return (v_u64)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
}

V_INLINE void v_transpose(vec r[V_LANES])
{
#if ATTNI_BITS == 32
    /* pairs of rows, then pairs of pairs: a[0] holds columns 0 and 2 of rows 0 and 1 */
    const float64x2_t a[4] = {vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])),
                              vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1])),
                              vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])),
                              vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]))};
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a[0], a[2]));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(a[1], a[3]));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a[0], a[2]));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(a[1], a[3]));
#else
    const vec a = r[0];
    r[0] = vtrn1q_f64(a, r[1]);
    r[1] = vtrn2q_f64(a, r[1]);
#endif
}

#undef V_

#include "tile.inc.h"
#endif
