/* The thread pool runs every index once, concurrently, and survives refused threads and fork.
 *
 * labels: threads
 * link: -Wl,--wrap=pthread_create,--wrap=calloc,--wrap=pthread_mutex_init,--wrap=pthread_cond_init
 *
 * Idle threads sleep. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "forking.h"
#include "core/internal.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))
enum { MOST = 1000 };

/* -------------------------------------------------------------- a system that refuses */

static atomic_int threads_left = 1 << 30; /* that pthread_create still gives */
static atomic_int callocs_left = 1 << 30;

static atomic_int locks_left = 1 << 30; /* mutexes and conditions */

static bool refuses_lock(void)
{
    if (atomic_load(&locks_left) == 0)
        return true;
    atomic_fetch_sub(&locks_left, 1);
    return false;
}

int __real_pthread_mutex_init(pthread_mutex_t *, const pthread_mutexattr_t *);
int __wrap_pthread_mutex_init(pthread_mutex_t *, const pthread_mutexattr_t *);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
    return refuses_lock() ? 11 : __real_pthread_mutex_init(mutex, attr);
}

int __real_pthread_cond_init(pthread_cond_t *, const pthread_condattr_t *);
int __wrap_pthread_cond_init(pthread_cond_t *, const pthread_condattr_t *);
int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attr)
{
    return refuses_lock() ? 11 : __real_pthread_cond_init(condition, attr);
}

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*f)(void *),
                          void *arg)
{
    if (atomic_load(&threads_left) == 0)
        return 11; /* EAGAIN */
    atomic_fetch_sub(&threads_left, 1);
    return __real_pthread_create(thread, attr, f, arg);
}

void *__real_calloc(size_t, size_t);
void *__wrap_calloc(size_t, size_t);
void *__wrap_calloc(size_t count, size_t size)
{
    return atomic_fetch_sub(&callocs_left, 1) > 0 ? __real_calloc(count, size) : NULL;
}

/* ------------------------------------------------------------------------------- bodies */

typedef struct tally {
    atomic_int hits[MOST];
} tally;

static void hit(void *arg, int worker) { atomic_fetch_add(&((tally *)arg)->hits[worker], 1); }

static bool run_is_exact(attni_pool *pool, int workers)
{
    static tally t;
    for (int i = 0; i < MOST; i++)
        atomic_store(&t.hits[i], 0);
    attni_pool_run(pool, workers, hit, &t);
    for (int i = 0; i < MOST; i++)
        if (atomic_load(&t.hits[i]) != (i < workers))
            return false;
    return true;
}

/* Each body waits until all have begun: returns only if all run at the same time. */
typedef struct rendezvous {
    atomic_int here;
    int all;
} rendezvous;

static void meet(void *arg, int worker)
{
    (void)worker;
    rendezvous *r = arg;
    atomic_fetch_add(&r->here, 1);
    while (atomic_load(&r->here) < r->all)
        sched_yield();
}

static void run_together(attni_pool *pool, int threads)
{
    rendezvous r = {.all = threads};
    attni_pool_run(pool, threads, meet, &r);
    assert_int_equal(atomic_load(&r.here), threads);
}

static const int thread_counts[] = {1, 2, 3, 7};

/* -------------------------------------------------------------------------------- runs */

static void every_index_runs_once(void **state)
{
    (void)state;
    alarm(60);
    for (size_t t = 0; t < COUNT(thread_counts); t++) {
        describe_case("%d threads", thread_counts[t]);
        attni_pool *pool = attni_pool_create(thread_counts[t]);
        assert_non_null(pool);
        assert_int_equal(attni_pool_threads(pool), thread_counts[t]);
        for (int workers = 0; workers <= 70; workers++)
            assert_true(run_is_exact(pool, workers));
        assert_true(run_is_exact(pool, MOST));
        for (int i = 0; i < 2000; i++)
            assert_true(run_is_exact(pool, 1 + i % 9));
        attni_pool_destroy(pool);
    }
    alarm(0);
}

static void bodies_run_at_the_same_time(void **state)
{
    (void)state;
    alarm(60);
    for (size_t t = 0; t < COUNT(thread_counts); t++) {
        attni_pool *pool = attni_pool_create(thread_counts[t]);
        for (int i = 0; i < 100; i++)
            run_together(pool, thread_counts[t]);
        attni_pool_destroy(pool);
    }
    alarm(0);
}

/* What a body reads and writes needs no atomics of its own. */
static void add_index(void *arg, int worker)
{
    long *sums = arg;
    sums[worker + 1] = sums[0] + worker;
}

