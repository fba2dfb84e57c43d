/* What attn_mpi_sdpa_forward and _backward do first: read and check options and arguments, and cut
 * the keys into segments. */
#include "ranks.h"

#include <stddef.h>
#include <string.h>

#define LARGEST_STRUCT 4096 /* bytes; a larger struct_size was never set (docs/ABI.md) */

bool attni_mpi_read_struct(const void *from, void *to, size_t least, size_t known)
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

attn_status attni_mpi_call_begin(attni_mpi_call *call, const attn_comm *comm,
                                 const attn_mpi_options *options, attn_error *err)
{
    *call = (attni_mpi_call){.report = {0}};
    (void)attni_mpi_read_struct(options, &call->options, offsetof(attn_mpi_options, segment_keys),
                                sizeof call->options); /* if false, check_options() says so */
    return attni_mpi_begin(&call->run, comm, call->options.deadline, err);
}

void attni_mpi_call_end(attni_mpi_call *call, attn_status status)
{
    if (status == ATTN_OK && call->options.report) {
        call->report.segments = call->plan.segments;
        call->report.segment_keys = call->plan.segment_keys;
        *call->options.report = call->report;
    }
    if (call->run.comm && call->run.notified.receives)
        attni_mpi_end(&call->run);
}

/* ------------------------------------------------------------------------------------- checks */

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

static attn_status check_options(attni_mpi_call *call, const attn_mpi_options *from)
{
    attn_error *err = call->run.err;
    const attn_mpi_options *options = &call->options;
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
    if (options->mode != ATTN_MPI_SEGMENTS && options->mode != ATTN_MPI_HEADS)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "options",
                              "options: mode is %d; it must be ATTN_MPI_SEGMENTS or ATTN_MPI_HEADS",
                              (int)options->mode);
    attni_mpi_plan *p = &call->plan;
    p->heads = options->mode == ATTN_MPI_HEADS;
    if (p->heads && (options->segment_keys || options->checkpoint))
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "options",
                              "options: mode is ATTN_MPI_HEADS, which has no %s; it must be %s",
                              options->segment_keys ? "segment_keys" : "checkpoint",
                              options->segment_keys ? "0" : "NULL");
    const int64_t deal =
        common_multiple(KEYS_OF_CHUNK, (int64_t)ATTN_MPI_BLOCK * call->run.comm->size);
    const int64_t unit = options->segment_keys ? KEYS_OF_CHUNK : deal;
    const int64_t wanted = options->segment_keys ? options->segment_keys : 2048;
    p->T = options->T, p->S = options->S;
    p->rank = call->run.comm->rank, p->size = call->run.comm->size;
    p->segment_keys = (wanted + unit - 1) / unit * unit;
    p->segments = p->S / p->segment_keys + (p->S % p->segment_keys > 0);
    if (p->heads)
        p->segments = p->segment_keys = 0;
    return ATTN_OK;
}

/* Checks that a tensor has this rank's rows. attn_sdpa_begin() cannot check this: it expects all
 * keys, and does not know how many rows a rank has. */
static attn_status check_rows(const attni_mpi_call *call, const attn_tensor *t, const char *name,
                              int64_t whole, const char *letter)
{
    const attni_mpi_plan *p = &call->plan;
    const int64_t want = attn_mpi_rows(whole, p->rank, p->size);
    if (t->shape[2] != want)
        return attni_mpi_fail(call->run.err, ATTN_ERR_SHAPE, name,
                              "%s has %lld rows; rank %d of %d has %lld of %s = %lld", name,
                              (long long)t->shape[2], p->rank, p->size, (long long)want, letter,
                              (long long)whole);
    if (!t->data && t->shape[0] && t->shape[1] && t->shape[2] && t->shape[3])
        return attni_mpi_fail(call->run.err, ATTN_ERR_ARGUMENT, name,
                              "%s has no data; it must have the rows of this rank", name);
    return ATTN_OK;
}

