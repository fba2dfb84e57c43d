/* The backward with keys in pieces: attn_sdpa_backward_begin and so on (attn_pieces.h).
 *
 *   begin    check and plan, as for one call; memory for the totals of dq; the values of each query
 *            (backward_rows.c)
 *   feed     the tasks whose chunks of keys are in the piece (backward_task.c)
 *   finish   rows that see no key; gradients that are sums over tasks
 *
 * A task owns its chunk's dk and dv, so these are complete when its piece has been fed. In one
 * call, each head that several threads share has totals of dq of its own; here every head has them.
 * The totals stay in the state from piece to piece. So every sum is that of one call, in the same
 * order. The caller need not feed the keys of a task if no row needs them. But the first task of a
 * sequence also writes the gradients of rows that see no key. If it was in no piece, finish runs
 * it.
 *
 * If the call has only some rows of a whole, its rows are cut into runs (attni_pieces_cut_runs). A
 * task visits the runs of its sequence, the last one first, as it visits the tiles of a run. Each
 * row is in one lane of a tile, and its dq depends on neither the other lanes nor the width of the
 * tile.
 */
#include "../sdpa/pieces.h"
#include "backward.h"

struct attn_sdpa_backward_state {
    attn_context *ctx;
    size_t bytes;      /* of this block, which also has the runs */
    attni_backward bw; /* its k, v, dk and dv have no memory */
    char *memory;      /* bw's arrays */
    size_t memory_bytes;
    int64_t position;     /* the key after the last one fed */
    int64_t wanted, past; /* the first range of needed keys that has no gap */
    bool finished;
};

/* ---------------------------------------------------------------------------------- needed keys */

/* The first key of the packed sequence that has key `at`; 0 if there is only one. */
static int64_t sequence_start(const attni_plan *p, int64_t at)
{
    const int64_t *starts = p->args.cu_seqlens_k;
    return starts ? starts[attni_pieces_sequence_at(p, starts, at)] : 0;
}

/* The last place up to `key` where a piece may begin or end. */
static int64_t last_boundary(const attni_plan *p, int64_t key)
{
    return key < p->S ? key - (key - sequence_start(p, key)) % ATTNI_CHUNK : p->S;
}

/* Queries i0 .. i0+rows-1 see some chunks of keys. Returns the keys of these chunks from `position`
 * on, counted from the tensor's first key. Empty if there are none. */
static key_range keys_needed(const attni_sequence *sequence, int64_t i0, int64_t rows,
                             int64_t position)
{
    const attni_span seen = attni_mask_span(sequence, i0, i0 + rows);
    int64_t first = seen.any0 > 0 ? seen.any0 : 0;
    int64_t past = seen.any1 < sequence->S ? seen.any1 : sequence->S;
    if (first >= past)
        return (key_range){INT64_MAX, 0};
    first -= first % ATTNI_CHUNK;
    past = attni_div_up(past, ATTNI_CHUNK) * ATTNI_CHUNK;
    past = (past < sequence->S ? past : sequence->S) + sequence->j_base;
    first += sequence->j_base;
    first = first > position ? first : position;
    return first < past ? (key_range){first, past} : (key_range){INT64_MAX, 0};
}

/* One of two passes over the needed keys of batch element b. The first (`adjoining` is false) finds
 * the first needed key, all->first. The second extends all->past by the needed keys that follow the
 * range without a gap. All heads see the same keys. */
static void add_needed(const attn_sdpa_backward_state *s, int64_t b, key_range *all, bool adjoining)
{
    const attni_backward *bw = &s->bw;
    const int64_t row_runs = bw->row_runs ? bw->run_count : bw->plan.sequences;
    for (int64_t r = 0; r < row_runs; r++) {
        const attni_run run = attni_backward_run_at(bw, r);
        attni_sequence x;
        attni_find_sequence(&bw->plan, b, 0, run.n, &x);
        attni_narrow_to_run(&run, &x);
        for (int64_t i0 = 0; i0 < x.T; i0 += bw->W) {
            const int64_t rows = x.T - i0 < bw->W ? x.T - i0 : bw->W;
            const key_range keys = keys_needed(&x, i0, rows, s->position);
            if (!adjoining && keys.first < all->first)
                all->first = keys.first;
            if (adjoining && keys.first <= all->past && keys.past > all->past)
                all->past = keys.past;
        }
    }
}

