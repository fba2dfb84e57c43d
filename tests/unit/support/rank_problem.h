/* A random call, dealt to ranks: for tests of libattn-mpi with threads and with MPI. */
#ifndef RANK_PROBLEM_H
#define RANK_PROBLEM_H

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_mpi.h"
#include "check/check_call.h"

#define RANK_WORK 3e6

/* What one rank has. */
typedef struct rank_part {
    attn_sdpa_args args; /* points into the members below */
    check_tensor q, k, v, out, lse, mask;
    attn_mpi_options options;
    attn_mpi_report report;
} rank_part;

/* Draws a call with all rules; in some, NaN, infinities and values whose sums overflow, so that
 * rows are swept again. */
static inline void rank_problem_draw(check_case *c, check_call *call)
{
    static const double special[] = {NAN, INFINITY, -INFINITY};
    if (check_chance(c, 80))
        check_call_random_long(c, call, RANK_WORK);
    else
        check_call_random(c, call, RANK_WORK);
    call->args.scores = NULL;
    const attn_tensor *v = &call->v.view;
    if (check_count(v) == 0 || !check_chance(c, 40))
        return;
    for (int n = 0; n < 3; n++)
        check_store(v, check_between(c, 0, v->shape[0] - 1), check_between(c, 0, v->shape[1] - 1),
                    check_between(c, 0, v->shape[2] - 1), check_between(c, 0, v->shape[3] - 1),
                    check_chance(c, 50) ? CHECK_PICK(c, special) : 60000);
    check_call_say(c, "special");
}

/* The rows of `rank`, as the layout is defined: row i of the whole is on rank i / 64 % P. */
static inline check_tensor rank_rows(check_case *c, const attn_tensor *t, int64_t rank, int64_t P)
{
    int64_t shape[4] = {t->shape[0], t->shape[1], 0, t->shape[3]}, row = 0;
    for (int64_t i = 0; i < t->shape[2]; i++)
        shape[2] += i / 64 % P == rank;
    const check_tensor to = check_tensor_new(c, t->dtype, shape, CHECK_LOOSE);
    for (int64_t i = 0; i < t->shape[2]; i++) {
        if (i / 64 % P != rank)
            continue;
        for (int64_t b = 0; b < shape[0]; b++)
            for (int64_t h = 0; h < shape[1]; h++)
                for (int64_t d = 0; d < shape[3]; d++)
                    check_store(&to.view, b, h, row, d, ref_get(t, b, h, i, d));
        row++;
    }
    return to;
}

static inline void rank_part_new(check_case *c, const check_call *call, int rank, int P,
                                 rank_part *p)
{
    static const int64_t segments[] = {0, 1, 256, 512, 768, 4096};
    const attn_sdpa_args *a = &call->args;
    p->args = *a;
    p->q = rank_rows(c, &a->q, rank, P);
    p->k = rank_rows(c, &a->k, rank, P);
    p->v = rank_rows(c, &a->v, rank, P);
    p->out = rank_rows(c, &a->out, rank, P);
    p->args.q = p->q.view, p->args.k = p->k.view, p->args.v = p->v.view;
    p->args.out = p->out.view;
    check_forget(&p->args.out); /* else it has the results that it is compared with */
    if (a->lse) {
        p->lse = rank_rows(c, a->lse, rank, P);
        p->args.lse = &p->lse.view;
        check_forget(p->args.lse);
    }
    if (a->mask && a->mask->shape[2] > 1) {
        p->mask = rank_rows(c, a->mask, rank, P);
        p->args.mask = &p->mask.view;
    } /* else none, or one row for all queries */
    p->report = (attn_mpi_report){0};
    p->options = (attn_mpi_options)ATTN_MPI_OPTIONS_INIT;
    p->options.T = a->q.shape[2], p->options.S = a->k.shape[2];
    p->options.segment_keys = segments[c->seed % 6]; /* the same on all ranks */
    p->options.deadline = 120;
    p->options.report = &p->report;
}

/* The same in mode ATTN_MPI_HEADS. */
static inline void rank_part_by_heads(rank_part *p)
{
    p->options.mode = ATTN_MPI_HEADS;
    p->options.segment_keys = 0;
}

static inline void rank_compare_one(check_case *c, const char *name, const attn_tensor *got,
                                    const attn_tensor *want, int64_t rank, int64_t P)
{
    const check_tensor rows = rank_rows(c, want, rank, P);
    const double *g = check_tensor_copy(c, got), *w = check_tensor_copy(c, &rows.view);
    check_difference d;
    if (!check_same(g, w, check_count(got), CHECK_ZERO_SIGNED, &d))
        check_fail(c,
                   "%s[%" PRId64 "] of rank %" PRId64 " of %" PRId64 " is %.17g, %.17g in one "
                   "call",
                   name, d.at, rank, P, d.got, d.want);
}

/* Compares a rank's results with those of one call, in call->args. */
static inline void rank_part_compare(check_case *c, const check_call *call, const rank_part *p,
                                     int rank, int P)
{
    rank_compare_one(c, "out", &p->args.out, &call->args.out, rank, P);
    if (call->args.lse)
        rank_compare_one(c, "lse", p->args.lse, call->args.lse, rank, P);
}

/* FNV-1a of the results of one call, printed so that runs with other ranks can be compared. */
static inline uint64_t rank_hash(check_case *c, const attn_tensor *t, uint64_t hash)
{
    const double *x = check_tensor_copy(c, t);
    const int64_t n = check_count(t);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        if (!isnan(x[i]))
            memcpy(&bits, &x[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* The usable instruction set of case n. */
static inline int rank_isa(int n)
{
    int usable[CHECK_MAX_ISAS], count = 0;
    for (int i = 0; attn_isa(i).name; i++)
        if (attn_isa(i).usable)
            usable[count++] = i;
    return usable[n % count];
}

#endif
