/* attn_mpi_sdpa_forward: receives the keys of all ranks in segments (segments.c) and passes them to
 * attn_sdpa_feed. */
#include "ranks.h"

#define PIECE 2048 /* keys between two polls; Open MPI advances messages only during a poll */

typedef struct forward {
    attni_mpi_call call;
    attni_mpi_segments segments;
    attni_mpi_part *parts; /* this rank's rows; at least one part, which may have no rows */
    int64_t count;
    attni_mpi_saved saved;
    attni_mpi_heads heads; /* if the mode is ATTN_MPI_HEADS; then there are no segments and parts */
    attn_status status;    /* of this rank's own computation */
    bool agreed;           /* every rank has this status */
} forward;

/* --------------------------------------------------------------------------------------- parts */

/* Fills the part of rows row .. row+n-1; it does not begin its state. */
static void make_part(const attni_mpi_call *call, const attn_pieces_options *all, int64_t row,
                      int64_t n, attni_mpi_part *part)
{
    const attn_sdpa_args *a = &call->args;
    part->args = *a;
    part->args.q = attni_mpi_some_rows(&a->q, row, n);
    part->args.out = attni_mpi_some_rows(&a->out, row, n);
    if (a->lse) {
        part->lse = attni_mpi_some_rows(a->lse, row, n);
        part->args.lse = &part->lse;
    }
    if (a->mask && a->mask->shape[2] > 1) { /* else it has one row for all queries */
        part->mask = attni_mpi_some_rows(a->mask, row, n);
        part->args.mask = &part->mask;
    }
    part->options = *all;
    part->options.q_positions += row;
}

/* Begins the states of this rank's rows: one state or, with checkpoints, one for each block. */
static attn_status begin_states(forward *f, attn_context *ctx)
{
    attni_mpi_call *call = &f->call;
    const attni_mpi_plan *p = &call->plan;
    const int64_t rows = call->args.q.shape[2];
    const bool cut = p->saves || p->resumes;
    const int64_t blocks = (rows + ATTN_MPI_BLOCK - 1) / ATTN_MPI_BLOCK;
    const int64_t count = cut ? attni_mpi_max(blocks, 1) : 1;
    attn_pieces_options all = ATTN_PIECES_OPTIONS_INIT;
    attn_status status = attni_mpi_call_part(call, &all);
    /* A part shows only some rows, and each tensor must have as many rows as q. */
    if (status || (cut && (status = attni_mpi_call_check(call, ctx, &all))))
        return status;
    f->parts = attni_mpi_allocate(&call->run, (uint64_t)count, sizeof *f->parts);
    if (!f->parts)
        return attni_mpi_no_memory(&call->run);
    f->count = count;
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = i * ATTN_MPI_BLOCK;
        make_part(call, &all, row, cut ? attni_mpi_min(ATTN_MPI_BLOCK, rows - row) : rows,
                  &f->parts[i]);
    }
    if (cut && (status = attni_mpi_saved_new(&f->saved, call, f->parts, blocks)))
        return status;
    if (p->resumes && (status = attni_mpi_saved_load(&f->saved, ctx)))
        return status;
    for (int64_t i = 0; i < count && status == ATTN_OK; i++)
        if (!f->parts[i].state)
            status = attn_sdpa_begin(ctx, &f->parts[i].args, &f->parts[i].options,
                                     &f->parts[i].state, call->run.err);
    return status;
}

/* ---------------------------------------------------------------------------------- computing */

/* Computes a segment. An error of this rank is only reported at the end of the sweep or where the
 * ranks may save, because the other ranks need its keys until the sweep ends. */
