/* Contexts with threads: numbers of threads, sharing, the caller's own threads, and fork.
 *
 * labels: threads
 * link: -Wl,--wrap=pthread_create
 *
 * A child may be forked at any instant of a call. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "context_job.h"
#include "forking.h"
#include "core/internal.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

static atomic_int refuse_threads;
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*f)(void *),
                          void *arg)
{
    return atomic_load(&refuse_threads) ? EAGAIN : __real_pthread_create(thread, attr, f, arg);
}

/* ----------------------------------------------------------------------------- threads */

static void every_worker_runs_once(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 7};
    alarm(60);
    for (size_t t = 0; t < COUNT(threads); t++) {
        describe_case("%d threads", threads[t]);
        attn_context *ctx = context_of(threads[t]);
        attni_call call;
        assert_int_equal(attni_call_begin(&call, ctx, 0, NULL, 0, NULL), ATTN_OK);
        assert_int_equal(call.threads, threads[t]);
        attni_call_end(&call);
        for (int workers = 0; workers < 64; workers++)
            assert_true(sums_are_right(ctx, workers));
        attn_context_destroy(ctx);
    }
    alarm(0);
}

static void threads_that_the_system_refuses(void **state)
{
    (void)state;
    attn_context *ctx = context_of(4);
    atomic_store(&refuse_threads, 1);
    assert_true(sums_are_right(ctx, 4));
    atomic_store(&refuse_threads, 0);
    assert_int_equal(attn_context_threads(ctx), 1);
    assert_true(sums_are_right(ctx, 4));
    attn_context_destroy(ctx);
}

static void create_and_destroy_1000_times(void **state)
{
    (void)state;
    alarm(60);
    for (int i = 0; i < 1000; i++) {
        attn_context *ctx = context_of(1 + i % 4);
        if (i % 3 == 0)
            assert_true(sums_are_right(ctx, 4));
        attn_context_destroy(ctx);
    }
    alarm(0);
}

/* A parallel_for of the caller's: plain threads, last index first, in a mode of their own. */
typedef struct foreign {
    int calls, largest;
} foreign;

typedef struct foreign_task {
    void (*body)(void *arg, int index);
    void *arg;
    int index;
} foreign_task;

static void *run_foreign(void *arg)
{
    foreign_task *task = arg;
    fesetround(FE_UPWARD);
    task->body(task->arg, task->index);
    return fegetround() == FE_UPWARD ? task : NULL;
}

