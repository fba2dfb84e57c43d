/* attn_sdpa_plan reports the route of each call, by the table in docs/DESIGN.md.
 *
 * That all routes compute the same bits is tested elsewhere (test_decode, test_contract,
 * test_cache_sdpa). */
#include <stdbool.h>
#include <string.h>

#include "attn.h"
#include "support/test.h"

enum { LONG = 600, H = 2, D = 64, BEYOND_L3 = 100000 /* keys */ };

typedef struct route_case {
    const char *isa; /* skipped if this machine lacks it */
    attn_dtype dtype;
    int64_t T, S;
    const char *route;
    enum { NOTHING, SOFTCAP, DROPOUT, MASK, CACHE } option;
} route_case;

/* No tensor is read by a plan, so all share this memory. */
static double memory[LONG * H * D];
static float mask_bias[LONG];

static const route_case cases[] = {
    {"generic", ATTN_F32, 0, LONG, "none", NOTHING},
    {"generic", ATTN_F32, 64, LONG, "tiles", NOTHING},
    {"generic", ATTN_F32, 64, 64, "one block", NOTHING},
    {"generic", ATTN_F32, 64, 65, "tiles", NOTHING},
    {"generic", ATTN_F32, 1, 1, "one block", NOTHING},
    {"generic", ATTN_F32, 64, 64, "tiles", SOFTCAP},
    {"generic", ATTN_F32, 1, 64, "decode, scores as tiles", MASK},
    {"generic", ATTN_F32, 1, 3, "decode, scores as tiles", SOFTCAP},
    {"generic", ATTN_F32, 2, 3, "tiles", SOFTCAP}, /* fewer keys than lanes */
    {"generic", ATTN_F32, 1, 4, "decode, scores as tiles", SOFTCAP},
    {"generic", ATTN_F32, 1, LONG, "decode, keys first", NOTHING},
    {"generic", ATTN_F64, 1, LONG, "decode, keys first", NOTHING},
    {"generic", ATTN_F16, 1, LONG, "decode", NOTHING}, /* is converted */
    {"generic", ATTN_F32, 1, LONG, "decode, scores as tiles", DROPOUT},
    {"generic", ATTN_F32, 1, LONG, "decode, scores as tiles", MASK},
    {"generic", ATTN_F32, 1, LONG, "decode, keys first", CACHE},
    {"avx2", ATTN_F32, 1, LONG, "decode, deferred values", CACHE},
    {"avx2", ATTN_F32, 2, LONG, "decode, keys first", CACHE},
    {"avx2", ATTN_F16, 1, LONG, "decode, keys first", NOTHING}, /* reads halves as they are */
    {"avx512", ATTN_F32, 1, LONG, "decode, deferred values", CACHE},
    {"avx512", ATTN_BF16, 64, LONG, "tiles", NOTHING},
    {"avx512bf16", ATTN_F32, 64, LONG, "tiles", NOTHING},
    {"avx512bf16", ATTN_BF16, 64, LONG, "bf16 tiles", NOTHING},
    {"avx512bf16", ATTN_BF16, 64, 64, "bf16 tiles", NOTHING},
    {"avx512bf16", ATTN_BF16, 1, LONG, "bf16 decode", NOTHING},
    {"avx512bf16", ATTN_BF16, 8, LONG, "bf16 decode", NOTHING},
    {"avx512bf16", ATTN_BF16, 8, 1, "bf16 decode", NOTHING},
    {"avx512bf16", ATTN_BF16, 9, 31, "bf16 tiles", NOTHING},
    {"avx512bf16", ATTN_BF16, 12, 32, "bf16 decode", NOTHING},
    {"avx512bf16", ATTN_BF16, 13, 255, "bf16 tiles", NOTHING},
    {"avx512bf16", ATTN_BF16, 16, 256, "bf16 decode", NOTHING},
    {"avx512bf16", ATTN_BF16, 17, LONG, "bf16 tiles", NOTHING},
    {"avx512bf16", ATTN_BF16, 1, LONG, "bf16 tiles", DROPOUT},
    {"amx", ATTN_BF16, 64, LONG, "bf16 tiles", NOTHING},
    {"amx", ATTN_BF16, 1, LONG, "bf16 decode", NOTHING},
};
enum { CASES = sizeof cases / sizeof *cases };

static bool usable(const char *isa)
{
    for (int i = 0; attn_isa(i).name; i++)
        if (!strcmp(attn_isa(i).name, isa))
            return attn_isa(i).usable;
    return false;
}

static attn_cache *new_cache(const route_case *c)
{
    attn_cache_options options = ATTN_CACHE_OPTIONS_INIT;
    options.B = 1, options.Hk = H, options.D = options.Dv = D;
    options.dtype = c->dtype;
    options.max_keys = c->S;
    attn_cache *cache = NULL;
    assert_int_equal(attn_cache_create(&options, &cache, NULL), ATTN_OK);
    const attn_tensor rows = attn_bhtd(memory, c->dtype, 1, H, c->S, D);
    assert_int_equal(attn_cache_append(cache, 0, &rows, &rows, NULL), ATTN_OK);
    return cache;
}

