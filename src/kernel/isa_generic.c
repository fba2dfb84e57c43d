/* Portable code, for every machine, by the compiler's vector extension, 16 bytes wide: float.
 * isa_generic_f64.c includes this file for double.
 *
 * The file of an instruction set defines the vector operations below: the same names in the same
 * order in each, for the R that ATTNI_BITS selects. Those of AVX-512 are in vec/vec_avx512.h, which
 * src/bf16/ also includes. To add a set, copy this file, set the compiler's target and replace the
 * bodies; tile.inc.h needs nothing else. This file has no fused multiply-add: v_fma rounds twice.
 */
#ifndef ATTNI_BITS
#define ATTNI_BITS 32
#endif
#define ATTNI_ISA_NAME generic

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a plain cc must not fuse separate operations */
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <math.h>
#include <stdint.h>

#if ATTNI_BITS == 32
typedef float R;
typedef int32_t v_int_element;
#define V_LANES 4
#define V_EXPONENT_BITS 23
#define V_EXPONENT_BIAS 127
#define V_ROUND_MAGIC 8388608.0f /* 2^23: from here on every number is an integer */
#else
typedef double R;
typedef int64_t v_int_element;
#define V_LANES 2
#define V_EXPONENT_BITS 52
#define V_EXPONENT_BIAS 1023
#define V_ROUND_MAGIC 4503599627370496.0 /* 2^52 */
#endif

#define V_VECTORS 2      /* widest tile, in vectors */
#define V_ACCUMULATORS 8 /* vectors of sums that a micro-kernel keeps in registers */

typedef R vec __attribute__((vector_size(16)));
typedef v_int_element vmask __attribute__((vector_size(16))); /* all ones where true */
typedef R R_any __attribute__((aligned(1), may_alias));       /* an R at any address */
typedef vec vec_any __attribute__((aligned(1), may_alias));
typedef vec vec_tile __attribute__((may_alias));

#define V_INLINE static inline __attribute__((always_inline))

V_INLINE vec v_set1(R x) { return x - (vec){0}; }
V_INLINE vec v_bcast(const R_any *p) { return v_set1(*p); }
V_INLINE vec v_load(const R *p) { return *(const vec_tile *)p; }
V_INLINE void v_store(R *p, vec a) { *(vec_tile *)p = a; }
V_INLINE vec v_loadu(const R_any *p) { return *(const vec_any *)p; }
/* The first n lanes, 0 < n <= V_LANES; the others are 0. Reads n elements and no more. */
V_INLINE vec v_load_first(const R_any *p, int n)
{
    vec x = {0};
    for (int i = 0; i < n; i++)
        x[i] = p[i];
    return x;
}
V_INLINE void v_storeu(R_any *p, vec a) { *(vec_any *)p = a; }
V_INLINE vec v_add(vec a, vec b) { return a + b; }
V_INLINE vec v_sub(vec a, vec b) { return a - b; }
V_INLINE vec v_mul(vec a, vec b) { return a * b; }
V_INLINE vec v_div(vec a, vec b) { return a / b; }
V_INLINE vec v_sqrt(vec a)
{
    for (int i = 0; i < V_LANES; i++)
        a[i] = (R)sqrt((double)a[i]); /* for a float, too, this rounds correctly */
    return a;
}
#define V_NO_FMA
V_INLINE vec v_fma(vec a, vec b, vec c) { return a * b + c; }

/* Masks. Comparisons with NaN are false. v_select(m, a, b): a where m, else b. */
V_INLINE vmask v_lt(vec a, vec b) { return a < b; }
V_INLINE vmask v_eq(vec a, vec b) { return a == b; }
V_INLINE vec v_select(vmask m, vec a, vec b) { return (vec)((m & (vmask)a) | (~m & (vmask)b)); }
V_INLINE int v_any(vmask m)
{
    v_int_element any = 0;
    for (int i = 0; i < V_LANES; i++)
        any |= m[i];
    return any != 0;
}

