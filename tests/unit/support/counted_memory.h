/* An allocator for contexts that counts what it hands out, and that can fail once. */
#ifndef COUNTED_MEMORY_H
#define COUNTED_MEMORY_H

#include <stdlib.h>

#include "attn.h"

typedef struct counted_memory {
    long blocks;        /* that are in use */
    size_t bytes, most; /* that are in use; the largest number of them */
    size_t calls;       /* of counted_allocate */
    size_t fail_at;     /* this call of it returns NULL; 0: none */
} counted_memory;

static inline void *counted_allocate(void *user, size_t size, size_t alignment)
{
    counted_memory *m = user;
    if (++m->calls == m->fail_at)
        return NULL;
    m->blocks++;
    m->bytes += size;
    m->most = m->bytes > m->most ? m->bytes : m->most;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static inline void counted_release(void *user, void *memory, size_t size)
{
    counted_memory *m = user;
    m->blocks--;
    m->bytes -= size;
    free(memory);
}

static inline attn_context_options counted_options(counted_memory *m, int threads)
{
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    o.threads = threads;
    o.allocate = counted_allocate, o.release = counted_release, o.memory_user = m;
    return o;
}

#endif
