/* What modules share: checks of their tensors, arrays in a call's scratch, rows shared among
 * threads. */
#include <string.h>

#include "module.h"

static attn_status check_dtype(const attn_tensor *t, const char *name, const attn_tensor *first,
                               const char *first_name, attn_error *err)
{
    if (t->dtype != ATTN_F32 && t->dtype != ATTN_F64)
        return attni_fail(err, ATTN_ERR_DTYPE, name, "%s is %s; modules work on f32 and f64", name,
                          attn_dtype_name(t->dtype));
    if (t->dtype != first->dtype)
        return attni_fail(err, ATTN_ERR_DTYPE, name, "%s is %s but %s is %s; they must be the same",
                          name, attn_dtype_name(t->dtype), first_name,
                          attn_dtype_name(first->dtype));
    return ATTN_OK;
}

attn_status attni_module_check(const attn_tensor *t, const char *name, const attn_tensor *first,
                               const char *first_name, attn_error *err)
{
    const attn_status status = attni_check_input(t, name, err);
    return status != ATTN_OK ? status : check_dtype(t, name, first, first_name, err);
}

attn_status attni_module_check_output(const attn_tensor *t, const char *name,
                                      const attn_tensor *first, const char *first_name,
                                      attn_error *err)
{
    const attn_status status = attni_check_output(t, name, err);
    return status != ATTN_OK ? status : check_dtype(t, name, first, first_name, err);
}

attn_status attni_module_check_shape(const attn_tensor *t, const char *name, int64_t n0, int64_t n1,
                                     int64_t n2, int64_t n3, attn_error *err)
{
    const int64_t *n = t->shape;
    if (n[0] == n0 && n[1] == n1 && n[2] == n2 && n[3] == n3)
        return ATTN_OK;
    return attni_fail(err, ATTN_ERR_SHAPE, name,
                      "%s is [%lld, %lld, %lld, %lld]; it must be [%lld, %lld, %lld, %lld]", name,
                      (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3],
                      (long long)n0, (long long)n1, (long long)n2, (long long)n3);
}

void *attni_module_take(attni_layout *layout, size_t element, int64_t n0, int64_t n1, int64_t n2,
                        int64_t n3)
{
    size_t count;
    if (!attni_size_mul((uint64_t)n0, (uint64_t)n1, &count) ||
        !attni_size_mul(count, (uint64_t)n2, &count) ||
        !attni_size_mul(count, (uint64_t)n3, &count)) {
        layout->overflow = true;
        return NULL;
    }
    return attni_layout_take(layout, count, element);
}

int64_t attni_module_join_rows(attn_tensor *t, int n)
{
    if (attni_empty(&t[0]))
        return ATTNI_PIECE;
    for (int i = 0; i < n; i++) {
        int64_t next = 1;
        for (int d = 3; d >= 0; next *= t[i].shape[d--])
            if (t[i].shape[d] > 1 && t[i].stride[d] != next)
                return ATTNI_PIECE;
    }
    for (int i = 0; i < n; i++) {
        const int64_t *shape = t[i].shape;
        t[i] = attn_matrix(t[i].data, t[i].dtype, 1, shape[0] * shape[1] * shape[2] * shape[3]);
    }
    return ATTNI_LONG_PIECE;
}

/* ------------------------------------------------------------------------------- Rows for threads
 */

#define SHARE 16384 /* for fewer elements, waking a thread does not pay */

void attni_module_copy_row(char *dst, int64_t dst_stride, const char *src, int64_t src_stride,
                           int64_t n, size_t element)
{
    if (n > 0 && dst_stride == 1 && src_stride == 1) { /* if n is 0, src may be NULL */
        memcpy(dst, src, (size_t)n * element);
        return;
    }
    for (int64_t j = 0; j < n; j++)
        memcpy(dst + j * dst_stride * (int64_t)element, src + j * src_stride * (int64_t)element,
               element);
}

typedef struct shared_rows {
    void (*body)(void *arg, int64_t first, int64_t end);
    void *arg;
    int64_t items, workers;
} shared_rows;

static void run_share(void *arg, int worker)
{
    const shared_rows *s = arg;
    const int64_t share = s->items / s->workers, more = s->items % s->workers;
    const int64_t first = worker * share + (worker < more ? worker : more);
    s->body(s->arg, first, first + share + (worker < more));
}

void attni_module_share(attni_call *call, int64_t items, int64_t cost,
                        void (*body)(void *arg, int64_t first, int64_t end), void *arg)
{
    shared_rows s = {body, arg, items, call->threads};
    const double worth = (double)items * (double)cost / SHARE;
    if (worth < (double)s.workers)
        s.workers = 1 + (int64_t)worth;
    if (items < s.workers)
        s.workers = items;
    if (items > 0)
        attni_call_run(call, (int)s.workers, run_share, &s);
}
