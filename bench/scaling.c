/* Simulates how the forward scales to more threads than this machine has CPUs.
 *
 *     make bench-scaling
 *     build/bench-scaling [GB/s]     of streaming reads, of the machine to be imagined
 *
 * For each number of threads the plan is that of a context with this number. Its tasks (or their
 * parts and folds) run on this thread, worker by worker, alternating with all other plans; the
 * shortest time of each counts. The caches contain what the last tasks left. Then the schedule is
 * simulated with these times (schedule.h) and with the measured times of waking a thread and taking
 * a task. If there are enough CPUs, the time of the library's own call is printed beside it.
 *
 * The simulation does not include memory bandwidth that threads share (the last column is the time
 * to read and write everything once at the rate of all CPUs of this machine, or at the given rate),
 * lower clock rates when many cores work, caches that cores share, and a microsecond for checking
 * and planning. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/schedule.h"
#include "core/internal.h"
#include "sdpa/sdpa.h"

#define SHAPE_SECONDS 8.0
#define UNKNOWN 1e9 /* seconds: not timed yet */
enum { FEWEST_ROUNDS = 5, PROBES = 301, TAKES = 20000, CALLS_PLAYED = 8 };
static const int thread_counts[] = {1, 2, 4, 8, 16};
enum { COUNTS = sizeof thread_counts / sizeof *thread_counts };

typedef struct shape {
    const char *name;
    attn_dtype dtype;
    int64_t B, H, Hk, T, S, D;
    bool causal;
} shape;

static const shape shapes[] = {
    {"12h 512, D=64", ATTN_F32, 1, 12, 12, 512, 512, 64, false},
    {"8h 2048, D=128", ATTN_F32, 1, 8, 8, 2048, 2048, 128, false},
    {"8h 2048, D=128, causal", ATTN_F32, 1, 8, 8, 2048, 2048, 128, true},
    {"1h 8192, D=128, causal", ATTN_F32, 1, 1, 1, 8192, 8192, 128, true},
    {"batch 8, 12h 128, D=64", ATTN_F32, 8, 12, 12, 128, 128, 64, false},
    {"bf16 8h 2048, D=128", ATTN_BF16, 1, 8, 8, 2048, 2048, 128, false},
    {"decode 32h of 4096", ATTN_F32, 1, 32, 32, 1, 4096, 128, false},
    {"decode 8h of 32768", ATTN_F32, 1, 8, 8, 1, 32768, 128, false},
    {"decode bf16 32:4h of 8192", ATTN_BF16, 1, 32, 4, 1, 8192, 128, false},
};

static void *need(void *memory)
{
    if (!memory) {
        fprintf(stderr, "bench-scaling: out of memory\n");
        exit(4);
    }
    return memory;
}

static void *need_lines(size_t bytes)
{
    return need(aligned_alloc(ATTNI_ALIGN, (bytes + ATTNI_ALIGN) / ATTNI_ALIGN * ATTNI_ALIGN));
}

static void expect(attn_status status, const attn_error *error)
{
    if (status) {
        fprintf(stderr, "bench-scaling: %s\n", error->message);
        exit(2);
    }
}

/* -------------------------------------------------------------------- measured costs of threads */

typedef struct costs {
    double spinning; /* from a call to the first instruction of a worker that spins */
    double asleep;   /* of a worker that sleeps */
    double signal;   /* delay of the caller for each sleeping worker that it wakes */
    double take;     /* of adding to a counter that another thread also adds to */
} costs;

typedef struct probe {
    pthread_t caller;
    atomic_int there;
    double caller_at, worker_at;
} probe;

/* Waits until both threads are here, so that neither gets both indices. */
static void note_time(void *arg, int index)
{
    probe *p = arg;
    const double now = attni_now();
    (void)index;
    if (pthread_equal(pthread_self(), p->caller))
        p->caller_at = now;
    else
        p->worker_at = now;
    atomic_fetch_add(&p->there, 1);
    while (atomic_load(&p->there) < 2)
        ;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The q-quantile of x[n], which is sorted. */
static double quantile(double *x, int n, double q)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[(int)(q * n)];
}

static void count_up(void *arg, int index)
{
    atomic_llong *counter = arg;
    (void)index;
    while (atomic_fetch_add_explicit(counter, 1, memory_order_relaxed) < TAKES)
        ;
}

/* For spinning workers, the shortest time. For sleeping ones, the first quartile: the times differ,
 * and other load on the machine lengthens them. */
