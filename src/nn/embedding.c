/* The embedding: copies rows of a table, by index; backward: adds up the gradients of these
 * rows. */
#include "module.h"

/* Checks table or dtable, and out or dout, under the names that the caller uses for them. */
static attn_status check_embedding(const attn_tensor *table, const char *table_name,
                                   const int64_t *ids, int64_t count, const attn_tensor *out,
                                   const char *out_name, attn_error *err)
{
    attn_status s;
    const int64_t V = table->shape[2], E = table->shape[3];
    if (count < 0)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "count", "count is %lld; it must not be negative",
                          (long long)count);
    if ((s = attni_module_check_shape(table, table_name, 1, 1, V, E, err)) ||
        (s = attni_module_check_shape(out, out_name, 1, 1, count, E, err)))
        return s;
    if (count > 0 && !ids)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "ids", "ids is NULL; it must hold %lld ids",
                          (long long)count);
    for (int64_t n = 0; n < count; n++)
        if (ids[n] < 0 || ids[n] >= V)
            return attni_fail(
                err, ATTN_ERR_ARGUMENT, "ids",
                "ids[%lld] is %lld; it must be at least 0 and less than %lld, the rows "
                "of %s",
                (long long)n, (long long)ids[n], (long long)V, table_name);
    return ATTN_OK;
}

attn_status attn_embedding_forward(attn_context *ctx, const attn_tensor *table, const int64_t *ids,
                                   int64_t count, const attn_tensor *out, attn_error *err)
{
    (void)ctx; /* copying needs neither threads nor scratch */
    attn_status status;
    if ((status = attni_module_check(table, "table", table, "table", err)) ||
        (status = attni_module_check_output(out, "out", table, "table", err)) ||
        (status = check_embedding(table, "table", ids, count, out, "out", err)) ||
        table->shape[3] == 0)
        return status;
    for (int64_t n = 0; n < count; n++)
        attni_module_copy_row(attni_at(out, 0, 0, n, 0), out->stride[3],
                              attni_at(table, 0, 0, ids[n], 0), table->stride[3], table->shape[3],
                              attn_dtype_size(table->dtype));
    return ATTN_OK;
}

typedef struct table_work {
    const attn_tensor *dout, *dtable;
    const int64_t *ids;
    int64_t count;
} table_work;

/* Each thread has its own columns, in pieces. It adds the rows of all ids to them in order, so no
 * two threads write to the same element. */
static void add_columns(void *arg, int64_t first, int64_t end)
{
    const table_work *w = arg;
    const attn_tensor *to = w->dtable, *from = w->dout;
    for (int64_t c = first * ATTNI_COLUMNS; c < end * ATTNI_COLUMNS; c += ATTNI_COLUMNS) {
        const int64_t E = to->shape[3], n = E - c < ATTNI_COLUMNS ? E - c : ATTNI_COLUMNS;
        double sum[ATTNI_COLUMNS] = {0}, row[ATTNI_COLUMNS];
        for (int64_t v = 0; v < to->shape[2]; v++)
            attni_store_row_f64(attni_at(to, 0, 0, v, c), to->dtype, to->stride[3], sum, n);
        for (int64_t i = 0; i < w->count; i++) {
            char *at = attni_at(to, 0, 0, w->ids[i], c);
            attni_load_row_f64(sum, at, to->dtype, to->stride[3], n);
            attni_load_row_f64(row, attni_at(from, 0, 0, i, c), from->dtype, from->stride[3], n);
            for (int64_t j = 0; j < n; j++)
                sum[j] += row[j];
            attni_store_row_f64(at, to->dtype, to->stride[3], sum, n);
        }
    }
}

attn_status attn_embedding_backward(attn_context *ctx, const attn_tensor *dout, const int64_t *ids,
                                    int64_t count, const attn_tensor *dtable, attn_error *err)
{
    ATTNI_CALL_MODE;
    table_work w = {dout, dtable, ids, count};
    attni_call call;
    attn_status s;
    if ((s = attni_module_check(dout, "dout", dout, "dout", err)) ||
        (s = attni_module_check_output(dtable, "dtable", dout, "dout", err)) ||
        (s = check_embedding(dtable, "dtable", ids, count, dout, "dout", err)) ||
        (s = attni_call_begin(&call, ctx, 0, NULL, 0, err)))
        return s;
    attni_module_share(&call, attni_div_up(dtable->shape[3], ATTNI_COLUMNS), count * ATTNI_COLUMNS,
                       add_columns, &w);
    attni_call_end(&call);
    return ATTN_OK;
}
