/* Segments of keys on their way between the ranks (ranks.h).
 *
 *   receive    segment 0   segment 1   segment 2   segment 3
 *   compute                segment 0   segment 1   segment 2
 *
 * `slots` holds the two segments whose messages are under way or start next. A slot has the rows of
 * each rank, one rank after the other. `ordered` is a third segment, the one that is computed, in
 * the order of its keys. */
#include "ranks.h"

/* --------------------------------------------------------------------------------------- rows */

attni_mpi_pair attni_mpi_pair_of(attn_dtype dtype, int64_t B, int64_t heads, int64_t first,
                                 int64_t second)
{
    attni_mpi_pair pair = {.dtype = dtype, .B = B, .heads = heads, .widths = {first, second}};
    if (__builtin_add_overflow(first, second, &pair.bytes) ||
        __builtin_mul_overflow(pair.bytes, (size_t)B, &pair.bytes) ||
        __builtin_mul_overflow(pair.bytes, (size_t)heads, &pair.bytes) ||
        __builtin_mul_overflow(pair.bytes, attn_dtype_size(dtype), &pair.bytes))
        pair.bytes = SIZE_MAX;
    return pair;
}

void attni_mpi_views(const attni_mpi_pair *pair, char *rows, int64_t n, attn_tensor views[2])
{
    for (int i = 0; i < 2; i++) {
        const int64_t width = pair->widths[i];
        views[i] = attn_bhtd(rows, pair->dtype, pair->B, pair->heads, n, width);
        rows += (size_t)(pair->B * pair->heads * n * width) * attn_dtype_size(pair->dtype);
    }
}

attn_tensor attni_mpi_some_rows(const attn_tensor *t, int64_t from, int64_t n)
{
    attn_tensor some = *t;
    if (t->data)
        some.data = (char *)t->data + from * t->stride[2] * (int64_t)attn_dtype_size(t->dtype);
    some.shape[2] = n;
    return some;
}

attn_status attni_mpi_feed(attn_sdpa_state *state, const attn_tensor *k, const attn_tensor *v,
                           int64_t first, int64_t past, attn_error *err)
{
    const int64_t from = attni_mpi_max(first, attn_sdpa_next(state, NULL));
    if (from >= past)
        return ATTN_OK;
    const attn_tensor some_k = attni_mpi_some_rows(k, from - first, past - from),
                      some_v = attni_mpi_some_rows(v, from - first, past - from);
    return attn_sdpa_feed(state, from, &some_k, &some_v, err);
}

int64_t attni_mpi_segment_keys(const attni_mpi_plan *plan, int64_t segment)
{
    return plan->starts[segment + 1] - plan->starts[segment];
}

int64_t attni_mpi_most_keys(const attni_mpi_plan *plan)
{
    int64_t most = 0;
    for (int64_t n = 0; n < plan->segments; n++)
        most = attni_mpi_max(most, attni_mpi_segment_keys(plan, n));
    return most;
}

int64_t attni_mpi_share(const attni_mpi_plan *plan, int64_t segment, int rank, int64_t *row)
{
    *row = attn_mpi_rows(plan->starts[segment], rank, plan->size);
    return attn_mpi_rows(plan->starts[segment + 1], rank, plan->size) - *row;
}

/* Copies the rows of a rank's share between `dealt` and `ordered`, block by block. */
static void move_share(const attni_mpi_plan *p, int64_t segment, int rank,
                       const attn_tensor ordered[2], const attn_tensor dealt[2], bool assemble)
{
    int64_t row;
    const int64_t n = attni_mpi_share(p, segment, rank, &row);
    for (int64_t i = 0, m; i < n; i += m) {
        const int64_t in_block = (row + i) % ATTN_MPI_BLOCK, block = (row + i) / ATTN_MPI_BLOCK;
        const int64_t key = (block * p->size + rank) * ATTN_MPI_BLOCK + in_block;
        const int64_t to = key - p->starts[segment];
        m = attni_mpi_min(ATTN_MPI_BLOCK - in_block, n - i);
        for (int t = 0; t < 2; t++)
            if (assemble)
                attni_mpi_copy_rows(&ordered[t], to, &dealt[t], i, m);
            else
                attni_mpi_copy_rows(&dealt[t], i, &ordered[t], to, m);
    }
}

