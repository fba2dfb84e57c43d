/* attn run: attention on arrays from files. run_input.c reads and checks them; this file calls
 * libattn, writes the results and reports. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../kit/io/json_write.h"
#include "command.h"
#include "job.h"
#include "run.h"
#include "terminal.h"

enum { OUT, LSE, WEIGHTS, SCORES, GRAD_Q, GRAD_K, GRAD_V, GRAD_MASK, RESULTS };

typedef struct run_result {
    const char *name;
    const char *path; /* NULL: not requested; out is computed anyway */
    kit_array array;  /* has q's rank; a gradient that of its input */
    attn_tensor view; /* the same as [B,H,T,.] */
    bool infinity;    /* -inf is valid here */
} run_result;

typedef struct run_state {
    files files;
    run_input in;
    run_result result[RESULTS];
    attn_plan_info plan, backward; /* backward: no kernel unless a gradient is requested */
    bool plan_only;                /* --plan: compute nothing */
    run_pieces_info pieces;        /* size 0: not in pieces */
    const char *isa;
    double time_us, backward_us;
} run_state;

/* -------------------------------------------------------------------------------------- naming */

static bool wants_gradients(const run_state *r)
{
    for (int i = GRAD_Q; i <= GRAD_MASK; i++)
        if (r->result[i].path)
            return true;
    return false;
}

/* Gradients need --grad-out, and --grad-out is useless without them. */
static int check_gradients(const run_state *r, const options *o, kit_error *err)
{
    const bool given = option_given(o, OPT_run_grad_out);
    for (int i = GRAD_Q; i <= GRAD_MASK && !given; i++)
        if (r->result[i].path)
            return kit_fail(
                err, KIT_USAGE,
                "--%s needs --grad-out FILE, the loss's gradient with respect to the output",
                r->result[i].name);
    if (given && !wants_gradients(r))
        return kit_fail(
            err, KIT_USAGE,
            "--grad-out has no effect alone; add --grad-q, --grad-k, --grad-v or --grad-mask");
    if (r->result[GRAD_MASK].path && !option_given(o, OPT_run_mask))
        return kit_fail(err, KIT_USAGE,
                        "--grad-mask needs --mask FILE, the mask whose gradient it is");
    return KIT_OK;
}

/* Results are .npy files. Another suffix would make a file that no program reads back. */
static int check_result(const char *option, const char *path, kit_error *err)
{
    const char *archive = kit_spec_archive(path);
    return archive ? kit_fail(err, KIT_USAGE,
                              "--%s %s: a result is a .npy file; it must not be a %s file", option,
                              path, archive)
                   : KIT_OK;
}

static int name_results(run_state *r, const options *o, kit_error *err)
{
    static const option_id ids[RESULTS] = {OPT_run_out,    OPT_run_lse,      OPT_run_weights,
                                           OPT_run_scores, OPT_run_grad_q,   OPT_run_grad_k,
                                           OPT_run_grad_v, OPT_run_grad_mask};
    int code = KIT_OK;
    for (int i = 0; i < RESULTS && !code; i++) {
        r->result[i].name = option_of(ids[i])->name;
        r->result[i].path = option_text(o, ids[i]);
        if (r->result[i].path)
            code = files_add_output(&r->files, r->result[i].path, err);
        if (r->result[i].path && !code)
            code = check_result(r->result[i].name, r->result[i].path, err);
    }
    if (code || (code = check_gradients(r, o, err)))
        return code;
    if (option_given(o, OPT_run_scores_stage) && !r->result[SCORES].path)
        return kit_fail(err, KIT_USAGE, "--scores-stage has no effect without --scores FILE");
    if (option_given(o, OPT_run_json) && files_to_stdout(&r->files))
        return kit_fail(
            err, KIT_USAGE,
            "--json and a result on '-' or /dev/stdout cannot both use standard output; name a "
            "file for the result");
    return KIT_OK;
}

/* ------------------------------------------------------------------------------------ computing */

