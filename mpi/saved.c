/* Checkpoints of attn_mpi_sdpa_forward. The rows of each rank are computed in blocks of 64 tokens,
 * each with a state of its own. A block and its state are the same for any number of ranks, so a
 * checkpoint is the saved states (attn_sdpa_save) of all blocks. All ranks write it together, each
 * its own blocks, rank 0 the header. The format, version 1; all numbers little-endian:
 *
 *    0  magic     93 'A' 'T' 'T' 'N' 'M' 'P' 0A
 *    8  version   u32, 1           12  block     u32, tokens of a block: 64
 *   16  T, S      u64 each
 *   32  keys      u64, a hash of k and v: the sum of FNV-1a of each block of 64 keys
 *   40  next      u64: all keys before it have been fed in this sweep
 *   48  size      u64, of all bytes
 *   56  checksum  u64: FNV-1a of the 56 bytes before it
 *   64  blocks    [(T + 63) / 64] of u64 start, u64 bytes: where the state of each block is
 *       states    those of rank 0, then those of rank 1, ...
 *
 * attn_sdpa_load checks each state: its checksum, version, instruction set, rules, and the block's
 * rows of q and mask. k and v are compared by `keys`. If one of `blocks` is damaged, then what lies
 * there is not the state of that block, and is refused. */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

#define VERSION 1
#define HEAD 64
#define ENTRY 16
#define BUFFER (1 << 18)
#define FNV_START UINT64_C(0xcbf29ce484222325)
static const unsigned char magic[8] = {0x93, 'A', 'T', 'T', 'N', 'M', 'P', '\n'};

static void put(unsigned char *to, uint64_t x, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = (unsigned char)(x >> 8 * i);
}

static uint64_t get(const unsigned char *from, int n)
{
    uint64_t x = 0;
    for (int i = 0; i < n; i++)
        x |= (uint64_t)from[i] << 8 * i;
    return x;
}

static uint64_t blocks_of(const attni_mpi_plan *p)
{
    return (uint64_t)p->T / ATTN_MPI_BLOCK + (p->T % ATTN_MPI_BLOCK > 0);
}

static uint64_t table_end(const attni_mpi_plan *p) { return HEAD + ENTRY * blocks_of(p); }

/* The number of this rank's block i in the whole. */
static uint64_t block_number(const attni_mpi_plan *p, int64_t i)
{
    return (uint64_t)i * (uint64_t)p->size + (uint64_t)p->rank;
}

/* ----------------------------------------------------------------------------- the keys' hash */

static uint64_t hash_rows(uint64_t hash, const attn_tensor *t, int64_t row, int64_t n)
{
    const size_t size = attn_dtype_size(t->dtype);
    const bool together = t->stride[3] == 1;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t i = row; i < row + n; i++)
                for (int64_t d = 0; d < t->shape[3]; d += together ? t->shape[3] : 1) {
                    const int64_t at =
                        b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + d * t->stride[3];
                    hash = attni_mpi_fnv(hash, (const char *)t->data + at * (int64_t)size,
                                         together ? size * (size_t)t->shape[3] : size);
                }
    return hash;
}

/* A sum over this rank's blocks. The sum of all ranks' sums does not depend on their number. */
static uint64_t hash_keys(const attni_mpi_call *call)
{
    const attni_mpi_plan *p = &call->plan;
    const int64_t rows = attn_mpi_rows(p->S, p->rank, p->size);
    uint64_t sum = 0;
    for (int64_t row = 0; row < rows; row += ATTN_MPI_BLOCK) {
        const int64_t n = attni_mpi_min(ATTN_MPI_BLOCK, rows - row);
        unsigned char number[8];
        put(number, block_number(p, row / ATTN_MPI_BLOCK), 8);
        const uint64_t hash =
            hash_rows(attni_mpi_fnv(FNV_START, number, sizeof number), &call->local.k, row, n);
        sum += hash_rows(hash, &call->local.v, row, n);
    }
    return sum;
}

