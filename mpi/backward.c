/* attn_mpi_sdpa_backward: receives the keys of all ranks in segments (segments.c) and passes them
 * to attn_sdpa_backward_feed, which computes what this rank's rows add to the gradients of a
 * segment's keys. These contributions travel to the owners of the keys, which add them up.
 *
 *   receive keys      segment 0   segment 1   segment 2   segment 3
 *   compute                       segment 0   segment 1   segment 2
 *   contributions                             segment 0   segment 1
 *
 * `ordered` has the contributions to the segment that is computed, in the order of its keys; `sent`
 * those to the segment before, one owner after the other; `received` those of the other ranks to
 * this rank's keys of that segment.
 *
 * An owner adds the contributions of rank 0, rank 1, ... in double. So the sums depend on neither
 * the time of arrival nor the number of threads nor the segments.
 *
 * Messages from one rank to another arrive in the order of their start. All ranks start them in one
 * order: the keys of segment n + 2, then the contributions to segment n. */
#include "ranks.h"

#include <fenv.h>
#include <stddef.h>
#include <string.h>

#define PIECE 2048 /* keys between two polls: 8 tasks for each head of k */

typedef struct backward {
    attni_mpi_call call;
    attni_mpi_segments segments;
    attni_mpi_heads heads; /* if the mode is ATTN_MPI_HEADS; then most of the rest is not used */
    attn_sdpa_grads grads; /* the caller's, with this rank's rows */
    attn_sdpa_backward_state *state;
    attn_status status;      /* of this rank's own computation */
    attni_mpi_pair pair;     /* contributions to dk and dv; width 0: not wanted */
    char *ordered;           /* of this rank, to the segment that is computed */
    attn_tensor part[2];     /* views of it */
    char *sent, *received;   /* for the segment before; see above */
    attni_mpi_flight flight; /* its messages */
    int64_t adding;          /* this segment; -1: none */
    char **from;             /* [size]: the contribution of each rank; NULL: none */
    double *row;             /* [widest]: a row of sums */
    double *head_sums;       /* [2][H]: of this rank's rows, for slopes and sinks */
    double *all_head_sums;   /* [size][2][H] */
} backward;

/* ------------------------------------------------------------------------------------- checks */

/* Contributions are added up in double, and libattn does not export its rounding to f16 and
 * bf16. In mode ATTN_MPI_HEADS nothing is added up. */
static attn_status check_sum(const backward *b, const attn_tensor *t, const char *name)
{
    if (!attni_mpi_wanted(t))
        return ATTN_OK;
    if (t->dtype != ATTN_F32 && t->dtype != ATTN_F64 && !b->call.plan.heads)
        return attni_mpi_fail(b->call.run.err, ATTN_ERR_DTYPE, name,
                              "%s is %s; over ranks it must be f32 or f64", name,
                              attn_dtype_name(t->dtype));
    if (!t->data && t->shape[0] && t->shape[1] && t->shape[2] && t->shape[3])
        return attni_mpi_fail(b->call.run.err, ATTN_ERR_ARGUMENT, name,
                              "%s has no data; it must have the rows of this rank", name);
    return ATTN_OK;
}

/* Checks all tensors of this rank. attn_sdpa_backward_begin() does not see dk and dv, so this asks
 * for the plan of a call with this rank's rows and keys only, without rules. */
static attn_status check_tensors(const backward *b, attn_context *ctx)
{
    const attn_sdpa_args *local = &b->call.local;
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    a.q = local->q, a.k = local->k, a.v = local->v, a.out = local->out, a.lse = local->lse;
    g.dout = b->grads.dout, g.dlse = b->grads.dlse;
    g.dq = b->grads.dq, g.dk = b->grads.dk, g.dv = b->grads.dv;
    return attn_sdpa_backward_plan(ctx, &a, &g, &info, b->call.run.err);
}

static attn_status read_grads(backward *b, attn_context *ctx, const attn_sdpa_grads *grads)
{
    attn_error *err = b->call.run.err;
    attn_status status;
    attn_sdpa_grads_init(&b->grads);
    if (!attni_mpi_read_struct(grads, &b->grads, offsetof(attn_sdpa_grads, dmask), sizeof b->grads))
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "grads",
                              "grads is %s; set it up by ATTN_SDPA_GRADS_INIT",
                              grads ? "a struct of another version" : "NULL");
    b->call.plan.grads = &b->grads;
    if (b->call.options.checkpoint)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "options",
                              "options: checkpoint is given, but only the forward has checkpoints; "
                              "it must be NULL");
    if (b->grads.dmask)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "dmask",
                              "dmask is given, but there is no gradient of a mask over ranks; it "
                              "must be NULL");
    if ((status = check_sum(b, &b->grads.dk, "dk")) || (status = check_sum(b, &b->grads.dv, "dv")))
        return status;
    return check_tensors(b, ctx);
}

