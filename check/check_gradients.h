/* Random calls of attn_sdpa_backward, for the checks of one call (check_backward.c), of keys in
 * pieces (check_pieces_backward.c) and of parts of the rows (check_parts_backward.c). */
#ifndef CHECK_GRADIENTS_H
#define CHECK_GRADIENTS_H

#include "check_call.h"

/* A call, its gradients, and room for the expected gradients. It points into itself. */
typedef struct check_gradients {
    check_call call; /* of the forward */
    attn_sdpa_grads grads;
    check_tensor dout, dlse, dq, dk, dv, dmask;
    double dalibi[CHECK_MAX_HEADS], dsink[CHECK_MAX_HEADS];
    ref_grads want;
} check_gradients;

/* check_backward.c. Chooses dout, dlse and which gradients are computed, for g->call. */
void check_gradients_choose(check_case *c, check_gradients *g);
/* Computes the expected gradients and their bounds. */
void check_gradients_reference(check_case *c, check_gradients *g);
/* Compares a tensor, or an array of H numbers, with the expected gradient, which may be NULL. */
void check_gradients_judge(check_case *c, const check_gradients *g, const char *name,
                           const check_tensor *t, const ref_grad *want);
void check_gradients_judge_heads(check_case *c, const char *name, const double *got,
                                 const ref_grad *want, int64_t H);

/* check_pieces_backward.c. The elements of all gradients; NULL if one is not wanted. */
typedef struct check_results {
    double *dq, *dk, *dv, *dmask, *dalibi, *dsink;
} check_results;
/* A gradient that is not wanted has no sizes; a wanted one may have no elements. */
bool check_gradients_want(const check_tensor *t);
/* What a call leaves in memory. If it is in pieces, then dk and dv are arrays of zeros, because
 * they lie in the pieces. */
check_results check_gradients_results(check_case *c, const check_gradients *g, bool in_pieces);
/* Adds dq, dk and dv to the hash that the run prints. */
void check_gradients_hash(check_case *c, const attn_sdpa_args *a, const check_results *r);
/* Computes the gradients in pieces of up to `size` keys. dk and dv begin as those of `sums`, or as
 * zeros if it is NULL. */
check_results check_gradients_in_pieces(check_case *c, const check_gradients *g,
                                        const attn_pieces_options *part, const check_results *sums,
                                        int64_t size, int threads);

#endif
