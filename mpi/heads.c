/* Mode ATTN_MPI_HEADS: a rank computes some key/value heads, with their query heads, for all
 * tokens. So two exchanges suffice. The first one, before the computation, turns some rows of all
 * heads into all rows of some heads; the second one, after it, does the reverse.
 *
 *                  before and after          during the computation
 *                   heads 0 1 2 3            heads 0 1   heads 2 3
 *   rows 0..63         rank 0                 rank 0      rank 1
 *   rows 64..127       rank 1                 rank 0      rank 1
 *   rows 128..191      rank 0                 rank 0      rank 1
 *
 * A round of an exchange moves up to `step` rows of one head for each pair of ranks. So the memory
 * for messages does not grow with the number of tokens. */
#include "ranks.h"

#define MESSAGE_BYTES ((int64_t)1 << 22) /* of a message; at least one row */

/* --------------------------------------------------------------------------------- the tensors */

/* How many key/value heads `rank` computes; *first is the first of them. */
static int64_t heads_of(const attni_mpi_plan *p, int rank, int64_t *first)
{
    const int64_t Hk = p->args->k.shape[1], each = Hk / p->size, rest = Hk % p->size;
    *first = each * rank + attni_mpi_min(rank, rest);
    return each + (rank < rest);
}

/* How many heads of a tensor `rank` needs. A tensor with one head for all query heads has group 0,
 * and every rank needs this head. */
static int64_t heads_in(const attni_mpi_plan *p, const attni_mpi_dealt *t, int rank, int64_t *first)
{
    const int64_t n = heads_of(p, rank, first);
    *first *= t->group;
    return t->group ? n * t->group : t->local.shape[1];
}

static int64_t row_bytes(const attn_tensor *t)
{
    return t->shape[3] * (int64_t)attn_dtype_size(t->dtype);
}

/* Rows of a message. */
static int64_t step_of(const attn_tensor *t)
{
    return attni_mpi_max(MESSAGE_BYTES / attni_mpi_max(row_bytes(t), 1), 1);
}

/* Gives a tensor a place in the exchange, and memory for all rows of this rank's heads. Returns
 * this whole tensor, or NULL. `group`: its heads for each key/value head. */
static attn_tensor *add(attni_mpi_heads *h, const attn_tensor *local, int64_t rows, int64_t group,
                        bool result)
{
    attni_mpi_call *call = h->call;
    attni_mpi_dealt *t = &h->tensors[h->count++];
    int64_t first, bytes;
    t->local = *local, t->group = group, t->result = result;
    const int64_t heads = heads_in(&call->plan, t, call->plan.rank, &first);
    t->whole = attn_bhtd(NULL, local->dtype, local->shape[0], heads, rows, local->shape[3]);
    if (__builtin_mul_overflow(local->shape[0] * heads, row_bytes(local), &bytes) ||
        __builtin_mul_overflow(bytes, rows, &bytes))
        return NULL;
    t->whole.data = attni_mpi_allocate(&call->run, (uint64_t)bytes, 1);
    h->message = attni_mpi_max(h->message, attni_mpi_min(step_of(local), rows) * row_bytes(local));
    call->report.buffer_bytes += bytes;
    return t->whole.data ? &t->whole : NULL;
}

/* The tensors of the forward, and what the backward reads of them. */
static bool add_args(attni_mpi_heads *h, bool backward)
{
    const attn_sdpa_args *a = &h->call->local;
    const attni_mpi_plan *p = &h->call->plan;
    const attn_tensor *q = add(h, &a->q, p->T, h->group, false),
                      *out = add(h, &a->out, p->T, h->group, !backward);
    h->k = add(h, &a->k, p->S, 1, false), h->v = add(h, &a->v, p->S, 1, false);
    if (!q || !out || !h->k || !h->v)
        return false;
    h->args.q = *q, h->args.out = *out, h->args.k = *h->k, h->args.v = *h->v;
    h->args.k.data = h->args.v.data = NULL; /* they are fed */
    return !a->lse || (h->args.lse = add(h, a->lse, p->T, h->group, !backward));
}

