/* attn bench: measures speed, and compares it with what the machine can do at the same time.
 *
 * On shared machines the same loop may run at half its speed a minute later. So each case
 * alternates, in rounds, the attention call with two loops on the same number of threads:
 * multiply-adds in registers, and reading as many bytes as the case has. All figures are the best
 * of their kind, because noise can only make them worse. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"
#include "terminal.h"
#include "value.h"

enum {
    ROUNDS = 5,
    SAMPLES = 4096,  /* times kept for the median; later ones replace earlier ones */
    CALLS_MOST = 64, /* most calls in one timing */
    READ_LEAST = 1 << 16,
    READ_MOST = 1 << 28 /* least and most bytes of the streaming read */
};

#define TIMING_LEAST 20e-6 /* seconds; short calls are timed several at a time to reach this */

/* Short and long, wide and narrow, full and causal; then decoding: one query, a few, a batch, and
 * heads that share keys and values. */
static const bench_case standard[] = {
    {{1, 1, 1, 6, 6, 16, 16}, "none"},
    {{1, 12, 12, 128, 128, 64, 64}, "none"},
    {{1, 12, 12, 512, 512, 64, 64}, "none"},
    {{1, 8, 8, 2048, 2048, 64, 64}, "none"},
    {{1, 8, 8, 2048, 2048, 64, 64}, "top-left"},
    {{1, 8, 8, 2048, 2048, 128, 128}, "none"},
    {{1, 8, 8, 2048, 2048, 128, 128}, "top-left"},
    {{1, 32, 32, 1, 4096, 128, 128}, "none"},
    {{1, 32, 32, 4, 4096, 128, 128}, "bottom-right"},
    {{8, 8, 8, 1, 2048, 128, 128}, "none"},
    {{1, 32, 4, 1, 8192, 128, 128}, "none"},
};

const char *const bench_pass_names[] = {"forward", "backward", "both"};

typedef struct bench_result {
    attn_plan_info plan;
    double best_us, median_us, peak, stream; /* peak, stream: operations and bytes per second */
} bench_result;

/* -------------------------------------------------------------- what the machine can do */

typedef struct probe {
    const char *isa; /* NULL: the streaming read */
    attn_dtype dtype;
    size_t bytes;
    double seconds, rate;
    pthread_t thread;
    bool started;
} probe;

static void *run_probe(void *arg)
{
    probe *p = arg;
    p->rate = p->isa ? attn_measure_flops(p->isa, p->dtype, p->seconds)
                     : attn_measure_read(p->bytes, p->seconds);
    return NULL;
}

/* Runs the same loop on `threads` threads at once; returns the sum of their rates. */
static double measure(const probe *what, int threads)
{
    probe *all = calloc((size_t)threads, sizeof *all);
    double sum = 0;
    if (!all)
        return 0;
    for (int i = 0; i < threads; i++) {
        all[i] = *what;
        all[i].started = i > 0 && pthread_create(&all[i].thread, NULL, run_probe, &all[i]) == 0;
    }
    run_probe(&all[0]);
    for (int i = 1; i < threads; i++)
        if (all[i].started)
            pthread_join(all[i].thread, NULL);
    for (int i = 0; i < threads; i++)
        sum += all[i].rate;
    free(all);
    return sum;
}

double bench_peak(const bench *b, double seconds)
{
    const probe flops = {attn_context_isa(b->ctx), b->dtype, 0, seconds, 0, 0, false};
    return measure(&flops, attn_context_threads(b->ctx));
}

/* --------------------------------------------------------------------------------------- a case */