static costs measure_costs(void)
{
    costs c = {0};
    attni_pool *pool = need(attni_pool_create(2));
    double worker[PROBES], caller[2][PROBES];
    for (int sleeps = 0; sleeps < 2; sleeps++) {
        for (int i = 0; i < PROBES; i++) {
            double start = attni_now();
            while (sleeps && attni_now() - start < 10 * ATTNI_SPIN_SECONDS)
                ;
            probe p = {.caller = pthread_self()};
            start = attni_now();
            attni_pool_run(pool, 2, note_time, &p);
            worker[i] = p.worker_at - start;
            caller[sleeps][i] = p.caller_at - start;
        }
        *(sleeps ? &c.asleep : &c.spinning) = quantile(worker, PROBES, sleeps ? 0.25 : 0);
    }
    c.signal = quantile(caller[1], PROBES, 0.25) - quantile(caller[0], PROBES, 0);
    double best = UNKNOWN;
    for (int i = 0; i < PROBES; i++) {
        atomic_llong counter;
        atomic_init(&counter, 0);
        const double start = attni_now();
        attni_pool_run(pool, 2, count_up, &counter);
        const double took = attni_now() - start;
        best = took < best ? took : best;
    }
    c.take = best / TAKES;
    attni_pool_destroy(pool);
    return c;
}

static void read_memory(void *arg, int index)
{
    ((double *)arg)[index] = attn_measure_read((size_t)64 << 20, 0.3);
}

/* Bytes per second that all CPUs, up to MOST_WORKERS, read together. */
static double measure_reading(int *cpus)
{
    double rate[MOST_WORKERS], sum = 0;
    *cpus = attni_cpu_count() < MOST_WORKERS ? attni_cpu_count() : MOST_WORKERS;
    attni_pool *pool = need(attni_pool_create(*cpus));
    attni_pool_run(pool, *cpus, read_memory, rate);
    attni_pool_destroy(pool);
    for (int i = 0; i < *cpus; i++)
        sum += rate[i];
    return sum;
}

/* --------------------------------------------------- one plan: its tasks on this thread, timed */

typedef struct replay {
    attn_context *ctx;
    attni_plan plan;
    attni_cursor cursor;
    char *scratch, *partials;
    int workers;
    int64_t items;   /* tasks, or parts of tasks */
    double *item;    /* [items] shortest time, in seconds */
    double *fold;    /* [tasks]; NULL: not cut */
    int *by;         /* [items] the worker that ran it */
    double measured; /* shortest time of the library's call, if there are enough CPUs */
} replay;

static replay make_replay(const attn_sdpa_args *args, int threads)
{
    replay r = {.measured = UNKNOWN};
    attn_error error;
    attn_context_options options = ATTN_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    expect(attn_context_create(&options, &r.ctx, &error), &error);
    expect(attni_sdpa_prepare(&r.plan, r.ctx, args, &error), &error);
    const attni_plan *p = &r.plan;
    r.cursor = attni_last_sequence(p);
    r.workers = p->workers > 1 ? p->workers : 1;
    r.items = p->tasks * p->parts;
    r.scratch = need_lines(p->scratch_bytes);
    r.partials = r.scratch + (size_t)r.workers * p->worker_bytes;
    r.item = need(calloc((size_t)r.items, sizeof *r.item));
    r.fold = p->parts > 1 ? need(calloc((size_t)p->tasks, sizeof *r.fold)) : NULL;
    r.by = need(calloc((size_t)r.items, sizeof *r.by));
    for (int64_t i = 0; i < r.items; i++) {
        r.item[i] = UNKNOWN;
        r.by[i] = (int)(i % r.workers);
    }
    for (int64_t i = 0; r.fold && i < p->tasks; i++)
        r.fold[i] = UNKNOWN;
    return r;
}

static void free_replay(replay *r)
{
    attn_context_destroy(r->ctx);
    free(r->scratch);
    free(r->item);
    free(r->fold);
    free(r->by);
}

static void keep_least(double *best, double seconds)
{
    if (seconds < *best)
        *best = seconds;
}

