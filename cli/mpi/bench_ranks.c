/* attn bench --mpi: the speed of a call whose tokens lie on all processes of the job, beside the
 * speed of the same call on one process.
 *
 * Each round times both, and the peak, because a shared machine may be half as fast a minute later.
 * A call over ranks takes as long as its slowest rank. While rank 0 computes the whole call alone,
 * the others wait. */
#include "ranks.h"

#include <math.h>
#include <stdio.h>

#include "../bench.h"
#include "../terminal.h"

enum { LEAST_ROUNDS = 3, EXCHANGES = 20, SHORT = 8, LONG = 1 << 20 /* bytes */ };

static const bench_case standard[] = {
    {{1, 8, 8, 4096, 4096, 64, 64}, "none"},
    {{1, 8, 8, 4096, 4096, 64, 64}, "top-left"},
    {{1, 8, 2, 8192, 8192, 64, 64}, "top-left"},
};
enum { STANDARD = sizeof standard / sizeof *standard };

/* What messages cost when every rank sends one to every other rank at the same time. */
typedef struct network {
    double latency_us; /* of 8 bytes */
    double rate;       /* bytes per second that a rank receives, by messages of 1 MiB */
} network;

typedef struct ranks_result {
    attn_plan_info plan; /* of the whole call */
    double us, one_us;   /* the least time on all ranks, and on one */
    double peak;         /* operations per second of all ranks */
    attn_mpi_report report;
} ranks_result;

typedef struct timing {
    const bench *b;
    const bench_case *c;
    bench_call local, whole; /* whole: on rank 0 */
    ranks_result *r;
} timing;

/* The least time of an exchange of n bytes. */
static int time_exchange(size_t n, char *mine, char *all, double *us, kit_error *err)
{
    int code = KIT_OK;
    *us = INFINITY;
    for (int i = 0; i < EXCHANGES && !code; i++) {
        const double start = seconds_now();
        code = ranks_exchange(mine, n, all, err);
        *us = fmin(*us, 1e6 * (seconds_now() - start));
    }
    return code;
}

static int measure_network(network *n, kit_error *err)
{
    const int size = ranks_comm()->size;
    double long_us = 0;
    char *mine = calloc(LONG, 1), *all = calloc((size_t)size, LONG);
    int code = ranks_agree(mine && all ? KIT_OK : kit_fail(err, KIT_LIMIT, "out of memory"), err);
    if (!code && ((code = time_exchange(SHORT, mine, all, &n->latency_us, err)) ||
                  (code = time_exchange(LONG, mine, all, &long_us, err))))
        return code; /* the memory may still be used */
    n->rate = code ? 0 : 1e6 * LONG * (size - 1) / long_us;
    free(mine);
    free(all);
    return code;
}

/* *x becomes the largest of all ranks' numbers, or their sum. */
static int combine(double *x, bool sum, kit_error *err)
{
    const int size = ranks_comm()->size;
    double *all = malloc((size_t)size * sizeof *all);
    int code = ranks_agree(all ? KIT_OK : kit_fail(err, KIT_LIMIT, "out of memory"), err);
    if (!code && (code = ranks_exchange(x, sizeof *x, all, err)))
        return code; /* `all` may still be written */
    for (int i = 0; i < size && !code; i++)
        *x = i == 0 ? all[i] : sum ? *x + all[i] : fmax(*x, all[i]);
    free(all);
    return code;
}

static int run_local(const timing *t, kit_error *err)
{
    attn_error engine = {0};
    attn_mpi_options o = ATTN_MPI_OPTIONS_INIT;
    o.T = t->c->shape[SHAPE_T];
    o.S = t->c->shape[SHAPE_S];
    o.deadline = ranks_deadline();
    o.report = &t->r->report;
    attn_status status = ATTN_OK;
    if (t->b->pass != BENCH_BACKWARD)
        status = attn_mpi_sdpa_forward(ranks_comm(), t->b->ctx, &t->local.args, &o, &engine);
    if (t->b->pass != BENCH_FORWARD && !status)
        status = attn_mpi_sdpa_backward(ranks_comm(), t->b->ctx, &t->local.args, &t->local.grads,
                                        &o, &engine);
    return ranks_engine(status, &engine, err);
}

