/* Attention, forward: check, plan, cut into tasks, run. Read this first.
 *
 *   attni_sdpa_check (sdpa_check.c)  every argument, once
 *   make_plan                        kernel table, tile width, tasks, scratch
 *   run_worker                       takes tasks until none is left
 *   plan->way (sdpa_tile.c)          one task: a run of queries of one head against its keys
 *             (sdpa_ahead.c)          what it will read soon
 *             (sdpa_bf16.c)           the same for bf16 on a matrix unit
 *   mask.c                           which keys those are
 *   kernel/                          the arithmetic
 *
 * None of what is decided here changes a bit of the result: not the width of tiles, not the number
 * of tasks or workers, not their order.
 */
#include "sdpa.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ sequences */

attni_view attni_view_of(const attni_plan *p, int64_t b, int64_t h, int64_t n)
{
    const attn_sdpa_args *a = &p->args;
    attni_view view = {.args = a,
                       .kinds = p->kinds,
                       .kernels = p->kernels,
                       .b = b,
                       .h = h,
                       .hk = h ? attni_div(h, attni_div(p->H, p->Hk)) : 0};
    view.T = p->T;
    view.S = p->S;
    if (a->sequences || a->cu_seqlens_q) {
        const bool packed = n < a->sequences;
        view.i_base = a->cu_seqlens_q[n];
        view.T = (packed ? a->cu_seqlens_q[n + 1] : p->T) - view.i_base;
        view.j_base = packed ? a->cu_seqlens_k[n] : 0;
        view.S = packed ? a->cu_seqlens_k[n + 1] - view.j_base : 0;
    }
    if (a->causal == ATTN_CAUSAL_OFFSET || a->diagonal == ATTN_DIAGONAL_OFFSET)
        view.off = a->causal_offset;
    if (a->causal == ATTN_CAUSAL_BOTTOM_RIGHT || a->diagonal == ATTN_DIAGONAL_BOTTOM_RIGHT)
        view.off = attni_keys_there(&view) - view.T;
    return view;
}

char *attni_stored_row(const attni_view *view, const attn_tensor *t, int64_t j)
{
    if (view->args->cache) /* a block never straddles two of its pages */
        return attni_cache_rows(view->args->cache, attni_part_of(view, t), view->b, view->hk, j);
    return attni_at(t, view->b, view->hk, view->j_base + j, 0);
}

int64_t attni_rows_together(const attni_view *view, int64_t j)
{
    const attn_cache *cache = view->args->cache;
    const int64_t left = view->S - j, page = cache ? cache->options.page_keys : 0;
    return !cache || left <= page - j % page ? left : page - j % page;
}

char *attni_first_row(const attni_task *task, const attn_tensor *t)
{
    const attni_span span = attni_mask_span(&task->view, task->i0, task->i0 + task->rows);
    return span.any0 < span.any1 ? attni_stored_row(&task->view, t, span.any0) : NULL;
}

static int64_t tasks_of(const attni_plan *p, int64_t T)
{
    return T <= p->task_rows ? T > 0 : attni_div_up(T, p->task_rows);
}

/* ----------------------------------------------------------------------------------------- plan */

bool attni_in_place(const attni_plan *p, const attn_tensor *t)
{
    return t->dtype == p->real_dtype && (t->stride[3] == 1 || t->shape[3] <= 1);
}

/* Tiles share a chunk of keys while it is in cache: worth it until there are too few tasks for the
 * threads, or until the tiles themselves do not fit. */
static int tiles_per_task(const attni_plan *p, int threads)
{
    if (p->group > 1)
        return 1;
    const double W = p->nv * p->kernels->lanes;
    const double tile_bytes = (double)(p->D + p->Dv) * W * (double)p->real;
    const double heads = (double)p->B * (double)p->H;
    int tiles = p->way->tiles;
    while (tiles > 1 && ((double)p->T <= W * (tiles / 2) || tiles * tile_bytes > 512 * 1024 ||
                         (threads > 1 && heads * ceil((double)p->T / (W * tiles)) < 4.0 * threads)))
        tiles /= 2;
    return tiles;
}

/* Vectors in the widest tile. */
static int most_vectors(const attni_plan *p)
{
    return p->way->vectors ? p->way->vectors : p->kernels->vectors;
}

