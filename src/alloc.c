/* Sizes that cannot wrap, the layout of a call's scratch, and the allocator where the caller gives
 * none.
 *
 * Nearly every heap overflow in the readers and kernels of others began as a count times a size, or
 * a sum, or a rounding up, that wrapped. So none of the three is written anywhere but here.
 */
#include <stdlib.h>

#include "internal.h"

static inline bool add(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

static inline bool mul(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

bool attni_size_add(size_t a, size_t b, size_t *out) { return add(a, b, out); }

bool attni_size_mul(size_t a, size_t b, size_t *out) { return mul(a, b, out); }

/* Each piece is rounded up to whole lines, so that `used` is always where the next one starts, and
 * two workers never write to one line. */
void *attni_layout_take(attni_layout *layout, size_t count, size_t element_size)
{
    size_t bytes, end;
    if (layout->overflow || !mul(count, element_size, &bytes) ||
        !add(bytes, ATTNI_ALIGN - 1, &bytes) ||
        !add(layout->used, bytes / ATTNI_ALIGN * ATTNI_ALIGN, &end)) {
        layout->overflow = true;
        return NULL;
    }
    void *piece = layout->base ? layout->base + layout->used : NULL;
    layout->used = end;
    return piece;
}

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
