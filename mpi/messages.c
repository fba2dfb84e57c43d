/* Messages between ranks with a deadline (ranks.h). A rank that gives up sends a notice to all
 * others. Every rank always has a receive for such a notice pending. So all ranks soon end with the
 * same error. */
#define _POSIX_C_SOURCE 200809L
#include "ranks.h"

#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DATA, NOTICE }; /* tags */

#define NOTICE_SECONDS 0.2 /* time to deliver notices before a rank returns */

attn_status attni_mpi_fail(attn_error *err, attn_status status, const char *argument,
                           const char *format, ...)
{
    if (!err)
        return status;
    va_list values;
    memset(err, 0, sizeof *err);
    err->status = status;
    snprintf(err->argument, sizeof err->argument, "%s", argument);
    va_start(values, format);
    vsnprintf(err->message, sizeof err->message, format, values);
    va_end(values);
    return status;
}

attn_status attni_mpi_check_comm(const attn_comm *comm, attn_error *err)
{
    if (!comm || comm->struct_size != sizeof *comm)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "comm",
                              "comm is %s; attn_ranks_comm or attn_comm_open fills a table",
                              comm ? "a struct of another size" : "NULL");
    if (comm->size < 1 || comm->rank < 0 || comm->rank >= comm->size)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "comm",
                              "comm has rank %d of %d; rank must be within 0..size-1", comm->rank,
                              comm->size);
    if (!comm->send || !comm->receive || !comm->test || !comm->cancel)
        return attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "comm",
                              "comm lacks a function; send, receive, test and cancel are needed");
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------- a run */

typedef struct attni_mpi_memory {
    struct attni_mpi_memory *next;
    max_align_t bytes[];
} attni_mpi_memory;

void *attni_mpi_allocate(attni_mpi_run *run, uint64_t count, uint64_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, sizeof(attni_mpi_memory), &bytes))
        return NULL;
    attni_mpi_memory *memory = calloc(bytes, 1);
    if (!memory)
        return NULL;
    memory->next = run->memory;
    run->memory = memory;
    return memory->bytes;
}

attn_status attni_mpi_no_memory(attni_mpi_run *run)
{
    return attni_mpi_fail(run->err, ATTN_ERR_MEMORY, "", "no memory for the data of other ranks");
}

attn_status attni_mpi_flight_new(attni_mpi_run *run, attni_mpi_flight *flight)
{
    const uint64_t size = (uint64_t)run->comm->size;
    flight->receives = attni_mpi_allocate(run, 2 * size, sizeof(void *));
    if (!flight->receives)
        return attni_mpi_no_memory(run);
    flight->sends = flight->receives + size;
    return ATTN_OK;
}

attn_status attni_mpi_begin(attni_mpi_run *run, const attn_comm *comm, double seconds,
                            attn_error *err)
{
    *run = (attni_mpi_run){.comm = comm, .seconds = seconds > 0 ? seconds : 600};
    run->err = err = err ? err : &run->own_err;
    attn_status status = attni_mpi_check_comm(comm, err);
    if (status == ATTN_OK && !(seconds >= 0))
        status = attni_mpi_fail(err, ATTN_ERR_ARGUMENT, "deadline",
                                "deadline is %g; it must be 0 or a number of seconds", seconds);
    if (status == ATTN_OK)
        status = attni_mpi_flight_new(run, &run->notified);
    if (status)
        return status;
    run->notices = attni_mpi_allocate(run, (uint64_t)comm->size, sizeof *run->notices);
    if (!run->notices)
        return attni_mpi_no_memory(run);
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && comm->receive(comm->user, r, NOTICE, &run->notices[r],
                                             sizeof *run->notices, &run->notified.receives[r]))
            return attni_mpi_fail(err, ATTN_ERR_COMM, "comm",
                                  "comm failed to start a message from rank %d", r);
    return ATTN_OK;
}

