/* Calls leave alone what is the caller's: err, errno, the locale, the floating-point mode.
 *
 * labels: threads
 *
 * Results are the same in each mode. Arguments that a call says it ignores are ignored, and memory
 * is allocated on the calling thread only. */
#include <errno.h>
#include <fenv.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "attn.h"
#include "support/test.h"

enum { H = 4, HK = 2, T = 90, S = 140, D = 24, KEPT = 1 << 16 };

static float q[H * T * D], k[HK * S * D], v[HK * S * D], dout[H * T * D], weight[D * D];

/* All that the calls below write, one after the other. */
static struct written {
    float out[H * T * D], dq[H * T * D], dk[HK * S * D], dv[HK * S * D], tout[H * T * D];
    float norm[H * T * D], gelu[H * T * D], dnorm[H * T * D], linear[H * T * D], table[7 * D];
    float cached[H * T * D], read[HK * S * D], weights[H * T * S];
    double lse[H * T], tlse[H * T], loss;
    unsigned char kept[H * T * S], saved[KEPT];
    size_t saved_bytes;
} now, first;

static int make(void **state)
{
    (void)state;
    attn_rng rng;
    attn_rng_seed(&rng, 5);
    attn_rng_randn(&rng, q, H * T * D), attn_rng_randn(&rng, k, HK * S * D);
    attn_rng_randn(&rng, v, HK * S * D), attn_rng_randn(&rng, dout, H * T * D);
    attn_rng_randn(&rng, weight, D * D);
    return 0;
}

/* ------------------------------------------------------------------------------------ the calls */

static attn_tensor lse, tlse, scores;

static attn_sdpa_args attention(void)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, 1, H, T, D), a.k = attn_bhtd(k, ATTN_F32, 1, HK, S, D);
    a.v = attn_bhtd(v, ATTN_F32, 1, HK, S, D), a.out = attn_bhtd(now.out, ATTN_F32, 1, H, T, D);
    lse = attn_bhtd(now.lse, ATTN_F64, 1, H, T, 1);
    scores = attn_bhtd(now.weights, ATTN_F32, 1, H, T, S);
    a.lse = &lse, a.scores = &scores, a.scores_stage = ATTN_STAGE_WEIGHTS;
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT, a.softcap = 20, a.dropout = 0.2;
    return a;
}

static attn_sdpa_grads gradients(void)
{
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = attn_bhtd(dout, ATTN_F32, 1, H, T, D);
    g.dq = attn_bhtd(now.dq, ATTN_F32, 1, H, T, D);
    g.dk = attn_bhtd(now.dk, ATTN_F32, 1, HK, S, D);
    g.dv = attn_bhtd(now.dv, ATTN_F32, 1, HK, S, D);
    return g;
}

static attn_sdpa_tangents tangents(void)
{
    attn_sdpa_tangents t = ATTN_SDPA_TANGENTS_INIT;
    t.tq = attn_bhtd(dout, ATTN_F32, 1, H, T, D), t.tk = attn_bhtd(v, ATTN_F32, 1, HK, S, D);
    t.tv = attn_bhtd(k, ATTN_F32, 1, HK, S, D);
    t.tout = attn_bhtd(now.tout, ATTN_F32, 1, H, T, D);
    tlse = attn_bhtd(now.tlse, ATTN_F64, 1, H, T, 1);
    t.tlse = &tlse;
    return t;
}

static attn_status run_attention(attn_context *ctx, attn_error *err)
{
    const attn_sdpa_args a = attention();
    const attn_sdpa_grads g = gradients();
    const attn_sdpa_tangents t = tangents();
    attn_plan_info info = {.struct_size = sizeof info};
    const attn_tensor kept = attn_bhtd(now.kept, ATTN_BOOL, 1, H, T, S);
    attn_status s;
    if ((s = attn_sdpa_plan(ctx, &a, &info, err)) || (s = attn_sdpa_forward(ctx, &a, err)) ||
        (s = attn_sdpa_backward_plan(ctx, &a, &g, &info, err)) ||
        (s = attn_sdpa_backward(ctx, &a, &g, err)) || (s = attn_sdpa_jvp(ctx, &a, &t, err)))
        return s;
    return attn_dropout_mask(7, 0.3, &kept, err);
}

static int keep(void *user, const void *bytes, size_t n)
{
    (void)user;
    assert_number(now.saved_bytes + n, <=, KEPT);
    memcpy(now.saved + now.saved_bytes, bytes, n);
    now.saved_bytes += n;
    return 0;
}

