/* A parallel_for for programs whose threads belong to an OpenMP runtime. */
#include <stdatomic.h>
#include <string.h>

#include "../core/internal.h"

/* The type of GOMP_parallel(), which code compiled by GCC calls for `#pragma omp parallel`. It runs
 * body(arg) once on each thread of a team, of the default size if threads is 0. Provided by libgomp
 * and by LLVM's and Intel's runtimes. */
typedef void gomp_parallel(void (*body)(void *arg), void *arg, unsigned threads, unsigned flags);

typedef struct region {
    void (*body)(void *arg, int index);
    void *arg;
    int n;
    atomic_int next; /* the next index to run */
} region;

/* Each thread takes indices until none is left: the team may have fewer than n threads, and has
 * only one inside another parallel region. */
static void share(void *arg)
{
    region *r = arg;
    int index;
    while ((index = atomic_fetch_add(&r->next, 1)) < r->n)
        r->body(r->arg, index);
}

/* Always uses a team of the default size, even if n is smaller. For another size libgomp would end
 * threads and start them again for the next region, which takes longer than leaving some threads
 * without an index. */
void attn_openmp_for(void *gomp, int n, void (*body)(void *arg, int index), void *arg)
{
    gomp_parallel *parallel;
    memcpy(&parallel, &gomp, sizeof parallel); /* ISO C casts no data pointer to a function's */
    region r = {.body = body, .arg = arg, .n = n};
    atomic_init(&r.next, 0);
    parallel(share, &r, 0, 0);
}
