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

/* On rank 0: starts a message to or from every other rank, with its rows in parts[rank]. */
static attn_status begin_all(attni_mpi_run *run, attni_mpi_flight *flight, const attn_tensor *whole,
                             attn_tensor *parts, bool scatter)
{
    const int P = run->comm->size;
    attn_status status = ATTN_OK;
    for (int r = 1; r < P && status == ATTN_OK; r++) {
        attn_tensor *part = &parts[r];
        *part = part_new(run, whole, attn_mpi_rows(whole->shape[2], r, P));
        if (!part->data)
            return attni_mpi_give_up(run, attni_mpi_no_memory(run));
        if (scatter)
            status = attn_mpi_take(whole, r, P, part, run->err);
        if (status)
            return attni_mpi_give_up(run, status);
        status = scatter ? attni_mpi_send(run, flight, r, part->data, bytes_of(part))
                         : attni_mpi_receive(run, flight, r, part->data, bytes_of(part));
    }
    return status;
}

static attn_status as_rank_0(attni_mpi_run *run, attni_mpi_flight *flight, const attn_tensor *whole,
                             const attn_tensor *local, bool scatter)
{
    const int P = run->comm->size;
    attn_tensor *parts = attni_mpi_allocate(run, (uint64_t)P, sizeof *parts);
    attn_status status = scatter ? attn_mpi_take(whole, 0, P, local, run->err)
                                 : attn_mpi_put(local, 0, P, whole, run->err);
    if (status || !parts)
        return attni_mpi_give_up(run, status ? status : attni_mpi_no_memory(run));
    if ((status = begin_all(run, flight, whole, parts, scatter)) ||
        (status = attni_mpi_wait(run, flight)))
        return status;
    for (int r = 1; r < P && !scatter && status == ATTN_OK; r++)
        status = attn_mpi_put(&parts[r], r, P, whole, run->err);
    return status;
}

static attn_status as_other(attni_mpi_run *run, attni_mpi_flight *flight, const attn_tensor *local,
                            bool scatter)
{
    const int64_t rows = local->shape[2];
    const attn_tensor part = part_new(run, local, rows);
    attn_status status;
    if (!part.data)
        return attni_mpi_give_up(run, attni_mpi_no_memory(run));
    if (!scatter)
        attni_mpi_copy_rows(&part, 0, local, 0, rows);
    status = scatter ? attni_mpi_receive(run, flight, 0, part.data, bytes_of(&part))
                     : attni_mpi_send(run, flight, 0, part.data, bytes_of(&part));
    if (status || (status = attni_mpi_wait(run, flight)))
        return status;
    if (scatter)
        attni_mpi_copy_rows(local, 0, &part, 0, rows);
    return ATTN_OK;
}

static attn_status move(const attn_comm *comm, const attn_tensor *whole, const attn_tensor *local,
                        double deadline, attn_error *err, bool scatter)
{
    attni_mpi_run run;
    attni_mpi_flight flight = {0};
    attn_status status = attni_mpi_begin(&run, comm, deadline, err);
    if (status == ATTN_OK)
        status = attni_mpi_flight_new(&run, &flight);
    if (status == ATTN_OK && (!local || (comm->rank == 0 && !whole)))
        status = attni_mpi_give_up(&run, attni_mpi_fail(run.err, ATTN_ERR_ARGUMENT,
                                                        local ? "whole" : "local",
                                                        "%s is NULL; it must be a tensor",
                                                        local ? "whole" : "local"));
    if (status == ATTN_OK)
        status = comm->rank == 0 ? as_rank_0(&run, &flight, whole, local, scatter)
                                 : as_other(&run, &flight, local, scatter);
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
    if (status == ATTN_OK && n > 0 && (!mine || !all))
        status = attni_mpi_give_up(&run,
                                   attni_mpi_fail(run.err, ATTN_ERR_ARGUMENT, mine ? "all" : "mine",
                                                  "%s is NULL; it must be an address",
                                                  mine ? "all" : "mine"));
    if (status == ATTN_OK && n > 0)
        status = attni_mpi_all_gather(&run, mine, n, all);
    attni_mpi_end(&run);
    return status;
}
