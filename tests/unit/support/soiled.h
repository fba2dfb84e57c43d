#ifndef SOILED_H
#define SOILED_H

#include <stdlib.h>
#include <string.h>

/* An allocator for contexts whose memory is NaN: if a call reads of its scratch before it writes
 * it, the result shows it. */
static inline void *soiled(void *user, size_t size, size_t alignment)
{
    (void)user;
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    return memory ? memset(memory, 0xFF, size) : NULL;
}

static inline void clean(void *user, void *memory, size_t size)
{
    (void)user, (void)size;
    free(memory);
}

#endif
