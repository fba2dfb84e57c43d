/* The definition of attention as naive loops: the reference for every kernel and every test.
 *
 * It takes the engine's own arguments, so that the same call can be given to both, but it shares no
 * code with the engine. Storage types, broadcasting, visibility and dropout are implemented here a
 * second time, in the slow and obvious way. Arguments are assumed to be valid; nothing is checked.
 *
 * To extend it: a new option is one more line in the loops of attn_ref.c, under the same letter as
 * in attn.h.
 */
#ifndef ATTN_REF_H
#define ATTN_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "attn.h"

/* The results: dense arrays, any of them NULL. */
typedef struct ref_result {
    double *out;       /* [B,H,T,Dv] */
    double *lse;       /* [B,H,T] natural logarithm; -inf in a row that sees no key */
    double *stages[4]; /* [B,H,T,S] each, by attn_stage: RAW, SOFTCAP, BIASED, WEIGHTS */

    /* The quantities that bound a row's rounding errors (docs/NUMERICS.md, "The arithmetic"):
     * |out - exact| <= 8 u (1 + reach) mass, where u is half the distance from 1 to the next
     * number. reach: the largest of |scale| sum_t |q_t k_t| + |mask| + |ALiBi|, and |sink|.
     * mass: sum_j w_j |v_j|, divided by 1 - dropout. */
    double *reach; /* [B,H,T] */
    double *mass;  /* [B,H,T,Dv] */
} ref_result;

/* The same loops in three precisions: the definition in double; in float, to show what plain float
 * arithmetic gives; and in a type wider than double (if the compiler has one), to check double
 * results. False: out of memory. */
bool ref_sdpa_forward(const attn_sdpa_args *args, const ref_result *result);
bool ref_sdpa_forward_f32(const attn_sdpa_args *args, const ref_result *result);
bool ref_sdpa_forward_wide(const attn_sdpa_args *args, const ref_result *result);

/* The gradients: dense arrays, any of them NULL, each with an array of bounds of its rounding
 * errors (docs/NUMERICS.md, "Gradients"). The first members of ref_grads are the units of these
 * bounds, which the caller sets: the rounding of products and sums; the rounding of out as it is
 * stored, relative and, near 0, in steps; the rounding of lse, relative (0 where these are no
 * narrower); the relative error of the forward's weights in addition to rounding, and that of
 * weights and gradients of scores as they are multiplied for dq, dk and dv; the smallest weight
 * that does not underflow. */
typedef struct ref_grad {
    double *x, *error;
} ref_grad;

typedef struct ref_grads {
    double unit, out_unit, out_tiny, lse_unit, weight_error, factor_error, tiny;
    double dmask_unit;      /* of each sum of dmask that is kept in its own type */
    ref_grad dq, dk, dv;    /* [B,H,T,D], [B,Hk,S,D], [B,Hk,S,Dv] */
    ref_grad dmask;         /* shape of the mask */
    ref_grad dalibi, dsink; /* [H] */
} ref_grads;

/* The gradients of sum(out * dout) + sum(lse * dlse), by definition. out and lse of args are not
 * read, nor are the outputs in g. The arrays must hold zeros. */
bool ref_sdpa_backward(const attn_sdpa_args *a, const attn_sdpa_grads *g, const ref_grads *result);
bool ref_sdpa_backward_f32(const attn_sdpa_args *a, const attn_sdpa_grads *g,
                           const ref_grads *result);
bool ref_sdpa_backward_wide(const attn_sdpa_args *a, const attn_sdpa_grads *g,
                            const ref_grads *result);

/* Element [b,h,i,j] of a tensor of any storage type except I64; a dimension of size 1 is
 * repeated. */
double ref_get(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j);

/* Philox4x32-10, and the dropout that attn.h defines with it: whether weight (i, j) of row bh = b*H
 * + h is kept. */
void ref_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
bool ref_dropout_keep(uint64_t seed, double p, int64_t bh, int64_t i, int64_t j);

#endif
