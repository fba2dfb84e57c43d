/* The thread pool: one run at a time; the caller takes part; idle threads sleep.
 *
 * A run calls body(arg, i) once for every i < workers. `left` counts the indices that are not
 * claimed yet. Caller and workers claim indices by compare-and-swap until none is left; then the
 * caller waits until `undone`, the count of indices that are not finished, is 0. A worker that
 * wakes late finds nothing to claim and sleeps again; no thread waits for it. `body`, `arg` and
 * `workers` need not be atomic: they are read only after a claim, and change only when each claimed
 * index is done.
 *
 * Calls come in bursts. So a worker without work first spins for ATTNI_SPIN_SECONDS, in case the
 * next call follows at once, and then sleeps on the condition `wake`. The caller waits for the
 * workers in the same way, on `done`. Before a thread sleeps, it announces this (`sleepers`,
 * `caller_sleeps`) and then checks the count again. To wake others, a thread changes the count and
 * then checks for sleepers. With sequentially consistent atomics at least one of the two sees what
 * the other wrote, so no wake-up is lost, and the fast path takes no lock.
 *
 * fork() copies only the calling thread. Therefore the pool records the process that its threads
 * belong to, and a run in another process starts over. Threads that do not exist there may hold the
 * inherited locks, so these are never locked, unlocked or destroyed; their bytes are initialised
 * anew.
 */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "../core/internal.h"

#ifdef __has_feature /* clang reports the sanitizer by this; gcc defines the macro below */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define STACK_BYTES ((size_t)8 << 20) /* the locals of each inlined kernel take room of their own */
#else
#define STACK_BYTES ((size_t)256 << 10) /* little: arrays are in scratch memory */
#endif

struct attni_pool {
    int asked;          /* requested threads, including the caller */
    atomic_int threads; /* `asked`, or fewer if the system cannot start so many */
    int process;        /* attni_process() of the process that initialised the pool; 0: none */
    int started;        /* workers that were started: thread[0 .. started-1] */
    double spin;        /* seconds; 0 if there are fewer CPUs than threads */

    atomic_int left;   /* unclaimed indices; -1: workers exit */
    atomic_int undone; /* indices whose body has not returned */
    void (*body)(void *arg, int worker);
    void *arg;
    int workers;

    pthread_mutex_t lock; /* used only for sleeping and waking */
    pthread_cond_t wake, done;
    atomic_int sleepers;      /* workers that wait on `wake` or are about to */
    atomic_int caller_sleeps; /* the caller waits on `done` or is about to */

