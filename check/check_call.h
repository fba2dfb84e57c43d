/* A whole call of attn_sdpa_forward with random options, contents and layouts, and its comparison
 * with the definition. check_sdpa.c runs such calls; tests of other promises are based on them. */
#ifndef CHECK_CALL_H
#define CHECK_CALL_H

#include "../ref/attn_ref.h"
#include "check_tensor.h"

#define CHECK_MAX_BATCH 4
#define CHECK_MAX_HEADS 16
#define CHECK_MAX_SEQUENCES 6

typedef struct check_call {
    attn_sdpa_args args; /* points into the members below, so a check_call must not be moved */
    check_tensor q, k, v, out, mask, lse, scores;
    int64_t key_lengths[CHECK_MAX_BATCH];
    int64_t cu_q[CHECK_MAX_SEQUENCES + 1], cu_k[CHECK_MAX_SEQUENCES + 1];
    float slopes[CHECK_MAX_HEADS], sinks[CHECK_MAX_HEADS];
    attn_dtype compute; /* the type of products and sums */
    bool outliers;      /* a few elements of q, k and v are a hundred times larger */
    int threads;        /* 1 or 3 */
} check_call;

/* Fills the call from the case's random numbers, and describes it in c->what. `work` bounds B * H *
 * T * S * (D + Dv). */
void check_call_random(check_case *c, check_call *call, double work);
/* The same with more queries and keys: T from 31, S from 97, both up to 1100. For tests that need
 * several tiles, chunks and sequences, but no reference. */
void check_call_random_long(check_case *c, check_call *call, double work);

/* Computes the expected results, and the values that bound their rounding errors. The arrays are
 * freed after the case. */
void check_call_reference(check_case *c, const check_call *call, ref_result *want);

/* For calls with their own tensors. check_call_fill fills t with normal numbers times scale.
 * check_call_say appends a word to the description. check_call_judge_one compares t with `want`;
 * its bound is the error of the arithmetic, and if t's storage type is narrower, the rounding to
 * it is added. */
void check_call_fill(check_case *c, check_tensor *t, double scale);
/* Keys first .. first+n-1 of t as a tensor of its own, dense or with gaps. */
check_tensor check_cut_keys(check_case *c, const attn_tensor *t, int64_t first, int64_t n);
/* Rows `positions` of heads h0 .. h0+H-1 of t, as a tensor of its own. If `repeats`, a size of 1
 * stays 1. */
check_tensor check_take_rows(check_case *c, const attn_tensor *t, int64_t h0, int64_t H,
                             const int64_t *positions, int64_t n, bool repeats);
void check_forget(const attn_tensor *t); /* fills t with 77 */
/* Heads h0 .. h0+n-1 of t, in its memory. */
attn_tensor check_heads_of(const attn_tensor *t, int64_t h0, int64_t n);
void check_call_say(check_case *c, const char *word);
void check_call_judge_one(check_case *c, const char *name, const check_call *call,
                          const check_tensor *t, const double *want, double *bound);

/* How many units more than the bound's 8 the contents of this call may cost; and the relative error
 * of a weight before it is multiplied, in addition to rounding. */
double check_call_extra_units(const check_call *call);
double check_call_weight_error(const check_case *c, const check_call *call);

/* Compares out, lse and scores with the reference, within the bound of docs/NUMERICS.md. */
void check_call_judge(check_case *c, const check_call *call, const ref_result *want);

#endif
