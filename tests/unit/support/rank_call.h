/* A causal call of 1100 tokens on ranks that are threads, each with its own arguments, which a test
 * may change before run(); and its backward. */
#ifndef RANK_CALL_H
#define RANK_CALL_H

#include <pthread.h>
#include <time.h>

#include "attn_mpi.h"
#include "support/argument_errors.h"
#include "support/test.h"

enum { MOST = 8, B = 1, HK = 1, H = 2, D = 8, TOKENS = 1100 };

static float q[H * TOKENS * D], k[HK * TOKENS * D], v[HK * TOKENS * D], out[H * TOKENS * D];

typedef struct rank_of_call {
    attn_comm comm;
    attn_sdpa_args args;
    attn_mpi_options options;
    attn_mpi_report report;
    attn_context *ctx;
    attn_tensor mask;
    float q[H * TOKENS * D], k[HK * TOKENS * D], v[HK * TOKENS * D], out[H * TOKENS * D];
    bool backward; /* the call is a backward; what follows is its own */
    attn_sdpa_grads grads;
    attn_tensor lse_tensor;
    float lse[H * TOKENS], dout[H * TOKENS * D];
    float dq[H * TOKENS * D], dk[HK * TOKENS * D], dv[HK * TOKENS * D];
    attn_status status;
    attn_error err;
    double seconds;
    bool absent; /* never calls */
} rank_of_call;

static rank_of_call all[MOST];
static attn_ranks *ranks;

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* P ranks with a causal call of TOKENS tokens. */
static inline void prepare(int P, int delay_us)
{
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) {
        random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
        q[i] = (float)(random_state >> 40) / (1 << 23) - 1;
        if (i < sizeof k / sizeof *k)
            k[i] = 2 * q[i], v[i] = 1 - q[i];
    }
    assert_int_equal(attn_ranks_create(P, delay_us, 5, &ranks, NULL), ATTN_OK);
    for (int r = 0; r < P; r++) {
        rank_of_call *x = &all[r];
        const int64_t n = attn_mpi_rows(TOKENS, r, P);
        memset(x, 0, sizeof *x);
        attn_ranks_comm(ranks, r, &x->comm);
        x->args = (attn_sdpa_args)ATTN_SDPA_ARGS_INIT;
        x->args.causal = ATTN_CAUSAL_TOP_LEFT;
        x->args.q = attn_bhtd(x->q, ATTN_F32, B, H, n, D);
        x->args.out = attn_bhtd(x->out, ATTN_F32, B, H, n, D);
        x->args.k = attn_bhtd(x->k, ATTN_F32, B, HK, n, D);
        x->args.v = attn_bhtd(x->v, ATTN_F32, B, HK, n, D);
        const attn_tensor whole[] = {attn_bhtd(q, ATTN_F32, B, H, TOKENS, D),
                                     attn_bhtd(k, ATTN_F32, B, HK, TOKENS, D),
                                     attn_bhtd(v, ATTN_F32, B, HK, TOKENS, D)};
        assert_int_equal(attn_mpi_take(&whole[0], r, P, &x->args.q, NULL), ATTN_OK);
        assert_int_equal(attn_mpi_take(&whole[1], r, P, &x->args.k, NULL), ATTN_OK);
        assert_int_equal(attn_mpi_take(&whole[2], r, P, &x->args.v, NULL), ATTN_OK);
        memset(x->out, 0xA5, sizeof x->out);
        x->options = (attn_mpi_options)ATTN_MPI_OPTIONS_INIT;
        x->options.T = x->options.S = TOKENS;
        x->options.segment_keys = 256;
        x->options.deadline = 60;
        x->options.report = &x->report;
    }
}

static inline void *run_rank(void *arg)
{
    rank_of_call *x = arg;
    const double start = now();
    x->status =
        x->backward
            ? attn_mpi_sdpa_backward(&x->comm, x->ctx, &x->args, &x->grads, &x->options, &x->err)
            : attn_mpi_sdpa_forward(&x->comm, x->ctx, &x->args, &x->options, &x->err);
    x->seconds = now() - start;
    return NULL;
}

static inline void run(int P)
{
    pthread_t threads[MOST];
    for (int r = 0; r < P; r++)
        if (!all[r].absent)
            assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &all[r]), 0);
    for (int r = 0; r < P; r++)
        if (!all[r].absent)
            assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static inline void end(int P)
{
    for (int r = 0; r < P; r++)
        attn_context_destroy(all[r].ctx);
    attn_ranks_destroy(ranks);
}

/* All ranks that called have the bits of one call. */
static inline void expect_one_call(int P, attn_sdpa_args one)
{
    one.q = attn_bhtd(q, ATTN_F32, B, H, TOKENS, D);
    one.k = attn_bhtd(k, ATTN_F32, B, HK, TOKENS, D);
    one.v = attn_bhtd(v, ATTN_F32, B, HK, TOKENS, D);
    one.out = attn_bhtd(out, ATTN_F32, B, H, TOKENS, D);
    assert_int_equal(attn_sdpa_forward(NULL, &one, NULL), ATTN_OK);
    static float got[H * TOKENS * D];
    const attn_tensor whole = attn_bhtd(got, ATTN_F32, B, H, TOKENS, D);
    memset(got, 0, sizeof got);
    for (int r = 0; r < P; r++) {
        if (all[r].status != ATTN_OK)
            fail_msg("rank %d: %s", r, all[r].err.message);
        assert_int_equal(attn_mpi_put(&all[r].args.out, r, P, &whole, NULL), ATTN_OK);
    }
    assert_same_array(got, out, sizeof out);
}

#endif