static void cancel_all(attni_mpi_run *run, void **requests)
{
    for (int r = 0; r < run->comm->size; r++)
        if (requests[r] && !run->comm->cancel(run->comm->user, &requests[r]))
            run->kept = true;
}

void attni_mpi_cancel(attni_mpi_run *run, attni_mpi_flight *flight)
{
    if (!flight->receives)
        return;
    cancel_all(run, flight->receives);
    cancel_all(run, flight->sends);
}

void attni_mpi_end(attni_mpi_run *run)
{
    attni_mpi_cancel(run, &run->notified);
    for (attni_mpi_memory *memory = run->memory, *next; memory && !run->kept; memory = next) {
        next = memory->next;
        free(memory);
    }
}

/* -------------------------------------------------------------------------------- one message */

double attni_mpi_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns the error of `notice`. If `tell`, first sends the notice to the other ranks. */
static attn_status give_up(attni_mpi_run *run, const attni_mpi_notice *notice, bool tell)
{
    const attn_comm *comm = run->comm;
    void **sends = run->notified.sends;
    int left = 1;
    /* If the receiving rank does not take the notice, this memory outlives the run (run->kept). */
    attni_mpi_notice *to_send = tell ? attni_mpi_allocate(run, 1, sizeof *notice) : NULL;
    if (to_send) {
        *to_send = *notice;
        for (int r = 0; r < comm->size; r++)
            if (r != comm->rank)
                comm->send(comm->user, r, NOTICE, to_send, sizeof *notice, &sends[r]);
        for (const double until = attni_mpi_now() + NOTICE_SECONDS; left && attni_mpi_now() < until;
             sched_yield()) {
            left = 0;
            for (int r = 0; r < comm->size; r++)
                left += sends[r] && comm->test(comm->user, &sends[r]) == 0;
        }
    }
    return attni_mpi_fail(run->err, (attn_status)notice->status, notice->argument, "%s",
                          notice->message);
}

