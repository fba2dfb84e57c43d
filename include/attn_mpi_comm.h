/* Fills attn_comm, the table of attn_mpi.h, with functions that call MPI. The functions are static
 * inline: a program compiles them with the mpicc of its own MPI, so that one build of libattn-mpi
 * serves Open MPI, MPICH and others. Include this header in one file of the program.
 *
 * Call MPI_Init first; if the context has several threads, call MPI_Init_thread with
 * MPI_THREAD_FUNNELED instead. The library calls MPI from the thread that called the library. With
 * MPI_THREAD_FUNNELED this must be the thread that called MPI_Init_thread.
 */
#ifndef ATTN_MPI_COMM_H
#define ATTN_MPI_COMM_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A message that was started. */
typedef struct attn_comm_message {
    MPI_Request request;
    int n; /* bytes to receive; -1: a message that is sent */
} attn_comm_message;

/* Allocated before the message starts: if the allocation failed after the start, nothing could
 * track the message, which uses the caller's memory until it is complete. */
static inline attn_comm_message *attn_comm_message_new(int n)
{
    attn_comm_message *message = (attn_comm_message *)malloc(sizeof *message);
    if (message)
        message->n = n;
    return message;
}

static inline int attn_comm_keep(attn_comm_message *started, int failed, void **request)
{
    if (failed)
        free(started);
    *request = failed ? NULL : started;
    return failed;
}

static inline int attn_comm_send(void *user, int to, int tag, const void *bytes, size_t n,
                                 void **request)
{
    attn_comm_message *started = attn_comm_message_new(-1);
    const int failed = !started || MPI_Isend(bytes, (int)n, MPI_BYTE, to, tag, *(MPI_Comm *)user,
                                             &started->request) != MPI_SUCCESS;
    return attn_comm_keep(started, failed, request);
}

static inline int attn_comm_receive(void *user, int from, int tag, void *bytes, size_t n,
                                    void **request)
{
    attn_comm_message *started = attn_comm_message_new((int)n);
    const int failed = !started || MPI_Irecv(bytes, (int)n, MPI_BYTE, from, tag, *(MPI_Comm *)user,
                                             &started->request) != MPI_SUCCESS;
    return attn_comm_keep(started, failed, request);
}

/* A message with fewer bytes than the receiver expects has failed; for MPI, it is complete. */
static inline int attn_comm_test(void *user, void **request)
{
    attn_comm_message *started = (attn_comm_message *)*request;
    MPI_Status status;
    int done = 0, n = 0;
    (void)user;
    if (MPI_Test(&started->request, &done, &status) != MPI_SUCCESS)
        done = -1;
    if (done == 1 && started->n >= 0 &&
        (MPI_Get_count(&status, MPI_BYTE, &n) != MPI_SUCCESS || n != started->n))
        done = -1;
    if (done) {
        free(started);
        *request = NULL;
    }
    return done;
}

/* Every MPI can cancel a receive, but few can cancel a send. If a message has neither completed nor
 * been cancelled, only its request is freed: MPI may still use the message's memory. */
static inline int attn_comm_cancel(void *user, void **request)
{
    int done = attn_comm_test(user, request);
    if (done)
        return 1;
    attn_comm_message *started = (attn_comm_message *)*request;
    done = MPI_Cancel(&started->request) == MPI_SUCCESS &&
           MPI_Test(&started->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
    if (!done)
        MPI_Request_free(&started->request);
    free(started);
    *request = NULL;
    return done;
}

/* Is this process one of several that were started by the launcher of another MPI? Each is then
 * rank 0 of 1, and would compute as if it were alone. */
static inline int attn_comm_foreign(int size)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (int i = 0; i < 2 && size == 1; i++) {
        const char *value = getenv(variables[i]);
        if (value && atoi(value) > 1)
            return 1;
    }
    return 0;
}

static inline attn_status attn_comm_error(attn_error *err, attn_status status, const char *message)
{
    if (err) {
        memset(err, 0, sizeof *err);
        err->status = status;
        snprintf(err->argument, sizeof err->argument, "comm");
        snprintf(err->message, sizeof err->message, "comm %s", message);
    }
    return status;
}

/* Fills the table for the ranks of `of`; all of them must call it. It works on a duplicate of the
 * communicator, which returns errors instead of aborting. ATTN_ERR_COMM: MPI reported an error, or
 * the processes were started by the launcher of another MPI. */
static inline attn_status attn_comm_open(MPI_Comm of, attn_comm *comm, attn_error *err)
{
    int world = 0;
    memset(comm, 0, sizeof *comm);
    if (MPI_Comm_size(MPI_COMM_WORLD, &world) != MPI_SUCCESS || attn_comm_foreign(world))
        return attn_comm_error(err, ATTN_ERR_COMM,
                               "has one rank, but the launcher started several; use the mpirun of "
                               "the MPI that the program was compiled with");
    MPI_Comm *own = (MPI_Comm *)malloc(sizeof *own);
    if (!own)
        return attn_comm_error(err, ATTN_ERR_MEMORY, "has no memory");
    if (MPI_Comm_dup(of, own) != MPI_SUCCESS) {
        free(own);
        return attn_comm_error(err, ATTN_ERR_COMM, "cannot be duplicated by MPI");
    }
    MPI_Comm_set_errhandler(*own, MPI_ERRORS_RETURN);
    MPI_Comm_rank(*own, &comm->rank);
    MPI_Comm_size(*own, &comm->size);
    comm->struct_size = sizeof *comm;
    comm->user = own;
    comm->send = attn_comm_send;
    comm->receive = attn_comm_receive;
    comm->test = attn_comm_test;
    comm->cancel = attn_comm_cancel;
    return ATTN_OK;
}

/* Frees the duplicate; all ranks must call it. Do not call it after ATTN_ERR_COMM. End the program
 * with MPI_Abort then, because MPI_Finalize may wait for the rank that is missing. */
static inline void attn_comm_close(attn_comm *comm)
{
    if (comm->user) {
        MPI_Comm_free((MPI_Comm *)comm->user);
        free(comm->user);
    }
    memset(comm, 0, sizeof *comm);
}

#ifdef __cplusplus
}
#endif

#endif
