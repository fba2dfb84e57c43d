/* attn_mpi_sdpa_forward: receives the keys of all ranks in segments and passes them to
 * attn_sdpa_feed.
 *
 *   receive    segment 0   segment 1   segment 2   segment 3
 *   compute                segment 0   segment 1   segment 2
 *
 * `slots` holds the two segments whose messages are under way or start next. A slot has the rows of
 * each rank, one rank after the other. `keys` is a third segment, the one that is computed, in the
 * order of its keys. */
#include "ranks.h"

#include <stddef.h>
#include <string.h>

#define SLOTS 2
#define LARGEST_STRUCT 4096 /* bytes; a larger struct_size must be an uninitialised one */
#define PIECE 1024 /* keys between two polls; Open MPI advances messages only during a poll */

typedef struct slot {
    char *rows; /* keys of rank 0, its values, keys of rank 1, ... */
    attni_mpi_flight flight;
    int64_t segment;
} slot;

typedef struct forward {
    attni_mpi_run run;
    attni_mpi_plan plan;
    attn_sdpa_args args;  /* as attn_sdpa_begin wants them: all keys, no data */
    attn_sdpa_args local; /* with this rank's rows */
    attn_mpi_options options;
    attn_sdpa_state *state;
    attn_status status; /* of this rank's own computation */
    uint8_t *needs;     /* [size][segments] */
    uint8_t *again;     /* [size]: the ranks that take part in this sweep */
    slot slots[SLOTS];
    int64_t next; /* segment to start */
    char *keys;
    attn_tensor k, v; /* views of it */
    attn_mpi_report report;
} forward;

/* ------------------------------------------------------------------------------- preparations */

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t segment_first(const forward *f, int64_t segment)
{
    return segment * f->plan.segment_keys;
}

static int64_t segment_past(const forward *f, int64_t segment)
{
    return min64(segment_first(f, segment + 1), f->plan.S);
}

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y > 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* Copies a caller's struct to `to`, which has the defaults. The rule of docs/ABI.md: the caller's
 * struct may be that of an older version, or of a newer one if the members beyond `known` are 0. */
static bool read_struct(const void *from, void *to, size_t least, size_t known)
{
    size_t size = 0;
    if (from)
        memcpy(&size, from, sizeof size);
    if (size < least || size > LARGEST_STRUCT)
        return false;
    for (size_t i = known; i < size; i++)
        if (((const char *)from)[i])
            return false;
    memcpy(to, from, size < known ? size : known);
    memcpy(to, &known, sizeof known);
    return true;
}

static attn_status check_options(forward *f, const attn_mpi_options *from)
{
    attn_error *err = f->run.err;
    const attn_mpi_options *options = &f->options;
    if (options->struct_size == 0)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "options",
                              "options is %s; set it up by ATTN_MPI_OPTIONS_INIT",
                              from ? "a struct of another version" : "NULL");
    const int64_t numbers[] = {options->T, options->S, options->segment_keys};
    static const char *const names[] = {"T", "S", "segment_keys"};
    for (int i = 0; i < 3; i++)
        if (numbers[i] < 0 || numbers[i] > (int64_t)1 << 56)
            return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "options",
                                  "options: %s is %lld; it must be within 0..2^56", names[i],
                                  (long long)numbers[i]);
    attni_mpi_plan *p = &f->plan;
    const int64_t deal =
        common_multiple(KEYS_OF_CHUNK, (int64_t)ATTN_MPI_BLOCK * f->run.comm->size);
    const int64_t unit = options->segment_keys ? KEYS_OF_CHUNK : deal;
    const int64_t wanted = options->segment_keys ? options->segment_keys : 2048;
    p->T = options->T, p->S = options->S;
    p->rank = f->run.comm->rank, p->size = f->run.comm->size;
    p->segment_keys = (wanted + unit - 1) / unit * unit;
    p->segments = p->S / p->segment_keys + (p->S % p->segment_keys > 0);
    return ATTN_OK;
}

/* Checks that a tensor has this rank's rows. attn_sdpa_begin() cannot check this: it expects all
 * keys, and does not know how many rows a rank has. */