static attn_status give_up_for(attni_mpi_run *run, attn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static attn_status give_up_for(attni_mpi_run *run, attn_status status, const char *format, ...)
{
    attni_mpi_notice notice;
    va_list values;
    memset(&notice, 0, sizeof notice);
    notice.status = (int32_t)status;
    memcpy(notice.argument, "comm", 5);
    va_start(values, format);
    vsnprintf(notice.message, sizeof notice.message, format, values);
    va_end(values);
    return give_up(run, &notice, true);
}

attn_status attni_mpi_send(attni_mpi_run *run, attni_mpi_flight *flight, int to, const void *bytes,
                           size_t n)
{
    if (n > ATTNI_MPI_MOST_BYTES)
        return give_up_for(run, ATTN_ERR_LIMIT,
                           "comm would send %zu bytes in one message, and a message has at most "
                           "%zu; smaller segment_keys need less, and so do shorter rows",
                           n, ATTNI_MPI_MOST_BYTES);
    if (n > 0 && run->comm->send(run->comm->user, to, DATA, bytes, n, &flight->sends[to]))
        return give_up_for(run, ATTN_ERR_COMM, "comm failed to start a message to rank %d", to);
    return ATTN_OK;
}

attn_status attni_mpi_receive(attni_mpi_run *run, attni_mpi_flight *flight, int from, void *bytes,
                              size_t n)
{
    if (n > 0 && n <= ATTNI_MPI_MOST_BYTES && /* the sender reports a message that is too large */
        run->comm->receive(run->comm->user, from, DATA, bytes, n, &flight->receives[from]))
        return give_up_for(run, ATTN_ERR_COMM, "comm failed to start a message from rank %d", from);
    return ATTN_OK;
}

attn_status attni_mpi_give_up(attni_mpi_run *run, attn_status status)
{
    attni_mpi_notice notice;
    memset(&notice, 0, sizeof notice);
    notice.status = (int32_t)status;
    snprintf(notice.argument, sizeof notice.argument, "%s", run->err->argument);
    snprintf(notice.message, sizeof notice.message, "rank %d: %.200s", run->comm->rank,
             run->err->message);
    return give_up(run, &notice, true);
}

/* ----------------------------------------------------------------------------- many messages */

/* Returns the error of a rank that has given up; ATTN_OK if none has. */
static attn_status read_notices(attni_mpi_run *run)
{
    const attn_comm *comm = run->comm;
    for (int r = 0; r < comm->size; r++) {
        void **request = &run->notified.receives[r];
        if (*request && comm->test(comm->user, request) == 1) {
            run->notices[r].argument[sizeof run->notices[r].argument - 1] = '\0';
            run->notices[r].message[sizeof run->notices[r].message - 1] = '\0';
            return give_up(run, &run->notices[r], false);
        }
    }
    return ATTN_OK;
}

attn_status attni_mpi_poll(attni_mpi_run *run, attni_mpi_flight *flight, int *left)
{
    const attn_comm *comm = run->comm;
    *left = 0;
    for (int r = 0; r < 2 * comm->size; r++) {
        void **request = &flight->receives[r]; /* the sends follow the receives */
        const int done = *request ? comm->test(comm->user, request) : 1;
        if (done < 0)
            return give_up_for(run, ATTN_ERR_COMM, "comm failed in a message %s rank %d",
                               r < comm->size ? "from" : "to", r % comm->size);
        *left += done == 0;
    }
    return read_notices(run);
}

/* Gives up because the deadline has passed. The error names the ranks of the missing messages. */
static attn_status time_is_over(attni_mpi_run *run, const attni_mpi_flight *flight)
{
    char names[120] = "";
    int count = 0;
    size_t used = 0;
    bool sends = true;
    for (int r = 0; r < run->comm->size; r++)
        sends = sends && !flight->receives[r];
    for (int r = 0; r < run->comm->size; r++) {
        if (!(sends ? flight->sends : flight->receives)[r])
            continue;
        if (used < sizeof names - 16)
            used +=
                (size_t)snprintf(names + used, sizeof names - used, "%s%d", count ? ", " : "", r);
        else if (names[used - 1] != '.')
            used += (size_t)snprintf(names + used, sizeof names - used, ", ...");
        count++;
    }
    return give_up_for(run, ATTN_ERR_COMM, "comm: rank%s %s %s nothing within %g s; %s",
                       count > 1 ? "s" : "", names, sends ? "took" : "sent", run->seconds,
                       count > 1 ? "they do not run, or run another call"
                                 : "it does not run, or runs another call");
}

attn_status attni_mpi_wait(attni_mpi_run *run, attni_mpi_flight *flight)
{
    double until = attni_mpi_now() + run->seconds;
    int left, before = -1;
    for (uint64_t round = 0;; round++) {
        const attn_status status = attni_mpi_poll(run, flight, &left);
        if (status || left == 0)
            return status;
        if (left != before)
            until = attni_mpi_now() + run->seconds;
        before = left;
        if (attni_mpi_now() > until)
            return time_is_over(run, flight);
        if (round < 1000)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

attn_status attni_mpi_all_gather(attni_mpi_run *run, const void *mine, size_t n, void *all)
{
    attni_mpi_flight *flight = &run->gathered;
    attn_status status = flight->receives ? ATTN_OK : attni_mpi_flight_new(run, flight);
    const int size = run->comm->size, rank = run->comm->rank;
    char *to = all;
    memcpy(to + (size_t)rank * n, mine, n);
    for (int r = 0; r < size && status == ATTN_OK; r++)
        if (r != rank)
            status = attni_mpi_receive(run, flight, r, to + (size_t)r * n, n);
    for (int r = 0; r < size && status == ATTN_OK; r++)
        if (r != rank)
            status = attni_mpi_send(run, flight, r, to + (size_t)rank * n, n);
    if (status == ATTN_OK)
        status = attni_mpi_wait(run, flight);
    if (status)
        attni_mpi_cancel(run, flight);
    return status;
}