/* *us becomes the least time. */
static int time_all(const timing *t, double *us, kit_error *err)
{
    int code = ranks_agree(KIT_OK, err); /* all start together */
    const double start = seconds_now();
    if (!code)
        code = run_local(t, err);
    double took = 1e6 * (seconds_now() - start);
    if (!code && !(code = combine(&took, false, err)))
        *us = fmin(*us, took);
    return code;
}

static int time_one(const timing *t, double *us, kit_error *err)
{
    int code = ranks_agree(KIT_OK, err);
    const double start = seconds_now();
    if (!code && ranks_comm()->rank == 0)
        code = bench_run(t->b, &t->whole, err);
    const double took = 1e6 * (seconds_now() - start);
    if (!(code = ranks_agree(code, err)))
        *us = fmin(*us, took);
    return code;
}

/* The sum of what all ranks measure at the same time. */
static int measure_peak(const timing *t, kit_error *err)
{
    int code = ranks_agree(KIT_OK, err); /* all start together */
    double peak = code ? 0 : bench_peak(t->b, 0.03 * t->b->seconds);
    if (!code && !(code = combine(&peak, true, err)))
        t->r->peak = fmax(t->r->peak, peak);
    return code;
}

static int time_case(const timing *t, kit_error *err)
{
    double unused = INFINITY, passed = 0;
    int code = time_all(t, &unused, err); /* warm-up, not counted */
    if (!code)
        code = time_one(t, &unused, err);
    t->r->us = t->r->one_us = INFINITY;
    const double start = seconds_now();
    for (int round = 0; (round < LEAST_ROUNDS || passed < t->b->seconds) && !code; round++) {
        if (!(code = time_all(t, &t->r->us, err)) && !(code = time_one(t, &t->r->one_us, err)))
            code = measure_peak(t, err);
        passed = seconds_now() - start;
        if (!code)
            code = combine(&passed, false, err); /* so that all ranks stop after the same round */
    }
    return code;
}

static int make_calls(timing *t, kit_error *err)
{
    const int rank = ranks_comm()->rank, size = ranks_comm()->size;
    int64_t shape[SHAPE_SIZE];
    memcpy(shape, t->c->shape, sizeof shape);
    shape[SHAPE_T] = attn_mpi_rows(shape[SHAPE_T], rank, size);
    shape[SHAPE_S] = attn_mpi_rows(shape[SHAPE_S], rank, size);
    int code = engine_parse_causal(&t->local.args, t->c->causal, true, err);
    t->whole.args = t->local.args;
    if (!code)
        code = bench_make_call(&t->local, t->b, shape, 124 + (uint64_t)rank, err);
    if (!code && rank == 0 && !(code = bench_make_call(&t->whole, t->b, t->c->shape, 123, err)))
        code = bench_plan_call(&t->r->plan, t->b, &t->whole, err);
    if ((code = ranks_agree(code, err)) || t->b->pass != BENCH_BACKWARD)
        return code;
    timing forward = *t; /* lse and out, which the backward reads */
    bench pass = *t->b;
    pass.pass = BENCH_FORWARD;
    forward.b = &pass;
    return run_local(&forward, err);
}

static int run_case(const bench *b, const bench_case *c, ranks_result *r, kit_error *err)
{
    timing t = {.b = b,
                .c = c,
                .local = {.args = ATTN_SDPA_ARGS_INIT, .grads = ATTN_SDPA_GRADS_INIT},
                .whole = {.args = ATTN_SDPA_ARGS_INIT, .grads = ATTN_SDPA_GRADS_INIT},
                .r = r};
    int code = make_calls(&t, err);
    if (!code)
        code = time_case(&t, err);
    bench_free_call(&t.local);
    bench_free_call(&t.whole);
    return code;
}

/* ------------------------------------------------------------------------------------ reporting */

static double speedup(const ranks_result *r) { return r->one_us / r->us; }
static double gflops(const ranks_result *r) { return 1e-3 * r->plan.flop / r->us; }
static double megabytes(const ranks_result *r) { return 1e-6 * (double)r->report.received_bytes; }