static void want(attn_sdpa_backward_state *s)
{
    const attni_plan *p = &s->bw.plan;
    const int64_t B = s->finished || s->bw.nothing ? 0 : p->B;
    key_range all = {p->S, p->S};
    if (B > 0 && s->bw.sums_in && !s->bw.sums_out) { /* every sum becomes a gradient */
        s->wanted = s->position;
        s->past = p->S;
        return;
    }
    for (int64_t b = 0; b < B; b++)
        add_needed(s, b, &all, false);
    all.past = all.first;
    for (int64_t b = 0; b < B; b++)
        add_needed(s, b, &all, true);
    s->wanted = all.first;
    s->past = all.past;
}

int64_t attn_sdpa_backward_next(const attn_sdpa_backward_state *state, int64_t most, int64_t *past)
{
    if (past)
        *past = state ? state->past : 0;
    if (!state)
        return 0;
    most = most > ATTNI_CHUNK ? most : ATTNI_CHUNK;
    if (past && state->past - state->wanted > most)
        *past = last_boundary(&state->bw.plan, state->wanted + most);
    return state->wanted;
}

/* ------------------------------------------------------------------------------- begin and end */

/* Checks the order of the rows. A sequence's runs must follow each other in rising order
 * (attni_backward_first_run). */
static attn_status check_positions(const attni_plan *p, const int64_t *positions, attn_error *err)
{
    for (int64_t i = 1; positions && i < p->T; i++)
        if (positions[i] <= positions[i - 1])
            return attni_fail(err, ATTN_ERR_ARGUMENT, "q_positions",
                              "q_positions[%lld] is %lld after %lld; in the backward in pieces "
                              "each position must be larger than the one before",
                              (long long)i, (long long)positions[i], (long long)positions[i - 1]);
    return ATTN_OK;
}

/* A part without rows has no task that could pass sums on. */
static attn_status check_sums(attni_backward *bw, const attn_pieces_options *part, attn_error *err)
{
    const int flags[] = {part->sums_in, part->sums_out};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "sums_out" : "sums_in";
        if (flags[i] != 0 && flags[i] != 1)
            return attni_fail(err, ATTN_ERR_ARGUMENT, name, "%s is %d; it must be 0 or 1", name,
                              flags[i]);
        if (flags[i] && !bw->plan.T)
            return attni_fail(err, ATTN_ERR_ARGUMENT, name,
                              "%s is 1, but q has no rows; such a part must be left out", name);
    }
    bw->sums_in = part->sums_in;
    bw->sums_out = part->sums_out;
    return ATTN_OK;
}

/* Reads and checks all arguments. */
static attn_status prepare(attni_backward *bw, attn_pieces_options *part,
                           const attn_sdpa_args *args, const attn_sdpa_grads *grads,
                           const attn_pieces_options *options, attn_error *err)
{
    attn_sdpa_args a;
    attn_sdpa_grads g;
    attn_status s;
    if ((options && (s = attni_struct_read(ATTNI_PIECES_OPTIONS, part, options, "options", err))) ||
        (s = attni_struct_read(ATTNI_SDPA_ARGS, &a, args, "args", err)) ||
        (s = attni_struct_read(ATTNI_SDPA_GRADS, &g, grads, "grads", err)) ||
        (s = attni_pieces_without_data(&a.k, "k", err)) ||
        (s = attni_pieces_without_data(&a.v, "v", err)) ||
        (attni_wanted(&g.dk) && (s = attni_pieces_without_data(&g.dk, "dk", err))) ||
        (attni_wanted(&g.dv) && (s = attni_pieces_without_data(&g.dv, "dv", err))))
        return s;
    a.workspace = NULL;
    if ((s = attni_backward_check(bw, &a, &g, part, err)))
        return s;
    bw->in_pieces = true;
    if ((s = check_sums(bw, part, err)))
        return s;
    return check_positions(&bw->plan, part->q_positions, err);
}

/* Copies a checked call. It has pointers to its own members; those of the copy point to the
 * copy. */
static void move(attni_backward *to, const attni_backward *from)
{
    *to = *from;
    if (from->plan.args.mask)
        to->plan.args.mask = &to->plan.mask;
    if (from->grads.dlse)
        to->grads.dlse = &to->dlse;
    if (from->grads.dmask)
        to->grads.dmask = &to->dmask_view;
}

