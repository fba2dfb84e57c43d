/* Keys in pieces: attn_sdpa_begin, _next and _end (pieces.h).
 *
 *   attni_pieces_cut_runs   cuts rows at given positions into runs, planned like packed sequences
 *   keys_needed             which keys the tiles still have to see
 *   attn_sdpa_begin
 */
#include "pieces.h"

#include <string.h>

/* ------------------------------------------------------------------------------------- the runs */

int64_t attni_pieces_sequence_at(const attni_plan *p, const int64_t *starts, int64_t at)
{
    int64_t low = 0, high = starts ? p->args.sequences : 0;
    while (low < high) { /* the first sequence that ends after `at` */
        const int64_t middle = low + (high - low) / 2;
        if (starts[middle + 1] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int64_t attni_pieces_cut_runs(const attni_plan *p, const int64_t *positions, attni_run *runs)
{
    int64_t count = 0, end = -1; /* the position at which the last run could go on */
    attni_run run = {0};
    for (int64_t i = 0; i < p->T; i++) {
        const int64_t at = positions ? positions[i] : i;
        const int64_t n = at == end && !p->args.cu_seqlens_q
                              ? run.n
                              : attni_pieces_sequence_at(p, p->args.cu_seqlens_q, at);
        if (at != end || n != run.n) {
            count++;
            run = (attni_run){.row = i, .position = at, .n = n};
        }
        run.rows++;
        end = at + 1;
        if (runs)
            runs[count - 1] = run;
    }
    return count;
}

/* -------------------------------------------------------------------------------- keys wanted */

static int64_t heads_of(const attni_plan *p) { return p->tasks ? p->tasks / p->tasks_per_head : 0; }

uint8_t *attni_pieces_sweeps(const attn_sdpa_state *s, int64_t head, int64_t earlier)
{
    return s->sweeps + (head * s->plan.tasks_per_head + earlier) * s->plan.tiles;
}

bool attni_pieces_swept(const attn_sdpa_state *s, int64_t head, int64_t earlier)
{
    const uint8_t *sweeps = attni_pieces_sweeps(s, head, earlier);
    bool some = !s->again; /* the first sweep is of all tiles */
    for (int t = 0; t < s->plan.tiles; t++)
        some |= sweeps[t] == ATTNI_FED_SKIP_MASKED || sweeps[t] == ATTNI_FED_RESCALED;
    return some;
}

/* The keys that queries i0 .. i0+rows-1 still need, counted from the tensor's first key. The range
 * is widened to whole chunks of the sequence, and then to multiples of ATTNI_CHUNK in the tensor,
 * where pieces begin and end. It is empty if the queries need no more keys. */
static key_range keys_needed(const attn_sdpa_state *s, const attni_sequence *sequence, int64_t i0,
                             int64_t rows)
{
    const key_range none = {INT64_MAX, 0};
    const int64_t position = s->position - sequence->j_base;
    const attni_span seen = attni_mask_span(sequence, i0, i0 + rows);
    int64_t first = seen.any0 - seen.any0 % ATTNI_CHUNK, past = seen.any1;
    if (seen.any0 >= seen.any1)
        return none;
    past = attni_div_up(past, ATTNI_CHUNK) * ATTNI_CHUNK;
    past = past < sequence->S ? past : sequence->S;
    if (past <= position)
        return none;
    first = (first > position ? first : position) + sequence->j_base;
    past = attni_div_up(past + sequence->j_base, ATTNI_CHUNK) * ATTNI_CHUNK;
    return (key_range){first - first % ATTNI_CHUNK, past < s->plan.S ? past : s->plan.S};
}

/* One of two passes over the keys that one head needs. The first (`adjoining` is false) finds
 * all->first. The second extends all->past by the keys that adjoin the range. */
static void add_needed(const attn_sdpa_state *s, int64_t head, key_range *all, bool adjoining)
{
    const attni_plan *p = &s->plan;
    const int64_t groups = attni_groups_of_heads(p), b = head / groups;
    for (int64_t n = 0, earlier = 0; n < p->sequences; n++) {
        attni_sequence x;
        attni_find_sequence(p, b, attni_first_head(p, head - b * groups), n, &x);
        for (int64_t i0 = 0; i0 < x.T; i0 += p->task_rows, earlier++) {
            if (!attni_pieces_swept(s, head, earlier))
                continue;
            const int64_t rows = x.T - i0 < p->task_rows ? x.T - i0 : p->task_rows;
            const key_range keys = keys_needed(s, &x, i0, rows);
            if (!adjoining && keys.first < all->first)
                all->first = keys.first;
            if (adjoining && keys.first <= all->past && keys.past > all->past)
                all->past = keys.past;
        }
    }
}

void attni_pieces_want(attn_sdpa_state *s)
{
    const attni_plan *p = &s->plan;
    const int64_t heads = s->finished ? 0 : heads_of(p);
    const int64_t step = s->again || !heads ? 1 : attni_groups_of_heads(p);
    key_range all = {p->S, p->S};
    for (int64_t head = 0; head < heads; head += step)
        add_needed(s, head, &all, false);
    all.past = all.first;
    for (int64_t head = 0; head < heads; head += step)
        add_needed(s, head, &all, true);
    s->wanted = all.first;
    s->past = all.past;
}

int64_t attn_sdpa_next(const attn_sdpa_state *state, int64_t *past)
{
    if (past)
        *past = state ? state->past : 0;
    return state ? state->wanted : 0;
}

/* ------------------------------------------------------------------------------ begin and end */

attn_status attni_pieces_without_data(attn_tensor *t, const char *name, attn_error *err)
{
    static char none;
    if (t->data)
        return attni_fail(err, ATTN_ERR_ARGUMENT, name,
                          "%s has data, but it comes in pieces; its data must be NULL", name);
    t->data = &none;
    memset(t->stride, 0, sizeof t->stride);
    return ATTN_OK;
}

/* Reads the arguments of the call. k and v keep their shapes, but have no memory. */
static attn_status read_args(attn_sdpa_args *a, const attn_sdpa_args *args, attn_error *err)
{
    const attn_status status = attni_struct_read(ATTNI_SDPA_ARGS, a, args, "args", err);
    if (status)
        return status;
    if (a->scores)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "scores",
                          "scores cannot be written when keys come in pieces: they need the final "
                          "sums, and so all keys once more; leave scores NULL");
    if (a->cache)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "cache",
                          "cache has all of its keys; use attn_sdpa_forward, or leave cache NULL "
                          "and feed the keys");
    attn_tensor *const keys[] = {&a->k, &a->v};
    for (int i = 0; i < 2; i++) {
        const attn_status given = attni_pieces_without_data(keys[i], i ? "v" : "k", err);
        if (given)
            return given;
    }
    a->workspace = NULL;
    return ATTN_OK;
}

/* The bytes of a task's sums. The task of the last, smaller group of heads may decode, which takes
 * max_decode_rows rows of sums. With the values of max_decode_rows that kernels have, this is not
 * more than a whole group takes. */
static size_t task_bytes(const attni_plan *p, int64_t rows)
{
    const int last = attni_heads_of_group(p, attni_first_head(p, attni_groups_of_heads(p) - 1));
    const size_t whole = p->engine->fed_bytes(p, p->group, rows);
    const size_t smaller = p->engine->fed_bytes(p, last, rows);
    return whole > smaller ? whole : smaller;
}

/* Places the arrays in the block s->memory; returns the size of the block, or SIZE_MAX. Fills
 * `offsets` if there is memory. */
static size_t carve(attn_sdpa_state *s, attni_layout *layout)
{
    const attni_plan *p = &s->plan;
    const uint64_t heads = (uint64_t)heads_of(p), tasks = (uint64_t)p->tasks_per_head;
    const bool packed = p->args.cu_seqlens_k != NULL && p->tasks > 0;
    const size_t size = attn_dtype_size(p->args.k.dtype);
    size_t rows = 0, head_bytes = 0, all = 0;
    s->offsets = attni_layout_take(layout, tasks, sizeof *s->offsets);
    for (int64_t n = 0, task = 0; heads > 0 && n < p->sequences; n++) {
        attni_sequence sequence;
        attni_find_sequence(p, 0, 0, n, &sequence);
        const int64_t T = sequence.T;
        for (int64_t i0 = 0; i0 < T; i0 += p->task_rows, task++) {
            if (layout->base)
                s->offsets[task] = (int64_t)head_bytes;
            const int64_t left = T - i0;
            if (!attni_size_add(head_bytes,
                                task_bytes(p, left < p->task_rows ? left : p->task_rows),
                                &head_bytes))
                return SIZE_MAX;
        }
    }
    s->head_bytes = (int64_t)head_bytes;
    if (!attni_size_mul((uint64_t)p->tasks, (uint64_t)p->tiles, &all))
        return SIZE_MAX;
    s->sweeps = attni_layout_take(layout, all, 1);
    if (packed) {
        if (!attni_size_mul((uint64_t)p->B * (uint64_t)p->Hk, ATTNI_CHUNK * size, &rows))
            return SIZE_MAX;
        s->open_k = attni_layout_take(layout, rows, (uint64_t)p->D);
        s->open_v = attni_layout_take(layout, rows, (uint64_t)p->Dv);
    }
    s->sums = attni_layout_take(layout, heads, head_bytes);
    return layout->overflow || layout->used > PTRDIFF_MAX ? SIZE_MAX : layout->used;
}

attn_status attni_pieces_no_memory(size_t bytes, attn_error *err)
{
    return attni_fail(err, ATTN_ERR_MEMORY, "", "no memory for %zu bytes of a state", bytes);
}

/* Plans the call and allocates the tiles' sums. */
static attn_status fill(attn_sdpa_state *s, attni_call *call, attn_error *err)
{
    attni_plan *p = &s->plan;
    attni_layout layout = {0};
    attn_status status = ATTN_OK;
    if (p->D + p->Dv == 0)
        status = attni_check_keys(p, attni_sdpa_writes(&p->args), err);
    if (status || (status = attni_make_plan(p, s->isa, s->threads, err)))
        return status;
    s->memory_bytes = carve(s, &layout);
    if (s->memory_bytes == SIZE_MAX)
        return attni_fail(err, ATTN_ERR_LIMIT, "q",
                          "q is too large: its sums are more than this machine can address");
    s->memory = attni_call_allocate(call, s->memory_bytes + ATTNI_ALIGN);
    if (!s->memory)
        return attni_pieces_no_memory(s->memory_bytes, err);
    memset(s->memory, 0, s->memory_bytes); /* all tiles are ATTNI_FED_NEW */
    layout = (attni_layout){.base = s->memory};
    carve(s, &layout);
    attni_pieces_want(s);
    return ATTN_OK;
}

void attni_pieces_release(attni_call *call, void *state, size_t bytes, void *memory,
                          size_t memory_bytes)
{
    if (memory)
        attni_call_release(call, memory, memory_bytes);
    attni_call_release(call, state, bytes);
}

void attni_pieces_free(attn_context *ctx, void *state, size_t bytes, void *memory,
                       size_t memory_bytes)
{
    attni_call call;
    if (attni_call_begin(&call, ctx, 0, NULL, 0, NULL) != ATTN_OK)
        return;
    attni_pieces_release(&call, state, bytes, memory, memory_bytes);
    attni_call_end(&call);
}

/* Allocates a state for a checked call. */
static attn_sdpa_state *new_state(attni_call *call, const attni_plan *plan,
                                  const attn_pieces_options *part, size_t bytes, int64_t runs)
{
    attn_sdpa_state *s = attni_call_allocate(call, bytes);
    if (!s)
        return NULL;
    memset(s, 0, sizeof *s);
    s->ctx = call->ctx;
    s->bytes = bytes;
    s->isa = call->isa;
    s->threads = call->threads;
    s->plan = *plan;
    s->plan.in_pieces = true;
    if (plan->args.mask)
        s->plan.args.mask = &s->plan.mask;
    if (plan->args.lse) {
        s->lse = *plan->args.lse;
        s->plan.args.lse = &s->lse;
    }
    if (runs) {
        attni_run *to = (attni_run *)(void *)(s + 1);
        s->plan.run_count = attni_pieces_cut_runs(plan, part->q_positions, to);
        s->plan.runs = to;
    }
    return s;
}

static attn_status without_sums(const attn_pieces_options *part, attn_error *err)
{
    const char *name = part->sums_in ? "sums_in" : "sums_out";
    if (!part->sums_in && !part->sums_out)
        return ATTN_OK;
    return attni_fail(err, ATTN_ERR_ARGUMENT, name,
                      "%s is set; it must be 0 but for attn_sdpa_backward_begin", name);
}

attn_status attni_pieces_begin(attn_context *ctx, const attn_sdpa_args *args,
                               const attn_pieces_options *options, int tiles, attn_sdpa_state **out,
                               attn_error *err)
{
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    attn_sdpa_args given;
    attni_plan plan;
    attni_call call;
    attn_status status;
    if (!out)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "out",
                          "out is NULL; it must point to where the state's address is stored");
    *out = NULL;
    if ((options &&
         (status = attni_struct_read(ATTNI_PIECES_OPTIONS, &part, options, "options", err))) ||
        (status = without_sums(&part, err)) || (status = read_args(&given, args, err)) ||
        (status = attni_sdpa_check(&plan, &given, false, &part, err)))
        return status;
    plan.most_tiles = tiles;
    const bool cut = part.q_positions || plan.whole_T != plan.T;
    const int64_t runs = cut ? attni_pieces_cut_runs(&plan, part.q_positions, NULL) : 0;
    size_t bytes;
    if (!attni_size_mul((uint64_t)runs, sizeof(attni_run), &bytes) ||
        !attni_size_add(bytes, sizeof(attn_sdpa_state), &bytes))
        return attni_pieces_no_memory(SIZE_MAX, err);
    if ((status = attni_call_begin(&call, ctx, 0, NULL, 0, err)))
        return status;
    attn_sdpa_state *s = new_state(&call, &plan, &part, bytes, runs);
    status = s ? fill(s, &call, err) : attni_pieces_no_memory(bytes, err);
    if (status == ATTN_OK)
        *out = s;
    else if (s)
        attni_pieces_release(&call, s, s->bytes, s->memory, s->memory_bytes + ATTNI_ALIGN);
    attni_call_end(&call);
    return status;
}

attn_status attn_sdpa_begin(attn_context *ctx, const attn_sdpa_args *args,
                            const attn_pieces_options *options, attn_sdpa_state **out,
                            attn_error *err)
{
    ATTNI_CALL_MODE;
    return attni_pieces_begin(ctx, args, options, 0, out, err);
}

size_t attn_sdpa_state_bytes(const attn_sdpa_state *state)
{
    return state ? state->bytes + state->memory_bytes + ATTNI_ALIGN : 0;
}

void attn_sdpa_end(attn_sdpa_state *state)
{
    ATTNI_CALL_MODE;
    if (state)
        attni_pieces_free(state->ctx, state, state->bytes, state->memory,
                          state->memory_bytes + ATTNI_ALIGN);
}
