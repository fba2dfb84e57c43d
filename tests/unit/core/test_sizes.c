/* Sizes past 2^32 are refused where size_t has 32 bits, and planned correctly where it has 64.
 *
 * Where they fit, the planned memory is at least as large as they are. The assertions are the same
 * on every machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "support/test.h"

static const int64_t vast = INT64_C(1) << 33; /* 0 if it is cut to 32 bits */

/* A number, once for every place: a tensor of any size in a few bytes. */
static attn_tensor repeated(int64_t B, int64_t H, int64_t T, int64_t D)
{
    static float one = 1;
    return (attn_tensor){&one, ATTN_F32, {B, H, T, D}, {0, 0, 0, 0}};
}

/* The plan is refused for its size, or its scratch has `least` bytes. */
static void expect_planned(const attn_sdpa_args *args, uint64_t least)
{
    attn_plan_info info = {.struct_size = sizeof info};
    attn_error err;
    const attn_status status = attn_sdpa_plan(NULL, args, &info, &err);
    if (status == ATTN_OK)
        assert_number(info.scratch_bytes, >=, least);
    else
        assert_int_equal(status, ATTN_ERR_LIMIT);
    if (sizeof(size_t) < sizeof(int64_t))
        assert_int_equal(status, ATTN_ERR_LIMIT);
}

static void test_wide_rows(void **state)
{
    (void)state;
    float out = 0;
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = repeated(1, 1, 1, vast);
    args.k = repeated(1, 1, 2, vast);
    args.v = repeated(1, 1, 2, 1);
    args.out = attn_bhtd(&out, ATTN_F32, 1, 1, 1, 1);
    expect_planned(&args, (uint64_t)vast * sizeof(float));
}

/* No rows, so that no offset is large. */
static void test_wide_and_empty(void **state)
{
    (void)state;
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = attn_bhtd(NULL, ATTN_F32, 1, 1, 0, vast);
    args.k = attn_bhtd(NULL, ATTN_F32, 1, 1, 0, vast);
    args.v = attn_bhtd(NULL, ATTN_F32, 1, 1, 0, 1);
    args.out = attn_bhtd(NULL, ATTN_F32, 1, 1, 0, 1);
    expect_planned(&args, 0);
}

static uint64_t asked;
static void *refuse(void *user, size_t size, size_t alignment)
{
    (void)user, (void)alignment;
    asked = size;
    return NULL;
}
static void release(void *user, void *memory, size_t size) { (void)user, (void)memory, (void)size; }

static void expect_cache(int64_t B, int64_t D, int64_t max_keys, attn_dtype dtype, uint64_t least)
{
    attn_cache_options options = ATTN_CACHE_OPTIONS_INIT;
    options.B = B, options.Hk = 1, options.D = D, options.Dv = 1;
    options.dtype = dtype, options.max_keys = max_keys;
    options.allocate = refuse, options.release = release;
    attn_cache *cache = NULL;
    asked = 0;
    const attn_status status = attn_cache_create(&options, &cache, NULL);
    assert_null(cache);
    if (status == ATTN_ERR_MEMORY)
        assert_number(asked, >=, least);
    else
        assert_int_equal(status, ATTN_ERR_LIMIT);
    if (sizeof(size_t) < sizeof(int64_t))
        assert_int_equal(status, ATTN_ERR_LIMIT);
}

/* Each product is a multiple of 2^32. */
static void test_caches(void **state)
{
    (void)state;
    expect_cache(1, INT64_C(1) << 29, 1, ATTN_F64, UINT64_C(1) << 32);
    expect_cache(1, INT64_C(1) << 30, 1, ATTN_F32, UINT64_C(1) << 32);
    expect_cache(INT64_C(1) << 30, 1, 256, ATTN_F32, UINT64_C(1) << 40);
    expect_cache(INT64_C(1) << 16, INT64_C(1) << 10, 64, ATTN_I8, UINT64_C(1) << 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wide_rows),
        cmocka_unit_test(test_wide_and_empty),
        cmocka_unit_test(test_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
