/* What the files of libattn-mpi share. A file calls only files before it in this order: messages.c,
 * layout.c, needs.c, agree.c, forward.c. scatter.c calls messages.c and layout.c; threads.c calls
 * only messages.c. */
#ifndef ATTNI_MPI_RANKS_H
#define ATTNI_MPI_RANKS_H

#include "attn_mpi.h"

#include <stdbool.h>

#define KEYS_OF_CHUNK 256 /* pieces of attn_sdpa_feed begin at multiples of this */

/* ------------------------------------------------------------------------------- messages.c */

/* Does what attni_fail() of libattn does. That function is not exported, so libattn-mpi has its
 * own. */
attn_status attni_mpi_fail(attn_error *err, attn_status status, const char *argument,
                           const char *format, ...) __attribute__((format(printf, 4, 5)));
attn_status attni_mpi_check_comm(const attn_comm *comm, attn_error *err);

/* An error in the form in which ranks send it to each other. */
typedef struct attni_mpi_notice {
    int32_t status;
    char argument[sizeof((attn_error *)0)->argument];
    char message[sizeof((attn_error *)0)->message];
} attni_mpi_notice;

/* Messages under way with every rank. */
typedef struct attni_mpi_flight {
    void **receives, **sends; /* [size] requests; NULL: none */
} attni_mpi_flight;

/* One collective call: its deadline, its memory, and its notices. A rank that gives up sends a
 * notice with the reason to all others. */
typedef struct attni_mpi_run {
    const attn_comm *comm;
    double seconds;
    attn_error *err, own_err;  /* err is never NULL */
    attni_mpi_notice *notices; /* [size], from the others */
    attni_mpi_flight notified;
    struct attni_mpi_memory *memory; /* a list, released at the end unless `kept` */
    bool kept;                       /* a message that cannot be stopped may still use it */
} attni_mpi_run;

attn_status attni_mpi_begin(attni_mpi_run *run, const attn_comm *comm, double seconds,
                            attn_error *err);
void attni_mpi_end(attni_mpi_run *run);
/* count * size bytes that live until attni_mpi_end; NULL if there is no memory. */
void *attni_mpi_allocate(attni_mpi_run *run, uint64_t count, uint64_t size);
attn_status attni_mpi_no_memory(attni_mpi_run *run);

attn_status attni_mpi_flight_new(attni_mpi_run *run, attni_mpi_flight *flight);
/* Start a message; nothing is sent if n is 0. */
attn_status attni_mpi_send(attni_mpi_run *run, attni_mpi_flight *flight, int to, const void *bytes,
                           size_t n);
attn_status attni_mpi_receive(attni_mpi_run *run, attni_mpi_flight *flight, int from, void *bytes,
                              size_t n);
/* Lets messages advance. *left becomes the number of those under way. */
attn_status attni_mpi_poll(attni_mpi_run *run, attni_mpi_flight *flight, int *left);
/* Returns when all messages have arrived, or with an error. After an error the caller must cancel
 * the flight. */
attn_status attni_mpi_wait(attni_mpi_run *run, attni_mpi_flight *flight);
/* Tells the other ranks of the error in run->err, which only this rank has. */
attn_status attni_mpi_give_up(attni_mpi_run *run, attn_status status);
/* Cancels the messages of a flight. */
void attni_mpi_cancel(attni_mpi_run *run, attni_mpi_flight *flight);
/* Each rank gets the n bytes of every rank: all[size][n]. */
attn_status attni_mpi_all_gather(attni_mpi_run *run, const void *mine, size_t n, void *all);

/* --------------------------------------------------------------------------------- layout.c */

/* Copies n rows of every head: rows from .. of `source` to rows to .. of `target`. The tensors have
 * the same dtype, heads and width. */
void attni_mpi_copy_rows(const attn_tensor *target, int64_t to, const attn_tensor *source,
                         int64_t from, int64_t n);

/* ---------------------------------------------------------------------------------- needs.c */

typedef struct attni_mpi_plan {
    const attn_sdpa_args *args; /* of this rank */
    int64_t T, S, B;
    int64_t segment_keys, segments;
    int rank, size;
} attni_mpi_plan;

/* Sets needs[segments]: must `rank` see a key of the segment? `counts` has room for segments + 1
 * numbers. */
void attni_mpi_needs(const attni_mpi_plan *plan, int rank, int64_t *counts, uint8_t *needs);

/* ---------------------------------------------------------------------------------- agree.c */

/* Compares the calls of all ranks. `status` and run->err are the error that this rank has so far,
 * if any. Returns the same status on every rank. */
attn_status attni_mpi_agree(attni_mpi_run *run, const attni_mpi_plan *plan, const char *isa,
                            attn_status status);
/* Returns the error of the first rank that has one; `status` and run->err are those of this rank.
 * Without an error, sets again[r] to 1 for each rank r that passes ATTN_AGAIN, and returns
 * ATTN_AGAIN if there is such a rank. */
attn_status attni_mpi_agree_again(attni_mpi_run *run, attn_status status, uint8_t *again);

#endif