/* ------------------------------------------------------------------------------- preparations */

/* The most keys of a segment that lie on this rank. */
static int64_t most_share(const attni_mpi_plan *p)
{
    int64_t most = 0, row;
    for (int64_t segment = 0; segment < p->segments; segment++)
        most = attni_mpi_max(most, attni_mpi_share(p, segment, p->rank, &row));
    return most;
}

/* The type in which the call computes, so that contributions are sent as they are computed. */
static attn_dtype computed(const attn_sdpa_args *a)
{
    return a->q.dtype == ATTN_F64 ||
                   (a->q.dtype == ATTN_F32 && a->precision == ATTN_PRECISION_ACCURATE)
               ? ATTN_F64
               : ATTN_F32;
}

static attn_status allocate(backward *b)
{
    attni_mpi_run *run = &b->call.run;
    const attni_mpi_plan *p = &b->call.plan;
    const attn_sdpa_args *a = &b->call.args;
    const int64_t D = attni_mpi_wanted(&b->grads.dk) ? a->k.shape[3] : 0,
                  Dv = attni_mpi_wanted(&b->grads.dv) ? a->v.shape[3] : 0;
    const uint64_t keys = (uint64_t)attni_mpi_most_keys(p), others = (uint64_t)(p->size - 1);
    b->pair = attni_mpi_pair_of(computed(a), p->B, a->k.shape[1], D, Dv);
    const uint64_t bytes = b->pair.bytes, rows = others * (uint64_t)most_share(p);
    b->ordered = attni_mpi_allocate(run, keys, bytes);
    b->sent = attni_mpi_allocate(run, keys, bytes);
    b->received = attni_mpi_allocate(run, rows, bytes);
    b->from = attni_mpi_allocate(run, (uint64_t)p->size, sizeof *b->from);
    b->row = attni_mpi_allocate(run, (uint64_t)attni_mpi_max(D, Dv), sizeof *b->row);
    b->all_head_sums = attni_mpi_allocate(run, (uint64_t)p->size,
                                          2 * (uint64_t)a->q.shape[1] * sizeof *b->head_sums);
    if (!b->ordered || !b->sent || !b->received || !b->from || !b->row || !b->all_head_sums ||
        attni_mpi_flight_new(run, &b->flight))
        return attni_mpi_no_memory(run);
    b->call.report.buffer_bytes += (int64_t)((2 * keys + rows) * bytes);
    b->adding = -1;
    return ATTN_OK;
}

static attn_status begin_segments(backward *b)
{
    attn_status status;
    if ((status = attni_mpi_call_cut(&b->call, true)) == ATTN_OK &&
        (status = attni_mpi_segments_new(&b->segments, &b->call)) == ATTN_OK)
        status = allocate(b);
    return status;
}

/* The state of this rank's rows. It gets dk and dv of all keys, without data. */
static attn_status begin_state(backward *b, attn_context *ctx)
{
    attni_mpi_call *call = &b->call;
    const attn_sdpa_args *a = &call->args;
    const int64_t B = a->k.shape[0], Hk = a->k.shape[1], S = a->k.shape[2];
    const uint64_t H = (uint64_t)a->q.shape[1];
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    attn_sdpa_grads g = b->grads;
    if (attni_mpi_wanted(&g.dk))
        g.dk = attn_bhtd(NULL, computed(a), B, Hk, S, a->k.shape[3]);
    if (attni_mpi_wanted(&g.dv))
        g.dv = attn_bhtd(NULL, computed(a), B, Hk, S, a->v.shape[3]);
    b->head_sums = attni_mpi_allocate(&call->run, H, 2 * sizeof *b->head_sums);
    if (!b->head_sums)
        return attni_mpi_no_memory(&call->run);
    g.dalibi_slopes = g.dalibi_slopes ? b->head_sums : NULL;
    g.dsink_logits = g.dsink_logits ? b->head_sums + H : NULL;
    const attn_status status = attni_mpi_call_part(call, &part);
    return status ? status : attn_sdpa_backward_begin(ctx, a, &g, &part, &b->state, call->run.err);
}

/* ------------------------------------------------------------------------------ contributions */

static char *at(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t d)
{
    const int64_t e = b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + d * t->stride[3];
    return (char *)t->data + e * (int64_t)attn_dtype_size(t->dtype);
}

/* Adds a row of n numbers. */
static void add_row(double *sum, const char *row, attn_dtype dtype, int64_t n)
{
    const float *single = (const float *)(const void *)row;
    const double *wide = (const double *)(const void *)row;
    for (int64_t d = 0; d < n; d++)
        sum[d] += dtype == ATTN_F32 ? (double)single[d] : wide[d];
}