/* width: D of the tensors; of a cache it is D */
static attn_plan_info plan_of_width(const route_case *c, int width)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.isa = c->isa;
    options.threads = 1;
    attn_context *ctx = NULL;
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    attn_cache *cache = c->option == CACHE ? new_cache(c) : NULL;
    const attn_tensor bias = {mask_bias, ATTN_F32, {1, 1, 1, c->S}, {0, 0, 0, 1}};
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = a.out = attn_bhtd(memory, c->dtype, 1, H, c->T, width);
    if (cache)
        a.cache = cache;
    else
        a.k = a.v = attn_bhtd(memory, c->dtype, 1, H, c->S, width);
    a.softcap = c->option == SOFTCAP ? 2 : 0;
    a.dropout = c->option == DROPOUT ? 0.5 : 0;
    a.mask = c->option == MASK ? &bias : NULL;
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    attn_error err = {0};
    if (attn_sdpa_plan(ctx, &a, &info, &err))
        fail_msg("%s", err.message);
    attn_cache_destroy(cache);
    attn_context_destroy(ctx);
    return info;
}

static attn_plan_info plan_of(const route_case *c) { return plan_of_width(c, D); }

static void expect_route(int i, const route_case *c, int width)
{
    const attn_plan_info info = plan_of_width(c, width);
    if (strcmp(info.route, c->route) != 0)
        fail_msg("case %d, %s T=%d S=%d D=%d: route '%s', expected '%s'", i, c->isa, (int)c->T,
                 (int)c->S, width, info.route, c->route);
    assert_true(strlen(info.why) > 0 && strlen(info.why) + 1 < sizeof info.why);
}

static void each_call_has_its_route(void **state)
{
    int ran = 0;
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const route_case *c = &cases[i];
        if (!usable(c->isa))
            continue;
        expect_route(i, c, D);
        ran++;
    }
    assert_true(ran > 10); /* generic runs everywhere */
}

/* 9 to 16 rows of bf16 are decoded only if their rows are long enough. */
static void bf16_routes_depend_on_the_head_size(void **state)
{
    static const struct {
        int64_t T, S;
        int D;
        const char *route;
    } rows[] = {
        {8, LONG, 1, "bf16 decode"},       {9, LONG, 23, "bf16 tiles"},
        {12, LONG, 24, "bf16 decode"},     {13, LONG, 63, "bf16 tiles"},
        {13, BEYOND_L3, 31, "bf16 tiles"}, {16, BEYOND_L3, 32, "bf16 decode"},
        {64, 64, 1 << 24, "bf16 tiles"},   {64, 64, (1 << 24) + 1, "tiles"},
    };
    (void)state;
    if (!usable("avx512bf16"))
        skip();
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        const route_case c = {"avx512bf16", ATTN_BF16,     rows[i].T,
                              rows[i].S,    rows[i].route, NOTHING};
        expect_route(i, &c, rows[i].D);
    }
}

/* 8 tiles of a head share chunks; one query over many keys is divided along them; small data is
 * not prefetched. */
static void plans_tell_how_work_is_divided(void **state)
{
    (void)state;
    const route_case many = {"generic", ATTN_F32, LONG, LONG, "tiles", NOTHING};
    const attn_plan_info info = plan_of(&many);
    assert_true(info.tiles > 1);
    assert_int_equal(info.parts, 1);
    assert_int_equal(info.prefetch, 4 * H * LONG * D * 4 > 1024 * 1024);
    const route_case small = {"generic", ATTN_F32, 1, 80, "decode, keys first", NOTHING};
    assert_int_equal(plan_of(&small).prefetch, 0);
    assert_int_equal(plan_of(&small).tiles, 1);
}

/* One row more than a narrower tile holds gets a tile of its own (docs/decisions/0044). */
static void one_more_row_is_decoded(void **state)
{
    static const struct {
        const char *isa;
        int64_t T;
        int tiles;
    } rows[] = {
        {"avx2", 9, 2},    {"avx2", 10, 1},   {"avx512", 17, 2},
        {"avx512", 18, 1}, {"avx512", 33, 2}, {"avx512", 34, 1},
        {"avx512", 49, 2}, {"avx512", 50, 1}, {"avx512", 65, 2},
    };
    (void)state;
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        const route_case c = {rows[i].isa, ATTN_F32, rows[i].T, 65, "tiles", NOTHING};
        if (usable(c.isa) && plan_of(&c).tiles != rows[i].tiles)
            fail_msg("%s, %d queries: %d tiles, expected %d", c.isa, (int)c.T, plan_of(&c).tiles,
                     rows[i].tiles);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_has_its_route),
        cmocka_unit_test(bf16_routes_depend_on_the_head_size),
        cmocka_unit_test(plans_tell_how_work_is_divided),
        cmocka_unit_test(one_more_row_is_decoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
