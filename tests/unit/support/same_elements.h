/* Arrays of any element type, compared bit by bit. */
#ifndef SAME_ELEMENTS_H
#define SAME_ELEMENTS_H

#include "attn.h"
#include "ref/attn_ref.h"
#include "support/test.h"

/* `got` and `want` have the same bits in n elements; `what` names the array and how it was made. */
static inline void expect_same_elements(const char *what, attn_dtype dtype, const void *got,
                                        const void *want, int64_t n)
{
    const attn_tensor x = attn_bhtd(got, dtype, 1, 1, 1, n), y = attn_bhtd(want, dtype, 1, 1, 1, n);
    const size_t size = attn_dtype_size(dtype);
    for (int64_t i = 0; i < n; i++)
        if (memcmp((const char *)got + (size_t)i * size, (const char *)want + (size_t)i * size,
                   size) != 0)
            fail_msg("%s: element %" PRId64 " of %" PRId64 " is %.17g, want %.17g to the bit", what,
                     i, n, ref_get(&x, 0, 0, 0, i), ref_get(&y, 0, 0, 0, i));
}

#endif