static attn_status run_cache(attn_context *ctx, attn_dtype dtype, attn_error *err)
{
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    o.B = 1, o.Hk = HK, o.D = o.Dv = D, o.dtype = dtype, o.max_keys = S, o.page_keys = 64;
    const attn_tensor keys = attn_bhtd(k, ATTN_F32, 1, HK, S, D);
    const attn_tensor values = attn_bhtd(v, ATTN_F32, 1, HK, S, D);
    const attn_tensor back = attn_bhtd(now.read, ATTN_F32, 1, HK, S - 3, D);
    attn_cache *cache = NULL, *loaded = NULL;
    attn_sdpa_args a = attention();
    a.out.data = now.cached;
    a.k = a.v = (attn_tensor){0};
    a.lse = NULL, a.scores = NULL;
    now.saved_bytes = 0;
    attn_status s;
    if (!(s = attn_cache_create(&o, &cache, err)) &&
        !(s = attn_cache_append(cache, 0, &keys, &values, err)) &&
        !(s = attn_cache_truncate(cache, 0, S - 3, err)) &&
        !(s = attn_cache_read(cache, 0, 0, &back, NULL, err)) &&
        !(s = attn_cache_save(cache, keep, NULL, err)) &&
        !(s = attn_cache_load(&o, now.saved, now.saved_bytes, &loaded, err))) {
        a.cache = loaded;
        s = attn_sdpa_forward(ctx, &a, err);
    }
    attn_cache_destroy(cache), attn_cache_destroy(loaded);
    return s;
}

static attn_status run_modules(attn_context *ctx, attn_error *err)
{
    static const int64_t ids[5] = {0, 6, 3, 3, 1};
    static int64_t targets[H * T];
    for (int i = 0; i < H * T; i++)
        targets[i] = i % D;
    const attn_tensor x = attn_matrix(q, ATTN_F32, (int64_t)H * T, D),
                      w = attn_matrix(weight, ATTN_F32, D, D);
    const attn_tensor norm = attn_matrix(now.norm, ATTN_F32, (int64_t)H * T, D);
    const attn_tensor gelu = attn_matrix(now.gelu, ATTN_F32, (int64_t)H * T, D);
    const attn_tensor dnorm = attn_matrix(now.dnorm, ATTN_F32, (int64_t)H * T, D);
    const attn_tensor linear = attn_matrix(now.linear, ATTN_F32, (int64_t)H * T, D);
    const attn_tensor rows = attn_matrix(now.table, ATTN_F32, 5, D);
    const attn_tensor grad = attn_matrix(dout, ATTN_F32, (int64_t)H * T, D);
    attn_status s;
    if ((s = attn_layer_norm_forward(ctx, &x, NULL, NULL, 1e-5, &norm, err)) ||
        (s = attn_gelu_forward(ctx, &x, &gelu, err)) ||
        (s = attn_layer_norm_backward(ctx, &grad, &x, NULL, 1e-5, &dnorm, NULL, NULL, err)) ||
        (s = attn_linear_forward(ctx, &x, &w, NULL, &linear, err)) ||
        (s = attn_cross_entropy_forward(ctx, &x, targets, -100, &now.loss, err)))
        return s;
    return attn_embedding_forward(ctx, &w, ids, 5, &rows, err);
}

