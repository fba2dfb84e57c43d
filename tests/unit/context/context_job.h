/* A call as a module makes it, for the tests of the context. */
#ifndef CONTEXT_JOB_H
#define CONTEXT_JOB_H

#include <fenv.h>
#include <stdatomic.h>

#include "core/internal.h"
#include "support/test.h"

static inline attn_context *context_of(int threads)
{
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    o.threads = threads;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    return ctx;
}

/* As sums see it: on x86-64 fegetround() asks the x87 unit, whose mode does not matter here. */
static inline bool rounds_to_nearest(void)
{
    const volatile double one = 1, tiny = 0x1p-60;
    const volatile double up = one + tiny, down = one - tiny, below = -one - tiny;
    return up == 1 && down == 1 && below == -1;
}

/* Each worker writes its own scratch and reads it back after a while. */
enum { PER_WORKER = 1000 };

typedef struct job {
    attni_call call;
    long sums[64];
    atomic_int mode_errors;
} job;

static inline void fill_and_sum(void *arg, int worker)
{
    job *j = arg;
    if (!rounds_to_nearest())
        atomic_fetch_add(&j->mode_errors, 1);
    int *mine = (int *)(void *)j->call.scratch + worker * PER_WORKER;
    for (int i = 0; i < PER_WORKER; i++)
        mine[i] = worker + i;
    for (int i = 0; i < PER_WORKER; i++)
        j->sums[worker] += mine[i];
}

static inline bool sums_are_right(attn_context *ctx, int workers)
{
    job j = {.mode_errors = 0};
    size_t bytes = (size_t)workers * PER_WORKER * sizeof(int);
    if (attni_call_begin(&j.call, ctx, bytes, NULL, 0, NULL) != ATTN_OK)
        return false;
    attni_call_run(&j.call, workers, fill_and_sum, &j);
    attni_call_end(&j.call);
    bool right = atomic_load(&j.mode_errors) == 0;
    for (long w = 0; w < 64; w++)
        right = right && j.sums[w] == (w < workers ? PER_WORKER * w + PER_WORKER * 999L / 2 : 0);
    return right;
}

#endif
