/* Powers of two of a vector: the one exponential for all weights that are not rounded to bf16.
 * Included after the vector operations and UNROLL. */
#ifndef ATTNI_EXP2_H
#define ATTNI_EXP2_H

#if ATTNI_BITS == 32
#define R_LOWEST -0x1.fffffep127f /* stands in for -inf, where x - n must not be NaN */
#else
#define R_LOWEST -0x1.fffffffffffffp1023
#endif

/* (2^f - 1) / f for |f| <= 1/2: a minimax polynomial. With its rounded coefficients, the relative
 * error of 2^f is 3e-9 (degree 6 in all) and 3.4e-18 (degree 11), far below the rounding of R. */
V_INLINE vec exp2m1_ratio(vec f)
{
#if ATTNI_BITS == 32
    static const R c[] = {0x1.417888p-13f, 0x1.5f094ap-10f, 0x1.3b2dd4p-7f,
                          0x1.c6af7ap-5f,  0x1.ebfbdcp-3f,  0x1.62e430p-1f};
#else
    static const R c[] = {4.4347374555651770564e-10,  7.0737860747722372986e-9,
                          1.0178199819313554992e-7,   1.321543526396640684e-6,
                          0.000015252733492459914873, 0.00015403530457154023597,
                          0.001333355814677542402,    0.0096181291075940809329,
                          0.055504108664820079175,    0.24022650695910131382,
                          0.69314718055994532586};
#endif
    vec p = v_set1(c[0]);
    UNROLL for (int i = 1; i < (int)(sizeof c / sizeof *c); i++) p = v_fma(p, f, v_set1(c[i]));
    return p;
}

/* 2^(x - m) for an integer m. x is split exactly into n + f before the subtraction, so that m
 * changes only the exponent of the result, never its fraction bits. */
V_INLINE vec exp2_minus(vec x, vec m)
{
    const vec n = v_round(x), f = v_sub(x, n);
    return v_scale2(v_fma(exp2m1_ratio(f), f, v_set1(1)), v_sub(n, m));
}

/* A weight of the backward pass from score s: weights_from_lse() of kernel.h, without the case of
 * masked scores. */
V_INLINE vec recalled(vec s, vec lse, vec c)
{
    const vec most = v_set1(16);
    const vec x = v_max(v_set1(R_LOWEST), v_mul(v_sub(s, lse), c));
    return exp2_minus(v_select(v_lt(most, x), most, x), v_set1(0));
}

#endif
