/* attn_mpi_sdpa_forward: receives the keys of all ranks in segments (segments.c) and passes them to
 * attn_sdpa_feed. */
#include "ranks.h"

#define PIECE 1024 /* keys between two polls; Open MPI advances messages only during a poll */

typedef struct forward {
    attni_mpi_call call;
    attni_mpi_segments segments;
    attn_sdpa_state *state;
    attn_status status; /* of this rank's own computation */
} forward;

/* The state of this rank's rows. */
static attn_status begin_state(forward *f, attn_context *ctx)
{
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    const attn_status status = attni_mpi_call_part(&f->call, &part);
    return status ? status : attn_sdpa_begin(ctx, &f->call.args, &part, &f->state, f->call.run.err);
}

/* Computes a segment. An error of this rank is only reported at the end of the sweep, because the
 * other ranks need its keys until then. */
static attn_status compute(void *user, int64_t segment, bool needed)
{
    forward *f = user;
    const attni_mpi_plan *p = &f->call.plan;
    const attn_tensor *rows = f->segments.rows;
    const int64_t first = p->starts[segment], n = attni_mpi_segment_keys(p, segment);
    attn_status status = ATTN_OK;
    for (int64_t j = 0; needed && j < n && f->status == ATTN_OK && status == ATTN_OK; j += PIECE) {
        const int64_t keys = attni_mpi_min(PIECE, n - j);
        if (attn_sdpa_next(f->state, NULL) >= first + j + keys)
            continue; /* no row here sees them */
        const attn_tensor k = attni_mpi_some_rows(&rows[0], j, keys),
                          v = attni_mpi_some_rows(&rows[1], j, keys);
        f->status = attn_sdpa_feed(f->state, first + j, &k, &v, f->call.run.err);
        status = attni_mpi_segments_poll(&f->segments);
    }
    return status;
}

static attn_status all_sweeps(forward *f)
{
    attni_mpi_run *run = &f->call.run;
    attni_mpi_segments *s = &f->segments;
    attn_status status = ATTN_AGAIN;
    while (status == ATTN_AGAIN) {
        f->call.report.sweeps++;
        if ((status = attni_mpi_sweep(s, compute, f)))
            return status;
        if (f->status == ATTN_OK && s->again[f->call.plan.rank])
            f->status = attn_sdpa_finish(f->state, run->err);
        status = attni_mpi_agree_again(run, f->status, s->again);
        f->status = ATTN_OK;
    }
    return status;
}

attn_status attn_mpi_sdpa_forward(const attn_comm *comm, attn_context *ctx,
                                  const attn_sdpa_args *args, const attn_mpi_options *options,
                                  attn_error *err)
{
    forward f = {.status = ATTN_OK};
    attni_mpi_call *call = &f.call;
    attn_status status = attni_mpi_call_begin(call, comm, options, err);
    if (status == ATTN_OK) {
        if ((status = attni_mpi_call_read(call, options, args)) == ATTN_OK &&
            (status = begin_state(&f, ctx)) == ATTN_OK &&
            (status = attni_mpi_call_cut(call, false)) == ATTN_OK)
            status = attni_mpi_segments_new(&f.segments, call);
        status = attni_mpi_agree(&call->run, &call->plan, attn_context_isa(ctx), status);
    }
    if (status == ATTN_OK) {
        attni_mpi_segments_begin(&f.segments);
        status = all_sweeps(&f);
    }
    attni_mpi_segments_cancel(&f.segments);
    attn_sdpa_end(f.state);
    attni_mpi_call_end(call, status);
    return status;
}
