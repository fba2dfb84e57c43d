/* A random backward, dealt to ranks: for tests of libattn-mpi with threads and with MPI. */
#ifndef RANK_GRADIENTS_H
#define RANK_GRADIENTS_H

#include "check/check_gradients.h"
#include "support/rank_problem.h"

#define RANK_GRADIENT_WORK 1e6

/* What one rank has. */
typedef struct rank_gradients {
    rank_part part;
    attn_sdpa_grads grads;
    check_tensor dout, dlse, dq, dk, dv;
    double dalibi[CHECK_MAX_HEADS], dsink[CHECK_MAX_HEADS];
} rank_gradients;

/* A gradient that ranks add up is f32 or f64. */
static inline void rank_widen(check_case *c, check_tensor *t, attn_tensor *view)
{
    if (!check_gradients_want(t) || t->view.dtype == ATTN_F32 || t->view.dtype == ATTN_F64)
        return;
    *t = check_tensor_new(c, ATTN_F32, t->view.shape, CHECK_LOOSE);
    *view = t->view;
}

/* Draws a call with all rules and the gradients of one call; returns true if all of its numbers are
 * finite. g->want then has the reference. `widen`: dk and dv are f32 or f64. */
static inline bool rank_gradients_draw(check_case *c, check_gradients *g, bool widen)
{
    attn_sdpa_args *a = &g->call.args;
    attn_error err = {0};
    if (check_chance(c, 80))
        check_call_random_long(c, &g->call, RANK_GRADIENT_WORK);
    else
        check_call_random(c, &g->call, RANK_GRADIENT_WORK);
    check_gradients_choose(c, g);
    a->workspace = NULL;
    g->grads.dmask = NULL;
    g->want.dmask = (ref_grad){0};
    if (widen) {
        rank_widen(c, &g->dk, &g->grads.dk);
        rank_widen(c, &g->dv, &g->grads.dv);
    }
    const bool finite = check_chance(c, 85);
    if (!finite && check_count(&a->k) > 0)
        check_store(&a->k, check_between(c, 0, a->k.shape[0] - 1),
                    check_between(c, 0, a->k.shape[1] - 1), check_between(c, 0, a->k.shape[2] - 1),
                    0, NAN);
    if (attn_sdpa_forward(check_context(c, 1), a, &err) != ATTN_OK ||
        attn_sdpa_backward(check_context(c, 1), a, &g->grads, &err) != ATTN_OK)
        check_fail(c, "one call: %s", err.message);
    if (finite && !c->failed)
        check_gradients_reference(c, g);
    return finite;
}

/* Rows of a rank that hold 77 so far. */
static inline check_tensor rank_output(check_case *c, const attn_tensor *t, int rank, int P)
{
    const check_tensor to = rank_rows(c, t, rank, P);
    check_forget(&to.view);
    return to;
}

static inline void rank_gradients_new(check_case *c, const check_gradients *g, int rank, int P,
                                      rank_gradients *x)
{
    const attn_sdpa_args *a = &g->call.args;
    rank_part_new(c, &g->call, rank, P, &x->part);
    x->part.out = rank_rows(c, &a->out, rank, P);
    x->part.lse = rank_rows(c, a->lse, rank, P);
    x->part.args.out = x->part.out.view;
    x->part.args.lse = &x->part.lse.view;
    x->grads = g->grads;
    x->dout = rank_rows(c, &g->grads.dout, rank, P);
    x->grads.dout = x->dout.view;
    if (g->grads.dlse) {
        x->dlse = rank_rows(c, g->grads.dlse, rank, P);
        x->grads.dlse = &x->dlse.view;
    }
    if (check_gradients_want(&g->dq)) {
        x->dq = rank_output(c, &g->grads.dq, rank, P);
        x->grads.dq = x->dq.view;
    }
    if (check_gradients_want(&g->dk)) {
        x->dk = rank_output(c, &g->grads.dk, rank, P);
        x->grads.dk = x->dk.view;
    }
    if (check_gradients_want(&g->dv)) {
        x->dv = rank_output(c, &g->grads.dv, rank, P);
        x->grads.dv = x->dv.view;
    }
    x->grads.dalibi_slopes = g->grads.dalibi_slopes ? x->dalibi : NULL;
    x->grads.dsink_logits = g->grads.dsink_logits ? x->dsink : NULL;
}