static int fill(kit_array *a, attn_dtype dtype, int64_t B, int64_t H, int64_t n, int64_t D,
                attn_rng *rng, kit_error *err)
{
    kit_array normals = {0};
    int64_t shape[4] = {B, H, n, D};
    int code = kit_array_new(&normals, ATTN_F32, 4, shape, err);
    if (code)
        return code;
    attn_rng_randn(rng, normals.data, (size_t)kit_array_count(&normals));
    if (dtype == ATTN_F32) {
        *a = normals;
        return KIT_OK;
    }
    code = kit_array_convert(a, &normals, dtype, err);
    kit_array_free(&normals);
    return code;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int bench_run(const bench *b, const bench_call *c, kit_error *err)
{
    attn_error engine = {0};
    if ((b->pass != BENCH_BACKWARD && attn_sdpa_forward(b->ctx, &c->args, &engine)) ||
        (b->pass != BENCH_FORWARD && attn_sdpa_backward(b->ctx, &c->args, &c->grads, &engine)))
        return kit_engine(engine.status, &engine, err);
    return KIT_OK;
}

/* Makes `calls` calls; *seconds is the mean time of one. */
static int time_calls(double *seconds, const bench *b, const bench_call *c, int calls,
                      kit_error *err)
{
    double start = seconds_now();
    for (int i = 0; i < calls; i++) {
        const int code = bench_run(b, c, err);
        if (code)
            return code;
    }
    *seconds = (seconds_now() - start) / calls;
    return KIT_OK;
}

static int time_case(const bench *b, const bench_call *c, bench_result *r, kit_error *err)
{
    double *sample = calloc(SAMPLES, sizeof *sample), took = 0;
    int threads = attn_context_threads(b->ctx), calls = 1, code;
    size_t count = 0, bytes = (size_t)r->plan.bytes / (size_t)threads;
    bytes = bytes < READ_LEAST ? READ_LEAST : bytes > READ_MOST ? READ_MOST : bytes;
    probe reads = {NULL, b->dtype, bytes, 0.15 * b->seconds / ROUNDS, 0, 0, false};
    if (!sample)
        return kit_fail(err, KIT_LIMIT, "out of memory");
    code = time_calls(&took, b, c, 1, err); /* warm-up, not counted */
    for (int round = 0; round < ROUNDS && !code; round++) {
        double end = seconds_now() + 0.7 * b->seconds / ROUNDS;
        do {
            if (took * calls < TIMING_LEAST && calls < CALLS_MOST)
                calls *= 2;
            if ((code = time_calls(&took, b, c, calls, err)))
                break;
            sample[count++ % SAMPLES] = 1e6 * took;
            if (count == 1 || 1e6 * took < r->best_us)
                r->best_us = 1e6 * took;
        } while (seconds_now() < end);
        if (code)
            break;
        double peak = bench_peak(b, 0.15 * b->seconds / ROUNDS), stream = measure(&reads, threads);
        r->peak = peak > r->peak ? peak : r->peak;
        r->stream = stream > r->stream ? stream : r->stream;
    }
    size_t kept = count < SAMPLES ? count : SAMPLES;
    qsort(sample, kept, sizeof *sample, by_size);
    r->median_us = sample[kept / 2];
    free(sample);
    return code;
}

static attn_tensor view(const kit_array *a)
{
    return attn_bhtd(a->data, a->dtype, a->shape[0], a->shape[1], a->shape[2], a->shape[3]);
}

static int make_gradients(bench_call *c, const bench *b, const int64_t *n, attn_rng *rng,
                          kit_error *err)
{
    const int64_t lse_shape[4] = {n[SHAPE_B], n[SHAPE_H], n[SHAPE_T], 1};
    const bool narrow = b->dtype == ATTN_F16 || b->dtype == ATTN_BF16;
    const attn_dtype wide = narrow && b->float_grads ? ATTN_F32 : b->dtype;
    int code;
    if ((code = kit_array_new(&c->lse, b->dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, 4, lse_shape,
                              err)) ||
        (code =
             fill(&c->dout, b->dtype, n[SHAPE_B], n[SHAPE_H], n[SHAPE_T], n[SHAPE_DV], rng, err)) ||
        (code = kit_array_new(&c->dq, b->dtype, 4, c->q.shape, err)) ||
        (code = kit_array_new(&c->dk, wide, 4, c->k.shape, err)) ||
        (code = kit_array_new(&c->dv, wide, 4, c->v.shape, err)))
        return code;
    c->lse_view = view(&c->lse);
    c->args.lse = &c->lse_view;
    c->grads.dout = view(&c->dout);
    c->grads.dq = view(&c->dq);
    c->grads.dk = view(&c->dk);
    c->grads.dv = view(&c->dv);
    return KIT_OK;
}

int bench_make_call(bench_call *c, const bench *b, const int64_t *n, uint64_t seed, kit_error *err)
{
    const int64_t out_shape[4] = {n[SHAPE_B], n[SHAPE_H], n[SHAPE_T], n[SHAPE_DV]};
    attn_rng rng;
    int code;
    attn_rng_seed(&rng, seed);
    if ((code = fill(&c->q, b->dtype, n[SHAPE_B], n[SHAPE_H], n[SHAPE_T], n[SHAPE_D], &rng, err)) ||
        (code =
             fill(&c->k, b->dtype, n[SHAPE_B], n[SHAPE_HK], n[SHAPE_S], n[SHAPE_D], &rng, err)) ||
        (code =
             fill(&c->v, b->dtype, n[SHAPE_B], n[SHAPE_HK], n[SHAPE_S], n[SHAPE_DV], &rng, err)) ||
        (code = kit_array_new(&c->out, b->dtype, 4, out_shape, err)))
        return code;
    c->args.q = view(&c->q);
    c->args.k = view(&c->k);
    c->args.v = view(&c->v);
    c->args.out = view(&c->out);
    return b->pass == BENCH_FORWARD ? KIT_OK : make_gradients(c, b, n, &rng, err);
}

void bench_free_call(bench_call *c)
{
    kit_array *all[] = {&c->q, &c->k, &c->v, &c->out, &c->lse, &c->dout, &c->dq, &c->dk, &c->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kit_array_free(all[i]);
}

int bench_plan_call(attn_plan_info *plan, const bench *b, const bench_call *c, kit_error *err)
{
    attn_plan_info backward = ATTN_PLAN_INFO_INIT;
    attn_error engine = {0};
    attn_plan_info_init(plan);
    if (attn_sdpa_plan(b->ctx, &c->args, plan, &engine) ||
        (b->pass != BENCH_FORWARD &&
         attn_sdpa_backward_plan(b->ctx, &c->args, &c->grads, &backward, &engine)) ||
        (b->pass == BENCH_BACKWARD && attn_sdpa_forward(b->ctx, &c->args, &engine)))
        return kit_engine(engine.status, &engine, err);
    if (b->pass == BENCH_BOTH) {
        backward.flop += plan->flop;
        backward.bytes += plan->bytes;
    }
    if (b->pass != BENCH_FORWARD)
        *plan = backward;
    return KIT_OK;
}

static int run_case(const bench *b, const bench_case *c, bench_result *r, kit_error *err)
{
    bench_call call = {.args = ATTN_SDPA_ARGS_INIT, .grads = ATTN_SDPA_GRADS_INIT};
    int code;
    memset(r, 0, sizeof *r);
    if (!(code = engine_parse_causal(&call.args, c->causal, true, err)) &&
        !(code = bench_make_call(&call, b, c->shape, 123, err)) &&
        !(code = bench_plan_call(&r->plan, b, &call, err)))
        code = time_case(b, &call, r, err);
    bench_free_call(&call);
    return code;
}

/* ------------------------------------------------------------------------------------ reporting */

typedef struct figures {
    double gflops, gbps, peak_gflops, peak_fraction, stream_gbps, stream_fraction;
} figures;

static figures figures_of(const bench_result *r)
{
    figures f = {.gflops = 1e-3 * r->plan.flop / r->best_us,
                 .gbps = 1e-3 * r->plan.bytes / r->best_us,
                 .peak_gflops = 1e-9 * r->peak,
                 .stream_gbps = 1e-9 * r->stream};
    f.peak_fraction = f.peak_gflops > 0 ? f.gflops / f.peak_gflops : 0;
    f.stream_fraction = f.stream_gbps > 0 ? f.gbps / f.stream_gbps : 0;
    return f;
}

static void print_json(json_writer *j, const bench *b, const bench_case *c, const bench_result *r)
{
    const figures f = figures_of(r);
    json_put_object(j, NULL);
    json_put_sizes(j, "shape", c->shape, SHAPE_SIZE);
    json_put_text(j, "dtype", attn_dtype_name(b->dtype));
    json_put_text(j, "causal", c->causal);
    json_put_text(j, "pass", bench_pass_names[b->pass]);
    json_put_integer(j, "threads", attn_context_threads(b->ctx));
    json_put_text(j, "isa", attn_context_isa(b->ctx));
    json_put_text(j, "kernel", r->plan.kernel);
    json_put_real(j, "time_us_min", r->best_us);
    json_put_real(j, "time_us_median", r->median_us);
    json_put_real(j, "gflops", f.gflops);
    json_put_real(j, "gbps", f.gbps);
    json_put_real(j, "peak_gflops", f.peak_gflops);
    json_put_real(j, "peak_fraction", f.peak_fraction);
    json_put_real(j, "stream_gbps", f.stream_gbps);
    json_put_real(j, "stream_fraction", f.stream_fraction);
    json_end_object(j);
}

const char *bench_title(const bench *b)
{
    return b->pass == BENCH_BOTH ? "forward and backward" : bench_pass_names[b->pass];
}

static void print_head(const bench *b)
{
    int threads = attn_context_threads(b->ctx);
    printf("%s, %s, %s, %d thread%s; peak and stream as measured beside each case\n\n",
           bench_title(b), attn_dtype_name(b->dtype), attn_context_isa(b->ctx), threads,
           threads == 1 ? "" : "s");
    printf("%-25s %-12s %10s %8s %5s %7s %6s\n", "B,H,Hk,T,S,D,Dv", "causal", "min us", "GFLOP/s",
           "peak", "GB/s", "stream");
}

void bench_shape_text(char text[160], const bench_case *c)
{
    *text = 0;
    for (int i = 0; i < SHAPE_SIZE; i++)
        snprintf(text + strlen(text), 160 - strlen(text), "%s%" PRId64, i ? "," : "", c->shape[i]);
}

static void print_row(const bench_case *c, const bench_result *r)
{
    figures f = figures_of(r);
    char shape[160];
    bench_shape_text(shape, c);
    printf("%-25s %-12.12s %10.1f %8.1f %4.0f%% %7.2f %5.0f%%\n", shape, c->causal, r->best_us,
           f.gflops, 100 * f.peak_fraction, f.gbps, 100 * f.stream_fraction);
    fflush(stdout);
}

/* -------------------------------------------------------------------------------------- command */

static int parse_shape(bench_case *c, const char *text, kit_error *err)
{
    int n = value_list(text, c->shape, SHAPE_SIZE);
    if (n == SHAPE_DV)
        c->shape[SHAPE_DV] = c->shape[SHAPE_D];
    for (int i = 0; i < n; i++)
        if (c->shape[i] < 1 || c->shape[i] > INT32_MAX)
            n = -1;
    if (n < SHAPE_DV)
        return kit_fail(err, KIT_USAGE,
                        "--shape %s: must be B,H,Hk,T,S,D or B,H,Hk,T,S,D,Dv, each 1 or more",
                        text);
    if (c->shape[SHAPE_H] % c->shape[SHAPE_HK])
        return kit_fail(err, KIT_USAGE, "--shape %s: Hk=%" PRId64 " must divide H=%" PRId64, text,
                        c->shape[SHAPE_HK], c->shape[SHAPE_H]);
    return KIT_OK;
}

int bench_find_case(bench_case *c, const options *o, const bench_case *list, size_t i,
                    kit_error *err)
{
    const char *shape = option_at(o, OPT_bench_shape, i),
               *causal = option_text(o, OPT_bench_causal);
    *c = shape ? (bench_case){.causal = "none"} : list[i];
    if (causal)
        c->causal = causal;
    return shape ? parse_shape(c, shape, err) : KIT_OK;
}

static int check_cases(const options *o, kit_error *err)
{
    attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;
    bench_case c;
    int code = engine_parse_causal(&args, option_text(o, OPT_bench_causal), true, err);
    for (size_t i = 0; !code && i < option_count(o, OPT_bench_shape); i++)
        code = bench_find_case(&c, o, NULL, i, err);
    return code;
}

/* A table is printed row by row; JSON is printed complete or not at all. */
static int run_cases(const bench *b, const options *o, kit_error *err)
{
    size_t count = option_count(o, OPT_bench_shape);
    if (count == 0)
        count = sizeof standard / sizeof *standard;
    bench_case *cases = calloc(count, sizeof *cases);
    bench_result *results = calloc(count, sizeof *results);
    int code = cases && results ? KIT_OK : kit_fail(err, KIT_LIMIT, "out of memory");
    for (size_t i = 0; i < count && !code; i++) {
        terminal_progress("case %zu of %zu", i + 1, count);
        if (!(code = bench_find_case(&cases[i], o, standard, i, err)))
            code = run_case(b, &cases[i], &results[i], err);
        terminal_progress(NULL);
        if (!code && !b->json && i == 0)
            print_head(b);
        if (!code && !b->json)
            print_row(&cases[i], &results[i]);
    }
    if (!code && b->json) {
        json_writer j = json_begin_stdout("attn.bench/1");
        json_put_array(&j, "cases");
        for (size_t i = 0; i < count; i++)
            print_json(&j, b, &cases[i], &results[i]);
        json_end_array(&j);
        json_end_stdout(&j);
    }
    free(cases);
    free(results);
    return code;
}

int command_bench(const options *o, kit_error *err)
{
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    bench b = {.dtype = dtypes[option_choice(o, OPT_bench_dtype)],
               .pass = (bench_pass)option_choice(o, OPT_bench_pass),
               .seconds = option_real(o, OPT_bench_seconds),
               .json = option_given(o, OPT_bench_json)};
    int code;
    if (o->operand_count)
        return kit_fail(err, KIT_USAGE,
                        "unexpected argument '%s'; a case is given as --shape B,H,Hk,T,S,D",
                        o->operand[0]);
    const bool ranks = option_given(o, OPT_bench_mpi);
    if (!ranks && option_given(o, OPT_bench_deadline))
        return kit_fail(err, KIT_USAGE, "--deadline has no effect without --mpi");
    if (!(code = check_cases(o, err)) &&
        !(code = engine_context(&b.ctx, option_text(o, OPT_bench_isa),
                                (int)option_integer(o, OPT_bench_threads), err)))
        code = ranks ? bench_over_ranks(&b, o, err) : run_cases(&b, o, err);
    attn_context_destroy(b.ctx);
    return code;
}