static attn_status check_rows(const forward *f, const attn_tensor *t, const char *name,
                              int64_t whole, const char *letter)
{
    const int64_t want = attn_mpi_rows(whole, f->plan.rank, f->plan.size);
    if (t->shape[2] != want)
        return attni_mpi_fail(f->run.err, ATTN_ERR_SHAPE, name,
                              "%s has %lld rows; rank %d of %d has %lld of %s = %lld", name,
                              (long long)t->shape[2], f->plan.rank, f->plan.size, (long long)want,
                              letter, (long long)whole);
    if (!t->data && t->shape[0] && t->shape[1] && t->shape[2] && t->shape[3])
        return attni_mpi_fail(f->run.err, ATTN_ERR_ARGUMENT, name,
                              "%s has no data; it must have the rows of this rank", name);
    return ATTN_OK;
}

/* The call's arguments for attn_sdpa_begin, and this rank's own checks. */
static attn_status read_args(forward *f, const attn_sdpa_args *args)
{
    attn_status status;
    attn_sdpa_args_init(&f->local);
    if (!read_struct(args, &f->local, offsetof(attn_sdpa_args, scale), sizeof f->local))
        return attni_mpi_fail(f->run.err, ATTN_ERR_ARGUMENT, "args",
                              "args is %s; set it up by ATTN_SDPA_ARGS_INIT",
                              args ? "a struct of another version" : "NULL");
    f->plan.args = args = &f->local;
    f->plan.B = args->q.shape[0];
    if ((status = check_rows(f, &args->q, "q", f->plan.T, "T")) ||
        (status = check_rows(f, &args->k, "k", f->plan.S, "S")) ||
        (status = check_rows(f, &args->v, "v", f->plan.S, "S")))
        return status;
    f->args = *args;
    f->args.k.data = f->args.v.data = NULL;
    f->args.k.shape[2] = f->args.v.shape[2] = f->plan.S;
    return ATTN_OK;
}

static size_t bytes_per_key(const forward *f)
{
    return (size_t)(f->plan.B * f->args.k.shape[1] * (f->args.k.shape[3] + f->args.v.shape[3])) *
           attn_dtype_size(f->args.k.dtype);
}

static attn_status allocate(forward *f)
{
    attni_mpi_run *run = &f->run;
    const attni_mpi_plan *p = &f->plan;
    const uint64_t keys = (uint64_t)min64(p->segment_keys, p->S), bytes = bytes_per_key(f);
    for (int i = 0; i < SLOTS; i++) {
        f->slots[i].rows = attni_mpi_allocate(run, keys, bytes);
        if (!f->slots[i].rows || attni_mpi_flight_new(run, &f->slots[i].flight))
            return attni_mpi_no_memory(run);
    }
    f->keys = attni_mpi_allocate(run, keys, bytes);
    f->needs = attni_mpi_allocate(run, (uint64_t)p->size, (uint64_t)p->segments);
    f->again = attni_mpi_allocate(run, (uint64_t)p->size, 1);
    if (!f->keys || !f->needs || !f->again)
        return attni_mpi_no_memory(run);
    f->report.buffer_bytes = (int64_t)((SLOTS + 1) * keys * bytes);
    return ATTN_OK;
}

/* The state of this rank's rows. */
static attn_status begin_state(forward *f, attn_context *ctx)
{
    attn_pieces_options part = ATTN_PIECES_OPTIONS_INIT;
    const attni_mpi_plan *p = &f->plan;
    int64_t *positions = attni_mpi_allocate(&f->run, (uint64_t)f->args.q.shape[2], 8);
    if (!positions)
        return attni_mpi_no_memory(&f->run);
    attn_mpi_positions(p->T, p->rank, p->size, positions);
    part.q_positions = positions;
    part.whole_T = p->T;
    return attn_sdpa_begin(ctx, &f->args, &part, &f->state, f->run.err);
}

/* Finds which rank needs which segment. It is called after all ranks have agreed, so the rules are
 * valid and the same on every rank. */
static attn_status find_needs(forward *f)
{
    const attni_mpi_plan *p = &f->plan;
    int64_t *counts = attni_mpi_allocate(&f->run, (uint64_t)p->segments + 1, sizeof *counts);
    if (!counts)
        return attni_mpi_give_up(&f->run, attni_mpi_no_memory(&f->run));
    for (int r = 0; r < p->size; r++) {
        attni_mpi_needs(p, r, counts, f->needs + r * p->segments);
        f->again[r] = 1;
    }
    return ATTN_OK;
}

