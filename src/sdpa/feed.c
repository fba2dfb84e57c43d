/* Keys in pieces: attn_sdpa_feed and attn_sdpa_finish (pieces.h).
 *
 * Chunks are counted from the start of each sequence. In a packed batch a piece may therefore end
 * inside a chunk of one sequence, the open chunk. Its keys are copied into the state, and the next
 * piece adds the missing keys of this chunk there:
 *
 *   pieces     |            piece 1            |            piece 2            |
 *   sequences  | A                 | B
 *   chunks     |  A.0  |  A.1  |A.2|  B.0  |  B.1  |  B.2  |  B.3  |  B.4  |  B.5  |
 *   swept with  piece 1     1     1     1       2       2       2       2       3
 *   copied                                  ---                             ---
 */
#include "../core/hand_over.h"
#include "pieces.h"

#include <stdatomic.h>
#include <string.h>

/* ------------------------------------------------------------------------------- all tasks once */

typedef struct job {
    attn_sdpa_state *state;
    const attni_plan *plan;
    char *scratch;
    int64_t first, past; /* the keys that are swept, counted from the tensor's first one */
    bool finishes;
    atomic_llong next; /* task */
    atomic_bool again;
} job;

static void run_task(job *j, const attni_task *task, char *scratch)
{
    attn_sdpa_state *s = j->state;
    const attni_sequence *sequence = &task->sequence;
    const attni_fed fed = {.sums = s->sums + task->head * s->head_bytes + s->offsets[task->earlier],
                           .sweeps = attni_pieces_sweeps(s, task->head, task->earlier)};
    if (j->finishes) {
        if (j->plan->engine->finish(j->plan, task, &fed, scratch))
            atomic_store(&j->again, true);
        return;
    }
    const attni_span seen = attni_mask_span(sequence, task->i0, task->i0 + task->rows);
    int64_t first = j->first - sequence->j_base, past = j->past - sequence->j_base;
    first = first > 0 ? first : 0;
    past = past < sequence->S ? past : sequence->S;
    if (first < past && seen.any0 < past && seen.any1 > first &&
        attni_pieces_swept(s, task->head, task->earlier))
        j->plan->engine->feed(j->plan, task, first, past, &fed, scratch);
}

static void run_worker(void *arg, int worker)
{
    job *j = arg;
    const attni_plan *p = j->plan;
    char *scratch = j->scratch + (size_t)worker * p->worker_bytes;
    attni_cursor cursor = attni_last_sequence(p);
    for (;;) {
        const int64_t next = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        attni_task task;
        if (next >= p->tasks)
            return;
        attni_hand_over();
        attni_find_task(p, next, &cursor, &task);
        run_task(j, &task, scratch);
    }
}

/* Runs all tasks; returns true if some tile is to be swept again. */
static bool run_tasks(job *j, attni_call *call)
{
    j->scratch = call->scratch;
    atomic_init(&j->next, 0);
    atomic_init(&j->again, false);
    if (j->plan->tasks > 0)
        attni_call_run(call, j->plan->workers, run_worker, j);
    return atomic_load(&j->again);
}

/* ------------------------------------------------------------------------------------- a piece */

/* The packed sequence that begins before `key` and contains it, or the only sequence; {key, key} if
 * there is none. */
static key_range sequence_across(const attni_plan *p, int64_t key)
{
    const int64_t *starts = p->args.cu_seqlens_k;
    if (!starts)
        return (key_range){0, p->S};
    const int64_t n = attni_pieces_sequence_at(p, starts, key);
    return n < p->args.sequences && starts[n] < key ? (key_range){starts[n], starts[n + 1]}
                                                    : (key_range){key, key};
}

/* The chunk that contains `key` and begins before it; {key, key} if there is none. */
static key_range chunk_across(const attni_plan *p, int64_t key)
{
    const key_range sequence = sequence_across(p, key);
    const int64_t first = key - (key - sequence.first) % ATTNI_CHUNK, past = first + ATTNI_CHUNK;
    if (first == key || key >= sequence.past)
        return (key_range){key, key};
    return (key_range){first, past < sequence.past ? past : sequence.past};
}

int64_t attni_pieces_open_keys(const attn_sdpa_state *s)
{
    if (s->plan.tasks == 0 || s->position >= s->plan.S) /* without queries, no chunk is kept */
        return 0;
    return s->position - chunk_across(&s->plan, s->position).first;
}

