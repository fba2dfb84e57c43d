/* The backward of a call of rank_call.h on ranks, and one call with all tokens to compare with. */
#ifndef RANK_BACKWARD_H
#define RANK_BACKWARD_H

#include "support/rank_call.h"

static float dout[H * TOKENS * D], lse[H * TOKENS]; /* of the whole, as q, k, v and out */
static float dq[H * TOKENS * D], dk[HK * TOKENS * D], dv[HK * TOKENS * D];
static float slopes[H] = {0.5F, 0.25F};

/* The rules of `args` in one call with all tokens. */
static inline attn_sdpa_args whole_args(const attn_sdpa_args *args)
{
    static attn_tensor lse_tensor;
    attn_sdpa_args one = *args;
    one.q = attn_bhtd(q, ATTN_F32, B, H, TOKENS, D);
    one.k = attn_bhtd(k, ATTN_F32, B, HK, TOKENS, D);
    one.v = attn_bhtd(v, ATTN_F32, B, HK, TOKENS, D);
    one.out = attn_bhtd(out, ATTN_F32, B, H, TOKENS, D);
    lse_tensor = attn_bhtd(lse, ATTN_F32, B, H, TOKENS, 1);
    one.lse = &lse_tensor;
    return one;
}

static inline attn_sdpa_grads whole_grads(void)
{
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = attn_bhtd(dout, ATTN_F32, B, H, TOKENS, D);
    g.dq = attn_bhtd(dq, ATTN_F32, B, H, TOKENS, D);
    g.dk = attn_bhtd(dk, ATTN_F32, B, HK, TOKENS, D);
    g.dv = attn_bhtd(dv, ATTN_F32, B, HK, TOKENS, D);
    return g;
}

/* Turns the prepared calls into backwards: computes the forward of their rules in one call, and
 * deals its results and dout to the ranks. */
static inline void prepare_backward(int P)
{
    const attn_sdpa_args one = whole_args(&all[0].args);
    const attn_sdpa_grads g = whole_grads();
    for (size_t i = 0; i < sizeof dout / sizeof *dout; i++)
        dout[i] = q[sizeof q / sizeof *q - 1 - i];
    assert_int_equal(attn_sdpa_forward(NULL, &one, NULL), ATTN_OK);
    for (int r = 0; r < P; r++) {
        rank_of_call *x = &all[r];
        const int64_t n = x->args.q.shape[2];
        x->backward = true;
        x->lse_tensor = attn_bhtd(x->lse, ATTN_F32, B, H, n, 1);
        x->args.lse = &x->lse_tensor;
        x->grads = (attn_sdpa_grads)ATTN_SDPA_GRADS_INIT;
        x->grads.dout = attn_bhtd(x->dout, ATTN_F32, B, H, n, D);
        x->grads.dq = attn_bhtd(x->dq, ATTN_F32, B, H, n, D);
        x->grads.dk = attn_bhtd(x->dk, ATTN_F32, B, HK, n, D);
        x->grads.dv = attn_bhtd(x->dv, ATTN_F32, B, HK, n, D);
        assert_int_equal(attn_mpi_take(&one.out, r, P, &x->args.out, NULL), ATTN_OK);
        assert_int_equal(attn_mpi_take(one.lse, r, P, x->args.lse, NULL), ATTN_OK);
        assert_int_equal(attn_mpi_take(&g.dout, r, P, &x->grads.dout, NULL), ATTN_OK);
        memset(x->dq, 0xA5, sizeof x->dq);
        memset(x->dk, 0xA5, sizeof x->dk);
        memset(x->dv, 0xA5, sizeof x->dv);
    }
}

/* The gradients of all ranks, put together. */
static struct {
    float dq[H * TOKENS * D], dk[HK * TOKENS * D], dv[HK * TOKENS * D];
} got;

static inline void gather_gradients(int P)
{
    const attn_tensor whole[] = {attn_bhtd(got.dq, ATTN_F32, B, H, TOKENS, D),
                                 attn_bhtd(got.dk, ATTN_F32, B, HK, TOKENS, D),
                                 attn_bhtd(got.dv, ATTN_F32, B, HK, TOKENS, D)};
    memset(&got, 0, sizeof got);
    for (int r = 0; r < P; r++) {
        if (all[r].status != ATTN_OK)
            fail_msg("rank %d: %s", r, all[r].err.message);
        assert_int_equal(attn_mpi_put(&all[r].grads.dq, r, P, &whole[0], NULL), ATTN_OK);
        assert_int_equal(attn_mpi_put(&all[r].grads.dk, r, P, &whole[1], NULL), ATTN_OK);
        assert_int_equal(attn_mpi_put(&all[r].grads.dv, r, P, &whole[2], NULL), ATTN_OK);
    }
}

/* dq has the bits of one call. dk and dv are near those of one call; on one rank they have its
 * bits. */
static inline void expect_gradients(int P)
{
    const attn_sdpa_args one = whole_args(&all[0].args);
    const attn_sdpa_grads g = whole_grads();
    assert_int_equal(attn_sdpa_backward(NULL, &one, &g, NULL), ATTN_OK);
    gather_gradients(P);
    assert_same_array(got.dq, dq, sizeof dq);
    if (P == 1) {
        assert_same_array(got.dk, dk, sizeof dk);
        assert_same_array(got.dv, dv, sizeof dv);
    }
    for (size_t i = 0; i < sizeof dk / sizeof *dk; i++) {
        assert_near(got.dk[i], dk[i], <=, 1e-5);
        assert_near(got.dv[i], dv[i], <=, 1e-5);
    }
}

#endif