/* Makes result i of the shape of `like`, except for the last size, with `rank` dimensions. */
static int make_result(run_state *r, int i, attn_dtype dtype, const attn_tensor *like,
                       int64_t columns, int rank, kit_error *err)
{
    const int64_t shape[4] = {like->shape[0], like->shape[1], like->shape[2], columns};
    run_result *result = &r->result[i];
    int code = kit_array_new(&result->array, dtype, rank, shape + 4 - rank, err);
    if (!code)
        result->view = attn_bhtd(result->array.data, dtype, shape[0], shape[1], shape[2], columns);
    return code;
}

static int make_gradients(run_state *r, kit_error *err)
{
    const attn_sdpa_args *a = &r->in.args;
    const attn_tensor *like[] = {&a->q, &a->k, &a->v, a->mask};
    const attn_dtype wide = a->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    int code = KIT_OK;
    if (r->result[GRAD_MASK].path && a->mask->dtype == ATTN_BOOL)
        return kit_fail(err, KIT_BAD_FILE,
                        "--grad-mask: the mask is bool; only a float mask has a gradient");
    for (int i = GRAD_Q; i <= GRAD_MASK && !code; i++) {
        const bool mask = i == GRAD_MASK;
        if (r->result[i].path)
            code =
                make_result(r, i, mask ? wide : a->q.dtype, like[i - GRAD_Q],
                            like[i - GRAD_Q]->shape[3], mask ? r->in.mask.rank : r->in.rank, err);
    }
    return code;
}

static int make_results(run_state *r, kit_error *err)
{
    const attn_sdpa_args *args = &r->in.args;
    attn_dtype wide = args->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    int64_t S = args->k.shape[2], Dv = args->v.shape[3];
    const int rank = r->in.rank;
    int code = make_result(r, OUT, args->q.dtype, &args->q, Dv, rank, err);
    const bool gradients = wants_gradients(r);
    /* f64 for gradients: rounded to float, a large lse would spoil all weights of its row. In
     * pieces always, so that a checkpoint goes on with and without --lse. */
    if (!code && (r->result[LSE].path || gradients || r->in.k_rows))
        code = make_result(r, LSE, gradients ? ATTN_F64 : wide, &args->q, 1, rank, err);
    for (int i = WEIGHTS; i <= SCORES && !code; i++)
        if (r->result[i].path)
            code = make_result(r, i, wide, &args->q, S, rank, err);
    return code || !gradients ? code : make_gradients(r, err);
}

static int compute_gradients(run_state *r, attn_context *ctx, const attn_sdpa_args *args,
                             kit_error *err)
{
    attn_error engine = {0};
    attn_sdpa_grads grads = ATTN_SDPA_GRADS_INIT;
    if (!wants_gradients(r))
        return KIT_OK;
    grads.dout = r->in.dout;
    grads.dq = r->result[GRAD_Q].view;
    grads.dk = r->result[GRAD_K].view;
    grads.dv = r->result[GRAD_V].view;
    grads.dmask = r->result[GRAD_MASK].path ? &r->result[GRAD_MASK].view : NULL;
    attn_plan_info_init(&r->backward);
    if (attn_sdpa_backward_plan(ctx, args, &grads, &r->backward, &engine))
        return kit_engine(engine.status, &engine, err);
    if (r->plan_only)
        return KIT_OK;
    double start = seconds_now();
    if (attn_sdpa_backward(ctx, args, &grads, &engine))
        return kit_engine(engine.status, &engine, err);
    r->backward_us = 1e6 * (seconds_now() - start);
    return KIT_OK;
}

/* libattn writes the scores of one stage per call, so weights and scores together take two
 * calls. */