static void move_all(const attni_mpi_plan *p, int64_t segment, const attni_mpi_pair *pair,
                     char *ordered, char *dealt, bool assemble)
{
    attn_tensor all[2], some[2];
    attni_mpi_views(pair, ordered, attni_mpi_segment_keys(p, segment), all);
    for (int r = 0; r < p->size; r++) {
        int64_t row;
        const int64_t n = attni_mpi_share(p, segment, r, &row);
        attni_mpi_views(pair, dealt, n, some);
        move_share(p, segment, r, all, some, assemble);
        dealt += (size_t)n * pair->bytes;
    }
}

void attni_mpi_assemble(const attni_mpi_plan *plan, int64_t segment, const attni_mpi_pair *pair,
                        char *dealt, char *ordered)
{
    move_all(plan, segment, pair, ordered, dealt, true);
}

void attni_mpi_deal(const attni_mpi_plan *plan, int64_t segment, const attni_mpi_pair *pair,
                    char *ordered, char *dealt)
{
    move_all(plan, segment, pair, ordered, dealt, false);
}

/* ------------------------------------------------------------------------------- preparations */

attn_status attni_mpi_segments_new(attni_mpi_segments *s, attni_mpi_call *call)
{
    attni_mpi_run *run = &call->run;
    const attni_mpi_plan *p = &call->plan;
    const attn_tensor *k = &p->args->k;
    s->call = call;
    s->pair = attni_mpi_pair_of(k->dtype, p->B, k->shape[1], k->shape[3], p->args->v.shape[3]);
    const uint64_t keys = (uint64_t)attni_mpi_most_keys(p), bytes = s->pair.bytes;
    for (int i = 0; i < ATTNI_MPI_SLOTS; i++) {
        s->slots[i].rows = attni_mpi_allocate(run, keys, bytes);
        if (!s->slots[i].rows || attni_mpi_flight_new(run, &s->slots[i].flight))
            return attni_mpi_no_memory(run);
    }
    s->ordered = attni_mpi_allocate(run, keys, bytes);
    s->counts = attni_mpi_allocate(run, (uint64_t)p->segments + 1, sizeof *s->counts);
    s->needs = attni_mpi_allocate(run, (uint64_t)p->size, (uint64_t)p->segments);
    s->again = attni_mpi_allocate(run, (uint64_t)p->size, 1);
    if (!s->ordered || !s->counts || !s->needs || !s->again)
        return attni_mpi_no_memory(run);
    call->report.buffer_bytes = (int64_t)((ATTNI_MPI_SLOTS + 1) * keys * bytes);
    return ATTN_OK;
}

void attni_mpi_segments_begin(attni_mpi_segments *s)
{
    const attni_mpi_plan *p = &s->call->plan;
    for (int r = 0; r < p->size; r++) {
        attni_mpi_needs(p, r, s->counts, s->needs + r * p->segments);
        s->again[r] = 1;
    }
}

bool attni_mpi_is_needed(const attni_mpi_segments *s, int rank, int64_t segment)
{
    return s->again[rank] && s->needs[rank * s->call->plan.segments + segment];
}

bool attni_mpi_is_sent(const attni_mpi_segments *s, int64_t segment)
{
    bool some = false;
    for (int r = 0; r < s->call->plan.size; r++)
        some |= attni_mpi_is_needed(s, r, segment);
    return some;
}

/* -------------------------------------------------------------------------------- one segment */

