/* Fuzz target: attn_cache_load. Any bytes give a cache or an error. A cache that was loaded must
 * work, and must be saved to the same bytes.
 *
 * The options are the sizes in the bytes if these are small, so that they agree and the reader
 * continues to the lengths. Bytes with a wrong checksum are tried a second time with the correct
 * one, which no fuzzer would find.
 *
 * Built as described in fuzz_npy.c, but without the files of kit/ and -lzip.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../include/attn.h"
#include "seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static uint64_t number(const uint8_t *at, int n)
{
    uint64_t x = 0;
    for (int i = n; i-- > 0;)
        x = x << 8 | at[i];
    return x;
}

/* A size from the bytes, if it is small; otherwise a default. */
static int64_t small(const uint8_t *data, size_t size, size_t at, uint64_t most, int64_t otherwise)
{
    const uint64_t x = size >= at + 8 ? number(data + at, 8) : most + 1;
    return x <= most ? (int64_t)x : otherwise;
}

static attn_cache_options options_of(const uint8_t *data, size_t size)
{
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8};
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    const uint64_t dtype = size >= 16 ? number(data + 12, 4) : 0;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtype == (uint64_t)dtypes[i])
            o.dtype = dtypes[i];
    o.B = small(data, size, 16, 6, 2);
    o.Hk = small(data, size, 24, 6, 1);
    o.D = small(data, size, 32, 40, 3);
    o.Dv = small(data, size, 40, 40, 5);
    o.max_keys = 300;
    o.page_keys = size % 3 == 0 ? 0 : size % 3 == 1 ? 64 : 192;
    o.pages = o.page_keys && size % 2 ? 7 : 0;
    return o;
}

typedef struct text {
    const uint8_t *data;
    size_t size, at;
} text;

static int compare(void *user, const void *piece, size_t n)
{
    text *t = user;
    must(n <= t->size - t->at && memcmp(t->data + t->at, piece, n) == 0);
    t->at += n;
    return 0;
}

/* Appends a key to each sequence and removes it again. */
static void use(attn_cache *cache, const attn_cache_options *o)
{
    static const double row[6 * 40];
    const attn_tensor k = attn_bhtd(row, ATTN_F64, 1, o->Hk, 1, o->D);
    const attn_tensor v = attn_bhtd(row, ATTN_F64, 1, o->Hk, 1, o->Dv);
    for (int64_t b = 0; b < o->B; b++) {
        const int64_t length = attn_cache_length(cache, b);
        must(length >= 0 && length <= o->max_keys);
        const attn_status status = attn_cache_append(cache, b, &k, &v, NULL);
        must(status == ATTN_OK || status == ATTN_ERR_FULL);
        must(attn_cache_length(cache, b) == length + (status == ATTN_OK));
        must(attn_cache_truncate(cache, b, length, NULL) == ATTN_OK);
    }
}

static bool load(const uint8_t *data, size_t size)
{
    const attn_cache_options o = options_of(data, size);
    attn_cache *cache = NULL;
    attn_error err = {0};
    const attn_status status = attn_cache_load(&o, data, size, &cache, &err);
    if (status != ATTN_OK) {
        must(!cache && err.status == status && status != ATTN_ERR_MEMORY);
        must(strncmp(err.message, err.argument, strlen(err.argument)) == 0);
        must(!strpbrk(err.message, "\n\r\x1B"));
        return false;
    }
    for (int round = 0; round < 2; round++) {
        text t = {data, size, 0};
        must(attn_cache_save(cache, compare, &t, NULL) == ATTN_OK && t.at == size);
        use(cache, &o);
    }
    attn_cache_destroy(cache);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (load(data, size) || size < 8)
        return 0;
    uint8_t *copy = malloc(size);
    must(copy != NULL);
    memcpy(copy, data, size);
    seal_bytes(copy, size);
    load(copy, size);
    free(copy);
    return 0;
}