static void run_all(attn_context *ctx, attn_error *err)
{
    static const attn_dtype types[] = {ATTN_F32, ATTN_I8};
    assert_int_equal(run_attention(ctx, err), ATTN_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(run_cache(ctx, types[i], err), ATTN_OK);
    assert_int_equal(run_modules(ctx, err), ATTN_OK);
}

static attn_context *context(int threads, const char *isa)
{
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    o.threads = threads, o.isa = isa;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    return ctx;
}

/* ------------------------------------------------------------------------------------ the tests */

static void test_err_is_left_alone(void **state)
{
    (void)state;
    attn_error err, before;
    memset(&err, 0x5A, sizeof err);
    before = err;
    attn_context *ctx = context(2, NULL);
    run_all(NULL, &err);
    run_all(ctx, &err);
    attn_context_destroy(ctx);
    assert_memory_equal(&err, &before, sizeof err);
}

/* The results of all calls in each rounding mode, with and without flushing, are those in the
 * default mode; and the mode is still the caller's after them. */
static void test_modes_change_no_bit(void **state)
{
    (void)state;
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    fenv_t usual;
    fegetenv(&usual);
    for (int isa = 0; attn_isa(isa).name; isa++) {
        if (!attn_isa(isa).usable)
            continue;
        attn_context *ctx = context(2, attn_isa(isa).name);
        memset(&now, 0, sizeof now);
        run_all(ctx, NULL);
        first = now;
        for (int i = 0; i < 8; i++) {
            describe_case("%s, rounding mode %d%s", attn_isa(isa).name, modes[i / 2],
                          i % 2 ? ", denormals flushed" : "");
            memset(&now, 0, sizeof now);
            fesetround(modes[i / 2]);
#if defined(__x86_64__)
            if (i % 2)
                _mm_setcsr(_mm_getcsr() | 0x8040);
            const unsigned mode = _mm_getcsr() & 0xFFC0;
#endif
            run_all(ctx, NULL);
            const int kept = fegetround();
#if defined(__x86_64__)
            const unsigned then = _mm_getcsr() & 0xFFC0;
#else
            const unsigned mode = 0, then = 0;
#endif
            fesetenv(&usual);
            assert_int_equal(kept, modes[i / 2]);
            assert_int_equal(then, mode);
#define SAME(field) assert_same_array(now.field, first.field, sizeof now.field)
            SAME(out);
            SAME(dq);
            SAME(dk);
            SAME(dv);
            SAME(tout);
            SAME(lse);
            SAME(tlse);
            SAME(weights);
            SAME(kept);
            SAME(cached);
            SAME(read);
            SAME(saved);
            SAME(norm);
            SAME(gelu);
            SAME(dnorm);
            SAME(table);
            SAME(linear);
            assert_number(now.loss, ==, first.loss);
        }
        attn_context_destroy(ctx);
    }
}

/* errno and the locale are as they were, whether a call worked or not. */
static void test_errno_and_locale(void **state)
{
    (void)state;
    assert_non_null(setlocale(LC_ALL, "C"));
    setlocale(LC_CTYPE, "C.UTF-8");
    char before[256];
    snprintf(before, sizeof before, "%s", setlocale(LC_ALL, NULL));
    attn_context *ctx = context(3, NULL);
    errno = 1234;
    run_all(ctx, NULL);
    assert_int_equal(errno, 1234);
    attn_sdpa_args bad = attention();
    bad.dropout = 2;
    attn_error err;
    assert_int_equal(attn_sdpa_forward(ctx, &bad, &err), ATTN_ERR_ARGUMENT);
    assert_int_equal(errno, 1234);
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    attn_cache *cache = NULL;
    assert_int_equal(attn_cache_load(&o, "no cache", 8, &cache, &err), ATTN_ERR_FILE);
    assert_int_equal(errno, 1234);
    assert_string_equal(setlocale(LC_ALL, NULL), before);
    attn_context_destroy(ctx);
    setlocale(LC_ALL, "C");
}

/* Views that point nowhere, in the places that a call does not look at. */
static void test_what_is_not_looked_at(void **state)
{
    (void)state;
    run_all(NULL, NULL);
    first = now;
    const attn_tensor nowhere = {(void *)1, (attn_dtype)99, {-1, 1, 1, 1}, {7, 7, 7, 7}};
    attn_sdpa_args a = attention();
    const attn_sdpa_tangents t = tangents();
    a.workspace = (void *)1, a.workspace_bytes = 3; /* forward mode has scratch of its own */
    assert_int_equal(attn_sdpa_jvp(NULL, &a, &t, NULL), ATTN_OK);
    assert_same_array(now.tout, first.tout, sizeof now.tout);

    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    attn_cache *cache = NULL;
    o.B = 1, o.Hk = HK, o.D = o.Dv = D, o.max_keys = S;
    assert_int_equal(attn_cache_create(&o, &cache, NULL), ATTN_OK);
    const attn_tensor keys = attn_bhtd(k, ATTN_F32, 1, HK, S, D);
    const attn_tensor values = attn_bhtd(v, ATTN_F32, 1, HK, S, D);
    assert_int_equal(attn_cache_append(cache, 0, &keys, &values, NULL), ATTN_OK);
    a = attention();
    a.k = a.v = nowhere;
    a.k.data = a.v.data = NULL;
    a.cache = cache;
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_OK);
    assert_same_array(now.out, first.out, sizeof now.out);
    attn_cache_destroy(cache);
}

/* An allocator that knows one thread. */
typedef struct one_thread {
    pthread_t caller;
    int calls, others;
} one_thread;

static void *allocate(void *user, size_t size, size_t alignment)
{
    one_thread *one = user;
    one->calls++;
    one->others += !pthread_equal(pthread_self(), one->caller);
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void release(void *user, void *memory, size_t size)
{
    (void)size;
    one_thread *one = user;
    one->others += !pthread_equal(pthread_self(), one->caller);
    free(memory);
}

static void test_allocations_come_from_the_caller(void **state)
{
    (void)state;
    one_thread one = {.caller = pthread_self()};
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    o.threads = 8;
    o.allocate = allocate, o.release = release, o.memory_user = &one;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    run_all(ctx, NULL);
    attn_context_destroy(ctx);
    assert_number(one.calls, >, 1);
    assert_int_equal(one.others, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_is_left_alone),
        cmocka_unit_test(test_modes_change_no_bit),
        cmocka_unit_test(test_errno_and_locale),
        cmocka_unit_test(test_what_is_not_looked_at),
        cmocka_unit_test(test_allocations_come_from_the_caller),
    };
    return cmocka_run_group_tests(tests, make, NULL);
}
