/* A context works in a child of fork, where its threads no longer exist.
 *
 * Results have the same bits, and nothing waits for the missing threads: each child has ten
 * seconds. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attn.h"
#include "support/test.h"

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#else
#define THREAD_SANITIZER 0
#endif

enum { H = 4, T = 130, S = 300, D = 24, N = H * T * D };
static float q[N], k[H * S * D], v[H * S * D], want[N];

static int prepare(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        q[i] = (float)sin(i * 0.7);
    for (int i = 0; i < H * S * D; i++)
        k[i] = (float)cos(i * 0.3), v[i] = (float)sin(i * 0.1);
    return 0;
}

/* Whether a call on ctx gives the bits of `want`; the first call makes them. */
static bool call(attn_context *ctx)
{
    static bool known;
    float out[N];
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F32, 1, H, T, D), a.k = attn_bhtd(k, ATTN_F32, 1, H, S, D);
    a.v = attn_bhtd(v, ATTN_F32, 1, H, S, D), a.out = attn_bhtd(out, ATTN_F32, 1, H, T, D);
    a.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    if (attn_sdpa_forward(ctx, &a, NULL) != ATTN_OK)
        return false;
    if (!known)
        memcpy(want, out, sizeof out);
    known = true;
    return memcmp(out, want, sizeof out) == 0;
}

static attn_context *create(int threads)
{
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    options.threads = threads;
    assert_int_equal(attn_context_create(&options, &ctx, NULL), ATTN_OK);
    return ctx;
}

/* Starts a child that has ten seconds; 0 in the child. */
static pid_t start_child(void)
{
    pid_t child = fork();
    assert_number(child, >=, 0);
    if (child == 0)
        alarm(10);
    return child;
}

static void expect_success(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        fail_msg("the child ended by signal %d%s", WTERMSIG(status),
                 WTERMSIG(status) == SIGALRM ? ": it hung" : "");
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_after_a_call(void **state)
{
    (void)state;
    attn_context *ctx = create(3);
    assert_true(call(ctx));
    for (int n = 0; n < 20; n++) {
        describe_case("fork %d", n);
        pid_t child = start_child();
        if (child == 0) {
            bool right = call(ctx) && call(ctx);
            attn_context_destroy(ctx);
            _exit(right ? 0 : 1);
        }
        assert_true(call(ctx)); /* at the same time as the child */
        expect_success(child);
    }
    attn_context_destroy(ctx);
}

static void test_idle(void **state)
{
    (void)state;
    attn_context *ctx = create(2);
    pid_t child = start_child(); /* before the first call */
    if (child == 0)
        _exit(call(ctx) ? 0 : 1);
    expect_success(child);
    assert_true(call(ctx));
    child = start_child();
    if (child == 0) { /* destroyed without another call */
        attn_context_destroy(ctx);
        _exit(0);
    }
    expect_success(child);
    attn_context_destroy(ctx);
}

static void test_nested(void **state)
{
    (void)state;
    attn_context *ctx = create(3);
    assert_true(call(ctx));
    pid_t child = start_child();
    if (child == 0) {
        bool right = call(ctx);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(call(ctx) && call(NULL) ? 0 : 1);
        int status = 1;
        right = right && waitpid(grandchild, &status, 0) == grandchild && status == 0;
        _exit(right && call(ctx) ? 0 : 1);
    }
    expect_success(child);
    assert_true(call(ctx));
    attn_context_destroy(ctx);
}

/* Another thread is in the middle of calls while this one forks: the child uses a context of its
 * own, and the NULL one. */
static volatile bool stop;

static void *keep_calling(void *ctx)
{
    bool right = true;
    while (!stop)
        right = call(ctx) && right;
    return right ? ctx : NULL;
}

static void test_during_a_call(void **state)
{
    (void)state;
    attn_context *busy = create(2), *own = create(2);
    assert_true(call(busy) && call(own));
    pthread_t thread;
    stop = false;
    assert_int_equal(pthread_create(&thread, NULL, keep_calling, busy), 0);
    for (int n = 0; n < 20; n++) {
        describe_case("fork %d", n);
        pid_t child = start_child();
        if (child == 0)
            _exit(call(own) && call(NULL) ? 0 : 1);
        expect_success(child);
    }
    stop = true;
    void *result;
    pthread_join(thread, &result);
    assert_non_null(result);
    attn_context_destroy(busy);
    attn_context_destroy(own);
}

int main(void)
{
    if (THREAD_SANITIZER) {
        print_message("not run: the thread sanitizer refuses threads after fork\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_after_a_call),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_during_a_call),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
