/* attn_mpi_scatter and attn_mpi_gather: rank 0 has the whole tensor. Rows travel as dense arrays.
 * attn_mpi_all_gather: all ranks get some bytes of each. */
#include "ranks.h"

/* A dense array with the sizes of `like`, but with `rows` rows. Its data is NULL if there is no
 * memory. */
static attn_tensor part_new(attni_mpi_run *run, const attn_tensor *like, int64_t rows)
{
    attn_tensor part =
        attn_bhtd(NULL, like->dtype, like->shape[0], like->shape[1], rows, like->shape[3]);
    part.data = attni_mpi_allocate(run, (uint64_t)(like->shape[0] * like->shape[1] * rows),
                                   (uint64_t)like->shape[3] * attn_dtype_size(like->dtype));
    return part;
}

static size_t bytes_of(const attn_tensor *t)
{
    return (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]) *
           attn_dtype_size(t->dtype);
}

/* What moves: parts[r] has the rows of rank r as a dense array. Rank 0 has those of all other
 * ranks, and another rank has its own. */
typedef struct transfer {
    const attn_tensor *whole, *local;
    attn_tensor *parts;
    bool scatter;
} transfer;

/* Checks this rank's tensors, and allocates its parts. Sends nothing, so it may fail on one rank
 * only. */
static attn_status prepare(attni_mpi_run *run, transfer *x)
{
    const int P = run->comm->size, rank = run->comm->rank;
    attn_status status = ATTN_OK;
    if (!x->local || (rank == 0 && !x->whole))
        return attni_mpi_fail(run->err, ATTN_ERR_ARGUMENT, x->local ? "whole" : "local",
                              "%s is NULL; it must be a tensor", x->local ? "whole" : "local");
    /* Another rank compares with itself: its type must exist, and no size may be negative. */
    if ((status =
             attni_mpi_check_pair(rank ? x->local : x->whole, x->local, 0, rank ? 1 : P, run->err)))
        return status;
    x->parts = attni_mpi_allocate(run, (uint64_t)P, sizeof *x->parts);
    if (!x->parts)
        return attni_mpi_no_memory(run);
    for (int r = rank ? rank : 1; r < (rank ? rank + 1 : P); r++) {
        const attn_tensor *like = rank ? x->local : x->whole;
        attn_tensor *part = &x->parts[r];
        *part = part_new(run, like, rank ? like->shape[2] : attn_mpi_rows(like->shape[2], r, P));
        if (!part->data)
            return attni_mpi_no_memory(run);
        if (bytes_of(part) > ATTNI_MPI_MOST_BYTES)
            return attni_mpi_fail(run->err, ATTN_ERR_LIMIT, "local",
                                  "local has %zu bytes on rank %d; it must have at most %zu",
                                  bytes_of(part), r, ATTNI_MPI_MOST_BYTES);
    }
    return ATTN_OK;
}

/* Compares the shapes of all ranks. After it, no rank fails but by a message that is lost. */
static attn_status agree(attni_mpi_run *run, const transfer *x, attn_status status)
{
    uint64_t form = UINT64_C(0xcbf29ce484222325);
    if (status == ATTN_OK) {
        const int64_t numbers[] = {x->scatter, (int64_t)x->local->dtype, x->local->shape[0],
                                   x->local->shape[1], x->local->shape[3]};
        form = attni_mpi_fnv(form, numbers, sizeof numbers);
    }
    return attni_mpi_agree_sizes(run, "local", form, status ? 0 : x->local->shape[2],
                                 status || !x->whole ? 0 : x->whole->shape[2], status);
}

static attn_status as_rank_0(attni_mpi_run *run, attni_mpi_flight *flight, const transfer *x)
{
    const int P = run->comm->size;
    attn_status status = x->scatter ? attn_mpi_take(x->whole, 0, P, x->local, run->err)
                                    : attn_mpi_put(x->local, 0, P, x->whole, run->err);
    for (int r = 1; r < P && status == ATTN_OK; r++) {
        const attn_tensor *part = &x->parts[r];
        if (x->scatter)
            status = attn_mpi_take(x->whole, r, P, part, run->err);
        if (status == ATTN_OK)
            status = x->scatter ? attni_mpi_send(run, flight, r, part->data, bytes_of(part))
                                : attni_mpi_receive(run, flight, r, part->data, bytes_of(part));
    }
    if (status || (status = attni_mpi_wait(run, flight)))
        return status;
    for (int r = 1; r < P && !x->scatter && status == ATTN_OK; r++)
        status = attn_mpi_put(&x->parts[r], r, P, x->whole, run->err);
    return status;
}

static attn_status as_other(attni_mpi_run *run, attni_mpi_flight *flight, const transfer *x)
{
    const attn_tensor *part = &x->parts[run->comm->rank];
    if (!x->scatter)
        attni_mpi_copy_rows(part, 0, x->local, 0, part->shape[2]);
    attn_status status = x->scatter ? attni_mpi_receive(run, flight, 0, part->data, bytes_of(part))
                                    : attni_mpi_send(run, flight, 0, part->data, bytes_of(part));
    if (status || (status = attni_mpi_wait(run, flight)))
        return status;
    if (x->scatter)
        attni_mpi_copy_rows(x->local, 0, part, 0, part->shape[2]);
    return ATTN_OK;
}

static attn_status move(const attn_comm *comm, const attn_tensor *whole, const attn_tensor *local,
                        double deadline, attn_error *err, bool scatter)
{
    attni_mpi_run run;
    attni_mpi_flight flight = {0};
    transfer x = {.whole = whole, .local = local, .scatter = scatter};
    attn_status status = attni_mpi_begin(&run, comm, deadline, err);
    if (status == ATTN_OK)
        status = attni_mpi_flight_new(&run, &flight);
    if (status == ATTN_OK)
        status = agree(&run, &x, prepare(&run, &x));
    if (status == ATTN_OK)
        status = comm->rank == 0 ? as_rank_0(&run, &flight, &x) : as_other(&run, &flight, &x);
    if (flight.receives)
        attni_mpi_cancel(&run, &flight);
    attni_mpi_end(&run);
    return status;
}

attn_status attn_mpi_scatter(const attn_comm *comm, const attn_tensor *whole,
                             const attn_tensor *local, double deadline, attn_error *err)
{
    return move(comm, whole, local, deadline, err, true);
}

attn_status attn_mpi_gather(const attn_comm *comm, const attn_tensor *local,
                            const attn_tensor *whole, double deadline, attn_error *err)
{
    return move(comm, whole, local, deadline, err, false);
}

attn_status attn_mpi_all_gather(const attn_comm *comm, const void *mine, size_t n, void *all,
                                double deadline, attn_error *err)
{
    attni_mpi_run run;
    attn_status status = attni_mpi_begin(&run, comm, deadline, err);
    if (status == ATTN_OK) {
        if (n > 0 && (!mine || !all))
            status = attni_mpi_fail(run.err, ATTN_ERR_ARGUMENT, mine ? "all" : "mine",
                                    "%s is NULL; it must be an address", mine ? "all" : "mine");
        else if (n > ATTNI_MPI_MOST_BYTES)
            status = attni_mpi_fail(run.err, ATTN_ERR_LIMIT, "n",
                                    "n is %zu; it must be at most %zu", n, ATTNI_MPI_MOST_BYTES);
        status = attni_mpi_agree_sizes(&run, "n", status ? 0 : n, 0, -1, status);
    }
    if (status == ATTN_OK && n > 0)
        status = attni_mpi_all_gather(&run, mine, n, all);
    attni_mpi_end(&run);
    return status;
}