/* -------------------------------------------------------------------------------- one segment */

static bool is_needed(const forward *f, int rank, int64_t segment)
{
    return f->again[rank] && f->needs[rank * f->plan.segments + segment];
}

/* How many keys of a segment lie on `rank`, and the first one's row there. */
static int64_t share(const forward *f, int64_t segment, int rank, int64_t *row)
{
    *row = attn_mpi_rows(segment_first(f, segment), rank, f->plan.size);
    return attn_mpi_rows(segment_past(f, segment), rank, f->plan.size) - *row;
}

/* The keys and values of n rows in a slot. */
static void views(const forward *f, char *rows, int64_t n, attn_tensor *k, attn_tensor *v)
{
    const attn_tensor *of = &f->args.k, *with = &f->args.v;
    *k = attn_bhtd(rows, of->dtype, of->shape[0], of->shape[1], n, of->shape[3]);
    const size_t bytes = (size_t)(of->shape[0] * of->shape[1] * n * of->shape[3]);
    *v = attn_bhtd(rows + bytes * attn_dtype_size(of->dtype), with->dtype, with->shape[0],
                   with->shape[1], n, with->shape[3]);
}

/* Packs this rank's rows and starts the segment's messages. */
static attn_status start_segment(forward *f, slot *to, int64_t segment)
{
    const int size = f->plan.size, me = f->plan.rank;
    const size_t per_key = bytes_per_key(f);
    attn_status status = ATTN_OK;
    size_t used = 0, mine = 0;
    char *own = to->rows;
    to->segment = segment;
    for (int r = 0; r < size && status == ATTN_OK; r++) {
        int64_t row;
        const int64_t n = share(f, segment, r, &row);
        if (r == me) {
            attn_tensor k, v;
            own = to->rows + used, mine = (size_t)n * per_key;
            views(f, own, n, &k, &v);
            attni_mpi_copy_rows(&k, 0, &f->local.k, row, n);
            attni_mpi_copy_rows(&v, 0, &f->local.v, row, n);
        } else if (is_needed(f, me, segment)) {
            status =
                attni_mpi_receive(&f->run, &to->flight, r, to->rows + used, (size_t)n * per_key);
            f->report.received_bytes += (int64_t)((size_t)n * per_key);
        }
        used += (size_t)n * per_key;
    }
    for (int step = 1; step < size && status == ATTN_OK; step++) {
        const int r = (me + step) % size; /* so that not all ranks send to rank 0 first */
        if (!is_needed(f, r, segment))
            continue;
        status = attni_mpi_send(&f->run, &to->flight, r, own, mine);
        f->report.sent_bytes += (int64_t)mine;
    }
    return status;
}

/* Starts the next segment that this rank sends or needs; slot->segment is -1 if there is none. */
static attn_status start_next(forward *f, slot *to)
{
    to->segment = -1;
    for (; f->next < f->plan.segments; f->next++) {
        bool some = false;
        for (int r = 0; r < f->plan.size; r++)
            some |= is_needed(f, r, f->next);
        if (some)
            return start_segment(f, to, f->next++);
    }
    return ATTN_OK;
}

/* Copies the rows of all ranks to f->keys, in the order of the keys. */
static void assemble(forward *f, const slot *from)
{
    const int64_t first = segment_first(f, from->segment), past = segment_past(f, from->segment);
    char *rows = from->rows;
    views(f, f->keys, past - first, &f->k, &f->v);
    for (int r = 0; r < f->plan.size; r++) {
        attn_tensor k, v;
        int64_t row;
        const int64_t n = share(f, from->segment, r, &row);
        views(f, rows, n, &k, &v);
        rows += (size_t)n * bytes_per_key(f);
        for (int64_t i = 0, key; i < n; i += min64(ATTN_MPI_BLOCK, n - i)) {
            /* a segment begins at a block boundary, and so does each rank's share */
            key = ((row + i) / ATTN_MPI_BLOCK * f->plan.size + r) * ATTN_MPI_BLOCK - first;
            const int64_t m = min64(ATTN_MPI_BLOCK, n - i);
            attni_mpi_copy_rows(&f->k, key, &k, i, m);
            attni_mpi_copy_rows(&f->v, key, &v, i, m);
        }
    }
}