attn_tensor attni_pieces_as_whole(const attn_tensor *t, int64_t first, int64_t rows)
{
    attn_tensor whole = *t;
    const uint64_t before = (uint64_t)first * (uint64_t)t->stride[2] * attn_dtype_size(t->dtype);
    whole.data = (void *)((uintptr_t)t->data - (uintptr_t)before);
    whole.shape[2] = rows;
    return whole;
}

/* Makes the plan of a piece: the call's plan, with the keys and values of the piece. */
static attn_status plan_piece(attni_plan *p, const attn_sdpa_state *s, const attn_tensor *k,
                              const attn_tensor *v, int64_t first, attn_error *err)
{
    *p = s->plan;
    p->args.k = attni_pieces_as_whole(k, first, p->S);
    p->args.v = attni_pieces_as_whole(v, first, p->S);
    return attni_make_plan(p, s->isa, s->threads, err);
}

attn_tensor attni_pieces_open_chunk(const attn_sdpa_state *s, bool values)
{
    const attni_plan *p = &s->plan;
    return attn_bhtd(values ? s->open_v : s->open_k, p->args.k.dtype, p->B, p->Hk, ATTNI_CHUNK,
                     values ? p->Dv : p->D);
}

/* Copies n rows of `t`, the first of which is row `from`, to rows `at` .. at+n-1 of `to`. */
static void copy_rows(const attn_tensor *to, int64_t at, const attn_tensor *t, int64_t from,
                      int64_t n)
{
    const size_t size = attn_dtype_size(t->dtype);
    const int64_t width = t->shape[3];
    for (int64_t b = 0; b < t->shape[0] && width > 0; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t j = 0; j < n; j++) {
                char *row = attni_at(to, b, h, at + j, 0);
                if (t->stride[3] == 1)
                    memcpy(row, attni_at(t, b, h, from + j, 0), (size_t)width * size);
                for (int64_t c = 0; c < width && t->stride[3] != 1; c++)
                    memcpy(row + (size_t)c * size, attni_at(t, b, h, from + j, c), size);
            }
}

static void add_to_open(const attn_sdpa_state *s, int64_t at, const attn_tensor *k,
                        const attn_tensor *v, int64_t from, int64_t n)
{
    const attn_tensor open_k = attni_pieces_open_chunk(s, false),
                      open_v = attni_pieces_open_chunk(s, true);
    copy_rows(&open_k, at, k, from, n);
    copy_rows(&open_v, at, v, from, n);
}

/* Sweeps the chunks whose last key is among keys first_key .. end-1, and copies the keys after the
 * last such chunk into the state. k and v hold keys first_key .. end-1 and their values. */
static attn_status sweep_piece(attn_sdpa_state *s, int64_t first_key, int64_t end,
                               const attn_tensor *k, const attn_tensor *v, attn_error *err)
{
    const bool opens = s->open > 0 && first_key == s->position;
    /* The chunk around first_key; empty if one begins there. If it is not empty and `opens` is
     * false, its keys before first_key were not fed. Then no row that is swept sees the chunk (else
     * attn_sdpa_next() would have asked for all of it), and its other keys are skipped. */
    key_range chunk = chunk_across(&s->plan, first_key);
    const key_range rest = end < s->plan.S ? chunk_across(&s->plan, end) : (key_range){end, end};
    const attn_tensor open_k = attni_pieces_open_chunk(s, false),
                      open_v = attni_pieces_open_chunk(s, true);
    attni_plan of_open = {0}, of_piece;
    attni_call call;
    attn_status status = plan_piece(&of_piece, s, k, v, first_key, err);
    if (status == ATTN_OK && opens)
        status = plan_piece(&of_open, s, &open_k, &open_v, chunk.first, err);
    if (status)
        return status;
    const size_t scratch = of_open.scratch_bytes > of_piece.scratch_bytes ? of_open.scratch_bytes
                                                                          : of_piece.scratch_bytes;
    if ((status = attni_call_begin(&call, s->ctx, scratch, NULL, 0, err)))
        return status;
    if (opens) {
        add_to_open(s, s->open, k, v, 0, chunk.past - first_key);
        job j = {.state = s, .plan = &of_open, .first = chunk.first, .past = chunk.past};
        run_tasks(&j, &call);
    }
    job j = {.state = s, .plan = &of_piece, .first = chunk.past, .past = rest.first};
    run_tasks(&j, &call);
    s->position = end;
    s->open = attni_pieces_open_keys(s);
    if (s->open > 0)
        add_to_open(s, 0, k, v, rest.first - first_key, s->open);
    attni_pieces_want(s);
    attni_call_end(&call);
    return ATTN_OK;
}

