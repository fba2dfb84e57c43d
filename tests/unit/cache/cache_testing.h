/* What the tests of the cache share: random rows in tensors of several layouts, slices of them, and
 * a cache's content as bytes. */
#ifndef CACHE_TESTING_H
#define CACHE_TESTING_H

#include "support/io_testing.h"

#include "attn.h"
#include "check/check_tensor.h"
#include "ref/attn_ref.h"

static const attn_dtype cache_dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8};

__attribute__((unused)) static int64_t draw(int64_t low, int64_t high) /* both included */
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return low + (int64_t)((random_state >> 16) % (uint64_t)(high - low + 1));
}

__attribute__((unused)) static double draw_normal(void)
{
    double x = -6;
    for (int i = 0; i < 12; i++)
        x += (double)draw(0, 1 << 20) / (1 << 20);
    return x;
}

/* A tensor in memory of its own, freed by tensor_free. layout 0: [B,H,T,D]; 1: [B,T,H,D]; 2: like 0
 * with every other element unused and D backwards. */
__attribute__((unused)) static attn_tensor tensor_new(attn_dtype dtype, int64_t B, int64_t H,
                                                      int64_t T, int64_t D, int layout)
{
    const size_t size = attn_dtype_size(dtype);
    char *memory = malloc((size_t)(2 * B * H * T * D + 2) * size);
    assert_non_null(memory);
    memset(memory, 0xFF, (size_t)(2 * B * H * T * D + 2) * size);
    attn_tensor t =
        layout == 1 ? attn_bthd(memory, dtype, B, T, H, D) : attn_bhtd(memory, dtype, B, H, T, D);
    if (layout == 2) {
        for (int d = 0; d < 4; d++)
            t.stride[d] *= d == 3 ? -2 : 2;
        t.data = memory + (size_t)(D > 0 ? 2 * (D - 1) : 0) * size;
    }
    return t;
}

__attribute__((unused)) static void tensor_free(attn_tensor *t)
{
    if (t->stride[3] < 0 && t->shape[3] > 0)
        t->data = (char *)t->data - (size_t)(2 * (t->shape[3] - 1)) * attn_dtype_size(t->dtype);
    free(t->data);
}

__attribute__((unused)) static void tensor_fill(const attn_tensor *t)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t i = 0; i < t->shape[2]; i++)
                for (int64_t j = 0; j < t->shape[3]; j++)
                    check_store(t, b, h, i, j, draw_normal());
}

__attribute__((unused)) static attn_tensor tensor_new_filled(attn_dtype dtype, int64_t B, int64_t H,
                                                             int64_t T, int64_t D, int layout)
{
    const attn_tensor t = tensor_new(dtype, B, H, T, D, layout);
    tensor_fill(&t);
    return t;
}

/* Rows first .. first+n-1 of batch b. */
__attribute__((unused)) static attn_tensor rows_of(attn_tensor t, int64_t b, int64_t first,
                                                   int64_t n)
{
    const int64_t e = b * t.stride[0] + first * t.stride[2];
    t.data = (char *)t.data + e * (int64_t)attn_dtype_size(t.dtype);
    t.shape[0] = 1;
    t.shape[2] = n;
    return t;
}

/* Appends rows first .. first+n-1 of batch b of k and v to the cache's sequence b. */
__attribute__((unused)) static attn_status append_rows(attn_cache *cache, const attn_tensor *k,
                                                       const attn_tensor *v, int64_t b,
                                                       int64_t first, int64_t n, attn_error *err)
{
    const attn_tensor some_k = rows_of(*k, b, first, n), some_v = rows_of(*v, b, first, n);
    return attn_cache_append(cache, b, &some_k, &some_v, err);
}

__attribute__((unused)) static attn_cache_options cache_options(attn_dtype dtype, int64_t B,
                                                                int64_t Hk, int64_t D, int64_t Dv,
                                                                int64_t max_keys, int64_t page_keys,
                                                                int64_t pages)
{
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    o.B = B, o.Hk = Hk, o.D = D, o.Dv = Dv;
    o.dtype = dtype;
    o.max_keys = max_keys, o.page_keys = page_keys, o.pages = pages;
    return o;
}

__attribute__((unused)) static attn_cache *cache_new(const attn_cache_options *o)
{
    attn_cache *cache = NULL;
    attn_error err = {0};
    if (attn_cache_create(o, &cache, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    assert_non_null(cache);
    return cache;
}

__attribute__((unused)) static attn_context *context(const char *isa, int threads)
{
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    o.isa = isa;
    o.threads = threads;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    return ctx;
}

static int put_bytes(void *user, const void *data, size_t n)
{
    put(user, data, n);
    return 0;
}

/* All that a cache holds; freed by bytes_free. */
__attribute__((unused)) static bytes content(const attn_cache *cache)
{
    bytes b = {0};
    assert_int_equal(attn_cache_save(cache, put_bytes, &b, NULL), ATTN_OK);
    return b;
}

__attribute__((unused)) static void expect_same_bytes(bytes got, bytes want, const char *what)
{
    if (got.size != want.size)
        fail_msg("%s: %zu bytes, want %zu", what, got.size, want.size);
    for (size_t i = 0; i < want.size; i++)
        if (got.data[i] != want.data[i])
            fail_msg("%s: byte %zu of %zu is 0x%02x, want 0x%02x", what, i, want.size, got.data[i],
                     want.data[i]);
}

/* ATTN_ERR_*, the argument's name, and a part of the one line. */
__attribute__((unused)) static void expect_error(attn_status got, const attn_error *err,
                                                 attn_status status, const char *argument,
                                                 const char *part)
{
    if (got != status || err->status != status || strcmp(err->argument, argument) != 0 ||
        !strstr(err->message, part) || strchr(err->message, '\n') ||
        strncmp(err->message, argument, strlen(argument)) != 0)
        fail_msg("%s, '%s', \"%s\"; want %s, '%s', \"...%s...\"", attn_status_name(got),
                 err->argument, err->message, attn_status_name(status), argument, part);
}

#endif