static attn_tensor rows_of(const attn_tensor *t, int64_t from, int64_t n)
{
    attn_tensor some = *t;
    some.data = (char *)t->data + from * t->stride[2] * (int64_t)attn_dtype_size(t->dtype);
    some.shape[2] = n;
    return some;
}

/* Computes f->keys. An error of this rank is only reported at the end of the sweep, because the
 * other ranks need its keys until then. */
static attn_status compute(forward *f, int64_t segment)
{
    const int64_t first = segment_first(f, segment), n = segment_past(f, segment) - first;
    for (int64_t j = 0; j < n && f->status == ATTN_OK; j += PIECE) {
        const int64_t keys = min64(PIECE, n - j);
        if (attn_sdpa_next(f->state, NULL) >= first + j + keys)
            continue; /* no row here sees them */
        const attn_tensor k = rows_of(&f->k, j, keys), v = rows_of(&f->v, j, keys);
        f->status = attn_sdpa_feed(f->state, first + j, &k, &v, f->run.err);
        for (int i = 0; i < SLOTS; i++) {
            int left;
            const attn_status status = attni_mpi_poll(&f->run, &f->slots[i].flight, &left);
            if (status)
                return status;
        }
    }
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------ sweeps */

/* Receives and computes all segments once. */
static attn_status sweep(forward *f)
{
    attn_status status = ATTN_OK;
    f->next = 0;
    for (int i = 0; i < SLOTS && status == ATTN_OK; i++)
        status = start_next(f, &f->slots[i]);
    for (int i = 0; status == ATTN_OK && f->slots[i].segment >= 0; i = (i + 1) % SLOTS) {
        slot *s = &f->slots[i];
        const int64_t segment = s->segment;
        const bool needed = is_needed(f, f->plan.rank, segment);
        status = attni_mpi_wait(&f->run, &s->flight);
        if (status == ATTN_OK && needed)
            assemble(f, s);
        if (status == ATTN_OK)
            status = start_next(f, s);
        if (status == ATTN_OK && needed) {
            f->report.received_segments++;
            status = compute(f, segment);
        }
    }
    return status;
}

static attn_status all_sweeps(forward *f)
{
    attn_status status = ATTN_AGAIN;
    while (status == ATTN_AGAIN) {
        f->report.sweeps++;
        if ((status = sweep(f)))
            return status;
        if (f->status == ATTN_OK && f->again[f->plan.rank])
            f->status = attn_sdpa_finish(f->state, f->run.err);
        status = attni_mpi_agree_again(&f->run, f->status, f->again);
        f->status = ATTN_OK;
    }
    return status;
}

attn_status attn_mpi_sdpa_forward(const attn_comm *comm, attn_context *ctx,
                                  const attn_sdpa_args *args, const attn_mpi_options *options,
                                  attn_error *err)
{
    forward f = {.plan = {.args = NULL}};
    (void)read_struct(options, &f.options, offsetof(attn_mpi_options, segment_keys),
                      sizeof f.options); /* on failure struct_size stays 0; see check_options() */
    attn_status status = attni_mpi_begin(&f.run, comm, f.options.deadline, err);
    if (status == ATTN_OK) {
        if ((status = check_options(&f, options)) == ATTN_OK &&
            (status = read_args(&f, args)) == ATTN_OK && (status = begin_state(&f, ctx)) == ATTN_OK)
            status = allocate(&f);
        status = attni_mpi_agree(&f.run, &f.plan, attn_context_isa(ctx), status);
    }
    if (status == ATTN_OK)
        status = find_needs(&f);
    if (status == ATTN_OK)
        status = all_sweeps(&f);
    for (int i = 0; i < SLOTS; i++)
        if (f.slots[i].flight.receives)
            attni_mpi_cancel(&f.run, &f.slots[i].flight);
    attn_sdpa_end(f.state);
    if (status == ATTN_OK && f.options.report) {
        f.report.segments = f.plan.segments;
        f.report.segment_keys = f.plan.segment_keys;
        *f.options.report = f.report;
    }
    if (f.run.comm && f.run.notified.receives)
        attni_mpi_end(&f.run);
    return status;
}
