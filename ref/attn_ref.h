/* The definition of attention, as naive loops: what every kernel and every test is measured
 * against.
 *
 * It takes the engine's own arguments, so that one call can be given to both, but shares no code
 * with the engine: storage types, broadcasting, visibility and dropout are written here a second
 * time, the slow and obvious way. Arguments are assumed to be valid; nothing is checked.
 *
 * To extend: a new option is one more line in attn_ref.c's loops, under the same letter as in
 * attn.h.
 */
#ifndef ATTN_REF_H
#define ATTN_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"

/* Where results go: dense arrays, any of them NULL. */
typedef struct ref_result {
    double *out;       /* [B,H,T,Dv] */
    double *lse;       /* [B,H,T]   natural logarithm; -inf in a row that sees nothing */
    double *stages[4]; /* [B,H,T,S] each, by attn_stage: RAW, SOFTCAP, BIASED, WEIGHTS */

    /* What the rounding errors of a row are in proportion to (docs/NUMERICS.md, "The arithmetic"):
     * |out - exact| <= 8 u (1 + reach) mass, u half the distance from 1 to the next number. reach:
     * the largest of |scale| sum_t |q_t k_t| + |mask| + |ALiBi|, and |sink|; mass: sum_j w_j |v_j|,
     * by 1 - dropout. */
    double *reach; /* [B,H,T] */
    double *mass;  /* [B,H,T,Dv] */
} ref_result;

/* The same loops in three precisions: the definition; what plain float arithmetic makes of it; and
 * one wider than double (where the compiler has one), to judge double results by. False: out of
 * memory. */
bool ref_sdpa_forward(const attn_sdpa_args *args, const ref_result *result);
bool ref_sdpa_forward_f32(const attn_sdpa_args *args, const ref_result *result);
bool ref_sdpa_forward_wide(const attn_sdpa_args *args, const ref_result *result);

/* Where gradients go: dense arrays, any of them NULL, and beside each what its rounding errors
 * are bounded by (docs/NUMERICS.md, "Gradients"). Those are in units of what is given here: the
 * rounding of products and sums; of out as it is stored, relative and, near 0, in steps; of lse,
 * relative (0 where they are no narrower); the relative error of the forward's weights beyond
 * rounding, and of weights and gradients of scores as dq, dk and dv multiply them; the smallest
 * weight that is not lost. */
typedef struct ref_grad {
    double *x, *error;
} ref_grad;

typedef struct ref_grads {
    double unit, out_unit, out_tiny, lse_unit, weight_error, factor_error, tiny;
    double dmask_unit;      /* of each sum of dmask that is kept in its own type */
    ref_grad dq, dk, dv;    /* [B,H,T,D], [B,Hk,S,D], [B,Hk,S,Dv] */
    ref_grad dmask;         /* of the mask's own shape */
    ref_grad dalibi, dsink; /* [H] */
} ref_grads;

/* The gradients of sum(out * dout) + sum(lse * dlse), by definition: out and lse of args are not
 * looked at, nor what g has for outputs. The arrays must hold zeros. */
bool ref_sdpa_backward(const attn_sdpa_args *a, const attn_sdpa_grads *g, const ref_grads *result);
bool ref_sdpa_backward_f32(const attn_sdpa_args *a, const attn_sdpa_grads *g,
                           const ref_grads *result);
bool ref_sdpa_backward_wide(const attn_sdpa_args *a, const attn_sdpa_grads *g,
                            const ref_grads *result);

/* Element [b,h,i,j] of a tensor of any storage type but I64; a size of 1 is repeated. */
double ref_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j);

/* Philox4x32-10 and attn.h's dropout on top: whether weight (i, j) of row bh = b*H + h is kept. */
void ref_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
bool ref_dropout_keep(uint64_t seed, double p, int64_t bh, int64_t i, int64_t j);

#endif