static void memory_is_handed_over(void **state)
{
    (void)state;
    attni_pool *pool = attni_pool_create(3);
    long sums[9] = {0};
    for (int i = 0; i < 3000; i++) {
        attni_pool_run(pool, 8, add_index, sums);
        for (int w = 0; w < 8; w++)
            assert_int_equal(sums[w + 1], sums[0] + w);
        sums[0] = sums[8] - 3;
        if (i % 500 == 0) /* let them fall asleep */
            nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    attni_pool_destroy(pool);
}

static void one_thousand_pools(void **state)
{
    (void)state;
    alarm(60);
    for (int i = 0; i < 1000; i++) {
        attni_pool *pool = attni_pool_create(thread_counts[i % 4]);
        if (i % 3)
            assert_true(run_is_exact(pool, 2 + i % 5));
        attni_pool_destroy(pool);
    }
    attni_pool_destroy(NULL);
    alarm(0);
}

static int threads_of_this_process(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void threads_start_when_needed(void **state)
{
    (void)state;
    attni_pool *pool = attni_pool_create(4);
    int before = threads_of_this_process();
    run_is_exact(pool, 1);
    assert_int_equal(threads_of_this_process(), before);
    run_together(pool, 2);
    assert_int_equal(threads_of_this_process(), before + 1);
    run_together(pool, 4);
    assert_int_equal(threads_of_this_process(), before + 3);
    run_is_exact(pool, 100);
    assert_int_equal(threads_of_this_process(), before + 3);
    attni_pool_destroy(pool);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void idle_threads_sleep(void **state)
{
    (void)state;
    attni_pool *pool = attni_pool_create(7);
    run_together(pool, 7);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    double before = cpu_seconds();
    nanosleep(&(struct timespec){0, 400000000}, NULL);
    assert_number(cpu_seconds() - before, <, 0.05);
    run_together(pool, 7);
    attni_pool_destroy(pool);
}

/* A run for fewer threads than are asleep wakes as many as it can use: else its bodies, which wait
 * for each other, never all begin. */
static void as_many_wake_as_are_needed(void **state)
{
    (void)state;
    alarm(60);
    attni_pool *pool = attni_pool_create(6);
    run_together(pool, 6);
    for (int threads = 2; threads <= 6; threads++)
        for (int i = 0; i < 3; i++) {
            nanosleep(&(struct timespec){0, 20000000}, NULL); /* they fall asleep */
            run_together(pool, threads);
        }
    attni_pool_destroy(pool);
    alarm(0);
}

/* ---------------------------------------------------------------------------- refusals */

static void refused_threads_are_done_without(void **state)
{
    (void)state;
    for (int given = 0; given <= 7; given++) {
        describe_case("%d threads are given", given);
        attni_pool *pool = attni_pool_create(7);
        atomic_store(&threads_left, given);
        assert_true(run_is_exact(pool, 40));
        assert_int_equal(attni_pool_threads(pool), given < 6 ? given + 1 : 7);
        assert_true(run_is_exact(pool, 7));
        run_together(pool, given < 6 ? given + 1 : 7);
        atomic_store(&threads_left, 1 << 30);
        assert_true(run_is_exact(pool, 9));
        attni_pool_destroy(pool);
    }
}

static void no_memory_no_pool(void **state)
{
    (void)state;
    atomic_store(&callocs_left, 0);
    attni_pool *pool = attni_pool_create(3);
    atomic_store(&callocs_left, 1 << 30);
    assert_null(pool);
}

/* A mutex or a condition that the system refuses: no pool, and no thread waits for one. */
static void no_lock_no_pool(void **state)
{
    (void)state;
    for (int given = 0; given < 3; given++) { /* a pool has one mutex and two conditions */
        atomic_store(&locks_left, given);
        attni_pool *pool = attni_pool_create(3);
        atomic_store(&locks_left, 1 << 30);
        assert_null(pool);
    }
    attni_pool *pool = attni_pool_create(3);
    assert_non_null(pool);
    attni_pool_destroy(pool);
}

/* ----------------------------------------------------------------------------- signals */

typedef struct masks {
    rendezvous meeting;
    pthread_t caller;
    atomic_int wrong;
} masks;

static void look_at_mask(void *arg, int worker)
{
    masks *m = arg;
    meet(&m->meeting, worker);
    if (pthread_equal(pthread_self(), m->caller))
        return;
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    static const int asynchronous[] = {SIGALRM, SIGINT, SIGTERM, SIGCHLD, SIGHUP, SIGUSR1, SIGPIPE};
    for (size_t i = 0; i < COUNT(asynchronous); i++)
        if (!sigismember(&now, asynchronous[i]))
            atomic_fetch_add(&m->wrong, 1);
    if (sigismember(&now, SIGSEGV))
        atomic_fetch_add(&m->wrong, 1);
}

static void signals_stay_with_the_application(void **state)
{
    (void)state;
    sigset_t mine, before, after;
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &mine, &before);
    attni_pool *pool = attni_pool_create(3);
    masks m = {.meeting = {.all = 3}, .caller = pthread_self()};
    attni_pool_run(pool, 3, look_at_mask, &m);
    attni_pool_destroy(pool);
    pthread_sigmask(SIG_SETMASK, &before, &after);
    assert_int_equal(atomic_load(&m.wrong), 0);
    for (int s = 1; s < 32; s++)
        assert_int_equal(sigismember(&after, s), s == SIGUSR2);
}

/* -------------------------------------------------------------------------------- fork */

/* In a child: 0 if the pool works there and, one fork further down, there too. */
static int use_in_child(attni_pool *pool, int depth)
{
    alarm(WATCHDOG);
    atomic_store(&threads_left, THREADS_OF_CHILDREN);
    for (int i = 1; i < 30; i++)
        if (!run_is_exact(pool, i))
            return 1;
    rendezvous r = {.all = attni_pool_threads(pool)}; /* there are as many as it says */
    attni_pool_run(pool, r.all, meet, &r);
    if (depth > 0) {
        pid_t child = fork();
        if (child == 0)
            _exit(use_in_child(pool, depth - 1));
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            return 2;
        if (!run_is_exact(pool, 5)) /* this generation's own goes on */
            return 3;
    }
    attni_pool_destroy(pool);
    return 0;
}

static void fork_of_an_idle_pool(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(thread_counts); t++)
        for (int used = 0; used < 2; used++) {
            attni_pool *pool = attni_pool_create(thread_counts[t]);
            if (used)
                run_together(pool, thread_counts[t]);
            pid_t child = fork();
            if (child == 0)
                _exit(use_in_child(pool, 2));
            expect_child(child);
            run_together(pool, thread_counts[t]);
            attni_pool_destroy(pool);
        }
}

static void a_child_may_only_destroy(void **state)
{
    (void)state;
    attni_pool *pool = attni_pool_create(3);
    run_together(pool, 3);
    pid_t child = fork();
    if (child == 0) {
        alarm(WATCHDOG);
        attni_pool_destroy(pool);
        _exit(0);
    }
    expect_child(child);
    assert_true(run_is_exact(pool, 20));
    attni_pool_destroy(pool);
}

static atomic_bool stop_running;
static atomic_int runs;

static void *run_and_run(void *arg)
{
    static tally t;
    for (int i = 0; !atomic_load(&stop_running); i++) {
        attni_pool_run(arg, 1 + i % 11, hit, &t);
        atomic_fetch_add(&runs, 1);
    }
    return NULL;
}

/* The child is forked at any instant of a run: locks held, threads half started, work claimed. */
static void fork_inside_another_thread_s_run(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        describe_case("fork %d", i);
        attni_pool *pool = attni_pool_create(3);
        pthread_t runner;
        atomic_store(&stop_running, false);
        atomic_store(&runs, 0);
        if (RUNS_BEFORE_FORK > 0) /* all threads are up before it */
            run_together(pool, 3);
        assert_int_equal(pthread_create(&runner, NULL, run_and_run, pool), 0);
        while (atomic_load(&runs) < RUNS_BEFORE_FORK)
            sched_yield();
        nanosleep(&(struct timespec){0, (i % 8) * 50000}, NULL);
        pid_t child = fork();
        if (child == 0)
            _exit(use_in_child(pool, 1));
        expect_child(child);
        atomic_store(&stop_running, true);
        pthread_join(runner, NULL);
        assert_true(run_is_exact(pool, 17));
        attni_pool_destroy(pool);
    }
}

