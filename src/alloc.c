/* Memory: cleared and copied, and the allocator where the caller gives none. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

void attni_zero(void *to, size_t n) { memset(to, 0, n); }

void attni_copy(void *to, const void *from, size_t n) { memcpy(to, from, n); }

void *attni_default_allocate(void *user, size_t size, size_t alignment)
{
    (void)user;
    if (!attni_size_add(size, alignment - 1, &size))
        return NULL;
    return aligned_alloc(alignment, size / alignment * alignment);
}

void attni_default_release(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    free(memory);
}