/* Compares a rank's rows of dk or dv with the reference. The other rows are the reference's. */
static inline void rank_judge(check_case *c, const check_gradients *g, const char *name,
                              const attn_tensor *got, const attn_tensor *like, const ref_grad *want,
                              int rank, int P)
{
    const int64_t *n = like->shape;
    const check_tensor all = check_tensor_new(c, got->dtype, n, CHECK_DENSE);
    for (int64_t b = 0, at = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t j = 0, row = 0; j < n[2]; j++) {
                const bool own = j / 64 % P == rank;
                for (int64_t d = 0; d < n[3]; d++, at++)
                    check_store(&all.view, b, h, j, d,
                                own ? ref_get(got, b, h, row, d) : want->x[at]);
                row += own;
            }
    check_gradients_judge(c, g, name, &all, want);
}

/* Compares numbers of one call for each head. */
static inline void rank_compare_heads(check_case *c, const char *name, const double *got,
                                      const double *want, int64_t H)
{
    check_difference d;
    if (got && !check_same(got, want, H, CHECK_ZERO_SIGNED, &d))
        check_fail(c, "%s[%" PRId64 "] is %.17g on one rank, %.17g in one call", name, d.at, d.got,
                   d.want);
}

/* All gradients have the bits of one call. */
static inline void rank_gradients_compare_all(check_case *c, const check_gradients *g,
                                              const rank_gradients *x, int rank, int P)
{
    const attn_sdpa_grads *got = &x->grads;
    const int64_t H = g->call.args.q.shape[1];
    if (check_gradients_want(&g->dq))
        rank_compare_one(c, "dq", &got->dq, &g->grads.dq, rank, P);
    if (check_gradients_want(&g->dk))
        rank_compare_one(c, "dk", &got->dk, &g->grads.dk, rank, P);
    if (check_gradients_want(&g->dv))
        rank_compare_one(c, "dv", &got->dv, &g->grads.dv, rank, P);
    rank_compare_heads(c, "dalibi_slopes", got->dalibi_slopes, g->dalibi, H);
    rank_compare_heads(c, "dsink_logits", got->dsink_logits, g->dsink, H);
}

/* dq has the bits of one call; on one rank, all gradients have them. The sums over queries are
 * within the bounds of one call, if all numbers are finite. */
static inline void rank_gradients_compare(check_case *c, const check_gradients *g,
                                          const rank_gradients *x, bool finite, int rank, int P)
{
    const attn_sdpa_args *a = &g->call.args;
    const attn_sdpa_grads *got = &x->grads;
    const int64_t H = a->q.shape[1];
    const bool dk = check_gradients_want(&g->dk), dv = check_gradients_want(&g->dv);
    if (P == 1)
        rank_gradients_compare_all(c, g, x, rank, P);
    else if (check_gradients_want(&g->dq))
        rank_compare_one(c, "dq", &got->dq, &g->grads.dq, rank, P);
    if (!finite || c->failed)
        return;
    if (dk)
        rank_judge(c, g, "dk", &got->dk, &a->k, &g->want.dk, rank, P);
    if (dv)
        rank_judge(c, g, "dv", &got->dv, &a->v, &g->want.dv, rank, P);
    if (got->dalibi_slopes)
        check_gradients_judge_heads(c, "dalibi_slopes", x->dalibi, &g->want.dalibi, H);
    if (got->dsink_logits)
        check_gradients_judge_heads(c, "dsink_logits", x->dsink, &g->want.dsink, H);
}

/* FNV-1a of all gradients that a rank has. */
static inline uint64_t rank_gradients_hash(check_case *c, const rank_gradients *x)
{
    const attn_tensor *tensors[] = {&x->grads.dq, &x->grads.dk, &x->grads.dv};
    const double *heads[] = {x->grads.dalibi_slopes, x->grads.dsink_logits};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < 3; i++)
        if (tensors[i]->data)
            hash = rank_hash(c, tensors[i], hash);
    for (int i = 0; i < 2; i++)
        for (int64_t h = 0; heads[i] && h < x->part.args.q.shape[1]; h++) {
            uint64_t bits = 0;
            if (!isnan(heads[i][h]))
                memcpy(&bits, &heads[i][h], sizeof bits);
            hash = (hash ^ bits) * UINT64_C(0x100000001b3);
        }
    return hash;
}

#endif