static int compute(run_state *r, attn_context *ctx, const options *o, kit_error *err)
{
    const attn_stage stage = (attn_stage)option_choice(o, OPT_run_scores_stage);
    attn_sdpa_args args = r->in.args;
    attn_error engine = {0};
    const attn_tensor *scores[2] = {NULL, NULL};
    attn_stage stages[2] = {ATTN_STAGE_WEIGHTS, stage};
    for (int i = 0; i < 2; i++)
        if (r->result[WEIGHTS + i].path)
            scores[i] = &r->result[WEIGHTS + i].view;
    int first = scores[0] ? 0 : 1;
    args.out = r->result[OUT].view;
    args.lse = r->result[LSE].array.data ? &r->result[LSE].view : NULL;
    args.scores = scores[first];
    args.scores_stage = stages[first];
    attn_plan_info_init(&r->plan);
    attn_sdpa_args planned = args;
    if (r->in.k_rows) /* a plan does not read keys, but wants an address of them */
        planned.k.data = planned.v.data = &planned;
    if (attn_sdpa_plan(ctx, &planned, &r->plan, &engine))
        return kit_engine(engine.status, &engine, err);
    r->isa = attn_context_isa(ctx);
    if (r->plan_only)
        return compute_gradients(r, ctx, &args, err);
    double start = seconds_now();
    if (r->in.k_rows) {
        const int code = run_in_pieces(&r->in, &args, ctx, o, &r->pieces, err);
        r->time_us = 1e6 * (seconds_now() - start);
        return code;
    }
    if (attn_sdpa_forward(ctx, &args, &engine))
        return kit_engine(engine.status, &engine, err);
    r->time_us = 1e6 * (seconds_now() - start);
    args.scores = scores[1];
    args.scores_stage = stages[1];
    if (scores[0] && scores[1] && attn_sdpa_forward(ctx, &args, &engine))
        return kit_engine(engine.status, &engine, err);
    return compute_gradients(r, ctx, &args, err);
}

/* Gives --lse the type that it has without gradients. Rounded once from f64, and with 0 in place of
 * -0 as libattn stores it, it has the bits of such a call. */
static int narrow_lse(run_state *r, kit_error *err)
{
    kit_array *lse = &r->result[LSE].array, narrow = {0};
    if (!r->result[LSE].path || lse->dtype != ATTN_F64 || r->in.args.q.dtype == ATTN_F64)
        return KIT_OK;
    const int code = kit_array_convert(&narrow, lse, ATTN_F32, err);
    if (code)
        return code;
    float *x = narrow.data;
    for (int64_t i = 0; i < kit_array_count(&narrow); i++)
        x[i] += 0.0f;
    kit_array_free(lse);
    *lse = narrow;
    return KIT_OK;
}

static int64_t count_not_finite(const run_result *result)
{
    int64_t n = 0, count = result->array.data ? kit_array_count(&result->array) : 0;
    for (int64_t i = 0; i < count; i++) {
        double x = kit_array_get(&result->array, i);
        n += !isfinite(x) && !(result->infinity && x == -INFINITY);
    }
    return n;
}

/* ------------------------------------------------------------------------------------ reporting */

typedef struct range {
    double min, max, mean;
} range;

static range range_of(const kit_array *a)
{
    int64_t count = kit_array_count(a);
    range r = {NAN, NAN, NAN};
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = kit_array_get(a, i);
        r.min = x < r.min || i == 0 ? x : r.min;
        r.max = x > r.max || i == 0 ? x : r.max;
        sum += x;
    }
    r.mean = count ? sum / (double)count : NAN;
    return r;
}

static void print_array(const char *name, const kit_array *a)
{
    printf("%-8s [", name);
    for (int i = 0; i < a->rank; i++)
        printf("%s%" PRId64, i ? ", " : "", a->shape[i]);
    printf("] %s\n", attn_dtype_name(a->dtype));
}

static void print_summary(const run_state *r)
{
    const kit_array *out = &r->result[OUT].array;
    int64_t count = kit_array_count(out);
    range x = range_of(out);
    print_array("q", &r->in.q);
    print_array("k", &r->in.k);
    print_array("v", &r->in.v);
    print_array("out", out);
    if (count) {
        printf("         min %.6g, max %.6g, mean %.6g\n         first", x.min, x.max, x.mean);
        for (int64_t i = 0; i < count && i < 5; i++)
            printf(" %.6g", kit_array_get(out, i));
        putchar('\n');
    }
    printf("%-8s %s, %d thread%s", "kernel", r->plan.kernel, r->plan.threads,
           r->plan.threads == 1 ? "" : "s");
    if (!r->pieces.size)
        printf(", %zu bytes of scratch", r->plan.scratch_bytes);
    putchar('\n');
    printf("%-8s %.1f us, %.4g FLOP, %.3g GFLOP/s\n", "time", r->time_us, r->plan.flop,
           r->plan.flop / r->time_us * 1e-3);
    if (r->pieces.size)
        printf("%-8s %" PRId64 " of %" PRId64 " keys, %.4g bytes read, %zu bytes of state\n",
               "pieces", r->pieces.count, r->pieces.size, r->pieces.bytes, r->pieces.state_bytes);
    puts("To keep a result: --out, --weights, --scores, --lse FILE.npy; `attn help run`.");
}