static void foreign_for(void *user, int n, void (*body)(void *arg, int index), void *arg)
{
    foreign *f = user;
    pthread_t threads[64];
    foreign_task tasks[64];
    f->calls++;
    f->largest = n > f->largest ? n : f->largest;
    for (int i = n - 1; i >= 0; i--) {
        tasks[i] = (foreign_task){body, arg, i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_foreign, &tasks[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        void *kept_mode;
        pthread_join(threads[i], &kept_mode);
        assert_non_null(kept_mode);
    }
}

static void threads_of_the_caller(void **state)
{
    (void)state;
    foreign f = {0, 0};
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    o.threads = 5;
    o.parallel_for = foreign_for;
    o.parallel_user = &f;
    attn_context *ctx;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    assert_int_equal(attn_context_threads(ctx), 5);
    assert_true(sums_are_right(ctx, 0));
    assert_true(sums_are_right(ctx, 1));
    assert_int_equal(f.calls, 0); /* one worker is the caller */
    for (int workers = 2; workers <= 5; workers++)
        assert_true(sums_are_right(ctx, workers));
    assert_int_equal(f.calls, 4);
    assert_int_equal(f.largest, 5);
    attn_context_destroy(ctx);
}

/* What an OpenMP runtime does for a parallel region: every thread of the team runs body once. */
static int team;

typedef struct region {
    void (*body)(void *arg);
    void *arg;
} region;

static void *run_member(void *arg)
{
    const region *r = arg;
    r->body(r->arg);
    return NULL;
}

static void fake_gomp_parallel(void (*body)(void *arg), void *arg, unsigned threads, unsigned flags)
{
    assert_int_equal(threads, 0); /* the usual team */
    assert_int_equal(flags, 0);
    pthread_t members[16];
    region r = {body, arg};
    for (int i = 1; i < team; i++)
        assert_int_equal(pthread_create(&members[i], NULL, run_member, &r), 0);
    body(arg);
    for (int i = 1; i < team; i++)
        pthread_join(members[i], NULL);
}

static void threads_of_openmp(void **state)
{
    (void)state;
    void (*gomp)(void (*)(void *), void *, unsigned, unsigned) = fake_gomp_parallel;
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    o.threads = 5;
    o.parallel_for = attn_openmp_for;
    memcpy(&o.parallel_user, &gomp, sizeof o.parallel_user);
    attn_context *ctx;
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    for (team = 1; team <= 8; team++) /* fewer than asked for, as many, more */
        for (int workers = 0; workers <= 5; workers++)
            assert_true(sums_are_right(ctx, workers));
    attn_context_destroy(ctx);
}

static atomic_int failures;

static void *own_context(void *arg)
{
    (void)arg;
    for (int i = 0; i < 30; i++) {
        attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
        attn_context *ctx;
        o.threads = 1 + i % 3;
        if (attn_context_create(&o, &ctx, NULL) != ATTN_OK) {
            atomic_fetch_add(&failures, 1);
            continue;
        }
        for (int k = 0; k < 10; k++)
            if (!sums_are_right(ctx, 1 + k % 5))
                atomic_fetch_add(&failures, 1);
        attn_context_destroy(ctx);
    }
    return NULL;
}

static void *shared_context(void *arg)
{
    for (int i = 0; i < 150; i++)
        if (!sums_are_right(arg, 1 + i % 7) || attn_context_threads(arg) != 3)
            atomic_fetch_add(&failures, 1);
    return NULL;
}

static void *no_context(void *arg)
{
    (void)arg;
    for (int i = 0; i < 150; i++)
        if (!sums_are_right(NULL, 1 + i % 7))
            atomic_fetch_add(&failures, 1);
    return NULL;
}

static void on_eight_threads(void *(*f)(void *), void *arg)
{
    pthread_t threads[8];
    alarm(60);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, f, arg), 0);
    for (size_t i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    alarm(0);
    assert_int_equal(atomic_load(&failures), 0);
}

static void eight_threads_with_own_contexts(void **state)
{
    (void)state;
    on_eight_threads(own_context, NULL);
    on_eight_threads(no_context, NULL);
}

static void eight_threads_share_a_context(void **state)
{
    (void)state;
    attn_context *ctx = context_of(3);
    on_eight_threads(shared_context, ctx);
    attn_context_destroy(ctx);
}

/* ------------------------------------------------------------------------------- fork */

/* A call that stays inside until it is let go: the lock taken, all threads in bodies. */
static atomic_int inside, let_go = 1;

static void hold(void *arg, int worker)
{
    (void)arg;
    (void)worker;
    atomic_fetch_add(&inside, 1);
    while (!atomic_load(&let_go))
        sched_yield();
}

static void meet(void *arg, int worker)
{
    hold(arg, worker);
    while (atomic_load(&inside) < 3)
        sched_yield();
}

static bool all_together(attn_context *ctx)
{
    attni_call call;
    atomic_store(&inside, 0);
    if (attni_call_begin(&call, ctx, 0, NULL, 0, NULL) != ATTN_OK)
        return false;
    attni_call_run(&call, 3, meet, NULL);
    attni_call_end(&call);
    return atomic_load(&inside) == 3;
}

/* In a child: 0 if the context works there, from two threads too, and one fork further down. */
static int use_in_child(attn_context *ctx, int depth)
{
    alarm(WATCHDOG);
    atomic_store(&failures, 0);
    atomic_store(&let_go, 1);
    if (!sums_are_right(ctx, 7))
        return 1;
    if (THREADS_OF_CHILDREN) {
        pthread_t other;
        if (pthread_create(&other, NULL, shared_context, ctx) != 0)
            return 2;
        shared_context(ctx);
        pthread_join(other, NULL);
        if (atomic_load(&failures) || !all_together(ctx))
            return 3;
    }
    if (depth > 0) {
        pid_t child = fork();
        if (child == 0)
            _exit(use_in_child(ctx, depth - 1));
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            return 4;
        if (!sums_are_right(ctx, 3))
            return 5;
    }
    attn_context_destroy(ctx);
    return 0;
}

static int in_child(attn_context *ctx, int depth)
{
    atomic_store(&refuse_threads, !THREADS_OF_CHILDREN);
    return use_in_child(ctx, depth);
}

static void fork_of_an_idle_context(void **state)
{
    (void)state;
    for (int used = 0; used < 2; used++) {
        attn_context *ctx = context_of(3);
        if (used)
            assert_true(sums_are_right(ctx, 7) && all_together(ctx));
        pid_t child = fork();
        if (child == 0)
            _exit(in_child(ctx, 2));
        expect_child(child);
        assert_true(sums_are_right(ctx, 7));
        attn_context_destroy(ctx);
    }
}

/* Memory without locks: cut from one block, given back when the next such context is made. */
static atomic_size_t bump_used;

static void *bump_allocate(void *user, size_t size, size_t alignment)
{
    static _Alignas(64) char block[16 << 20];
    (void)user;
    size_t rounded = (size + alignment - 1) / alignment * alignment;
    size_t at = atomic_fetch_add(&bump_used, rounded);
    return at + rounded <= sizeof block ? block + at : NULL;
}

/* What is released twice is a failure. */
static void *last_released;

static void bump_release(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    if (memory == last_released)
        atomic_fetch_add(&failures, 1);
    last_released = memory;
}

/* Scratch for a context that is in use at the instant of a fork. */
static attn_context *context_to_fork(void)
{
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx = NULL;
    o.threads = 3;
#if defined(__SANITIZE_ADDRESS__)
    atomic_store(&bump_used, 0);
    o.allocate = bump_allocate;
    o.release = bump_release;
#endif
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    return ctx;
}

static void *hold_the_context(void *arg)
{
    attni_call call;
    if (attni_call_begin(&call, arg, 1000, NULL, 0, NULL) != ATTN_OK)
        return NULL;
    attni_call_run(&call, 3, hold, NULL);
    attni_call_end(&call);
    return arg;
}

static atomic_bool stop_calling;
static atomic_int calls;

/* Always inside some call, with scratch that keeps growing. */
static void *call_and_call(void *arg)
{
    for (int i = 0; !atomic_load(&stop_calling); i++)
        if (!sums_are_right(arg, 1 + i % 50))
            atomic_fetch_add(&failures, 1);
        else
            atomic_fetch_add(&calls, 1);
    return NULL;
}

static void fork_inside_another_thread_s_call(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        describe_case("fork %d", i);
        attn_context *ctx = context_to_fork();
        pthread_t caller;
        atomic_store(&stop_calling, false);
        atomic_store(&calls, 0);
        if (RUNS_BEFORE_FORK > 0) /* all threads are up before it */
            assert_true(all_together(ctx));
        assert_int_equal(pthread_create(&caller, NULL, call_and_call, ctx), 0);
        while (atomic_load(&calls) < RUNS_BEFORE_FORK)
            sched_yield();
        nanosleep(&(struct timespec){0, (i % 8) * 50000}, NULL);
        pid_t child = fork();
        if (child == 0)
            _exit(in_child(ctx, 1));
        expect_child(child);
        atomic_store(&stop_calling, true);
        pthread_join(caller, NULL);
        assert_true(sums_are_right(ctx, 7));
        attn_context_destroy(ctx);
    }
    assert_int_equal(atomic_load(&failures), 0);
}