static attn_status compute(void *user, int64_t segment, bool needed)
{
    forward *f = user;
    const attni_mpi_plan *p = &f->call.plan;
    const int64_t first = p->starts[segment], n = attni_mpi_segment_keys(p, segment);
    attn_status status = ATTN_OK;
    for (int64_t j = 0; needed && j < n; j += PIECE) {
        const int64_t keys = attni_mpi_min(PIECE, n - j);
        const attn_tensor rows[2] = {attni_mpi_some_rows(&f->segments.rows[0], j, keys),
                                     attni_mpi_some_rows(&f->segments.rows[1], j, keys)};
        for (int64_t i = 0; i < f->count && f->status == ATTN_OK && status == ATTN_OK; i++) {
            f->status = attni_mpi_feed(f->parts[i].state, &rows[0], &rows[1], first + j,
                                       first + j + keys, f->call.run.err);
            status = attni_mpi_segments_poll(&f->segments);
        }
    }
    if (status == ATTN_OK && p->saves && !f->agreed) {
        status = attni_mpi_saved_step(&f->saved, first + n, &f->status);
        f->agreed = f->status != ATTN_OK;
    }
    return status;
}

/* Writes the results of this rank; ATTN_AGAIN if some rows need their keys once more. */
static attn_status finish(forward *f)
{
    attn_status status = f->status;
    for (int64_t i = 0; i < f->count && (status == ATTN_OK || status == ATTN_AGAIN); i++) {
        const attn_status of_part = attn_sdpa_finish(f->parts[i].state, f->call.run.err);
        status = of_part ? of_part : status;
    }
    return status;
}

static attn_status all_sweeps(forward *f)
{
    attni_mpi_run *run = &f->call.run;
    const attni_mpi_plan *p = &f->call.plan;
    attni_mpi_segments *s = &f->segments;
    attn_status status = ATTN_AGAIN;
    while (s->begins < p->segments && p->starts[s->begins + 1] <= f->saved.next)
        s->begins++; /* a resumed sweep does not need them */
    while (status == ATTN_AGAIN) {
        f->call.report.sweeps++;
        if ((status = attni_mpi_sweep(s, compute, f)) || (f->agreed && (status = f->status)))
            return status;
        if (s->again[p->rank])
            f->status = finish(f);
        status = attni_mpi_agree_again(run, f->status, s->again);
        f->status = ATTN_OK;
    }
    return status;
}

/* Prepares the computation, as far as that needs no messages. */
static attn_status prepare(forward *f, attn_context *ctx)
{
    attni_mpi_call *call = &f->call;
    attn_pieces_options all = ATTN_PIECES_OPTIONS_INIT;
    attn_status status;
    if (call->plan.heads) {
        if ((status = attni_mpi_call_part(call, &all)) == ATTN_OK &&
            (status = attni_mpi_call_check(call, ctx, &all)) == ATTN_OK)
            status = attni_mpi_heads_new(&f->heads, call, NULL);
        return status;
    }
    if ((status = begin_states(f, ctx)) == ATTN_OK &&
        (status = attni_mpi_call_cut(call, false)) == ATTN_OK)
        status = attni_mpi_segments_new(&f->segments, call);
    return status;
}

static attn_status run(forward *f, attn_context *ctx)
{
    attn_status status;
    if (f->call.plan.heads)
        return attni_mpi_heads_forward(&f->heads, ctx);
    if (f->saved.call && (status = attni_mpi_saved_begin(&f->saved)))
        return status;
    attni_mpi_segments_begin(&f->segments);
    return all_sweeps(f);
}

attn_status attn_mpi_sdpa_forward(const attn_comm *comm, attn_context *ctx,
                                  const attn_sdpa_args *args, const attn_mpi_options *options,
                                  attn_error *err)
{
    forward f = {.status = ATTN_OK};
    attni_mpi_call *call = &f.call;
    attn_status status = attni_mpi_call_begin(call, comm, options, err);
    if (status == ATTN_OK) {
        if ((status = attni_mpi_call_read(call, options, args)) == ATTN_OK)
            status = prepare(&f, ctx);
        status = attni_mpi_agree(&call->run, &call->plan, attn_context_isa(ctx), status);
    }
    if (status == ATTN_OK)
        status = run(&f, ctx);
    attni_mpi_segments_cancel(&f.segments);
    attni_mpi_cancel(&call->run, &f.heads.flight);
    for (int64_t i = 0; i < f.count; i++)
        attn_sdpa_end(f.parts[i].state);
    attni_mpi_call_end(call, status);
    return status;
}