static bool add_grads(attni_mpi_heads *h, const attn_sdpa_grads *g)
{
    const attni_mpi_plan *p = &h->call->plan;
    const attn_tensor *dout = add(h, &g->dout, p->T, h->group, false), *dq = NULL;
    if (!dout || (g->dlse && !(h->grads.dlse = add(h, g->dlse, p->T, h->group, false))) ||
        (attni_mpi_wanted(&g->dq) && !(dq = add(h, &g->dq, p->T, h->group, true))) ||
        (attni_mpi_wanted(&g->dk) && !(h->dk = add(h, &g->dk, p->S, 1, true))) ||
        (attni_mpi_wanted(&g->dv) && !(h->dv = add(h, &g->dv, p->S, 1, true))))
        return false;
    h->grads.dout = *dout;
    if (dq)
        h->grads.dq = *dq;
    if (h->dk)
        h->grads.dk = *h->dk, h->grads.dk.data = NULL;
    if (h->dv)
        h->grads.dv = *h->dv, h->grads.dv.data = NULL;
    return true;
}

/* ------------------------------------------------------------------------------ one exchange */

/* Head `head` of batch b, as a tensor of its own. */
static attn_tensor one_head(const attn_tensor *t, int64_t b, int64_t head)
{
    attn_tensor one = *t;
    const int64_t e = b * t->stride[0] + head * t->stride[1];
    one.shape[0] = one.shape[1] = 1;
    one.data = (char *)t->data + e * (int64_t)attn_dtype_size(t->dtype);
    return one;
}

/* What a round moves from one rank to another: some rows of a head. */
typedef struct parcel {
    int64_t b, head; /* of the heads that each rank computes */
    int64_t row;     /* the first one, on the rank that has the rows before and after */
} parcel;

static int64_t rows_between(const attni_mpi_plan *p, const attni_mpi_dealt *t, const parcel *x,
                            int from, int to)
{
    int64_t first;
    if (x->head >= heads_in(p, t, t->result ? from : to, &first))
        return 0;
    const int64_t rows = attn_mpi_rows(t->whole.shape[2], t->result ? to : from, p->size) - x->row;
    return attni_mpi_max(attni_mpi_min(rows, step_of(&t->whole)), 0);
}

/* Copies rows of `rank` from the tensor with all rows to `dense`, or back. */
static void copy_dealt(const attni_mpi_plan *p, const attn_tensor *whole, int rank, int64_t row,
                       const attn_tensor *dense, bool back)
{
    for (int64_t i = 0, n; i < dense->shape[2]; i += n) {
        const int64_t block = (row + i) / ATTN_MPI_BLOCK, within = (row + i) % ATTN_MPI_BLOCK;
        const int64_t token = (block * p->size + rank) * ATTN_MPI_BLOCK + within;
        n = attni_mpi_min(ATTN_MPI_BLOCK - within, dense->shape[2] - i);
        if (back)
            attni_mpi_copy_rows(whole, token, dense, i, n);
        else
            attni_mpi_copy_rows(dense, i, whole, token, n);
    }
}

/* Copies a parcel to or from `rank` into `dense` (pack), or out of it. */
static void copy_parcel(const attni_mpi_plan *p, const attni_mpi_dealt *t, const parcel *x,
                        int rank, const attn_tensor *dense, bool pack)
{
    int64_t first;
    heads_in(p, t, rank, &first);
    if (pack == t->result) {
        const attn_tensor whole = one_head(&t->whole, x->b, x->head);
        copy_dealt(p, &whole, rank, x->row, dense, !pack);
        return;
    }
    const attn_tensor local = one_head(&t->local, x->b, first + x->head);
    if (pack)
        attni_mpi_copy_rows(dense, 0, &local, x->row, dense->shape[2]);
    else
        attni_mpi_copy_rows(&local, x->row, dense, 0, dense->shape[2]);
}

