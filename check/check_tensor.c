/* Tensors in guarded memory; see check_tensor.h. */
#include "check_tensor.h"

#include "../ref/attn_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t check_count(const attn_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

/* Chooses a stride for each dimension, from the innermost one in memory outwards. Each stride steps
 * over everything that the dimensions inside it cover. */
static void choose_strides(check_case *c, attn_tensor *t, check_layout layout)
{
    int order[4] = {3, 2, 1, 0};
    if (layout == CHECK_DENSE && check_chance(c, 30))
        order[1] = 1, order[2] = 2;
    bool loose = layout != CHECK_DENSE && check_chance(c, 60);
    for (int d = 3; loose && d > 0; d--) { /* shuffle */
        int other = (int)check_between(c, 0, d), kept = order[d];
        order[d] = order[other];
        order[other] = kept;
    }
    if (loose && check_chance(c, 50)) { /* the last stride is usually small */
        int at = order[1] == 3 ? 1 : order[2] == 3 ? 2 : order[3] == 3 ? 3 : 0;
        order[at] = order[0];
        order[0] = 3;
    }
    int64_t step = 1;
    for (int d = 0; d < 4; d++) {
        int64_t size = t->shape[order[d]];
        if (loose && check_chance(c, 30))
            step = step * check_between(c, 1, 3) + check_between(c, 0, 2);
        bool repeat = layout == CHECK_REPEAT && size > 1 && check_chance(c, 15);
        t->stride[order[d]] = repeat ? 0 : loose && check_chance(c, 20) ? -step : step;
        if (!repeat && size > 0)
            step *= size;
        if (size == 1 && check_chance(c, 50))
            t->stride[order[d]] = check_between(c, -99999, 99999);
    }
}

check_tensor check_tensor_new(check_case *c, attn_dtype dtype, const int64_t shape[4],
                              check_layout layout)
{
    check_tensor t = {.view.dtype = dtype};
    memcpy(t.view.shape, shape, sizeof t.view.shape);
    choose_strides(c, &t.view, layout);

    int64_t low = 0, high = 0;
    bool empty = false;
    for (int d = 0; d < 4; d++) {
        int64_t reach = (shape[d] - 1) * t.view.stride[d];
        empty = empty || shape[d] == 0;
        *(reach < 0 ? &low : &high) += reach;
    }
    size_t size = attn_dtype_size(dtype);
    t.bytes = empty ? 0 : (size_t)(high - low + 1) * size;
    check_side side = (check_side)check_between(c, CHECK_RIGHT, CHECK_SHIFT);
    t.memory =
        check_buffers_take(c->run->buffers, t.bytes, 1, side, (size_t)check_between(c, 0, 63));
    if (!t.memory)
        check_abandon(c, "out of memory");
    t.view.data = empty ? NULL : t.memory + (size_t)-low * size;
    return t;
}

/* ------------------------------------------------------------------------------------ elements */

void check_store(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j, double x)
{
    const int64_t index[4] = {b, h, i, j};
    char *to = t->data;
    for (int d = 0; d < 4; d++)
        to += t->shape[d] == 1 ? 0 : index[d] * t->stride[d] * (int64_t)attn_dtype_size(t->dtype);
    float single;
    uint16_t half = t->dtype == ATTN_BF16  ? check_to_bf16(x)
                    : t->dtype == ATTN_F16 ? check_to_f16(x)
                                           : 0;
    switch (t->dtype) {
    case ATTN_F64: memcpy(to, &x, 8); break;
    case ATTN_F32:
        single = (float)x;
        memcpy(to, &single, 4);
        break;
    case ATTN_BOOL: *to = x != 0; break;
    default: memcpy(to, &half, 2); break;
    }
}

/* Sets the last component of rows i. (If the largest product of a score came first, all products
 * after it would be rounded at its size, and the error could exceed the bound.) */
static void store_last(const attn_tensor *t, int64_t i, double x)
{
    for (int64_t b = 0; b < t->shape[0] && t->shape[3] > 0; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            check_store(t, b, h, i, t->shape[3] - 1, x);
}

void check_store_query_levels(const attn_tensor *q)
{
    for (int64_t i = 0; i < q->shape[2]; i++)
        store_last(q, i, 4 * sqrt((double)q->shape[3]));
}

void check_store_key_levels(const attn_tensor *k, uint64_t seed)
{
    for (int64_t j = 0; j < k->shape[2]; j++) {
        const uint64_t x = (seed + (uint64_t)(j / 64)) * 0x9E3779B97F4A7C15;
        store_last(k, j, (double)(x >> 40) * 0x1p-24 * 200 - 100);
    }
}

double *check_tensor_copy(check_case *c, const attn_tensor *t)
{
    double *copy = check_array(c, check_count(t)), *to = copy;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t i = 0; i < t->shape[2]; i++)
                for (int64_t j = 0; j < t->shape[3]; j++)
                    *to++ = ref_get(t, b, h, i, j);
    return copy;
}

bool check_tensor_gaps(const check_tensor *t)
{
    const attn_tensor *v = &t->view;
    size_t size = attn_dtype_size(v->dtype);
    unsigned char *used = calloc(t->bytes + 1, 1);
    bool intact = used != NULL;
    if (!used)
        return false;
    for (int64_t b = 0; b < v->shape[0]; b++)
        for (int64_t h = 0; h < v->shape[1]; h++)
            for (int64_t i = 0; i < v->shape[2]; i++)
                for (int64_t j = 0; j < v->shape[3]; j++) {
                    int64_t e =
                        b * v->stride[0] + h * v->stride[1] + i * v->stride[2] + j * v->stride[3];
                    unsigned char *at = (unsigned char *)v->data + e * (int64_t)size;
                    memset(used + (at - t->memory), 1, size);
                }
    for (size_t i = 0; i < t->bytes; i++)
        intact = intact && (used[i] || t->memory[i] == CHECK_FILL);
    free(used);
    return intact;
}