static void print_head(const bench *b, const network *n)
{
    const int threads = attn_context_threads(b->ctx), size = ranks_comm()->size;
    printf("%s, %s, %s, %d rank%s of %d thread%s\n"
           "one rank: rank 0 computes the whole call\n",
           bench_title(b), attn_dtype_name(b->dtype), attn_context_isa(b->ctx), size,
           size == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
    if (size > 1)
        printf("messages to all ranks at once: 8 bytes in %.1f us, 1 MiB at %.2f GB/s\n",
               n->latency_us, 1e-9 * n->rate);
    printf("\n%-25s %-12s %10s %8s %5s %8s %6s\n", "B,H,Hk,T,S,D,Dv", "causal", "min us", "GFLOP/s",
           "peak", "one rank", "MB");
}

static void print_row(const bench_case *c, const ranks_result *r)
{
    char shape[160];
    bench_shape_text(shape, c);
    printf("%-25s %-12.12s %10.1f %8.1f %4.0f%% %7.2fx %6.1f\n", shape, c->causal, r->us, gflops(r),
           r->peak > 0 ? 100 * 1e9 * gflops(r) / r->peak : 0, speedup(r), megabytes(r));
    fflush(stdout);
}

static void print_case(json_writer *j, const bench *b, const bench_case *c, const ranks_result *r)
{
    json_put_object(j, NULL);
    json_put_sizes(j, "shape", c->shape, SHAPE_SIZE);
    json_put_text(j, "dtype", attn_dtype_name(b->dtype));
    json_put_text(j, "causal", c->causal);
    json_put_text(j, "pass", bench_pass_names[b->pass]);
    json_put_integer(j, "ranks", ranks_comm()->size);
    json_put_integer(j, "threads", attn_context_threads(b->ctx));
    json_put_text(j, "isa", attn_context_isa(b->ctx));
    json_put_real(j, "time_us_min", r->us);
    json_put_real(j, "one_rank_us_min", r->one_us);
    json_put_real(j, "speedup", speedup(r));
    json_put_real(j, "gflops", gflops(r));
    json_put_real(j, "peak_gflops", 1e-9 * r->peak);
    json_put_integer(j, "received_bytes", r->report.received_bytes);
    json_end_object(j);
}

/* Rank 0 prints a table row by row, and JSON complete or not at all. */
static int run_cases(const bench *b, const options *o, size_t count, bench_case *cases,
                     ranks_result *results, kit_error *err)
{
    const bool prints = ranks_comm()->rank == 0;
    network n;
    int code = measure_network(&n, err);
    for (size_t i = 0; i < count && !code; i++) {
        if (prints)
            terminal_progress("case %zu of %zu", i + 1, count);
        if (!(code = bench_find_case(&cases[i], o, standard, i, err)))
            code = run_case(b, &cases[i], &results[i], err);
        terminal_progress(NULL);
        if (!code && prints && !b->json && i == 0)
            print_head(b, &n);
        if (!code && prints && !b->json)
            print_row(&cases[i], &results[i]);
    }
    if (!code && prints && b->json) {
        json_writer j = json_begin_stdout("attn.bench-ranks/1");
        json_put_real(&j, "latency_us", n.latency_us);
        json_put_real(&j, "exchange_gbps", 1e-9 * n.rate);
        json_put_array(&j, "cases");
        for (size_t i = 0; i < count; i++)
            print_case(&j, b, &cases[i], &results[i]);
        json_end_array(&j);
        json_end_stdout(&j);
    }
    return code;
}

int bench_over_ranks(const bench *b, const options *o, kit_error *err)
{
    const size_t given = option_count(o, OPT_bench_shape), count = given ? given : STANDARD;
    bench over = *b;
    over.float_grads = true;
    ranks_set_deadline(option_real(o, OPT_bench_deadline));
    bench_case *cases = calloc(count, sizeof *cases);
    ranks_result *results = calloc(count, sizeof *results);
    int code = cases && results ? KIT_OK : kit_fail(err, KIT_LIMIT, "out of memory");
    if (!(code = ranks_agree(code, err)))
        code = run_cases(&over, o, count, cases, results, err);
    free(cases);
    free(results);
    return code;
}
