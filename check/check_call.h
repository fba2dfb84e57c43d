/* A whole call of attn_sdpa_forward with random options, contents and layouts, and its judgement
 * against the definition. check_sdpa.c runs such calls; tests of other promises build on them. */
#ifndef CHECK_CALL_H
#define CHECK_CALL_H

#include "../ref/attn_ref.h"
#include "check_tensor.h"

#define CHECK_MAX_BATCH 4
#define CHECK_MAX_HEADS 16
#define CHECK_MAX_SEQUENCES 6

typedef struct check_call {
    attn_sdpa_args args; /* points into what follows: a check_call stays where it was filled */
    check_tensor q, k, v, out, mask, lse, scores;
    int64_t key_lengths[CHECK_MAX_BATCH];
    int64_t cu_q[CHECK_MAX_SEQUENCES + 1], cu_k[CHECK_MAX_SEQUENCES + 1];
    float slopes[CHECK_MAX_HEADS], sinks[CHECK_MAX_HEADS];
    attn_dtype compute; /* the type that products and sums are in */
    bool outliers;      /* a few of q, k and v are a hundred times larger */
    int threads;        /* 1 or 3 */
} check_call;

/* Fills the call from the case's random numbers, and says it in c->what. `work` bounds
 * B * H * T * S * (D + Dv). */
void check_call_random(check_case *c, check_call *call, double work);

/* What it should give, with what its rounding errors are measured by; arrays are freed after the
 * case. */
void check_call_reference(check_case *c, const check_call *call, ref_result *want);

/* Compares out, lse and scores with the reference, within the bound of docs/NUMERICS.md. */
void check_call_judge(check_case *c, const check_call *call, const ref_result *want);

#endif
