/* Sizes that cannot wrap, and the layout of a call's scratch.
 *
 * Nearly every heap overflow in the readers and kernels of others began as a count times a size, or
 * a sum, or a rounding up, that wrapped. So none of the three is written anywhere but here.
 */
#include "internal.h"

bool attni_size_add(size_t a, size_t b, size_t *out)
{
    if (b > SIZE_MAX - a)
        return false;
    *out = a + b;
    return true;
}

bool attni_size_mul(size_t a, size_t b, size_t *out)
{
    if (a != 0 && b > SIZE_MAX / a)
        return false;
    *out = a * b;
    return true;
}

/* Each piece is rounded up to whole lines, so that `used` is always where the next one starts, and
 * two workers never write to one line. */
void *attni_layout_take(attni_layout *layout, size_t count, size_t element_size)
{
    size_t bytes, end;
    if (layout->overflow || !attni_size_mul(count, element_size, &bytes) ||
        !attni_size_add(bytes, ATTNI_ALIGN - 1, &bytes) ||
        !attni_size_add(layout->used, bytes / ATTNI_ALIGN * ATTNI_ALIGN, &end)) {
        layout->overflow = true;
        return NULL;
    }
    void *piece = layout->base ? layout->base + layout->used : NULL;
    layout->used = end;
    return piece;
}