/* -------------------------------------------------------------------------------- preparations */

attn_status attni_mpi_saved_new(attni_mpi_saved *s, attni_mpi_call *call, attni_mpi_part *parts,
                                int64_t count)
{
    const uint64_t size = (uint64_t)call->plan.size;
    s->call = call;
    s->parts = parts;
    s->count = count;
    s->sizes = attni_mpi_allocate(&call->run, (uint64_t)count, sizeof *s->sizes);
    s->totals = attni_mpi_allocate(&call->run, size, 2 * sizeof *s->totals);
    s->votes = attni_mpi_allocate(&call->run, size, 1);
    s->buffer = attni_mpi_allocate(&call->run, BUFFER, 1);
    if (!s->sizes || !s->totals || !s->votes || !s->buffer)
        return attni_mpi_no_memory(&call->run);
    s->time = attni_mpi_now();
    return ATTN_OK;
}

attn_status attni_mpi_saved_begin(attni_mpi_saved *s)
{
    attni_mpi_call *call = s->call;
    attn_error *err = call->run.err;
    const uint64_t mine[2] = {hash_keys(call), s->header};
    const attn_status status = attni_mpi_all_gather(&call->run, mine, sizeof mine, s->totals);
    if (status)
        return status;
    uint64_t sum = 0;
    for (int r = 0; r < call->plan.size; r++)
        sum += s->totals[2 * r];
    for (int r = 1; r < call->plan.size; r++)
        if (s->totals[2 * r + 1] != s->totals[1])
            return attni_mpi_fail(err, ATTN_ERR_FILE, "checkpoint",
                                  "checkpoint: rank %d reads another one than rank 0", r);
    if (call->plan.resumes && sum != s->keys)
        return attni_mpi_fail(err, ATTN_ERR_FILE, "checkpoint",
                              "checkpoint is of another call: k or v has other numbers");
    s->keys = sum;
    return ATTN_OK;
}

/* -------------------------------------------------------------------------------------- saving */

typedef struct writer {
    const attn_mpi_checkpoint *to; /* NULL: only counts */
    uint64_t at;                   /* the place of the first byte in `buffer` */
    char *buffer;
    size_t used;
} writer;

static bool flush(writer *w)
{
    const bool ok = w->used == 0 || w->to->write(w->to->user, w->at, w->buffer, w->used) == 0;
    w->at += w->used;
    w->used = 0;
    return ok;
}

static int emit(void *user, const void *bytes, size_t n)
{
    writer *w = user;
    if (!w->to) {
        w->at += n;
        return 0;
    }
    if (n > BUFFER - w->used && !flush(w))
        return 1;
    if (n > BUFFER) {
        w->at += n;
        return w->to->write(w->to->user, w->at - n, bytes, n) != 0;
    }
    memcpy(w->buffer + w->used, bytes, n);
    w->used += n;
    return 0;
}

static attn_status cannot_write(attni_mpi_saved *s)
{
    return attni_mpi_fail(s->call->run.err, ATTN_ERR_FILE, "checkpoint",
                          "checkpoint cannot be written");
}

/* Sets the sizes of this rank's blocks, by a first pass that writes nothing. Returns their sum. */
static uint64_t measure(attni_mpi_saved *s)
{
    uint64_t total = 0;
    for (int64_t i = 0; i < s->count; i++) {
        writer w = {.to = NULL};
        attn_sdpa_save(s->parts[i].state, emit, &w, NULL);
        total += s->sizes[i] = w.at;
    }
    return total;
}

static bool write_header(const attni_mpi_saved *s, int64_t next, uint64_t size)
{
    const attn_mpi_checkpoint *to = &s->call->checkpoint;
    const attni_mpi_plan *p = &s->call->plan;
    unsigned char head[HEAD];
    memcpy(head, magic, sizeof magic);
    put(head + 8, VERSION, 4);
    put(head + 12, ATTN_MPI_BLOCK, 4);
    put(head + 16, (uint64_t)p->T, 8);
    put(head + 24, (uint64_t)p->S, 8);
    put(head + 32, s->keys, 8);
    put(head + 40, (uint64_t)next, 8);
    put(head + 48, size, 8);
    put(head + 56, attni_mpi_fnv(FNV_START, head, 56), 8);
    return to->write(to->user, 0, head, HEAD) == 0;
}