/* Like run_task() of src/sdpa/sdpa.c. */
static void run_item(replay *r, int64_t i)
{
    const attni_plan *p = &r->plan;
    char *scratch = r->scratch + (size_t)r->by[i] * p->worker_bytes;
    const int64_t number = i / p->parts, part = i % p->parts;
    attni_task task, next;
    const double start = attni_now();
    attni_find_task(p, number, &r->cursor, &task);
    if (p->parts > 1) {
        p->engine->part(p, &task.sequence, task.i0, task.rows, p->chunks * part / p->parts,
                        p->chunks * (part + 1) / p->parts,
                        r->partials + (size_t)number * (size_t)p->chunks * p->partial_bytes,
                        scratch);
    } else {
        const bool ahead = p->far && number + 1 < p->tasks;
        if (ahead)
            attni_find_task(p, number + 1, &r->cursor, &next);
        p->engine->task(p, &task, ahead ? &next : NULL, scratch);
    }
    keep_least(&r->item[i], attni_now() - start);
}

static void run_pass(replay *r)
{
    const attni_plan *p = &r->plan;
    for (int w = 0; w < r->workers; w++)
        for (int64_t i = 0; i < r->items; i++)
            if (r->by[i] == w)
                run_item(r, i);
    for (int64_t number = 0; r->fold && number < p->tasks; number++) {
        attni_task task;
        attni_find_task(p, number, &r->cursor, &task);
        char *partials = r->partials + (size_t)number * (size_t)p->chunks * p->partial_bytes;
        const double start = attni_now();
        p->engine->fold(p, &task.sequence, task.i0, task.rows, p->chunks, partials, r->scratch);
        keep_least(&r->fold[number], attni_now() - start);
    }
}

/* ------------------------------------------------------------------------------- the result */

typedef struct result {
    double seconds; /* mean time of a call in a sequence of calls */
    double paused;  /* time of a call before which all threads sleep */
    double work, waking,
        idle; /* of all threads, in a sequence of calls; their sum is threads * seconds */
} result;

/* Simulates one call. asleep[w]: whether worker w sleeps before the call and, if another call
 * follows, after it. */
static result play_call(replay *r, const costs *c, int threads, bool *asleep)
{
    double start[MOST_WORKERS] = {0}, end[MOST_WORKERS];
    int sleepers = 0, awake = 0;
    for (int w = 1; w < r->workers; w++)
        start[w] = asleep[w] ? c->asleep + c->signal * sleepers++ : c->spinning + c->take * awake++;
    start[0] = c->signal * sleepers;
    const bool alone = r->workers == 1;
    const schedule s = {.items = r->items,
                        .parts = r->plan.parts,
                        .item = r->item,
                        .fold = r->fold,
                        .workers = r->workers,
                        .start = start,
                        .take = alone ? 0 : c->take};
    schedule_play(&s, end, r->by);
    result x = {0};
    double last = 0;
    for (int w = 0; w < r->workers; w++)
        last = end[w] > last ? end[w] : last;
    x.seconds = last; /* if the caller is the last; otherwise it must notice the end */
    if (last > end[0])
        x.seconds += last - end[0] > ATTNI_SPIN_SECONDS ? c->asleep : c->spinning;
    for (int64_t i = 0; i < r->items; i++)
        x.work += r->item[i];
    for (int64_t i = 0; r->fold && i < r->plan.tasks; i++)
        x.work += r->fold[i];
    x.waking = s.take * (double)r->items + (x.seconds - last) * r->workers;
    for (int w = 0; w < r->workers; w++) {
        x.waking += start[w];
        asleep[w] = x.seconds - end[w] > ATTNI_SPIN_SECONDS;
    }
    x.idle = threads * x.seconds - x.work - x.waking;
    return x;
}

static result play(replay *r, const costs *c, int threads)
{
    bool asleep[MOST_WORKERS];
    memset(asleep, true, sizeof asleep);
    const double paused = play_call(r, c, threads, asleep).seconds;
    result mean = {.paused = paused};
    for (int call = 0; call < CALLS_PLAYED; call++) {
        const result x = play_call(r, c, threads, asleep);
        mean.seconds += x.seconds / CALLS_PLAYED;
        mean.work += x.work / CALLS_PLAYED;
        mean.waking += x.waking / CALLS_PLAYED;
        mean.idle += x.idle / CALLS_PLAYED;
    }
    return mean;
}

/* Times the library's own calls, one after the other. */
static void time_calls(replay *r, const attn_sdpa_args *args)
{
    const double first = attni_now();
    double end = first;
    for (int call = 0; call < 3 || (end - first < 0.01 && call < 50); call++) {
        attn_error error;
        const double start = attni_now();
        expect(attn_sdpa_forward(r->ctx, args, &error), &error);
        end = attni_now();
        keep_least(&r->measured, end - start);
    }
}

