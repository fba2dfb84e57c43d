/* An allocation that fails at any point gives ATTN_ERR_MEMORY or a call that works.
 *
 * link: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=pthread_create
 *
 * Each allocation fails in turn, once and from then on, through the linker's wrap and through the
 * caller's allocator. After a failure the outputs are untouched, the context works again, and
 * nothing leaks. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "ref/attn_ref.h"
#include "support/test.h"

/* ------------------------------------------------------------------------ allocations that fail */

static int calls;   /* since the last arm() */
static int fail_at; /* the number of the one that fails; 0: none */
static bool sticky; /* and all after it */
static long live;   /* what the caller's allocator handed out */

static void arm(int n, bool for_good)
{
    calls = 0;
    fail_at = n;
    sticky = for_good;
}

static bool fails(void)
{
    int n = ++calls;
    return fail_at > 0 && (n == fail_at || (sticky && n > fail_at));
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg);

void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return fails() ? NULL : __real_realloc(memory, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg)
{
    return fails() ? EAGAIN : __real_pthread_create(thread, attributes, start, arg);
}

/* The caller's allocator: counts what it handed out, and that sizes come back as they went. */
static void *allocate(void *user, size_t size, size_t alignment)
{
    if (user != &live || alignment > 64 || fails())
        return NULL;
    char *memory = __real_aligned_alloc(64, (size + 64 + 63) / 64 * 64);
    memcpy(memory, &size, sizeof size);
    live++;
    return memory + 64;
}

static void release(void *user, void *memory, size_t size)
{
    size_t said;
    memcpy(&said, (char *)memory - 64, sizeof said);
    if (user != &live || said != size)
        abort();
    live--;
    free((char *)memory - 64);
}

/* --------------------------------------------------------------------------------------- a call */

enum { B = 2, H = 3, T = 70, S = 300, D = 20 };
static double q[B * H * T * D], k[B * H * S * D], v[B * H * S * D], want[B * H * T * D];
static double out[B * H * T * D];
static float half_q[B * H * T * D], half_out[B * H * T * D];

static attn_sdpa_args make_args(void)
{
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F64, B, H, T, D), a.k = attn_bhtd(k, ATTN_F64, B, H, S, D);
    a.v = attn_bhtd(v, ATTN_F64, B, H, S, D), a.out = attn_bhtd(out, ATTN_F64, B, H, T, D);
    a.q.stride[3] = -1; /* rows are gathered: more scratch */
    a.q.data = q + B * H * T * D - 1;
    for (int d = 0; d < 3; d++)
        a.q.stride[d] = -a.q.stride[d];
    a.softcap = 5;
    a.dropout = 0.25;
    return a;
}

static int prepare(void **state)
{
    (void)state;
    attn_rng rng;
    attn_rng_seed(&rng, 5);
    for (int i = 0; i < B * H * T * D; i++)
        attn_rng_rand(&rng, half_q + i, 1), q[i] = (double)half_q[i];
    for (int i = 0; i < B * H * S * D; i++)
        k[i] = sin(i * 0.37), v[i] = cos(i * 0.11);
    attn_sdpa_args a = make_args();
    return ref_sdpa_forward(&a, &(ref_result){.out = want}) ? 0 : -1;
}

static void expect_right(void)
{
    for (int i = 0; i < B * H * T * D; i++)
        assert_near(out[i], want[i], <, 1e-12);
}

static void blank(void) { memset(out, 0xFF, sizeof out); }

static void expect_untouched(void)
{
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(((unsigned char *)out)[i], 0xFF);
}

/* One call with the n-th allocation failing. True if it failed. */
static bool call(attn_context *ctx, int n, bool for_good)
{
    attn_sdpa_args a = make_args();
    attn_error err = {0};
    blank();
    arm(n, for_good);
    attn_status status = attn_sdpa_forward(ctx, &a, &err);
    arm(0, false);
    if (status == ATTN_OK) {
        expect_right();
        return false;
    }
    assert_int_equal(status, ATTN_ERR_MEMORY);
    assert_int_equal(err.status, ATTN_ERR_MEMORY);
    assert_true(err.message[0] != '\0');
    expect_untouched();
    return true;
}

/* How many allocations fn makes, from its first success on. */
static void test_null_context(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args();
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    assert_int_equal(attn_sdpa_plan(NULL, &a, &info, NULL), ATTN_OK);
    const bool on_the_stack = info.scratch_bytes < 16384 + 64; /* portable code */
    for (int for_good = 0; for_good < 2; for_good++) {
        int failed = 0;
        for (int n = 1; call(NULL, n, for_good); n++)
            assert_number(++failed, <, 100);
        assert_true(on_the_stack || failed > 0);
        assert_false(call(NULL, 0, false));
    }
}

static attn_context *create(int threads, bool own_allocator)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    if (own_allocator) {
        options.allocate = allocate;
        options.release = release;
        options.memory_user = &live;
    }
    attn_context *ctx = NULL;
    attn_error err = {0};
    attn_status status = attn_context_create(&options, &ctx, &err);
    if (status != ATTN_OK) {
        assert_int_equal(status, ATTN_ERR_MEMORY);
        assert_true(err.message[0] != '\0');
        assert_null(ctx);
    }
    return ctx;
}