/* 12345678 -> 12,345,678 */
static void print_count(double x)
{
    char digits[32];
    const int n = snprintf(digits, sizeof digits, "%.0f", x);
    for (int i = 0; i < n; i++) {
        putchar(digits[i]);
        if (i < n - 1 && (n - 1 - i) % 3 == 0)
            putchar(',');
    }
}

static void print_plan(const char *pass, const attn_plan_info *p)
{
    printf("%s\n  route     %s\n", pass, p->route);
    printf("  why       %s\n", p->why);
    printf("  kernel    %s (instruction set, type, queries x keys)\n", p->kernel);
    printf("  threads   %d\n  tasks     ", p->threads);
    print_count((double)p->tasks);
    printf(", each of %d tile%s of queries", p->tiles, p->tiles == 1 ? "" : "s");
    if (p->parts > 1)
        printf(", divided into %" PRId64 " parts along the keys", p->parts);
    printf("\n  prefetch  %s\n  scratch   ", p->prefetch ? "yes" : "no");
    print_count((double)p->scratch_bytes);
    fputs(" bytes\n  work      ", stdout);
    print_count(p->flop);
    fputs(" FLOP on ", stdout);
    print_count(p->bytes);
    puts(" bytes of inputs and outputs");
}

static void put_plan(json_writer *j, const char *key, const attn_plan_info *p)
{
    json_put_object(j, key);
    json_put_text(j, "route", p->route);
    json_put_text(j, "why", p->why);
    json_put_text(j, "kernel", p->kernel);
    json_put_integer(j, "threads", p->threads);
    json_put_integer(j, "tasks", p->tasks);
    json_put_integer(j, "tiles", p->tiles);
    json_put_integer(j, "parts", p->parts);
    json_put_flag(j, "prefetch", p->prefetch);
    json_put_integer(j, "scratch_bytes", (int64_t)p->scratch_bytes);
    json_put_real(j, "flop", p->flop);
    json_put_real(j, "bytes", p->bytes);
    json_end_object(j);
}

static void print_plan_json(const run_state *r)
{
    json_writer j = json_begin_stdout("attn.run/1");
    json_put_object(&j, "plan");
    put_plan(&j, "forward", &r->plan);
    if (r->backward.kernel[0])
        put_plan(&j, "backward", &r->backward);
    json_end_object(&j);
    json_end_stdout(&j);
}

static void report_plan(const run_state *r, bool json)
{
    if (json) {
        print_plan_json(r);
        return;
    }
    print_plan("forward", &r->plan);
    if (r->backward.kernel[0])
        print_plan("backward", &r->backward);
}

/* The scratch of a call in pieces is not that of the plan, which has all keys at once. */
static void put_pass(json_writer *j, const attn_plan_info *p, bool scratch, double time_us)
{
    json_put_integer(j, "threads", p->threads);
    if (scratch)
        json_put_integer(j, "scratch_bytes", (int64_t)p->scratch_bytes);
    json_put_real(j, "flop", p->flop);
    json_put_real(j, "time_us", time_us);
}

static void put_shapes(json_writer *j, const run_state *r)
{
    json_put_object(j, "shapes");
    json_put_sizes(j, "q", r->in.q.shape, r->in.q.rank);
    json_put_sizes(j, "k", r->in.k.shape, r->in.k.rank);
    json_put_sizes(j, "v", r->in.v.shape, r->in.v.rank);
    for (int i = 0; i < RESULTS; i++)
        if (r->result[i].path || i == OUT)
            json_put_sizes(j, r->result[i].name, r->result[i].array.shape, r->result[i].array.rank);
    json_end_object(j);
}