static void print_row(const char *name, int threads, const replay *r, const result *x,
                      const result *one, double reading)
{
    char tasks[32], measured[32] = "-";
    if (r->plan.parts > 1)
        snprintf(tasks, sizeof tasks, "%lld x %lld", (long long)r->plan.tasks,
                 (long long)r->plan.parts);
    else
        snprintf(tasks, sizeof tasks, "%lld", (long long)r->plan.tasks);
    if (r->measured < UNKNOWN)
        snprintf(measured, sizeof measured, "%.3f", 1e3 * r->measured);
    const double all = threads * x->seconds;
    printf("| %s | %d | %s | %.3f | %s | %.2f | %.0f%% | %.1f | %.1f | %.1f | %.2f | %.3f%s |\n",
           name, threads, tasks, 1e3 * x->seconds, measured, one->seconds / x->seconds,
           100 * one->work / all, 100 * (x->work - one->work) / all, 100 * x->waking / all,
           100 * x->idle / all, one->seconds / x->paused, 1e3 * reading,
           reading > x->seconds ? " **<**" : "");
}

static attn_tensor random_tensor(const shape *s, int64_t H, int64_t rows, attn_rng *rng)
{
    const size_t n = (size_t)(s->B * H * rows * s->D);
    float *values = need(malloc(n * sizeof *values));
    attn_rng_randn(rng, values, n);
    void *data = need_lines(n * attni_dtype_size(s->dtype));
    attni_store_row_f32(data, s->dtype, 1, values, (int64_t)n);
    free(values);
    return attn_bhtd(data, s->dtype, s->B, H, rows, s->D);
}

static void run_shape(const shape *s, const costs *c, double rate, int cpus)
{
    attn_rng rng;
    attn_rng_seed(&rng, 1);
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    args.q = random_tensor(s, s->H, s->T, &rng);
    args.k = random_tensor(s, s->Hk, s->S, &rng);
    args.v = random_tensor(s, s->Hk, s->S, &rng);
    args.out = random_tensor(s, s->H, s->T, &rng);
    args.causal = s->causal ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
    const double bytes = attni_tensor_bytes(&args.q) + attni_tensor_bytes(&args.k) +
                         attni_tensor_bytes(&args.v) + attni_tensor_bytes(&args.out);
    replay r[COUNTS];
    for (int n = 0; n < COUNTS; n++)
        r[n] = make_replay(&args, thread_counts[n]);
    const double start = attni_now();
    for (int round = 0; round < FEWEST_ROUNDS || attni_now() - start < SHAPE_SECONDS; round++)
        for (int n = 0; n < COUNTS; n++) {
            run_pass(&r[n]);
            play(&r[n], c, thread_counts[n]); /* assigns the items again */
            if (thread_counts[n] <= cpus)
                time_calls(&r[n], &args);
        }
    const result one = play(&r[0], c, 1);
    for (int n = 0; n < COUNTS; n++) {
        const result x = play(&r[n], c, thread_counts[n]);
        print_row(n ? "" : s->name, thread_counts[n], &r[n], &x, &one, bytes / rate);
        free_replay(&r[n]);
    }
    fflush(stdout);
    free(args.q.data);
    free(args.k.data);
    free(args.v.data);
    free(args.out.data);
}

int main(int argc, char **argv)
{
    char *end = NULL;
    double rate = argc > 1 ? 1e9 * strtod(argv[1], &end) : 0;
    if (argc > 2 || (end && (*end || !(rate > 0)))) {
        fprintf(stderr, "bench-scaling: '%s' is no rate of reading; give GB/s or nothing\n",
                argv[argc - 1]);
        return 2;
    }
    int cpus;
    const double here = measure_reading(&cpus);
    const costs c = measure_costs();
    rate = rate > 0 ? rate : here;
    printf(
        "%s; %d CPUs, which read %.1f GB/s together; reading below: at %.1f GB/s. A worker\n"
        "begins %.2f us after the call if it spins, %.1f us if it sleeps, and each sleeper keeps\n"
        "the caller and later sleepers %.1f us; taking a task: %.3f us.\n\n",
        attn_context_isa(NULL), cpus, 1e-9 * here, 1e-9 * rate, 1e6 * c.spinning, 1e6 * c.asleep,
        1e6 * c.signal, 1e6 * c.take);
    printf(
        "| case | N | tasks | ms | measured | speed-up | of N | cutting | waking | idle "
        "| paused | reading |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        run_shape(&shapes[i], &c, rate, cpus);
    return 0;
}