/* Allocates the state of a checked call, and cuts its rows into runs. NULL: no memory. */
static attn_sdpa_backward_state *new_state(attni_call *call, const attni_backward *bw,
                                           const attn_pieces_options *part)
{
    const attni_plan *p = &bw->plan;
    const bool cut = !bw->nothing && (part->q_positions || p->whole_T != p->T);
    const int64_t row_runs = cut ? attni_pieces_cut_runs(p, part->q_positions, NULL) : 0;
    size_t bytes;
    if (!attni_size_mul((uint64_t)row_runs, sizeof(attni_run), &bytes) ||
        !attni_size_add(bytes, sizeof(attn_sdpa_backward_state), &bytes))
        return NULL;
    attn_sdpa_backward_state *s = attni_call_allocate(call, bytes);
    if (!s)
        return NULL;
    memset(s, 0, sizeof *s);
    s->ctx = call->ctx;
    s->bytes = bytes;
    move(&s->bw, bw);
    if (cut) {
        attni_run *to = (attni_run *)(void *)(s + 1);
        s->bw.run_count = attni_pieces_cut_runs(p, part->q_positions, to);
        s->bw.row_runs = to;
    }
    return s;
}

/* Plans the call and allocates its arrays. */
static attn_status fill(attn_sdpa_backward_state *s, attni_call *call, attn_error *err)
{
    attni_layout layout = {0};
    const attn_status status = attni_backward_make_plan(&s->bw, call->isa, call->threads, err);
    if (status)
        return status;
    attni_backward_carve(&s->bw, &layout); /* size_scratch has found that it does not overflow */
    s->memory_bytes = layout.used + ATTNI_ALIGN;
    s->memory = attni_call_allocate(call, s->memory_bytes);
    if (!s->memory)
        return attni_pieces_no_memory(s->memory_bytes, err);
    memset(s->memory, 0, s->memory_bytes);
    layout = (attni_layout){.base = s->memory};
    attni_backward_carve(&s->bw, &layout);
    return ATTN_OK;
}

/* A new state with memory for a checked call. */
static attn_status make_state(attn_context *ctx, const attni_backward *bw,
                              const attn_pieces_options *part, attn_sdpa_backward_state **out,
                              attn_error *err)
{
    attni_call call;
    attn_status status = attni_call_begin(&call, ctx, 0, NULL, 0, err);
    if (status)
        return status;
    attn_sdpa_backward_state *s = new_state(&call, bw, part);
    status = s ? fill(s, &call, err) : attni_pieces_no_memory(sizeof *s, err);
    if (status && s)
        attni_pieces_release(&call, s, s->bytes, s->memory, s->memory_bytes);
    attni_call_end(&call);
    *out = status ? NULL : s;
    return status;
}

/* The workers' scratch, which is part of bw->scratch_bytes. */
static size_t workers_bytes(const attni_backward *bw)
{
    return (size_t)bw->workers * bw->worker_bytes;
}

/* Zeroes the arrays that tasks add to, and computes the values of each query. */
static attn_status start(attn_sdpa_backward_state *s, attn_error *err)
{
    attni_call call;
    attni_backward bw = s->bw;
    const attn_status status = attni_call_begin(&call, s->ctx, workers_bytes(&bw), NULL, 0, err);
    if (status)
        return status;
    bw.workers_scratch = call.scratch;
    if (!bw.nothing)
        attni_backward_clear(&bw);
    attni_backward_step(&bw, &call, bw.query_blocks, attni_backward_rows);
    want(s);
    attni_call_end(&call);
    return ATTN_OK;
}

attn_status attn_sdpa_backward_begin(attn_context *ctx, const attn_sdpa_args *args,
                                     const attn_sdpa_grads *grads,
                                     const attn_pieces_options *options,
                                     attn_sdpa_backward_state **out, attn_error *err)
{
    ATTNI_CALL_MODE;
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    attn_sdpa_backward_state *s;
    attni_backward bw;
    attn_status status;
    if (!out)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "out",
                          "out is NULL; it must point to where the state's address is stored");
    *out = NULL;
    if ((status = prepare(&bw, &part, args, grads, options, err)) ||
        (status = make_state(ctx, &bw, &part, &s, err)))
        return status;
    status = start(s, err);
    if (status)
        attni_pieces_free(ctx, s, s->bytes, s->memory, s->memory_bytes);
    else
        *out = s;
    return status;
}

size_t attn_sdpa_backward_state_bytes(const attn_sdpa_backward_state *state)
{
    return state ? state->bytes + state->memory_bytes : 0;
}

void attn_sdpa_backward_end(attn_sdpa_backward_state *state)
{
    ATTNI_CALL_MODE;
    if (state)
        attni_pieces_free(state->ctx, state, state->bytes, state->memory, state->memory_bytes);
}