    pthread_t thread[];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until (*count != 0) == nonzero; returns false if that takes longer than `seconds`. */
static bool spin(const atomic_int *count, bool nonzero, double seconds)
{
    double start = 0;
    for (unsigned i = 0; (atomic_load(count) != 0) != nonzero; i++) {
        if (seconds <= 0)
            return false;
        if (i % 32 == 0) {
            double now = attni_now();
            if (i == 0)
                start = now;
            else if (now - start > seconds)
                return false;
        }
        relax();
    }
    return true;
}

/* ------------------------------------------------------------------------------------ work */

/* Claims and runs indices until none is left. */
static void work(attni_pool *pool)
{
    int left = atomic_load(&pool->left);
    while (left > 0) {
        if (!atomic_compare_exchange_weak(&pool->left, &left, left - 1))
            continue;
        pool->body(pool->arg, pool->workers - left);
        if (atomic_fetch_sub(&pool->undone, 1) == 1 && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
        left = atomic_load(&pool->left);
    }
}

static void *worker(void *arg)
{
    attni_pool *pool = arg;
    while (atomic_load(&pool->left) >= 0) {
        work(pool);
        if (spin(&pool->left, true, pool->spin))
            continue;
        pthread_mutex_lock(&pool->lock);
        atomic_fetch_add(&pool->sleepers, 1);
        while (atomic_load(&pool->left) == 0)
            pthread_cond_wait(&pool->wake, &pool->lock);
        atomic_fetch_sub(&pool->sleepers, 1);
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

/* Wakes sleeping workers, at most `wanted`, after a change of `left`. */
static void wake(attni_pool *pool, int wanted)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    if (wanted >= atomic_load(&pool->sleepers))
        pthread_cond_broadcast(&pool->wake);
    else
        for (int i = 0; i < wanted; i++)
            pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void wait_until_done(attni_pool *pool)
{
    if (spin(&pool->undone, false, pool->spin))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, 1);
    while (atomic_load(&pool->undone) != 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->lock);
}

/* --------------------------------------------------------------------------------- threads */

/* Initialises the pool for this process, without threads. */
static bool settle(attni_pool *pool)
{
    int cpus = attni_cpu_count();
    pool->process = 0;
    pool->started = 0;
    pool->spin = pool->asked <= cpus ? ATTNI_SPIN_SECONDS : 0;
    atomic_store(&pool->threads, pool->asked);
    atomic_store(&pool->left, 0);
    atomic_store(&pool->undone, 0);
    atomic_store(&pool->sleepers, 0);
    atomic_store(&pool->caller_sleeps, 0);
    if (pthread_mutex_init(&pool->lock, NULL) != 0)
        return false;
    if (pthread_cond_init(&pool->wake, NULL) != 0) {
        pthread_mutex_destroy(&pool->lock);
        return false;
    }
    if (pthread_cond_init(&pool->done, NULL) != 0) {
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->lock);
        return false;
    }
    pool->process = attni_process();
    return true;
}

#ifdef _WIN32 /* Windows has no per-thread signals */
typedef int signal_set;
static signal_set block_signals(void) { return 0; }
static void unblock_signals(const signal_set *before) { (void)before; }
#else
typedef sigset_t signal_set;

/* Blocks all signals but faults, so that the application's own threads handle its signals. A fault
 * is delivered to the thread that caused it; if it were blocked, the process would be killed before
 * the handler could report the location. */
static signal_set block_signals(void)
{
    signal_set blocked, before;
    static const int faults[] = {
        SIGSEGV, SIGBUS, SIGFPE, SIGILL,
#ifdef SIGTRAP /* XSI only: FreeBSD's headers hide it */
        SIGTRAP,
#endif
#ifdef SIGSYS
        SIGSYS,
#endif
    };
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    return before;
}

static void unblock_signals(const signal_set *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}
#endif

/* Starts workers until there are `wanted`, or as many as the system provides. */
static void start(attni_pool *pool, int wanted)
{
    if (pool->started >= wanted)
        return;
    const signal_set before = block_signals(); /* a new thread inherits the mask */

    pthread_attr_t small;
    bool sized = pthread_attr_init(&small) == 0;
    if (sized)
        pthread_attr_setstacksize(&small, STACK_BYTES);
    while (pool->started < wanted) {
        pthread_t *thread = &pool->thread[pool->started];
        /* A program with much thread-local data may need a larger stack: retry with the default. */
        if ((!sized || pthread_create(thread, &small, worker, pool) != 0) &&
            pthread_create(thread, NULL, worker, pool) != 0) {
            atomic_store(&pool->threads, pool->started + 1);
            break;
        }
        pool->started++;
    }
    if (sized)
        pthread_attr_destroy(&small);
    unblock_signals(&before);
}

/* -------------------------------------------------------------------------------- interface */

attni_pool *attni_pool_create(int threads)
{
    size_t bytes, all;
    int asked = threads > 1 ? threads : 1;
    if (!attni_size_mul((size_t)asked - 1, sizeof(pthread_t), &bytes) ||
        !attni_size_add(bytes, sizeof(attni_pool), &all))
        return NULL;
    attni_pool *pool = attni_process_watch() ? calloc(1, all) : NULL;
    if (!pool)
        return NULL;
    pool->asked = asked;
    if (!settle(pool)) {
        free(pool);
        return NULL;
    }
    return pool;
}

int attni_pool_threads(const attni_pool *pool) { return atomic_load(&pool->threads); }

void attni_pool_run(attni_pool *pool, int workers, void (*body)(void *arg, int worker), void *arg)
{
    bool ours =
        workers > 1 && pool->asked > 1 && (pool->process == attni_process() || settle(pool));
    if (ours) {
        int most = attni_pool_threads(pool);
        start(pool, (workers < most ? workers : most) - 1);
    }
    if (!ours || pool->started == 0) {
        for (int i = 0; i < workers; i++)
            body(arg, i);
        return;
    }

    /* If the caller were cancelled, `arg` would disappear while workers still use it. */
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pool->body = body;
    pool->arg = arg;
    pool->workers = workers;
    atomic_store(&pool->undone, workers);
    atomic_store(&pool->left, workers);
    wake(pool, workers - 1);
    work(pool);
    wait_until_done(pool);
    pthread_setcancelstate(cancel, &cancel);
}

void attni_pool_destroy(attni_pool *pool)
{
    if (!pool)
        return;
    if (pool->process == attni_process()) {
        atomic_store(&pool->left, -1);
        wake(pool, pool->started);
        for (int i = 0; i < pool->started; i++)
            pthread_join(pool->thread[i], NULL);
        pthread_cond_destroy(&pool->done);
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->lock);
    }
    free(pool);
}