/* Packs this rank's rows and starts the segment's messages. */
static attn_status start_segment(attni_mpi_segments *s, attni_mpi_slot *to, int64_t segment)
{
    attni_mpi_call *call = s->call;
    const attn_sdpa_args *a = &call->local;
    const int size = call->plan.size, me = call->plan.rank;
    attn_status status = ATTN_OK;
    size_t used = 0, mine = 0;
    char *own = to->rows;
    to->segment = segment;
    for (int r = 0; r < size && status == ATTN_OK; r++) {
        int64_t row;
        const int64_t n = attni_mpi_share(&call->plan, segment, r, &row);
        const size_t bytes = (size_t)n * s->pair.bytes;
        if (r == me) {
            attn_tensor views[2];
            own = to->rows + used, mine = bytes;
            attni_mpi_views(&s->pair, own, n, views);
            attni_mpi_copy_rows(&views[0], 0, &a->k, row, n);
            attni_mpi_copy_rows(&views[1], 0, &a->v, row, n);
        } else if (attni_mpi_is_needed(s, me, segment)) {
            status = attni_mpi_receive(&call->run, &to->flight, r, to->rows + used, bytes);
            call->report.received_bytes += (int64_t)bytes;
        }
        used += bytes;
    }
    for (int step = 1; step < size && status == ATTN_OK; step++) {
        const int r = (me + step) % size; /* so that not all ranks send to rank 0 first */
        if (!attni_mpi_is_needed(s, r, segment))
            continue;
        status = attni_mpi_send(&call->run, &to->flight, r, own, mine);
        call->report.sent_bytes += (int64_t)mine;
    }
    return status;
}

/* Starts the next segment that this rank sends or needs; slot->segment is -1 if there is none. */
static attn_status start_next(attni_mpi_segments *s, attni_mpi_slot *to)
{
    to->segment = -1;
    for (; s->next < s->call->plan.segments; s->next++)
        if (attni_mpi_is_sent(s, s->next))
            return start_segment(s, to, s->next++);
    return ATTN_OK;
}

attn_status attni_mpi_segments_poll(attni_mpi_segments *s)
{
    attn_status status = ATTN_OK;
    int left;
    for (int i = 0; i < ATTNI_MPI_SLOTS && status == ATTN_OK; i++)
        status = attni_mpi_poll(&s->call->run, &s->slots[i].flight, &left);
    return status;
}

void attni_mpi_segments_cancel(attni_mpi_segments *s)
{
    for (int i = 0; i < ATTNI_MPI_SLOTS; i++)
        if (s->slots[i].flight.receives)
            attni_mpi_cancel(&s->call->run, &s->slots[i].flight);
}

/* ------------------------------------------------------------------------------- all segments */

attn_status attni_mpi_sweep(attni_mpi_segments *s,
                            attn_status (*step)(void *user, int64_t segment, bool needed),
                            void *user)
{
    const attni_mpi_plan *p = &s->call->plan;
    attn_status status = ATTN_OK;
    s->next = s->begins;
    s->begins = 0;
    for (int i = 0; i < ATTNI_MPI_SLOTS && status == ATTN_OK; i++)
        status = start_next(s, &s->slots[i]);
    for (int i = 0; status == ATTN_OK && s->slots[i].segment >= 0; i = (i + 1) % ATTNI_MPI_SLOTS) {
        attni_mpi_slot *slot = &s->slots[i];
        const int64_t segment = slot->segment;
        const bool needed = attni_mpi_is_needed(s, p->rank, segment);
        status = attni_mpi_wait(&s->call->run, &slot->flight);
        if (status == ATTN_OK && needed) {
            attni_mpi_assemble(p, segment, &s->pair, slot->rows, s->ordered);
            attni_mpi_views(&s->pair, s->ordered, attni_mpi_segment_keys(p, segment), s->rows);
            s->call->report.received_segments++;
        }
        if (status == ATTN_OK)
            status = start_next(s, slot);
        if (status == ATTN_OK)
            status = step(user, segment, needed);
    }
    return status;
}