/* Heads that share keys share a tile if their queries fit into it together. Rules that differ
 * between heads forbid it, and so do options that number queries along the lanes. */
static int heads_per_tile(const attni_plan *p)
{
    const attn_sdpa_args *a = &p->args;
    if (p->H == p->Hk || p->T == 0 || p->Hk == 0 || a->dropout > 0 || a->scores ||
        a->cu_seqlens_q || !attni_mask_shared(p))
        return 1;
    const int64_t sharing = p->H / p->Hk, room = most_vectors(p) * p->kernels->lanes / p->T;
    int64_t group = sharing < room ? sharing : room;
    while (group > 1 && sharing % group != 0)
        group--;
    return group > 1 ? (int)group : 1;
}

/* Seconds that one thread needs, roughly: whichever of arithmetic and reading takes longer. Below
 * some microseconds a thread is not worth waking. */
#define WORK_SECONDS 10e-6
static double guess_seconds(const attni_plan *p)
{
    const double pairs = (double)p->B * (double)p->H * (double)p->T * (double)p->S;
    const double width = (double)p->D + (double)p->Dv;
    const double keys = (double)p->B * (double)p->Hk * (double)p->S;
    const double seconds = pairs * width * 2 / 1e11;
    const double reading = keys * width * (double)attn_dtype_size(p->args.k.dtype) / 2e10;
    return seconds > reading ? seconds : reading;
}

/* Too few tasks for the threads are cut along the keys; but not if each thread gets one that is as
 * long as the others': partials and folding would cost 10 to 25 %. */
static int64_t parts_per_task(const attni_plan *p, int threads)
{
    const bool alike = p->tasks_per_head == 1 && (p->B == 1 || !p->args.key_lengths);
    if (p->tiles > 1 || (alike && p->tasks == threads) || p->tasks == 0 ||
        p->tasks >= 2 * threads || p->args.cu_seqlens_q || threads == 1 ||
        guess_seconds(p) < 2 * WORK_SECONDS)
        return 1;
    const int64_t wanted = (4 * threads + p->tasks - 1) / p->tasks;
    return wanted < p->chunks ? wanted : p->chunks > 1 ? p->chunks : 1;
}

/* False: more tasks than can be counted. */
static bool count_tasks(attni_plan *p, int threads)
{
    p->sequences = p->args.cu_seqlens_q ? p->args.sequences + 1 : 1;
    p->tiles = tiles_per_task(p, threads);
    p->task_rows = p->tiles * attni_div(p->nv * p->kernels->lanes, p->group);
    p->tasks_per_head = 0;
    if (p->B && p->H)
        for (int64_t n = 0; n < p->sequences; n++)
            p->tasks_per_head += tasks_of(p, attni_view_of(p, 0, 0, n).T);
    int64_t heads;
    if (__builtin_mul_overflow(p->B, attni_div(p->H, p->group), &heads) ||
        __builtin_mul_overflow(p->tasks_per_head, heads, &p->tasks))
        return false;
    p->chunks = attni_div_up(p->S, ATTNI_CHUNK);
    p->parts = parts_per_task(p, threads);
    int64_t workers = p->tasks * p->parts;
    if (workers > threads)
        workers = threads;
    p->workers = (int)workers;
    if (workers > 1) {
        const double worth = guess_seconds(p) / WORK_SECONDS;
        if (worth < (double)(workers - 1))
            p->workers = 1 + (int)worth;
    }
    /* Two threads end within one task of each other, whichever comes last, and a head after the
     * other is kinder to the cache. */
    p->heads_in_turn = p->workers > 2 && p->args.causal && !p->args.mask && !p->args.cu_seqlens_q;
    return true;
}