/* Moves one parcel between each two ranks. This rank's own one is copied in the same way. */
static attn_status exchange_round(attni_mpi_heads *h, const attni_mpi_dealt *t, const parcel *x)
{
    attni_mpi_call *call = h->call;
    const attni_mpi_plan *p = &call->plan;
    const size_t width = (size_t)row_bytes(&t->whole);
    attn_tensor dense = attn_bhtd(NULL, t->whole.dtype, 1, 1, 0, t->whole.shape[3]);
    attn_status status = ATTN_OK;
    for (int r = 0; r < p->size && status == ATTN_OK; r++) {
        const size_t bytes = (size_t)rows_between(p, t, x, r, p->rank) * width;
        if (r == p->rank)
            continue;
        status = attni_mpi_receive(&call->run, &h->flight, r, h->received + r * h->message, bytes);
        call->report.received_bytes += (int64_t)bytes;
    }
    for (int r = 0; r < p->size && status == ATTN_OK; r++) {
        dense.shape[2] = rows_between(p, t, x, p->rank, r);
        dense.data = (r == p->rank ? h->received : h->sent) + r * h->message;
        if (dense.shape[2] > 0)
            copy_parcel(p, t, x, r, &dense, true);
        if (r == p->rank)
            continue;
        const size_t bytes = (size_t)dense.shape[2] * width;
        status = attni_mpi_send(&call->run, &h->flight, r, dense.data, bytes);
        call->report.sent_bytes += (int64_t)bytes;
    }
    if (status == ATTN_OK)
        status = attni_mpi_wait(&call->run, &h->flight);
    for (int r = 0; r < p->size && status == ATTN_OK; r++) {
        dense.shape[2] = rows_between(p, t, x, r, p->rank);
        dense.data = h->received + r * h->message;
        if (dense.shape[2] > 0)
            copy_parcel(p, t, x, r, &dense, false);
    }
    return status;
}

/* Moves all tensors of one direction. Rank 0 has the most heads and the most rows. */
static attn_status exchange(attni_mpi_heads *h, bool results)
{
    const attni_mpi_plan *p = &h->call->plan;
    attn_status status = ATTN_OK;
    for (int i = 0; i < h->count; i++) {
        const attni_mpi_dealt *t = &h->tensors[i];
        int64_t first;
        const int64_t B = t->local.shape[0], heads = heads_in(p, t, 0, &first);
        const int64_t rows = attn_mpi_rows(t->whole.shape[2], 0, p->size);
        if (t->result != results || row_bytes(&t->whole) == 0)
            continue;
        for (parcel x = {0}; x.b < B; x.b++)
            for (x.head = 0; x.head < heads; x.head++)
                for (x.row = 0; x.row < rows && status == ATTN_OK; x.row += step_of(&t->whole))
                    status = exchange_round(h, t, &x);
    }
    return status;
}

/* ------------------------------------------------------------------------------------ the mask */

/* What a rank knows about the mask's shape. A rank with one row cannot tell whether its mask has a
 * row for each query, or one row for all. */
typedef struct mask_shape {
    int64_t sizes[2]; /* batches and heads */
    int64_t rows;     /* 1: one for all queries; 2: one for each; 0: either */
} mask_shape;

/* Adds the mask to the exchange if it has a row for each query; else this rank already has all
 * of it. All ranks come to the same result. */