static attn_status check_checkpoint(attni_mpi_call *call)
{
    const attn_mpi_checkpoint *given = call->options.checkpoint;
    attn_mpi_checkpoint *c = &call->checkpoint;
    attn_error *err = call->run.err;
    if (!given)
        return ATTN_OK;
    if (!attni_mpi_read_struct(given, c, offsetof(attn_mpi_checkpoint, size) + sizeof c->size,
                               sizeof *c))
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "checkpoint",
                              "checkpoint is a struct of another version; set it up by "
                              "ATTN_MPI_CHECKPOINT_INIT");
    if (!c->open != !c->write || !c->open != !c->sync || !c->open != !c->close)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "checkpoint",
                              "checkpoint has only some of open, write, sync and close; saving "
                              "needs all of them");
    if (!(c->every >= 0))
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "checkpoint",
                              "checkpoint: every is %g; it must be 0 or a number of seconds",
                              c->every);
    call->plan.saves = c->open != NULL;
    call->plan.resumes = c->read != NULL;
    return ATTN_OK;
}

attn_status attni_mpi_call_read(attni_mpi_call *call, const attn_mpi_options *options,
                                const attn_sdpa_args *args)
{
    attni_mpi_plan *p = &call->plan;
    attn_status status;
    if ((status = check_options(call, options)) || (status = check_checkpoint(call)))
        return status;
    attn_sdpa_args_init(&call->local);
    if (!attni_mpi_read_struct(args, &call->local, offsetof(attn_sdpa_args, scale),
                               sizeof call->local))
        return attni_mpi_fail(call->run.err, ATTN_ERR_ARGUMENT, "args",
                              "args is %s; set it up by ATTN_SDPA_ARGS_INIT",
                              args ? "a struct of another version" : "NULL");
    p->args = args = &call->local;
    p->B = args->q.shape[0];
    if ((status = check_rows(call, &args->q, "q", p->T, "T")) ||
        (status = check_rows(call, &args->k, "k", p->S, "S")) ||
        (status = check_rows(call, &args->v, "v", p->S, "S")))
        return status;
    call->args = *args;
    call->args.k.data = call->args.v.data = NULL;
    call->args.k.shape[2] = call->args.v.shape[2] = p->S;
    return ATTN_OK;
}

attn_status attni_mpi_call_part(attni_mpi_call *call, attn_pieces_options *part)
{
    const attni_mpi_plan *p = &call->plan;
    int64_t *positions = attni_mpi_allocate(&call->run, (uint64_t)call->args.q.shape[2], 8);
    if (!positions)
        return attni_mpi_no_memory(&call->run);
    attn_mpi_positions(p->T, p->rank, p->size, positions);
    part->q_positions = positions;
    part->whole_T = p->T;
    return ATTN_OK;
}

attn_status attni_mpi_call_check(attni_mpi_call *call, attn_context *ctx,
                                 const attn_pieces_options *part)
{
    attn_sdpa_state *state;
    const attn_status status = attn_sdpa_begin(ctx, &call->args, part, &state, call->run.err);
    attn_sdpa_end(state);
    return status;
}

/* ----------------------------------------------------------------------------------- segments */

attn_status attni_mpi_call_cut(attni_mpi_call *call, bool packed)
{
    attni_mpi_plan *p = &call->plan;
    const attn_sdpa_args *a = p->args;
    const int64_t sequences = packed && a->cu_seqlens_k ? a->sequences : 0;
    p->starts = attni_mpi_allocate(&call->run, (uint64_t)p->segments + 1, sizeof *p->starts);
    if (!p->starts)
        return attni_mpi_no_memory(&call->run);
    int64_t n = 0; /* the first sequence that ends after the key; `sequences` if none does */
    for (int64_t segment = 0; segment < p->segments; segment++) {
        const int64_t key = segment * p->segment_keys;
        while (n < sequences && a->cu_seqlens_k[n + 1] <= key)
            n++;
        const int64_t from = sequences ? a->cu_seqlens_k[n] : 0;
        p->starts[segment] = key - (key - from) % KEYS_OF_CHUNK;
    }
    p->starts[p->segments] = p->S;
    return ATTN_OK;
}
