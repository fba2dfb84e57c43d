/* For tests of the bitwise contract: a call's results in one array each, runs of the same call in
 * other circumstances, and views of some of its batch, heads and rows. */
#ifndef CONTRACT_H
#define CONTRACT_H

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/check_call.h"
#include "support/property.h"
#include "support/soiled.h"

#define WORK 4e5

/* All but the contexts of one thread have soiled memory. */
static const int thread_counts[] = {1, 2, 3, 7};
static attn_context *contexts[CHECK_MAX_ISAS][4];

static inline int create_contexts(void **state)
{
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int t = 0; t < 4 && attn_isa(isa).usable; t++) {
            attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
            options.isa = attn_isa(isa).name;
            options.threads = thread_counts[t];
            if (options.threads > 1)
                options.allocate = soiled, options.release = clean;
            if (attn_context_create(&options, &contexts[isa][t], NULL) != ATTN_OK)
                return -1;
        }
    return 0;
}

static inline int destroy_contexts(void **state)
{
    (void)state;
    for (int isa = 0; isa < CHECK_MAX_ISAS; isa++)
        for (int t = 0; t < 4; t++)
            attn_context_destroy(contexts[isa][t]);
    return 0;
}

static inline attn_context *context_of(const check_case *c, int threads)
{
    return contexts[c->isa][threads == 1 ? 0 : threads == 2 ? 1 : threads == 3 ? 2 : 3];
}

/* The results of a call, element by element. `scores` is NULL where they were not asked for. */
typedef struct results {
    double *out, *lse, *scores;
    int64_t outs, rows;
    int64_t H, T, S, Dv;
} results;

static inline int64_t rows_of(const attn_sdpa_args *a)
{
    return a->q.shape[0] * a->q.shape[1] * a->q.shape[2];
}

/* Whether run() asks for scores as well: of a stage and type that the case's seed chooses. */
static bool with_scores;

static inline check_tensor ask_for_scores(check_case *c, attn_sdpa_args *a, check_layout layout)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_F32, ATTN_F64, ATTN_F16};
    const int64_t shape[4] = {a->q.shape[0], a->q.shape[1], a->q.shape[2], a->k.shape[2]};
    a->scores_stage = (attn_stage)(c->seed & 3);
    return check_tensor_new(c, types[c->seed >> 2 & 3], shape, layout);
}

/* Runs `args` with new outputs of `layout`, at random addresses, in place of its own. */
static inline results run_into(check_case *c, const attn_sdpa_args *args, int threads,
                               check_layout layout)
{
    attn_sdpa_args a = *args;
    const int64_t shape[4] = {a.q.shape[0], a.q.shape[1], a.q.shape[2], 1};
    check_tensor out = check_tensor_new(c, a.out.dtype, a.out.shape, layout), scores;
    check_tensor lse = check_tensor_new(c, ATTN_F64, shape, layout);
    a.out = out.view;
    a.lse = &lse.view;
    if (with_scores)
        scores = ask_for_scores(c, &a, layout), a.scores = &scores.view;
    attn_error err = {0};
    if (attn_sdpa_forward(context_of(c, threads), &a, &err) != ATTN_OK)
        check_fail(c, "%s", err.message);
    return (results){check_tensor_copy(c, &out.view),
                     check_tensor_copy(c, &lse.view),
                     with_scores ? check_tensor_copy(c, &scores.view) : NULL,
                     check_count(&out.view),
                     rows_of(&a),
                     a.q.shape[1],
                     a.q.shape[2],
                     a.k.shape[2],
                     a.out.shape[3]};
}

static inline results run(check_case *c, const attn_sdpa_args *args, int threads)
{
    return run_into(c, args, threads, CHECK_DENSE);
}

static inline void expect_equal(check_case *c, const char *what, results got, results want)
{
    check_difference d;
    if (got.outs != want.outs || got.rows != want.rows || got.S != want.S ||
        !got.scores != !want.scores)
        check_fail(c, "%s: compared with another shape", what);
    else if (!check_same(got.out, want.out, want.outs, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: out %" PRId64 " is %.17g, want %.17g", what, d.at, d.got, d.want);
    else if (!check_same(got.lse, want.lse, want.rows, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: lse %" PRId64 " is %.17g, want %.17g", what, d.at, d.got, d.want);
    else if (want.scores &&
             !check_same(got.scores, want.scores, want.rows * want.S, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s: score %" PRId64 " of row %" PRId64 " is %.17g, want %.17g", what,
                   d.at % want.S, d.at / want.S, d.got, d.want);
}

/* B of a call's batch from b on, T of its queries from i on; H heads from h on, or all where H is
 * 0; and S of its keys from j on where `keys` is set, else all. */
typedef struct piece {
    int64_t b, B, i, T, h, H;
    bool keys;
    int64_t j, S;
} piece;

/* That piece of a result, as a result of its own. */
static inline results part(check_case *c, results all, piece p)
{
    p.H = p.H ? p.H : all.H;
    p.S = p.keys ? p.S : all.S;
    const int64_t rows = p.B * p.H * p.T;
    results r = {.outs = rows * all.Dv, .rows = rows, .H = p.H, .T = p.T, .S = p.S, .Dv = all.Dv};
    r.out = check_array(c, r.outs), r.lse = check_array(c, rows);
    r.scores = all.scores ? check_array(c, rows * p.S) : NULL;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t i = row % p.T, h = row / p.T % p.H, b = row / p.T / p.H;
        const int64_t from = ((p.b + b) * all.H + p.h + h) * all.T + p.i + i;
        r.lse[row] = all.lse[from];
        memcpy(r.out + row * all.Dv, all.out + from * all.Dv, (size_t)all.Dv * sizeof *r.out);
        if (r.scores)
            memcpy(r.scores + row * p.S, all.scores + from * all.S + p.j,
                   (size_t)p.S * sizeof *r.scores);
    }
    return r;
}

/* A view of indices first .. first+n-1 of one dimension. A size of 1 in a mask stays. */
static inline attn_tensor slice(attn_tensor t, int dimension, int64_t first, int64_t n,
                                bool broadcasts)
{
    if (broadcasts && t.shape[dimension] == 1)
        return t;
    if (t.data)
        t.data = (char *)t.data + first * t.stride[dimension] * (int64_t)attn_dtype_size(t.dtype);
    t.shape[dimension] = n;
    return t;
}

/* A random call with at least one row. NaN are welcome here too. */
static inline attn_sdpa_args *random_call(check_case *c, check_call *call)
{
    do {
        check_call_random(c, call, WORK);
    } while (rows_of(&call->args) == 0);
    call->args.lse = call->args.scores = NULL;
    return &call->args;
}

#endif
