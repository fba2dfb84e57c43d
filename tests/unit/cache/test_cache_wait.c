/* Decoding from a cache has the bits of plain tensors where values wait for the next keys.
 *
 * labels: threads slow
 *
 * From a cache, the values of one chunk of a single query are read together with the keys of the
 * next chunk. From plain tensors they are not, or they lie in another layout. Both must give the
 * same bits, whatever is masked between the chunks. */
#include <math.h>

#include "cache_testing.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(EMULATED)
enum { STEP = 5 }; /* of all cases */
#else
enum { STEP = 1 };
#endif
enum { H = 2, KINDS = 6 };

typedef enum kind { NOTHING, RISING, WINDOW, MASK, HIDDEN_NAN, HUGE_SCORE } kind;
static const char *const kind_names[KINDS] = {"nothing", "maxima that rise", "a window",
                                              "a mask",  "a hidden NaN",     "a huge score"};

typedef struct wait_case {
    attn_dtype dtype;
    int64_t S, D, page;
    kind what;
    attn_tensor q, k, v, out, mask;
    attn_cache *cache;
    attn_sdpa_args plain, cached;
} wait_case;

/* The running maximum is raised by steps of 16 or more: with such keys in almost every block. */
static void let_rise(const attn_tensor *k)
{
    for (int64_t h = 0; h < H; h++)
        for (int64_t j = 0; j < k->shape[2]; j++)
            for (int64_t d = 0; d < k->shape[3]; d++)
                check_store(k, 0, h, j, d, ref_get(k, 0, h, j, d) * (1 + (double)j / 8));
}

static void make_case(wait_case *c)
{
    c->q = tensor_new_filled(c->dtype, 1, H, 1, c->D, 0);
    c->k = tensor_new_filled(c->dtype, 1, H, c->S, c->D, 0);
    c->v = tensor_new_filled(c->dtype, 1, H, c->S, c->D, 0);
    c->out = tensor_new(c->dtype, 1, H, 1, c->D, 0);
    c->mask = tensor_new(ATTN_BOOL, 1, 1, 1, c->S, 0);
    for (int64_t j = 0; j < c->S; j++) /* blocks of each kind: all, some and none of it seen */
        check_store(&c->mask, 0, 0, 0, j, (double)(j / 64 % 5 == 2 ? draw(0, 1) : j / 64 % 5 != 1));
    if (c->what == RISING)
        let_rise(&c->k);
    if (c->what == HIDDEN_NAN)
        check_store(&c->v, 0, 1, 64, 3, (double)NAN);
    if (c->what == HUGE_SCORE) /* of f16 as well */
        for (int64_t d = 0; d < c->D; d++)
            check_store(&c->k, 0, 1, c->S - 5, d, 60000);
    const attn_cache_options o = cache_options(c->dtype, 1, H, c->D, c->D, c->S + 7, c->page, 0);
    c->cache = cache_new(&o);
    assert_int_equal(attn_cache_append(c->cache, 0, &c->k, &c->v, NULL), ATTN_OK);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = c->q, a.k = c->k, a.v = c->v, a.out = c->out;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    a.window_left = c->what == WINDOW ? c->S * 2 / 3 : a.window_left;
    a.mask = c->what == MASK || c->what == HIDDEN_NAN ? &c->mask : NULL;
    c->plain = c->cached = a;
    c->cached.cache = c->cache;
    c->cached.k = c->cached.v = (attn_tensor){0};
}

static void free_case(wait_case *c)
{
    attn_tensor *all[] = {&c->q, &c->k, &c->v, &c->out, &c->mask};
    for (size_t i = 0; i < COUNT(all); i++)
        tensor_free(all[i]);
    attn_cache_destroy(c->cache);
}

static bytes run(attn_context *ctx, const wait_case *c, const attn_sdpa_args *args)
{
    const size_t size = (size_t)(H * c->D) * attn_dtype_size(c->dtype);
    bytes result = {0};
    attn_error err = {0};
    memset(c->out.data, 0xEE, size);
    if (attn_sdpa_forward(ctx, args, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    put(&result, c->out.data, size);
    return result;
}

static void check_case_on(attn_context *const ctx[2], const char *isa, wait_case *c)
{
    char name[160];
    make_case(c);
    snprintf(name, sizeof name, "%s %s S%d D%d page%d, %s", isa, attn_dtype_name(c->dtype),
             (int)c->S, (int)c->D, (int)c->page, kind_names[c->what]);
    bytes want = run(ctx[0], c, &c->plain);
    for (int t = 0; t < 2; t++) {
        bytes got = run(ctx[t], c, &c->cached);
        expect_same_bytes(got, want, name);
        bytes_free(&got);
    }
    for (int64_t d = 0; d < c->D; d++)
        assert_true(isfinite(ref_get(&c->out, 0, 0, 0, d)));
    bytes_free(&want);
    free_case(c);
}

static void test_waiting_values_change_no_bit(void **state)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
    static const int64_t lengths[] = {65, 256, 257, 300, 512, 700, 1025}, widths[] = {64, 96, 128};
    static const int64_t pages[] = {0, 64, 320};
    (void)state;
    for (int isa = 0; attn_isa(isa).name; isa++) {
        if (!attn_isa(isa).usable)
            continue;
        attn_context *const ctx[2] = {context(attn_isa(isa).name, 1),
                                      context(attn_isa(isa).name, 3)};
        for (size_t i = 0; i < COUNT(types) * COUNT(lengths) * COUNT(widths) * KINDS; i += STEP) {
            wait_case c = {.dtype = types[i % COUNT(types)],
                           .S = lengths[i / COUNT(types) % COUNT(lengths)],
                           .D = widths[i / COUNT(types) / COUNT(lengths) % COUNT(widths)],
                           .what = (kind)(i / COUNT(types) / COUNT(lengths) / COUNT(widths)),
                           .page = pages[draw(0, COUNT(pages) - 1)]};
            check_case_on(ctx, attn_isa(isa).name, &c);
        }
        for (int t = 0; t < 2; t++)
            attn_context_destroy(ctx[t]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waiting_values_change_no_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