attn_status attni_pieces_check(const attni_plan *p, const attn_tensor *t, const char *name,
                               int64_t n, int64_t width, attn_error *err)
{
    if (!t)
        return attni_fail(err, ATTN_ERR_ARGUMENT, name,
                          "%s is NULL; it must be a piece of the keys or values", name);
    const int64_t want[4] = {p->B, p->Hk, n, width};
    if (t->dtype != p->args.k.dtype)
        return attni_fail(err, ATTN_ERR_DTYPE, name,
                          "%s is %s and q is %s; they must share one dtype", name,
                          attn_dtype_name(t->dtype), attn_dtype_name(p->args.k.dtype));
    for (int d = 0; d < 4; d++)
        if (t->shape[d] != want[d])
            return attni_fail(err, ATTN_ERR_SHAPE, name,
                              "%s has %lld in dimension %d; it must be %lld", name,
                              (long long)t->shape[d], d, (long long)want[d]);
    return attni_check_input(t, name, err);
}

/* Checks that a piece with these keys may come next. */
static attn_status check_place(const attn_sdpa_state *s, int64_t first_key, int64_t n,
                               attn_error *err)
{
    const int64_t S = s->plan.S;
    if (s->finished)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "state",
                          "state is finished; attn_sdpa_begin starts another call");
    if (first_key < s->position || first_key > S || first_key % ATTNI_CHUNK != 0)
        return attni_fail(
            err, ATTN_ERR_ARGUMENT, "first_key",
            "first_key is %lld; it must be a multiple of %d, from %lld (the key after "
            "those that have been fed) to S=%lld",
            (long long)first_key, ATTNI_CHUNK, (long long)s->position, (long long)S);
    if (first_key > s->wanted)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "first_key",
                          "first_key is %lld, but key %lld is needed first; attn_sdpa_next returns "
                          "the next key that is needed",
                          (long long)first_key, (long long)s->wanted);
    if (n < 0 || n > S - first_key || (n % ATTNI_CHUNK != 0 && n != S - first_key))
        return attni_fail(err, ATTN_ERR_SHAPE, "k",
                          "k has %lld keys from key %lld on; their number must be a multiple of "
                          "%d, or k must end with the last key, %lld",
                          (long long)n, (long long)first_key, ATTNI_CHUNK, (long long)S - 1);
    return ATTN_OK;
}

attn_status attni_pieces_no_state(attn_error *err)
{
    return attni_fail(err, ATTN_ERR_ARGUMENT, "state", "state is NULL; attn_sdpa_begin makes one");
}

attn_status attn_sdpa_feed(attn_sdpa_state *state, int64_t first_key, const attn_tensor *k,
                           const attn_tensor *v, attn_error *err)
{
    ATTNI_CALL_MODE;
    attn_status status;
    if (!state)
        return attni_pieces_no_state(err);
    const attni_plan *p = &state->plan;
    const int64_t n = k ? k->shape[2] : 0;
    if ((status = attni_pieces_check(p, k, "k", n, p->D, err)) ||
        (status = attni_pieces_check(p, v, "v", n, p->Dv, err)) ||
        (status = check_place(state, first_key, n, err)) || n == 0)
        return status;
    return sweep_piece(state, first_key, first_key + n, k, v, err);
}

attn_status attn_sdpa_finish(attn_sdpa_state *state, attn_error *err)
{
    ATTNI_CALL_MODE;
    attni_call call;
    if (!state)
        return attni_pieces_no_state(err);
    if (state->wanted < state->plan.S)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "state",
                          "state needs keys %lld to %lld first; feed them, then finish",
                          (long long)state->wanted, (long long)state->past - 1);
    if (state->finished)
        return ATTN_OK;
    const attn_status status =
        attni_call_begin(&call, state->ctx, state->plan.scratch_bytes, NULL, 0, err);
    if (status)
        return status;
    job j = {.state = state, .plan = &state->plan, .finishes = true};
    state->again = run_tasks(&j, &call);
    state->finished = !state->again;
    state->position = state->open = 0;
    attni_pieces_want(state);
    attni_call_end(&call);
    return state->again ? ATTN_AGAIN : ATTN_OK;
}
