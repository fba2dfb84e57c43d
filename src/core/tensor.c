/* Views: constructors for dense arrays, and the checks that every tensor passes before its data is
 * accessed.
 *
 * After attni_check_input, each offset that attni_at can compute for an index inside the shape fits
 * an int64_t and lies inside the address space. Only the caller knows whether memory exists there.
 */
#include <inttypes.h>
#include <string.h>

#include "internal.h"

/* a * b, INT64_MAX if it does not fit. The exact value does not matter then: the checks refuse such
 * a view because of its smaller strides, which already span more than the address space. */
static int64_t product(int64_t a, int64_t b)
{
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

attn_tensor attn_bhtd(const void *data, attn_dtype dtype, int64_t B, int64_t H, int64_t T,
                      int64_t D)
{
    int64_t TD = product(T, D);
    return (attn_tensor){(void *)data, dtype, {B, H, T, D}, {product(H, TD), TD, D, 1}};
}

attn_tensor attn_bthd(const void *data, attn_dtype dtype, int64_t B, int64_t T, int64_t H,
                      int64_t D)
{
    int64_t HD = product(H, D);
    return (attn_tensor){(void *)data, dtype, {B, H, T, D}, {product(T, HD), D, HD, 1}};
}

attn_tensor attn_matrix(const void *data, attn_dtype dtype, int64_t rows, int64_t columns)
{
    return attn_bhtd(data, dtype, 1, 1, rows, columns);
}

/* Are all sizes and strides below 2^15? Then nothing in extent() can overflow. Without this fast
 * path the checks took half of the time of a small call. */
static bool small(const attn_tensor *t)
{
    uint64_t any = 0;
    for (int d = 0; d < 4; d++)
        any |= (uint64_t)t->shape[d] | (uint64_t)(t->stride[d] ^ t->stride[d] >> 63);
    return any >> 15 == 0;
}

/* The lowest and the highest element offset; false if one of them, or the number of elements, does
 * not fit. */
static bool extent(const attn_tensor *t, int64_t *low, int64_t *high)
{
    int64_t least = 0, most = 0, n = 1;
    bool fits = true;
    if (small(t)) {
        for (int d = 0; d < 4; d++) {
            const int64_t reach = (t->shape[d] - 1) * t->stride[d];
            least += reach < 0 ? reach : 0;
            most += reach < 0 ? 0 : reach;
        }
        *low = least, *high = most;
        return true;
    }
    for (int d = 0; d < 4; d++) {
        int64_t reach;
        fits &= !__builtin_mul_overflow(n, t->shape[d], &n);
        fits &= !__builtin_mul_overflow(t->shape[d] - 1, t->stride[d], &reach);
        fits &= !__builtin_add_overflow(least, reach < 0 ? reach : 0, &least);
        fits &= !__builtin_add_overflow(most, reach < 0 ? 0 : reach, &most);
    }
    *low = least, *high = most;
    return fits;
}

/* Does every byte from the lowest element to the end of the highest one have an address, and does
 * the distance of any two fit a ptrdiff_t? */
static bool addressable(const attn_tensor *t, int64_t low, int64_t high)
{
    int64_t size = (int64_t)attni_dtype_size(t->dtype), below, above, span;
    if (__builtin_mul_overflow(low, size, &below) || __builtin_mul_overflow(high, size, &above) ||
        __builtin_add_overflow(above, size, &above) || __builtin_sub_overflow(above, below, &span))
        return false;
    uintptr_t data = (uintptr_t)t->data;
    return (uint64_t)span <= PTRDIFF_MAX && (uint64_t)-below <= data &&
           (uint64_t)above <= UINTPTR_MAX - data;
}

#define FOUR "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]"
#define FOUR_OF(x) (x)[0], (x)[1], (x)[2], (x)[3]

attn_status attni_check_input(const attn_tensor *t, const char *name, attn_error *err)
{
    if (!t)
        return attni_fail(err, ATTN_ERR_ARGUMENT, name, "%s is NULL; a tensor is needed", name);
    if (attni_dtype_size(t->dtype) == 0)
        return attni_fail(err, ATTN_ERR_DTYPE, name, "%s has dtype %d; use one of attn_dtype", name,
                          (int)t->dtype);
    const uint64_t bits = (uint64_t)(t->shape[0] | t->shape[1] | t->shape[2] | t->shape[3]);
    for (int d = 0; d < 4 && bits >= (uint64_t)ATTNI_MAX_SIZE; d++)
        if ((uint64_t)t->shape[d] > (uint64_t)ATTNI_MAX_SIZE)
            return attni_fail(err, t->shape[d] < 0 ? ATTN_ERR_SHAPE : ATTN_ERR_LIMIT, name,
                              "%s has shape " FOUR "; a size is 0 or more, and at most 2^56", name,
                              FOUR_OF(t->shape));
#if PTRDIFF_MAX < INT64_MAX
    for (int d = 0; d < 4; d++) /* also for empty tensors, since scratch is as wide as they are */
        if (t->shape[d] > PTRDIFF_MAX)
            return attni_fail(err, ATTN_ERR_LIMIT, name,
                              "%s has shape " FOUR "; a size must fit the address space", name,
                              FOUR_OF(t->shape));
#endif
    if (attni_empty(t))
        return ATTN_OK;

    int64_t low, high;
    const bool fits = extent(t, &low, &high);
    if (fits && !t->data)
        return attni_fail(err, ATTN_ERR_ARGUMENT, name,
                          "%s has no data; only a tensor with a size of 0 may have NULL", name);
    if (!fits || !addressable(t, low, high))
        return attni_fail(err, ATTN_ERR_LIMIT, name,
                          "%s has shape " FOUR ", stride " FOUR
                          "; its offsets must fit the address space",
                          name, FOUR_OF(t->shape), FOUR_OF(t->stride));
    return ATTN_OK;
}

/* In increasing order, each stride must exceed the span of all smaller ones. Dimensions of size 1
 * are ignored. This refuses a few interleavings that do not overlap, such as sizes {3, 2} with
 * strides {2, 3}; no layout in use is one of them. */
attn_status attni_check_output(const attn_tensor *t, const char *name, attn_error *err)
{
    attn_status status = attni_check_input(t, name, err);
    if (status != ATTN_OK || attni_empty(t))
        return status;

    int64_t step[4], size[4];
    int n = 0;
    for (int d = 0; d < 4; d++) {
        if (t->shape[d] == 1)
            continue;
        int64_t s = t->stride[d] < 0 ? -t->stride[d] : t->stride[d];
        int at = n++;
        for (; at > 0 && step[at - 1] > s; at--) {
            step[at] = step[at - 1];
            size[at] = size[at - 1];
        }
        step[at] = s;
        size[at] = t->shape[d];
    }
    int64_t reach = 0;
    for (int i = 0; i < n; i++) {
        if (step[i] <= reach)
            return attni_fail(err, ATTN_ERR_STRIDE, name,
                              "%s has shape " FOUR ", stride " FOUR
                              "; no two elements of an output may share memory",
                              name, FOUR_OF(t->shape), FOUR_OF(t->stride));
        reach += (size[i] - 1) * step[i];
    }
    return ATTN_OK;
}