/* Writes a row of sums; a sum that is rounded to -0 becomes 0. */
static void store_row(const attn_tensor *t, int64_t b, int64_t h, int64_t i, const double *sum)
{
    for (int64_t d = 0; d < t->shape[3]; d++) {
        const float single = (float)sum[d] + 0.0F;
        if (t->dtype == ATTN_F32)
            memcpy(at(t, b, h, i, d), &single, sizeof single);
        else
            memcpy(at(t, b, h, i, d), &sum[d], sizeof *sum);
    }
}

/* Sets dk or dv (`which`) of this rank's keys of a segment to the sum of the contributions in
 * b->from, of which each is dense. */
static void add_up(backward *b, int64_t segment, int which)
{
    const attni_mpi_plan *p = &b->call.plan;
    const attn_tensor *to = which ? &b->grads.dv : &b->grads.dk;
    const int64_t width = b->pair.widths[which];
    const size_t bytes = (size_t)width * attn_dtype_size(b->pair.dtype);
    int64_t first;
    const int64_t n = attni_mpi_share(p, segment, p->rank, &first);
    const int64_t rows = width ? b->pair.B * b->pair.heads * n : 0;
    const size_t offset = which ? (size_t)(b->pair.B * b->pair.heads * n * b->pair.widths[0]) *
                                      attn_dtype_size(b->pair.dtype)
                                : 0;
    for (int64_t x = 0; x < rows; x++) {
        memset(b->row, 0, (size_t)width * sizeof *b->row);
        for (int r = 0; r < p->size; r++)
            if (b->from[r])
                add_row(b->row, b->from[r] + offset + (size_t)x * bytes, b->pair.dtype, width);
        store_row(to, x / n / b->pair.heads, x / n % b->pair.heads, first + x % n, b->row);
    }
}

/* The sums do not depend on the caller's floating-point mode, nor do they change its flags. */
static void add_up_both(backward *b, int64_t segment)
{
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    add_up(b, segment, 0);
    add_up(b, segment, 1);
    fesetenv(&before);
}

/* Waits for the contributions that are under way, and adds them up. */
static attn_status end_exchange(backward *b)
{
    if (b->adding < 0)
        return ATTN_OK;
    const attn_status status = attni_mpi_wait(&b->call.run, &b->flight);
    if (status == ATTN_OK)
        add_up_both(b, b->adding);
    b->adding = -1;
    return status;
}

/* Starts the messages of the contributions to a segment. `needed`: this rank has some. */
static attn_status start_exchange(backward *b, int64_t segment, bool needed)
{
    attni_mpi_call *call = &b->call;
    const attni_mpi_plan *p = &call->plan;
    attn_status status = ATTN_OK;
    int64_t row;
    const size_t mine = (size_t)attni_mpi_share(p, segment, p->rank, &row) * b->pair.bytes;
    char *to = b->received, *own = b->sent;
    if (needed)
        attni_mpi_deal(p, segment, &b->pair, b->ordered, b->sent);
    for (int r = 0; r < p->size && status == ATTN_OK; r++) {
        b->from[r] = NULL;
        if (r == p->rank || !attni_mpi_is_needed(&b->segments, r, segment))
            continue;
        b->from[r] = to;
        status = attni_mpi_receive(&call->run, &b->flight, r, to, mine);
        call->report.received_bytes += (int64_t)mine;
        to += mine;
    }
    for (int r = 0; r < p->size && status == ATTN_OK && needed; r++) {
        const size_t bytes = (size_t)attni_mpi_share(p, segment, r, &row) * b->pair.bytes;
        if (r == p->rank) {
            b->from[r] = own;
        } else {
            status = attni_mpi_send(&call->run, &b->flight, r, own, bytes);
            call->report.sent_bytes += (int64_t)bytes;
        }
        own += bytes;
    }
    b->adding = segment;
    return status;
}

/* Keys that no row sees get zeros. */
static void zero_unseen(backward *b)
{
    memset(b->from, 0, (size_t)b->call.plan.size * sizeof *b->from);
    for (int64_t segment = 0; segment < b->call.plan.segments; segment++)
        if (!attni_mpi_is_sent(&b->segments, segment))
            add_up_both(b, segment);
}

/* -------------------------------------------------------------------------------- one segment */

/* Computes the contributions of this rank's rows. An error of this rank is only reported at the
 * end, because the other ranks need its messages until then. */