/* A context whose n-th allocation fails: refused, or it works with the threads that it got. */
static void test_create(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++)
        for (int for_good = 0; for_good < 2; for_good++) {
            describe_case("%s allocator, failing %s", own ? "own" : "default",
                          for_good ? "for good" : "once");
            int n = 0, made;
            do {
                arm(++n, for_good);
                attn_context *ctx = create(3, own);
                made = calls;
                arm(0, false);
                if (ctx) {
                    assert_in_range(attn_context_threads(ctx), 1, 3);
                    assert_false(call(ctx, 0, false));
                }
                attn_context_destroy(ctx);
                assert_int_equal(live, 0);
            } while (made >= n);
            assert_number(n, >, 1);
        }
}

/* Each call on a context that exists: the arena grows, or does not. */
static void test_calls(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++)
        for (int threads = 1; threads <= 3; threads += 2)
            for (int for_good = 0; for_good < 2; for_good++) {
                int failed = 0;
                for (int n = 1;; n++) {
                    describe_case("%s allocator, %d threads, allocation %d fails %s",
                                  own ? "own" : "default", threads, n,
                                  for_good ? "for good" : "once");
                    attn_context *ctx = create(threads, own);
                    assert_non_null(ctx);
                    bool failure = call(ctx, n, for_good);
                    assert_false(call(ctx, 0, false)); /* usable afterwards */
                    assert_false(call(ctx, 1, true));  /* and needs no more memory then */
                    attn_context_destroy(ctx);
                    assert_int_equal(live, 0);
                    if (!failure)
                        break;
                    assert_number(++failed, <, 100);
                }
                assert_number(failed, >, 0);
            }
}

/* With the caller's workspace nothing is allocated at all. */
static void test_workspace(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args();
    attn_plan_info info = ATTN_PLAN_INFO_INIT;
    arm(1, true);
    assert_int_equal(attn_sdpa_plan(NULL, &a, &info, NULL), ATTN_OK);
    arm(0, false);
    assert_number(info.scratch_bytes, >, 0);
    a.workspace_bytes = (info.scratch_bytes + 63) / 64 * 64;
    a.workspace = __real_aligned_alloc(64, a.workspace_bytes);
    blank();
    arm(1, true);
    attn_status status = attn_sdpa_forward(NULL, &a, NULL);
    arm(0, false);
    assert_int_equal(status, ATTN_OK);
    expect_right();
    a.workspace_bytes = info.scratch_bytes - 64; /* even an aligned one needs more */
    blank();
    assert_int_equal(attn_sdpa_forward(NULL, &a, NULL), ATTN_ERR_ARGUMENT);
    expect_untouched();
    free(a.workspace);
}

static int count_bytes(void *user, const void *data, size_t n)
{
    (void)data;
    *(size_t *)user += n;
    return 0;
}

/* A cache asks for memory once, when it is created, and fails as a whole; append, truncate, read
 * and save ask for none. Attention from it fails as from tensors. */
static void test_cache(void **state)
{
    (void)state;
    attn_cache_options o = ATTN_CACHE_OPTIONS_INIT;
    o.B = B, o.Hk = H, o.D = o.Dv = D, o.dtype = ATTN_F64, o.max_keys = S, o.page_keys = 64;
    attn_cache *cache = NULL;
    attn_error err = {0};
    arm(1, false);
    assert_int_equal(attn_cache_create(&o, &cache, &err), ATTN_ERR_MEMORY);
    assert_null(cache);
    assert_true(err.message[0] != '\0');
    arm(2, true);
    assert_int_equal(attn_cache_create(&o, &cache, NULL), ATTN_OK);
    arm(1, true);
    size_t saved = 0;
    for (int64_t b = 0; b < B; b++) {
        const attn_tensor some_k = attn_bhtd(k + b * H * S * D, ATTN_F64, 1, H, S, D);
        const attn_tensor some_v = attn_bhtd(v + b * H * S * D, ATTN_F64, 1, H, S, D);
        assert_int_equal(attn_cache_append(cache, b, &some_k, &some_v, NULL), ATTN_OK);
    }
    assert_int_equal(attn_cache_truncate(cache, 0, S, NULL), ATTN_OK);
    assert_int_equal(attn_cache_save(cache, count_bytes, &saved, NULL), ATTN_OK);
    arm(0, false);
    assert_number(saved, >, B * H * S * 2 * D * sizeof(double));

    attn_sdpa_args a = make_args();
    a.cache = cache;
    a.k.data = a.v.data = NULL;
    for (int n = 1;; n++) {
        describe_case("allocation %d fails", n);
        blank();
        arm(n, true);
        const attn_status status = attn_sdpa_forward(NULL, &a, NULL);
        arm(0, false);
        if (status == ATTN_OK)
            break;
        assert_int_equal(status, ATTN_ERR_MEMORY);
        expect_untouched();
        assert_number(n, <, 100);
    }
    expect_right();
    attn_cache_destroy(cache);
}

/* Errors are found before memory is asked for. */
static void test_errors_first(void **state)
{
    (void)state;
    attn_sdpa_args a = make_args();
    a.k.shape[3]++;
    arm(1, true);
    attn_status status = attn_sdpa_forward(NULL, &a, NULL);
    arm(0, false);
    assert_int_equal(status, ATTN_ERR_SHAPE);
    attn_tensor mask = attn_bhtd(half_out, ATTN_BOOL, 1, 1, 4, 4);
    arm(1, true);
    status = attn_dropout_mask(1, 0.5, &mask, NULL);
    arm(0, false);
    assert_int_equal(status, ATTN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_context), cmocka_unit_test(test_create),
        cmocka_unit_test(test_calls),        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_cache),        cmocka_unit_test(test_errors_first),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
