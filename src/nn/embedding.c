/* The embedding: rows of a table, by number. */
#include <string.h>

#include "module.h"

static attn_status check_embedding(const attn_tensor *table, const int64_t *ids, int64_t count,
                                   const attn_tensor *out, attn_error *err)
{
    attn_status s;
    if ((s = attni_module_check(table, "table", table, "table", err)) ||
        (s = attni_module_check_output(out, "out", table, "table", err)))
        return s;
    const int64_t V = table->shape[2], E = table->shape[3];
    if (count < 0)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "count", "count is %lld; it must not be negative",
                          (long long)count);
    if ((s = attni_module_check_shape(table, "table", 1, 1, V, E, err)) ||
        (s = attni_module_check_shape(out, "out", 1, 1, count, E, err)))
        return s;
    if (count > 0 && !ids)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "ids", "ids is NULL; it must hold %lld ids",
                          (long long)count);
    for (int64_t n = 0; n < count; n++)
        if (ids[n] < 0 || ids[n] >= V)
            return attni_fail(
                err, ATTN_ERR_ARGUMENT, "ids",
                "ids[%lld] is %lld; it must be at least 0 and less than %lld, the rows "
                "of table",
                (long long)n, (long long)ids[n], (long long)V);
    return ATTN_OK;
}

static void copy_row(char *dst, int64_t dst_stride, const char *src, int64_t src_stride, int64_t n,
                     size_t size)
{
    if (dst_stride == 1 && src_stride == 1) {
        memcpy(dst, src, (size_t)n * size);
        return;
    }
    for (int64_t j = 0; j < n; j++)
        memcpy(dst + j * dst_stride * (int64_t)size, src + j * src_stride * (int64_t)size, size);
}

attn_status attn_embedding_forward(attn_context *ctx, const attn_tensor *table, const int64_t *ids,
                                   int64_t count, const attn_tensor *out, attn_error *err)
{
    (void)ctx; /* copying needs neither threads nor scratch */
    const attn_status status = check_embedding(table, ids, count, out, err);
    if (status != ATTN_OK || table->shape[3] == 0)
        return status;
    for (int64_t n = 0; n < count; n++)
        copy_row(attni_at(out, 0, 0, n, 0), out->stride[3], attni_at(table, 0, 0, ids[n], 0),
                 table->stride[3], table->shape[3], attn_dtype_size(table->dtype));
    return ATTN_OK;
}
