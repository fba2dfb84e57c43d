/* Where tokens lie: blocks of 64, dealt to the ranks in turn (attn_mpi.h). */
#include "ranks.h"

#include <string.h>

int attn_mpi_owner(int64_t token, int P) { return (int)(token / ATTN_MPI_BLOCK % P); }

int64_t attn_mpi_rows(int64_t tokens, int rank, int P)
{
    const int64_t blocks = tokens / ATTN_MPI_BLOCK, rest = tokens % ATTN_MPI_BLOCK;
    const int64_t whole = blocks / P + (blocks % P > rank);
    return whole * ATTN_MPI_BLOCK + (blocks % P == rank ? rest : 0);
}

void attn_mpi_positions(int64_t tokens, int rank, int P, int64_t *positions)
{
    int64_t row = 0;
    for (int64_t first = (int64_t)rank * ATTN_MPI_BLOCK; first < tokens;
         first += (int64_t)P * ATTN_MPI_BLOCK)
        for (int64_t i = first; i < tokens && i < first + ATTN_MPI_BLOCK; i++)
            positions[row++] = i;
}

/* ------------------------------------------------------------------------------- copying rows */

static char *at(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t d)
{
    const int64_t e = b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + d * t->stride[3];
    return (char *)t->data + e * (int64_t)attn_dtype_size(t->dtype);
}

static void copy_run(const attn_tensor *target, int64_t to, const attn_tensor *source, int64_t from,
                     int64_t n, int64_t b, int64_t h)
{
    const int64_t width = source->shape[3];
    const size_t size = attn_dtype_size(source->dtype), row = size * (size_t)width;
    const bool rows = source->stride[3] == 1 && target->stride[3] == 1;
    if (rows && source->stride[2] == width && target->stride[2] == width) {
        memcpy(at(target, b, h, to, 0), at(source, b, h, from, 0), row * (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (rows)
            memcpy(at(target, b, h, to + i, 0), at(source, b, h, from + i, 0), row);
        for (int64_t d = 0; d < width && !rows; d++)
            memcpy(at(target, b, h, to + i, d), at(source, b, h, from + i, d), size);
    }
}

void attni_mpi_copy_rows(const attn_tensor *target, int64_t to, const attn_tensor *source,
                         int64_t from, int64_t n)
{
    if (n == 0 || source->shape[3] == 0)
        return;
    for (int64_t b = 0; b < source->shape[0]; b++)
        for (int64_t h = 0; h < source->shape[1]; h++)
            copy_run(target, to, source, from, n, b, h);
}

/* ------------------------------------------------------------------------------ take and put */

attn_status attni_mpi_check_pair(const attn_tensor *whole, const attn_tensor *local, int rank,
                                 int P, attn_error *err)
{
    if (!whole || !local || P < 1 || rank < 0 || rank >= P)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, !whole || !local ? "tensor" : "rank",
                              !whole || !local ? "tensor is NULL"
                                               : "rank is %d of %d; it must be within 0..P-1",
                              rank, P);
    if (whole->dtype != local->dtype || attn_dtype_size(whole->dtype) == 0)
        return attni_mpi_fail(err, ATTN_ERR_DTYPE, "local",
                              "local is %s and whole is %s; they must share one dtype",
                              attn_dtype_name(local->dtype), attn_dtype_name(whole->dtype));
    for (int d = 0; d < 4; d++) {
        const int64_t want = d == 2 && whole->shape[2] >= 0
                                 ? attn_mpi_rows(whole->shape[2], rank, P)
                                 : whole->shape[d];
        if (want < 0 || local->shape[d] != want)
            return attni_mpi_fail(err, ATTN_ERR_SHAPE, "local",
                                  "local has %lld in dimension %d; rank %d of %d must have %lld",
                                  (long long)local->shape[d], d, rank, P, (long long)want);
    }
    return ATTN_OK;
}

/* Copies the rows of a rank, block by block: from `whole` if `take`, else from `local`. */
static void each_run(const attn_tensor *whole, const attn_tensor *local, int rank, int P, bool take)
{
    const int64_t tokens = whole->shape[2];
    for (int64_t first = (int64_t)rank * ATTN_MPI_BLOCK, row = 0; first < tokens;
         first += (int64_t)P * ATTN_MPI_BLOCK, row += ATTN_MPI_BLOCK) {
        const int64_t n = tokens - first < ATTN_MPI_BLOCK ? tokens - first : ATTN_MPI_BLOCK;
        if (take)
            attni_mpi_copy_rows(local, row, whole, first, n);
        else
            attni_mpi_copy_rows(whole, first, local, row, n);
    }
}

attn_status attn_mpi_take(const attn_tensor *whole, int rank, int P, const attn_tensor *local,
                          attn_error *err)
{
    const attn_status status = attni_mpi_check_pair(whole, local, rank, P, err);
    if (status == ATTN_OK)
        each_run(whole, local, rank, P, true);
    return status;
}

attn_status attn_mpi_put(const attn_tensor *local, int rank, int P, const attn_tensor *whole,
                         attn_error *err)
{
    const attn_status status = attni_mpi_check_pair(whole, local, rank, P, err);
    if (status == ATTN_OK)
        each_run(whole, local, rank, P, false);
    return status;
}