static void fork_while_the_lock_is_held(void **state)
{
    (void)state;
    for (int destroy_only = 0; destroy_only < 2; destroy_only++) {
        attn_context *ctx = context_of(3);
        pthread_t holder;
        atomic_store(&inside, 0);
        atomic_store(&let_go, 0);
        assert_int_equal(pthread_create(&holder, NULL, hold_the_context, ctx), 0);
        while (atomic_load(&inside) < 3)
            sched_yield();
        pid_t child = fork();
        if (child == 0) {
            alarm(WATCHDOG);
            if (destroy_only)
                attn_context_destroy(ctx);
            _exit(destroy_only ? 0 : in_child(ctx, 1));
        }
        expect_child(child);
        atomic_store(&let_go, 1);
        void *held;
        pthread_join(holder, &held);
        assert_ptr_equal(held, ctx);
        assert_true(sums_are_right(ctx, 7));
        attn_context_destroy(ctx);
    }
}
static void *call_once(void *arg)
{
    if (!sums_are_right(arg, 50))
        atomic_fetch_add(&failures, 1);
    return NULL;
}

/* Between two blocks of scratch: the old one is gone, the new one has not come. */
static void *waiting_allocate(void *user, size_t size, size_t alignment)
{
    hold(user, 0);
    return bump_allocate(user, size, alignment);
}

static void fork_while_scratch_is_replaced(void **state)
{
    (void)state;
    attn_context_options o = ATTN_CONTEXT_OPTIONS_INIT;
    attn_context *ctx;
    pthread_t holder;
    o.threads = 1;
    o.allocate = waiting_allocate;
    o.release = bump_release;
    atomic_store(&bump_used, 0);
    assert_int_equal(attn_context_create(&o, &ctx, NULL), ATTN_OK);
    assert_true(sums_are_right(ctx, 1));
    atomic_store(&inside, 0);
    atomic_store(&let_go, 0);
    assert_int_equal(pthread_create(&holder, NULL, call_once, ctx), 0);
    while (atomic_load(&inside) < 1)
        sched_yield();
    pid_t child = fork();
    if (child == 0) {
        alarm(WATCHDOG);
        atomic_store(&let_go, 1);
        bool right = sums_are_right(ctx, 1);
        attn_context_destroy(ctx);
        _exit(!right || atomic_load(&failures));
    }
    expect_child(child);
    atomic_store(&let_go, 1);
    pthread_join(holder, NULL);
    assert_true(sums_are_right(ctx, 7));
    attn_context_destroy(ctx);
    assert_int_equal(atomic_load(&failures), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_worker_runs_once),
        cmocka_unit_test(threads_that_the_system_refuses),
        cmocka_unit_test(create_and_destroy_1000_times),
        cmocka_unit_test(threads_of_the_caller),
        cmocka_unit_test(threads_of_openmp),
        cmocka_unit_test(eight_threads_with_own_contexts),
        cmocka_unit_test(eight_threads_share_a_context),
        cmocka_unit_test(fork_of_an_idle_context),
        cmocka_unit_test(fork_inside_another_thread_s_call),
        cmocka_unit_test(fork_while_the_lock_is_held),
        cmocka_unit_test(fork_while_scratch_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