static attn_status compute(backward *b, int64_t segment)
{
    const attni_mpi_plan *p = &b->call.plan;
    const attn_tensor *rows = b->segments.rows;
    const int64_t first = p->starts[segment], past = p->starts[segment + 1];
    int left;
    attn_status status = ATTN_OK;
    memset(b->ordered, 0, (size_t)(past - first) * b->pair.bytes);
    attni_mpi_views(&b->pair, b->ordered, past - first, b->part);
    while (b->status == ATTN_OK && status == ATTN_OK) {
        int64_t end, j = attn_sdpa_backward_next(b->state, PIECE, &end);
        if (j >= past)
            break; /* no row here sees the rest */
        end = attni_mpi_min(end, past);
        if (j < first) /* the ranks disagree about what is needed; then feed() refuses this */
            j = first, end = past;
        const int64_t at = j - first, n = end - j;
        const attn_tensor k = attni_mpi_some_rows(&rows[0], at, n),
                          v = attni_mpi_some_rows(&rows[1], at, n),
                          dk = attni_mpi_some_rows(&b->part[0], at, n),
                          dv = attni_mpi_some_rows(&b->part[1], at, n);
        b->status =
            attn_sdpa_backward_feed(b->state, j, &k, &v,
                                    attni_mpi_wanted(&b->grads.dk) ? &dk : NULL,
                                    attni_mpi_wanted(&b->grads.dv) ? &dv : NULL, b->call.run.err);
        status = attni_mpi_segments_poll(&b->segments);
        if (status == ATTN_OK)
            status = attni_mpi_poll(&b->call.run, &b->flight, &left);
    }
    return status;
}

static attn_status step(void *user, int64_t segment, bool needed)
{
    backward *b = user;
    attn_status status = needed ? compute(b, segment) : ATTN_OK;
    if (status == ATTN_OK)
        status = end_exchange(b);
    return status ? status : start_exchange(b, segment, needed);
}

/* ------------------------------------------------------------------------------------ the call */

/* Adds up the gradients of slopes and sinks of all ranks, in the order of the ranks. */
static attn_status add_heads(backward *b)
{
    double *const to[] = {b->grads.dalibi_slopes, b->grads.dsink_logits};
    const int64_t H = b->call.args.q.shape[1];
    fenv_t before;
    if (!H || (!to[0] && !to[1]))
        return ATTN_OK;
    const attn_status status =
        attni_mpi_all_gather(&b->call.run, b->head_sums, 2 * (size_t)H * sizeof *b->head_sums,
                             b->all_head_sums);
    if (status)
        return status;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    for (int64_t x = 0; x < 2 * H; x++) {
        double sum = 0;
        for (int r = 0; r < b->call.plan.size; r++)
            sum += b->all_head_sums[r * 2 * H + x];
        if (to[x / H])
            to[x / H][x % H] = sum;
    }
    fesetenv(&before);
    return ATTN_OK;
}

static attn_status run(backward *b, attn_context *ctx)
{
    attni_mpi_segments *s = &b->segments;
    if (b->call.plan.heads)
        return attni_mpi_heads_backward(&b->heads, ctx, &b->grads);
    b->call.report.sweeps = 1;
    attni_mpi_segments_begin(s);
    zero_unseen(b);
    attn_status status = attni_mpi_sweep(s, step, b);
    if (status == ATTN_OK)
        status = end_exchange(b);
    if (status)
        return status;
    if (b->status == ATTN_OK)
        b->status = attn_sdpa_backward_finish(b->state, b->call.run.err);
    status = attni_mpi_agree_again(&b->call.run, b->status, s->again);
    return status ? status : add_heads(b);
}

attn_status attn_mpi_sdpa_backward(const attn_comm *comm, attn_context *ctx,
                                   const attn_sdpa_args *args, const attn_sdpa_grads *grads,
                                   const attn_mpi_options *options, attn_error *err)
{
    backward b = {.status = ATTN_OK};
    attni_mpi_call *call = &b.call;
    attn_status status = attni_mpi_call_begin(call, comm, options, err);
    if (status == ATTN_OK) {
        if ((status = attni_mpi_call_read(call, options, args)) == ATTN_OK &&
            (status = read_grads(&b, ctx, grads)) == ATTN_OK &&
            (status = begin_state(&b, ctx)) == ATTN_OK)
            status = call->plan.heads ? attni_mpi_heads_new(&b.heads, call, &b.grads)
                                      : begin_segments(&b);
        status = attni_mpi_agree(&call->run, &call->plan, attn_context_isa(ctx), status);
    }
    if (status == ATTN_OK)
        status = run(&b, ctx);
    attni_mpi_segments_cancel(&b.segments);
    attni_mpi_cancel(&call->run, &b.flight);
    attni_mpi_cancel(&call->run, &b.heads.flight);
    attn_sdpa_backward_end(b.state);
    attni_mpi_call_end(call, status);
    return status;
}
