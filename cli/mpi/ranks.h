/* The ranks of the job, for the files of this folder. */
#ifndef CLI_MPI_RANKS_H
#define CLI_MPI_RANKS_H

#include "attn_mpi.h"

#include "../job.h"

/* comm.c: the only file that needs MPI. Fills the table and starts MPI, or describes why not. */
int comm_begin(attn_comm *comm, kit_error *err);
/* Waits for all ranks, and ends MPI. */
void comm_end(attn_comm *comm);
/* Ends all processes of the job. */
void comm_abort(int code);

/* job.c. Every rank must make the same calls of these functions in the same order. They fail with
 * KIT_LIMIT if a rank sends nothing within the deadline; the job is then lost, and only job_settle
 * and job_end may follow. */
const attn_comm *ranks_comm(void);
void ranks_set_deadline(double seconds);
double ranks_deadline(void);
/* Gives every rank the n bytes of all: all[size][n]. */
int ranks_exchange(const void *mine, size_t n, void *all, kit_error *err);
/* The first error that any rank has; if not all have the same one, the message names the rank. */
int ranks_agree(int code, kit_error *err);
/* The result of a call of libattn-mpi, which is an error on all ranks or on none. */
int ranks_engine(attn_status status, const attn_error *engine, kit_error *err);

/* While this holds, waiting ends with an error. NULL: never. */
void ranks_stop_if(bool (*stop)(void));

#endif
