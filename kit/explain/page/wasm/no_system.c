/* A page has no threads, no processes and no environment: replacements for src/context/pool.c,
 * src/context/fork.c, and for what wasi-libc would ask its host. */
#include <stdlib.h>

#include "core/internal.h"

attni_pool *attni_pool_create(int threads)
{
    (void)threads;
    return NULL;
}

int attni_pool_threads(const attni_pool *pool)
{
    (void)pool;
    return 1;
}

void attni_pool_run(attni_pool *pool, int workers, void (*body)(void *arg, int worker), void *arg)
{
    (void)pool, (void)workers;
    body(arg, 0);
}

void attni_pool_destroy(attni_pool *pool) { (void)pool; }

bool attni_process_watch(void) { return true; }
int attni_process(void) { return 1; }

char *getenv(const char *name)
{
    (void)name;
    return NULL;
}

int sched_yield(void);
int sched_yield(void) { return 0; }
