/* Random calls of attn_sdpa_backward, for the checks of one call (check_backward.c) and of keys in
 * pieces (check_pieces_backward.c). */
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

#endif