/* ---------------------------------------------------------------------------------------- feed */

/* How many tasks of a head come before key `at`, where a piece may begin. This includes tasks of
 * sequences without keys. */
static int64_t tasks_before(const attni_backward *bw, int64_t at)
{
    const attni_plan *p = &bw->plan;
    int64_t tasks = 0;
    for (int64_t n = 0; n < p->sequences; n++) {
        const int64_t first = p->args.cu_seqlens_k ? p->args.cu_seqlens_k[n] : 0;
        if (at < first + attni_keys_of(p, n))
            return tasks + (at > first ? (at - first) / bw->keys : 0);
        tasks += attni_backward_tasks_of(bw, n);
    }
    return tasks;
}

/* `gradient` is that of the piece that begins with first_key. Sets it to 0 for keys that belong to
 * no sequence; if the call computes nothing, for all keys. */
static void zero_rest(const attni_backward *bw, const attn_tensor *gradient, int64_t first_key)
{
    const attn_sdpa_args *a = &bw->plan.args;
    attn_tensor rest = *gradient;
    const int64_t end = bw->nothing       ? 0
                        : a->cu_seqlens_k ? a->cu_seqlens_k[a->sequences]
                                          : bw->plan.S;
    const int64_t skipped = end > first_key ? end - first_key : 0;
    if (attni_empty(gradient) || skipped >= rest.shape[2])
        return;
    rest.data = attni_at(gradient, 0, 0, skipped, 0);
    rest.shape[2] -= skipped;
    attni_backward_zero(&rest);
}

static void run_task(const attni_backward *bw, int64_t index, attni_grad_cursor *at)
{
    const int64_t tasks = bw->past_task - bw->first_task, pair = index / tasks;
    attni_backward_work_item(bw,
                             pair * bw->tasks_per_kv_head + bw->first_task + index - pair * tasks,
                             at);
}

typedef struct piece {
    const attn_tensor *k, *v, *dk, *dv;
    int64_t first, n;
} piece;

static attn_status run_piece(attn_sdpa_backward_state *s, const piece *x, attn_error *err)
{
    attni_call call;
    attni_backward bw = s->bw;
    attni_plan *p = &bw.plan;
    p->args.k = attni_pieces_as_whole(x->k, x->first, p->S);
    p->args.v = attni_pieces_as_whole(x->v, x->first, p->S);
    p->k_in_place = attni_in_place(p, &p->args.k);
    p->v_in_place = attni_in_place(p, &p->args.v);
    if (bw.want_k)
        bw.grads.dk = attni_pieces_as_whole(x->dk, x->first, p->S);
    if (bw.want_v)
        bw.grads.dv = attni_pieces_as_whole(x->dv, x->first, p->S);
    bw.first_task = tasks_before(&bw, x->first);
    bw.past_task = tasks_before(&bw, x->first + x->n);
    const int64_t tasks = bw.nothing ? 0 : bw.kv_heads * (bw.past_task - bw.first_task);
    bw.workers = tasks < bw.workers ? (int)tasks : bw.workers;
    attni_backward_size_worker(&bw);
    size_t scratch;
    if (bw.worker_bytes == SIZE_MAX ||
        !attni_size_mul((uint64_t)bw.workers, bw.worker_bytes, &scratch))
        return attni_derivative_too_large(p, err);
    const attn_status status = attni_call_begin(&call, s->ctx, scratch, NULL, 0, err);
    if (status)
        return status;
    bw.workers_scratch = call.scratch;
    attni_backward_step(&bw, &call, tasks, run_task);
    if (bw.want_k)
        zero_rest(&bw, x->dk, x->first);
    if (bw.want_v)
        zero_rest(&bw, x->dv, x->first);
    s->position = x->first + x->n;
    want(s);
    attni_call_end(&call);
    return ATTN_OK;
}

/* Checks that a piece with these keys may come next. */
static attn_status check_place(const attn_sdpa_backward_state *s, const piece *x, attn_error *err)
{
    const attni_plan *p = &s->bw.plan;
    if (s->finished)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "state",
                          "state is finished; attn_sdpa_backward_begin starts another call");
    if (x->first < s->position || x->first > p->S || last_boundary(p, x->first) != x->first)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "first_key",
                          "first_key is %lld; it must be a multiple of %d, counted from the first "
                          "key of its sequence, from key %lld on, which follows the keys that have "
                          "been fed",
                          (long long)x->first, ATTNI_CHUNK, (long long)s->position);
    if (x->first > s->wanted)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "first_key",
                          "first_key is %lld, but key %lld is needed first; "
                          "attn_sdpa_backward_next says which keys are",
                          (long long)x->first, (long long)s->wanted);
    if (x->n < 0 || x->n > p->S - x->first || last_boundary(p, x->first + x->n) != x->first + x->n)
        return attni_fail(err, ATTN_ERR_SHAPE, "k",
                          "k has %lld keys from key %lld on; the key after them must be a multiple "
                          "of %d, counted from the first key of its sequence, or %lld, the number "
                          "of all keys",
                          (long long)x->n, (long long)x->first, ATTNI_CHUNK, (long long)p->S);
    return ATTN_OK;
}