/* Workers' arrays, then, of a call in parts, each task's partials and its count of parts done. */
static bool size_scratch(attni_plan *p)
{
    p->worker_bytes = p->way->scratch(p);
    p->partial_bytes = p->parts > 1 ? p->way->partial_bytes(p) : 0;
    size_t partials, arrived, workers;
    if (p->worker_bytes == SIZE_MAX || p->partial_bytes == SIZE_MAX ||
        !attni_size_mul(p->worker_bytes, (size_t)(p->workers > 1 ? p->workers : 1), &workers))
        return false;
    p->scratch_bytes = workers;
    if (p->parts == 1)
        return true;
    return attni_size_mul(p->partial_bytes, (uint64_t)p->chunks, &partials) &&
           attni_size_mul(partials, (uint64_t)p->tasks, &partials) &&
           attni_size_mul((uint64_t)p->tasks, sizeof(atomic_llong), &arrived) &&
           attni_size_add(workers, partials, &partials) &&
           attni_size_add(partials, arrived, &p->scratch_bytes);
}

/* Bytes of q, k, v and out from which on they are asked for ahead: a second cache. With fewer it
 * only costs: 12 heads of 32 by 32 took 5 % longer, of 64 by 64 2 %. */
#define FAR_BYTES (1024 * 1024)
static bool far_data(const attni_plan *p)
{
    const double rows = (double)p->B * ((double)p->H * (double)p->T + (double)p->Hk * (double)p->S);
    return rows * (double)(p->D + p->Dv) * (double)p->real > FAR_BYTES;
}