/* Writes this rank's states from byte `at` on, and where each is. */
static attn_status write_blocks(attni_mpi_saved *s, uint64_t at)
{
    const attn_mpi_checkpoint *to = &s->call->checkpoint;
    writer w = {.to = to, .at = at, .buffer = s->buffer};
    for (int64_t i = 0; i < s->count; i++) {
        if (attn_sdpa_save(s->parts[i].state, emit, &w, NULL) != ATTN_OK)
            return cannot_write(s);
    }
    if (!flush(&w))
        return cannot_write(s);
    for (int64_t i = 0; i < s->count; i++) {
        unsigned char entry[ENTRY];
        put(entry, at, 8);
        put(entry + 8, s->sizes[i], 8);
        at += s->sizes[i];
        if (to->write(to->user, HEAD + ENTRY * block_number(&s->call->plan, i), entry, ENTRY))
            return cannot_write(s);
    }
    return ATTN_OK;
}

/* All that this rank does between open and close. */
static attn_status write_all(attni_mpi_saved *s, int64_t next, uint64_t at, uint64_t size)
{
    const attn_mpi_checkpoint *to = &s->call->checkpoint;
    const attn_status status = write_blocks(s, at);
    if (status)
        return status;
    if (s->call->plan.rank == 0 && !write_header(s, next, size))
        return cannot_write(s);
    return to->sync(to->user) ? cannot_write(s) : ATTN_OK;
}

/* All ranks call this together. */
static attn_status save(attni_mpi_saved *s, int64_t next, attn_status *status)
{
    attni_mpi_run *run = &s->call->run;
    const attni_mpi_plan *p = &s->call->plan;
    const attn_mpi_checkpoint *to = &s->call->checkpoint;
    const uint64_t mine = measure(s);
    attn_status failed = attni_mpi_all_gather(run, &mine, sizeof mine, s->totals);
    if (failed)
        return failed;
    uint64_t size = table_end(p), at = size;
    for (int r = 0; r < p->size; r++) {
        at += r < p->rank ? s->totals[r] : 0;
        size += s->totals[r];
    }
    *status = to->open(to->user, size) ? cannot_write(s) : ATTN_OK;
    failed = attni_mpi_exchange(run, status, s->votes);
    if (!failed && *status == ATTN_OK) {
        *status = write_all(s, next, at, size);
        failed = attni_mpi_exchange(run, status, s->votes);
    }
    const bool complete = !failed && *status == ATTN_OK;
    const bool closed = to->close(to->user, complete) == 0;
    if (complete) {
        *status = closed ? ATTN_OK : cannot_write(s);
        failed = attni_mpi_exchange(run, status, s->votes);
    }
    s->time = attni_mpi_now();
    return failed;
}

attn_status attni_mpi_saved_step(attni_mpi_saved *s, int64_t next, attn_status *status)
{
    if (*status == ATTN_OK && attni_mpi_now() - s->time >= s->call->checkpoint.every)
        *status = ATTN_AGAIN; /* a vote to save */
    const attn_status failed = attni_mpi_exchange(&s->call->run, status, s->votes);
    return failed || *status != ATTN_AGAIN ? failed : save(s, next, status);
}

/* ------------------------------------------------------------------------------------- loading */

static attn_status bad(const attni_mpi_saved *s, const char *what)
{
    return attni_mpi_fail(s->call->run.err, ATTN_ERR_FILE, "checkpoint", "checkpoint %s", what);
}

