/* The parallel_for of programs whose threads are an OpenMP runtime's. */
#include <stdatomic.h>
#include <string.h>

#include "../core/internal.h"

/* What `#pragma omp parallel` calls when GCC compiles it: runs body(arg) once on each thread of a
 * team, of as many as usual if threads is 0. libgomp; LLVM's and Intel's runtimes have it too. */
typedef void gomp_parallel(void (*body)(void *arg), void *arg, unsigned threads, unsigned flags);

typedef struct region {
    void (*body)(void *arg, int index);
    void *arg;
    int n;
    atomic_int next; /* index to take */
} region;

/* The team may be smaller than n, and is of one inside another region. */
static void share(void *arg)
{
    region *r = arg;
    int index;
    while ((index = atomic_fetch_add(&r->next, 1)) < r->n)
        r->body(r->arg, index);
}

/* The team is the usual one even where n is less: for another number libgomp would end threads and
 * start them again for the next region, which takes longer than letting them find nothing. */
void attn_openmp_for(void *gomp, int n, void (*body)(void *arg, int index), void *arg)
{
    gomp_parallel *parallel;
    memcpy(&parallel, &gomp, sizeof parallel); /* ISO C casts no data pointer to a function's */
    region r = {.body = body, .arg = arg, .n = n};
    atomic_init(&r.next, 0);
    parallel(share, &r, 0, 0);
}