static void print_json(const run_state *r)
{
    const range x = range_of(&r->result[OUT].array);
    json_writer j = json_begin_stdout("attn.run/1");
    put_shapes(&j, r);
    json_put_text(&j, "dtype", attn_dtype_name(r->in.args.q.dtype));
    json_put_text(&j, "kernel", r->plan.kernel);
    json_put_text(&j, "isa", r->isa);
    put_pass(&j, &r->plan, r->pieces.size == 0, r->time_us);
    if (r->backward.kernel[0]) {
        json_put_object(&j, "backward");
        json_put_text(&j, "kernel", r->backward.kernel);
        put_pass(&j, &r->backward, true, r->backward_us);
        json_end_object(&j);
    }
    if (r->pieces.size) {
        json_put_object(&j, "pieces");
        json_put_integer(&j, "size", r->pieces.size);
        json_put_integer(&j, "count", r->pieces.count);
        json_put_integer(&j, "keys", r->pieces.keys);
        json_put_real(&j, "bytes", r->pieces.bytes);
        json_put_integer(&j, "state_bytes", (int64_t)r->pieces.state_bytes);
        json_end_object(&j);
    }
    json_put_object(&j, "out");
    json_put_real(&j, "min", x.min);
    json_put_real(&j, "max", x.max);
    json_put_real(&j, "mean", x.mean);
    json_end_object(&j);
    json_end_stdout(&j);
}

/* -------------------------------------------------------------------------------------- command */

static int write_results(run_state *r, kit_error *err)
{
    int code = files_open(&r->files, err);
    size_t file = 0;
    for (int i = 0; i < RESULTS && !code; i++)
        if (r->result[i].path)
            code = kit_npy_write(r->files.output[file++].file, &r->result[i].array, err);
    return code ? code : files_commit(&r->files, err);
}

static int work(run_state *r, const options *o, kit_error *err)
{
    attn_context *ctx = NULL;
    int threads = (int)option_integer(o, OPT_run_threads);
    attn_stage stage = (attn_stage)option_choice(o, OPT_run_scores_stage);
    int code = KIT_OK;
    if ((code = run_name_inputs(&r->files, o, err)) || (code = name_results(r, o, err)) ||
        (code = run_pieces_check(&r->files, o, err)) ||
        (code = engine_context(&ctx, option_text(o, OPT_run_isa), threads, err)))
        return code;
    r->result[LSE].infinity = true;
    r->result[SCORES].infinity = stage == ATTN_STAGE_BIASED;
    if (!(code = run_read(&r->in, o, err)) && !(code = files_probe(&r->files, err)) &&
        !(code = make_results(r, err)))
        code = compute(r, ctx, o, err);
    attn_context_destroy(ctx); /* ends its threads before signals are held back */
    if (!code)
        code = narrow_lse(r, err);
    return code || r->plan_only ? code : write_results(r, err);
}

int command_run(const options *o, kit_error *err)
{
    run_state r = {0};
    int64_t bad = 0;
    r.plan_only = option_given(o, OPT_run_plan);
    if (option_given(o, OPT_run_mpi) && !o->operand_count)
        return run_over_ranks(o, err);
    if (option_given(o, OPT_run_deadline) || option_given(o, OPT_run_share))
        return kit_fail(err, KIT_USAGE, "--%s has no effect without --mpi",
                        option_given(o, OPT_run_share) ? "share" : "deadline");
    int code = o->operand_count ? kit_fail(err, KIT_USAGE,
                                           "unexpected argument '%s'; arrays are given as --q "
                                           "FILE --k FILE --v FILE",
                                           o->operand[0])
                                : work(&r, o, err);
    if (!code && r.plan_only)
        report_plan(&r, option_given(o, OPT_run_json));
    else if (!code && option_given(o, OPT_run_json))
        print_json(&r);
    else if (!code && r.files.output_count == 0)
        print_summary(&r);
    for (int i = 0; i < RESULTS && !code && r.in.finite && !r.plan_only; i++)
        bad += count_not_finite(&r.result[i]);
    if (bad && r.in.k_rows)
        code = run_keys_are_finite(&r.in, &r.in.finite, err);
    bad = r.in.finite ? bad : 0;
    if (bad && !code)
        code = run_not_finite(bad, err);
    files_free(&r.files);
    for (int i = 0; i < RESULTS; i++)
        kit_array_free(&r.result[i].array);
    run_input_free(&r.in);
    return code;
}