static attn_status read_header(attni_mpi_saved *s)
{
    const attn_mpi_checkpoint *from = &s->call->checkpoint;
    const attni_mpi_plan *p = &s->call->plan;
    unsigned char head[HEAD];
    if (from->size < HEAD)
        return bad(s, "is cut off");
    if (from->read(from->user, 0, head, HEAD))
        return bad(s, "cannot be read");
    if (memcmp(head, magic, sizeof magic) != 0)
        return bad(s, "does not start as one does");
    if (get(head + 8, 4) != VERSION || get(head + 12, 4) != ATTN_MPI_BLOCK)
        return bad(s, "has a format of another version of libattn-mpi");
    s->header = get(head + 56, 8);
    if (attni_mpi_fnv(FNV_START, head, 56) != s->header)
        return bad(s, "is damaged: its header does not have its checksum");
    if (get(head + 16, 8) != (uint64_t)p->T || get(head + 24, 8) != (uint64_t)p->S)
        return attni_mpi_fail(s->call->run.err, ATTN_ERR_FILE, "checkpoint",
                              "checkpoint is of another call: it has T=%llu and S=%llu, this call "
                              "has T=%lld and S=%lld",
                              (unsigned long long)get(head + 16, 8),
                              (unsigned long long)get(head + 24, 8), (long long)p->T,
                              (long long)p->S);
    if (get(head + 48, 8) != from->size || from->size < table_end(p))
        return bad(s, "is cut off, or has bytes after its end");
    s->keys = get(head + 32, 8);
    s->next = (int64_t)get(head + 40, 8);
    if (s->next < 0 || s->next > p->S || (s->next % KEYS_OF_CHUNK != 0 && s->next != p->S))
        return bad(s, "names a key that the call does not have");
    return ATTN_OK;
}

/* Begins the state of a part from `size` bytes at `start`. */
static attn_status load_part(attni_mpi_saved *s, attni_mpi_part *part, attn_context *ctx,
                             uint64_t start, uint64_t size)
{
    const attn_mpi_checkpoint *from = &s->call->checkpoint;
    attn_error inner = {0};
    char *bytes = size <= SIZE_MAX - 1 ? malloc((size_t)size + 1) : NULL;
    if (!bytes)
        return attni_mpi_fail(s->call->run.err, ATTN_ERR_MEMORY, "", "no memory for a saved state");
    attn_status status =
        from->read(from->user, start, bytes, (size_t)size) ? bad(s, "cannot be read") : ATTN_OK;
    if (status == ATTN_OK) {
        status = attn_sdpa_load(ctx, &part->args, &part->options, bytes, (size_t)size, &part->state,
                                &inner);
        if (status == ATTN_ERR_MEMORY || status == ATTN_ERR_LIMIT)
            attni_mpi_fail(s->call->run.err, status, inner.argument, "%s", inner.message);
        else if (status)
            status = attni_mpi_fail(s->call->run.err, ATTN_ERR_FILE, "checkpoint",
                                    "checkpoint is of another call or damaged: %s", inner.message);
        else if (attn_sdpa_next(part->state, NULL) < s->next)
            status = bad(s, "is damaged: a state in it needs a key that was fed before");
    }
    free(bytes);
    return status;
}

attn_status attni_mpi_saved_load(attni_mpi_saved *s, attn_context *ctx)
{
    const attn_mpi_checkpoint *from = &s->call->checkpoint;
    const attni_mpi_plan *p = &s->call->plan;
    attn_status status = read_header(s);
    for (int64_t i = 0; i < s->count && status == ATTN_OK; i++) {
        unsigned char entry[ENTRY];
        if (from->read(from->user, HEAD + ENTRY * block_number(p, i), entry, ENTRY))
            return bad(s, "cannot be read");
        const uint64_t start = get(entry, 8), size = get(entry + 8, 8);
        if (start < table_end(p) || start > from->size || size > from->size - start)
            return bad(s, "is damaged: it names a place outside of itself");
        status = load_part(s, &s->parts[i], ctx, start, size);
    }
    return status;
}
