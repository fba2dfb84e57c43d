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
/* The same with more queries and keys: T from 31, S from 97, both up to 1100. For what needs no
 * reference, and several tiles, chunks and sequences. */
void check_call_random_long(check_case *c, check_call *call, double work);

/* What it should give, with what its rounding errors are measured by; arrays are freed after the
 * case. */
void check_call_reference(check_case *c, const check_call *call, ref_result *want);

/* For calls with tensors of their own: fills t with normal numbers times scale; appends a word to
 * the description; compares t with `want`, given what its arithmetic may be off by, to which the
 * rounding to its storage type is added if that is narrower. */
void check_call_fill(check_case *c, check_tensor *t, double scale);
void check_call_say(check_case *c, const char *word);
void check_call_judge_one(check_case *c, const char *name, const check_call *call,
                          const check_tensor *t, const double *want, double *bound);

/* How many units more than the bound's 8 the contents of this call may cost; and the relative error
 * of a weight before it is multiplied, beyond rounding. */
double check_call_extra_units(const check_call *call);
double check_call_weight_error(const check_case *c, const check_call *call);

/* Compares out, lse and scores with the reference, within the bound of docs/NUMERICS.md. */
void check_call_judge(check_case *c, const check_call *call, const ref_result *want);

#endif