/* One CPU for all: nobody may spin while the thread that it waits for has no CPU. */
static void one_cpu_is_enough(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        alarm(WATCHDOG);
        cpu_set_t all, one;
        sched_getaffinity(0, sizeof all, &all);
        CPU_ZERO(&one);
        for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
            if (CPU_ISSET(cpu, &all))
                CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0)
            _exit(1);
        attni_pool *pool = attni_pool_create(3);
        rendezvous r = {.all = 3};
        for (int i = 0; i < 200; i++) {
            atomic_store(&r.here, 0);
            attni_pool_run(pool, 3, meet, &r);
        }
        attni_pool_destroy(pool);
        _exit(0);
    }
    expect_child(child);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_runs_once),
        cmocka_unit_test(bodies_run_at_the_same_time),
        cmocka_unit_test(memory_is_handed_over),
        cmocka_unit_test(one_thousand_pools),
        cmocka_unit_test(threads_start_when_needed),
        cmocka_unit_test(idle_threads_sleep),
        cmocka_unit_test(as_many_wake_as_are_needed),
        cmocka_unit_test(refused_threads_are_done_without),
        cmocka_unit_test(no_memory_no_pool),
        cmocka_unit_test(no_lock_no_pool),
        cmocka_unit_test(signals_stay_with_the_application),
        cmocka_unit_test(fork_of_an_idle_pool),
        cmocka_unit_test(a_child_may_only_destroy),
        cmocka_unit_test(fork_inside_another_thread_s_run),
        cmocka_unit_test(one_cpu_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