static attn_status add_mask(attni_mpi_heads *h)
{
    attni_mpi_call *call = h->call;
    const attni_mpi_plan *p = &call->plan;
    const attn_tensor *mask = call->local.mask;
    const int64_t queries = call->local.q.shape[2];
    if (!mask)
        return ATTN_OK;
    mask_shape mine = {{mask->shape[0], mask->shape[1]}, mask->shape[2] == 1 ? 1 : 2};
    if (mask->shape[2] == 1 && queries == 1)
        mine.rows = 0;
    attn_status status = attni_mpi_all_gather(&call->run, &mine, sizeof mine, h->masks);
    if (status)
        return status;
    int64_t rows = 0;
    for (int r = 0; r < p->size; r++) {
        const mask_shape *theirs = &h->masks[r];
        if (theirs->sizes[0] != h->masks[0].sizes[0] || theirs->sizes[1] != h->masks[0].sizes[1] ||
            (rows && theirs->rows && rows != theirs->rows))
            return attni_mpi_fail(call->run.err, ATTN_ERR_SHAPE, "mask",
                                  "mask of rank %d has another shape than that of the ranks before "
                                  "it; in mode ATTN_MPI_HEADS the shapes must agree",
                                  r);
        rows = theirs->rows ? theirs->rows : rows;
    }
    const bool one = mask->shape[1] == 1;
    if (rows == 2) {
        h->args.mask = add(h, mask, p->T, one ? 0 : h->group, false);
        return h->args.mask ? ATTN_OK
                            : attni_mpi_give_up(&call->run, attni_mpi_no_memory(&call->run));
    }
    h->mask = *mask;
    if (!one) {
        h->mask.shape[1] = h->args.q.shape[1];
        h->mask.data = one_head(mask, 0, h->first).data;
    }
    h->args.mask = &h->mask;
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------ the call */

attn_status attni_mpi_heads_new(attni_mpi_heads *h, attni_mpi_call *call,
                                const attn_sdpa_grads *grads)
{
    const attn_sdpa_args *a = &call->local;
    const attni_mpi_plan *p = &call->plan;
    const int64_t H = a->q.shape[1], Hk = a->k.shape[1];
    int64_t first;
    h->call = call;
    if (p->size > attni_mpi_max(Hk, 1))
        return attni_mpi_fail(call->run.err, ATTN_ERR_ARGUMENT, "options",
                              "options: mode is ATTN_MPI_HEADS, and k has %lld heads for %d ranks; "
                              "this mode needs a head of k for each rank",
                              (long long)Hk, p->size);
    h->group = Hk ? H / Hk : 0;
    h->args = *a;
    heads_of(p, p->rank, &first);
    first *= h->group;
    h->first = first;
    h->args.alibi_slopes = a->alibi_slopes ? a->alibi_slopes + first : NULL;
    h->args.sink_logits = a->sink_logits ? a->sink_logits + first : NULL;
    h->part = (attn_pieces_options)ATTN_PIECES_OPTIONS_INIT;
    h->part.head_offset = first, h->part.whole_H = H;
    h->grads = (attn_sdpa_grads)ATTN_SDPA_GRADS_INIT;
    h->masks = attni_mpi_allocate(&call->run, (uint64_t)p->size, sizeof *h->masks);
    h->again = attni_mpi_allocate(&call->run, (uint64_t)p->size, 1);
    if (!h->masks || !h->again || !add_args(h, grads != NULL) || (grads && !add_grads(h, grads)) ||
        attni_mpi_flight_new(&call->run, &h->flight))
        return attni_mpi_no_memory(&call->run);
    return ATTN_OK;
}

/* Before the computation: this rank gets all rows of its heads. */
static attn_status gather(attni_mpi_heads *h)
{
    attni_mpi_run *run = &h->call->run;
    const uint64_t size = (uint64_t)h->call->plan.size;
    const attn_status status = add_mask(h);
    if (status)
        return status;
    h->sent = attni_mpi_allocate(run, size, (uint64_t)h->message);
    h->received = attni_mpi_allocate(run, size, (uint64_t)h->message);
    if (!h->sent || !h->received)
        return attni_mpi_give_up(run, attni_mpi_no_memory(run));
    h->call->report.buffer_bytes += 2 * (int64_t)size * h->message;
    return exchange(h, false);
}

/* After it: `status` is that of this rank's computation. The results go back if no rank failed. */
static attn_status give_back(attni_mpi_heads *h, attn_status status)
{
    status = attni_mpi_agree_again(&h->call->run, status, h->again);
    return status ? status : exchange(h, true);
}

attn_status attni_mpi_heads_forward(attni_mpi_heads *h, attn_context *ctx)
{
    attn_error *err = h->call->run.err;
    attn_sdpa_state *state = NULL;
    attn_status status = gather(h);
    if (status)
        return status;
    status = attn_sdpa_begin(ctx, &h->args, &h->part, &state, err);
    while (status == ATTN_OK || status == ATTN_AGAIN) {
        h->call->report.sweeps++;
        status = attni_mpi_feed(state, h->k, h->v, 0, h->call->plan.S, err);
        if (status || (status = attn_sdpa_finish(state, err)) != ATTN_AGAIN)
            break;
    }
    attn_sdpa_end(state);
    return give_back(h, status);
}

/* -------------------------------------------------------------------------------- the backward */

/* Computes all gradients of this rank's heads; those of slopes and sinks go to `sums` [2][H]. */
static attn_status differentiate(attni_mpi_heads *h, attn_context *ctx,
                                 const attn_sdpa_grads *grads, double *sums)
{
    attn_error *err = h->call->run.err;
    const int64_t H = h->call->local.q.shape[1], S = h->call->plan.S;
    attn_sdpa_backward_state *state = NULL;
    h->grads.dalibi_slopes = grads->dalibi_slopes ? sums + h->first : NULL;
    h->grads.dsink_logits = grads->dsink_logits ? sums + H + h->first : NULL;
    attn_status status = attn_sdpa_backward_begin(ctx, &h->args, &h->grads, &h->part, &state, err);
    for (int64_t j, past;
         status == ATTN_OK && (j = attn_sdpa_backward_next(state, S, &past)) < S;) {
        attn_tensor rows[4];
        const attn_tensor *whole[] = {h->k, h->v, h->dk, h->dv};
        for (int i = 0; i < 4; i++)
            if (whole[i])
                rows[i] = attni_mpi_some_rows(whole[i], j, past - j);
        status = attn_sdpa_backward_feed(state, j, &rows[0], &rows[1], h->dk ? &rows[2] : NULL,
                                         h->dv ? &rows[3] : NULL, err);
    }
    if (status == ATTN_OK)
        status = attn_sdpa_backward_finish(state, err);
    attn_sdpa_backward_end(state);
    return status;
}

attn_status attni_mpi_heads_backward(attni_mpi_heads *h, attn_context *ctx,
                                     const attn_sdpa_grads *grads)
{
    attni_mpi_run *run = &h->call->run;
    const attni_mpi_plan *p = &h->call->plan;
    const int64_t H = h->call->local.q.shape[1];
    double *const to[] = {grads->dalibi_slopes, grads->dsink_logits};
    h->call->report.sweeps = 1;
    attn_status status = gather(h);
    if (status)
        return status;
    double *sums = attni_mpi_allocate(run, (uint64_t)H, 2 * sizeof *sums);
    double *all = attni_mpi_allocate(run, (uint64_t)p->size, 2 * (uint64_t)H * sizeof *all);
    status = sums && all ? differentiate(h, ctx, grads, sums) : attni_mpi_no_memory(run);
    if ((status = give_back(h, status)) || H == 0 || (!to[0] && !to[1]))
        return status;
    status = attni_mpi_all_gather(run, sums, 2 * (size_t)H * sizeof *sums, all);
    for (int r = 0; r < p->size && status == ATTN_OK; r++) {
        int64_t first;
        const int64_t n = heads_of(p, r, &first) * h->group;
        first *= h->group;
        for (int i = 0; i < 2; i++)
            for (int64_t x = first; x < first + n && to[i]; x++)
                to[i][x] = all[(r * 2 + i) * H + x];
    }
    return status;
}