static attn_status make_plan(attni_plan *p, int isa, int threads, attn_error *err)
{
    p->kernels = attni_kernels_of(isa, p->real == sizeof(float) ? 32 : 64);
    p->q_in_place = attni_in_place(p, &p->args.q);
    p->k_turned = p->args.cache && p->args.cache->turned;
    p->k_in_place = attni_in_place(p, &p->args.k) && !p->k_turned;
    p->v_in_place = attni_in_place(p, &p->args.v);
    p->out_in_place = attni_in_place(p, &p->args.out);
    p->way = attni_way_bf16(p);
    if (!p->way)
        p->way = &attni_way_tile;
    if (attni_empty(&p->args.out) &&
        !attni_sdpa_writes(&p->args)) { /* one worker without a task or scratch */
        p->tiles = p->group = p->nv = 1;
        p->sequences = p->parts = 1;
        return ATTN_OK;
    }
    p->group = heads_per_tile(p);
    p->plain = p->k_in_place && p->v_in_place && !p->natural && !p->args.mask && !p->args.scores &&
               p->args.dropout == 0;
    p->far = far_data(p);
    p->nv = 1;
    while (p->nv < most_vectors(p) && p->nv * p->kernels->lanes < p->T * p->group)
        p->nv *= 2;
    if (!count_tasks(p, threads) || !size_scratch(p))
        return attni_fail(
            err, ATTN_ERR_LIMIT, "q",
            "q is too large: its B x H x T, or the scratch for D=%lld and Dv=%lld, is "
            "more than this machine can count",
            (long long)p->D, (long long)p->Dv);
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------------ run */

typedef struct job {
    const attni_plan *plan;
    char *scratch;
    char *partials;        /* [tasks][chunks][partial_bytes] */
    atomic_llong *arrived; /* [tasks]: parts that are done */
    atomic_llong next;     /* part of a task to take */
} job;

/* One part of a task: whoever does the last one folds them all. */
static void run_part(job *j, int64_t task, int64_t part, const attni_view *view, int64_t i0,
                     int64_t rows, char *scratch)
{
    const attni_plan *p = j->plan;
    char *partials = j->partials + (size_t)task * (size_t)p->chunks * p->partial_bytes;
    p->way->part(p, view, i0, rows, p->chunks * part / p->parts, p->chunks * (part + 1) / p->parts,
                 partials, scratch);
    attni_hand_over();
    if (atomic_fetch_add_explicit(&j->arrived[task], 1, memory_order_acq_rel) + 1 == p->parts)
        p->way->fold(p, view, i0, rows, p->chunks, partials, scratch);
}

void attni_find_task(const attni_plan *p, int64_t number, attni_task *task)
{
    const int64_t groups = attni_div(p->H, p->group);
    int64_t head, later; /* tasks of the head with later queries */
    if (p->heads_in_turn) {
        later = attni_div(number, p->B * groups);
        head = number - later * p->B * groups;
    } else {
        head = number ? attni_div(number, p->tasks_per_head) : 0;
        later = number - head * p->tasks_per_head;
    }
    const int64_t b = head ? attni_div(head, groups) : 0, h = (head - b * groups) * p->group;
    int64_t left = p->tasks_per_head - 1 - later;
    int64_t n = 0;
    attni_view *view = &task->view;
    *view = attni_view_of(p, b, h, 0);
    for (int64_t here; left >= (here = tasks_of(p, view->T)); left -= here)
        *view = attni_view_of(p, b, h, ++n);
    task->i0 = left * p->task_rows;
    task->rows = view->T - task->i0 < p->task_rows ? view->T - task->i0 : p->task_rows;
}

static void run_task(job *j, int64_t number, int64_t part, char *scratch)
{
    const attni_plan *p = j->plan;
    attni_task task, next;
    attni_find_task(p, number, &task);
    if (p->parts > 1) {
        run_part(j, number, part, &task.view, task.i0, task.rows, scratch);
        return;
    }
    const int64_t free =
        p->workers <= 1 ? number + 1 : atomic_load_explicit(&j->next, memory_order_relaxed);
    const bool ahead = p->far && free < p->tasks;
    if (ahead)
        attni_find_task(p, free, &next);
    p->way->task(p, &task, ahead ? &next : NULL, scratch);
}

static void run_worker(void *arg, int worker)
{
    job *j = arg;
    const attni_plan *p = j->plan;
    char *scratch = j->scratch + (size_t)worker * p->worker_bytes;
    const bool alone = p->workers <= 1;
    for (int64_t count = 0;; count++) {
        const int64_t next =
            alone ? count : atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (next >= p->tasks * p->parts)
            return;
        const int64_t task = p->parts > 1 ? attni_div(next, p->parts) : next;
        attni_hand_over();
        run_task(j, task, next - task * p->parts, scratch);
    }
}

attn_status attni_sdpa_prepare(attni_plan *plan, attn_context *ctx, const attn_sdpa_args *args,
                               attn_error *err)
{
    attn_status status = attni_sdpa_check(plan, args, false, err);
    if (status == ATTN_OK && plan->D + plan->Dv == 0)
        status = attni_check_keys(plan, attni_sdpa_writes(&plan->args), err);
    if (status)
        return status;
    return make_plan(plan, attni_context_isa_index(ctx), attn_context_threads(ctx), err);
}

void attni_sdpa_run(const attni_plan *plan, attni_call *call, char *scratch)
{
    job j = {.plan = plan, .scratch = scratch};
    atomic_init(&j.next, 0);
    if (plan->parts > 1) {
        const size_t workers = plan->workers > 1 ? (size_t)plan->workers : 1;
        j.partials = scratch + workers * plan->worker_bytes;
        j.arrived =
            (atomic_llong *)(void *)(j.partials + (size_t)plan->tasks * (size_t)plan->chunks *
                                                      plan->partial_bytes);
        for (int64_t i = 0; i < plan->tasks; i++)
            atomic_init(&j.arrived[i], 0);
    }
    if (plan->tasks)
        attni_call_run(call, plan->workers, run_worker, &j);
}

/* With a few short rows, asking for memory would take longer than attention. */
#define STACK_SCRATCH 16384

static attn_status forward(const attni_plan *plan, attn_context *ctx, void *workspace, size_t bytes,
                           attn_error *err)
{
    attni_call call;
    const attn_status status =
        attni_call_begin(&call, ctx, plan->scratch_bytes, workspace, bytes, err);
    if (status)
        return status;
    attni_sdpa_run(plan, &call, call.scratch);
    attni_call_end(&call);
    return ATTN_OK;
}

attn_status attn_sdpa_forward(attn_context *ctx, const attn_sdpa_args *args, attn_error *err)
{
    ATTNI_CALL_MODE;
    attni_plan plan;
    const attn_status status = attni_sdpa_prepare(&plan, ctx, args, err);
    if (status)
        return status;
    if (!ctx && !plan.args.workspace && plan.scratch_bytes <= STACK_SCRATCH) {
        char scratch[STACK_SCRATCH] __attribute__((aligned(ATTNI_ALIGN)));
        return forward(&plan, ctx, scratch, sizeof scratch, err);
    }
    return forward(&plan, ctx, plan.args.workspace, plan.args.workspace_bytes, err);
}

/* -------------------------------------------------------------------------------- what will run */

double attni_tensor_bytes(const attn_tensor *t)
{
    double bytes = (double)attn_dtype_size(t->dtype);
    for (int d = 0; d < 4; d++)
        bytes *= t->stride[d] ? (double)t->shape[d] : t->shape[d] > 0;
    return bytes;
}

/* The sum of max(0, a), max(0, a + step), ..., max(0, b), which are n numbers; step is -1, 0 or
 * 1. */
static double sum_run(int64_t a, int64_t b, int64_t n)
{
    if (a < 0 && b < 0)
        return 0;
    if (a < 0 || b < 0) { /* those from 0 on */
        n = (a < 0 ? b : a) + 1;
        a = 0, b = n - 1;
    }
    return (double)n * ((double)a + (double)b) / 2;
}

static int64_t visible_keys(const attni_view *view, int64_t i)
{
    const attni_span span = attni_mask_span(view, i, i + 1);
    return span.any1 - span.any0;
}

/* Pairs of queries i0 .. i1, both included. Each end of a query's span either stays or moves on by
 * one with the query, and ends are minima and maxima of such: so the count of keys, before it is
 * cut off at 0, is concave in i. Where the middle lies on the line between the ends, all of the run
 * does; else halves are counted. It takes some logarithms of the run's length. */
static double pairs_of_run(const attni_view *view, int64_t i0, int64_t i1)
{
    const int64_t first = visible_keys(view, i0), last = visible_keys(view, i1), n = i1 - i0;
    const int64_t step = n ? (last - first) / n : 0, middle = i0 + n / 2;
    if (first + step * n == last && first + step * (n / 2) == visible_keys(view, middle))
        return sum_run(first, last, n + 1);
    return pairs_of_run(view, i0, middle) + pairs_of_run(view, middle + 1, i1);
}

double attni_visible_pairs(const attni_plan *p)
{
    const attn_sdpa_args *a = &p->args;
    const int64_t sequences = a->cu_seqlens_q ? a->sequences : 1;
    double pairs = 0;
    if (!p->B || !p->H || !p->T || !p->S)
        return 0;
    for (int64_t b = 0; b < (a->key_lengths ? p->B : 1); b++) /* else all batches are alike */
        for (int64_t n = 0; n < sequences; n++) {
            const attni_view view = attni_view_of(p, b, 0, n);
            if (view.T > 0 && view.S > 0)
                pairs += pairs_of_run(&view, 0, view.T - 1);
        }
    return a->key_lengths ? pairs : pairs * (double)p->B;
}

attn_status attn_sdpa_plan(attn_context *ctx, const attn_sdpa_args *args, attn_plan_info *info,
                           attn_error *err)
{
    ATTNI_DEFAULT_MODE;
    attni_plan plan;
    attn_status status = attni_sdpa_prepare(&plan, ctx, args, err);
    if (status)
        return status;
    attn_plan_info made = {0};
    const attn_sdpa_args *a = &plan.args;
    const char *operands = plan.kernels->bits == 32 ? "f32" : "f64";
    snprintf(made.kernel, sizeof made.kernel, "%s %s %dx%d", plan.kernels->isa,
             plan.way->operands ? plan.way->operands : operands, plan.nv * plan.kernels->lanes,
             ATTNI_CHUNK);
    /* room to align a workspace that is not */
    made.scratch_bytes = plan.scratch_bytes + ATTNI_ALIGN - 1;
    made.threads = plan.workers > 1 ? plan.workers : 1;
    made.tasks = plan.tasks;
    made.flop = 2 * attni_visible_pairs(&plan) * (double)plan.H * (double)(plan.D + plan.Dv);
    made.bytes = attni_tensor_bytes(&a->q) + attni_tensor_bytes(&a->k) + attni_tensor_bytes(&a->v) +
                 attni_tensor_bytes(&a->out);
    if (a->mask)
        made.bytes += attni_tensor_bytes(a->mask);
    if (a->lse)
        made.bytes += attni_tensor_bytes(a->lse);
    if (a->scores)
        made.bytes += attni_tensor_bytes(a->scores);
    return attni_struct_write(ATTNI_PLAN_INFO, info, &made, "info", err);
}