/* Checks the gradient of a piece of keys or values, `like`. */
static attn_status check_gradient(const attni_backward *bw, bool wanted, const attn_tensor *t,
                                  const char *name, const attn_tensor *like, attn_error *err)
{
    if (wanted != (t != NULL))
        return attni_fail(err, ATTN_ERR_ARGUMENT, name,
                          wanted
                              ? "%s is NULL, but attn_sdpa_backward_begin was asked for it"
                              : "%s is given, but attn_sdpa_backward_begin was not asked for it; "
                                "it must be NULL",
                          name);
    const attn_dtype computed = bw->plan.real_dtype;
    if (t && (bw->sums_in || bw->sums_out) && t->dtype != computed)
        return attni_fail(
            err, ATTN_ERR_DTYPE, name,
            "%s is %s; with sums_in or sums_out it must be %s, the type that the call "
            "computes in",
            name, attn_dtype_name(t->dtype), attn_dtype_name(computed));
    return t ? attni_check_gradient(&bw->plan, t, name, like, like->shape[3], true, err) : ATTN_OK;
}

static attn_status no_state(attn_error *err)
{
    return attni_fail(err, ATTN_ERR_ARGUMENT, "state",
                      "state is NULL; attn_sdpa_backward_begin makes one");
}

attn_status attn_sdpa_backward_feed(attn_sdpa_backward_state *state, int64_t first_key,
                                    const attn_tensor *k, const attn_tensor *v,
                                    const attn_tensor *dk, const attn_tensor *dv, attn_error *err)
{
    ATTNI_CALL_MODE;
    attn_status status;
    if (!state)
        return no_state(err);
    const attni_backward *bw = &state->bw;
    const piece x = {k, v, dk, dv, first_key, k ? k->shape[2] : 0};
    if ((status = attni_pieces_check(&bw->plan, k, "k", x.n, bw->plan.D, err)) ||
        (status = attni_pieces_check(&bw->plan, v, "v", x.n, bw->plan.Dv, err)) ||
        (status = check_gradient(bw, bw->want_k, dk, "dk", k, err)) ||
        (status = check_gradient(bw, bw->want_v, dv, "dv", v, err)) ||
        (status = check_place(state, &x, err)) || x.n == 0)
        return status;
    return run_piece(state, &x, err);
}

/* -------------------------------------------------------------------------------------- finish */

/* Runs a task if it was in no piece. Its keys are needed by no row; but the first task of a
 * sequence also writes the gradients of rows that see no key. */
static void run_rest(const attni_backward *bw, int64_t task, attni_grad_cursor *at)
{
    if (atomic_load_explicit(&bw->progress[task], memory_order_acquire) == 0)
        attni_backward_work_item(bw, task, at);
}

attn_status attn_sdpa_backward_finish(attn_sdpa_backward_state *state, attn_error *err)
{
    ATTNI_CALL_MODE;
    attni_call call;
    if (!state)
        return no_state(err);
    if (state->wanted < state->bw.plan.S)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "state",
                          "state needs keys %lld to %lld first; feed them, then finish",
                          (long long)state->wanted, (long long)state->past - 1);
    if (state->finished)
        return ATTN_OK;
    attni_backward bw = state->bw;
    const attn_status status =
        attni_call_begin(&call, state->ctx, workers_bytes(&bw), NULL, 0, err);
    if (status)
        return status;
    bw.workers_scratch = call.scratch;
    bw.without_keys = true;
    bw.grads.dk = bw.grads.dv = (attn_tensor){0}; /* they have no memory; feed has written them */
    if (bw.nothing)
        attni_backward_clear(&bw);
    attni_backward_step(&bw, &call, bw.tasks, run_rest);
    attni_backward_sums(&bw);
    state->finished = true;
    want(state);
    attni_call_end(&call);
    return ATTN_OK;
}