/* a > b ? a : b and a < b ? a : b, so b where either is NaN, as x86 has it. */
V_INLINE vec v_max(vec a, vec b) { return v_select(v_lt(b, a), a, b); }
V_INLINE vec v_min(vec a, vec b) { return v_select(v_lt(a, b), a, b); }

#if ATTNI_BITS == 32
/* Doubles, half as many as there are floats in a vec, loaded from floats: see wide.h. The operators
 * + - * work on them. */
typedef double v_wide __attribute__((vector_size(16)));
V_INLINE v_wide v_wide_fma(v_wide a, v_wide b, v_wide c) { return a * b + c; }
V_INLINE v_wide v_wide_load(const R_any *p) { return (v_wide){(double)p[0], (double)p[1]}; }
V_INLINE v_wide v_wide_max(v_wide a, v_wide b) /* as v_max */
{
    for (int i = 0; i < 2; i++)
        a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
/* The largest element; no element may be NaN. */
V_INLINE float v_largest(vec a)
{
    for (int i = 1; i < V_LANES; i++)
        a[0] = a[0] > a[i] ? a[0] : a[i];
    return a[0];
}
V_INLINE void v_to_i8(int8_t *p, vec a) /* a: integers from -127 to 127 */
{
    for (int i = 0; i < V_LANES; i++)
        p[i] = (int8_t)a[i];
}
/* Rounded to integers, ties to even; |a| < 127.5. */
V_INLINE void v_wide_to_i8(int8_t *p, v_wide a)
{
    const double magic = 0x1.8p52; /* adding it rounds to an integer */
    for (int i = 0; i < V_LANES / 2; i++)
        p[i] = (int8_t)((a[i] + magic) - magic);
}
#endif

/* To the nearest integer, ties to even. */
V_INLINE vec v_round(vec a)
{
    const vec limit = v_set1(V_ROUND_MAGIC), magic = v_select(v_lt(a, v_set1(0)), -limit, limit);
    const vmask small = v_lt(a, limit) & v_lt(-limit, a);
    return v_select(small, (a + magic) - magic, a); /* the sum is rounded to an integer */
}
V_INLINE vec v_ceil(vec a)
{
    const vec r = v_round(a);
    return v_select(v_lt(r, a), r + v_set1(1), r);
}

/* p * 2^k, k an integer; 0 (or p's NaN) for k below the smallest normal exponent. */
V_INLINE vec v_scale2(vec p, vec k)
{
    const vec low = v_set1(-V_EXPONENT_BIAS), high = v_set1(V_EXPONENT_BIAS);
    k = v_max(k, low); /* a NaN becomes `low` */
    k = v_select(v_lt(high, k), high, k);
    const vmask n = __builtin_convertvector(k, vmask) + V_EXPONENT_BIAS;
    return p * (vec)(n << V_EXPONENT_BITS);
}

V_INLINE vec v_iota(void)
{
#if V_LANES == 4
    return (vec){0, 1, 2, 3};
#else
    return (vec){0, 1};
#endif
}

/* 64-bit integers, as many as fill a vector; of the operators, only this product is not the same
 * everywhere: the low halves of each, multiplied in full. */
typedef uint64_t v_u64 __attribute__((vector_size(16)));
#define V_U64_LANES 2
V_INLINE v_u64 v_mul_u32(v_u64 a, v_u64 b)
{
    const uint64_t low = 0xffffffff;
    return (a & low) * (b & low);
}

/* r[i][j] and r[j][i] change places. */
V_INLINE void v_transpose(vec r[V_LANES])
{
    R a[V_LANES][V_LANES];
    for (int i = 0; i < V_LANES; i++)
        v_storeu(a[i], r[i]);
    for (int i = 0; i < V_LANES; i++)
        for (int j = 0; j < V_LANES; j++)
            r[i][j] = a[j][i];
}

#include "tile.inc.h"
