/* Attention, forward: check, plan, cut into tasks, run. Read this first.
 *
 *   attni_sdpa_check (sdpa_check.c)  every argument, once
 *   make_plan                        kernel table, tile width, tasks, scratch
 *   run_worker                       takes tasks until none is left
 *   attni_tile_task (sdpa_tile.c)    one task: a run of queries of one head against its keys
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

void attn_sdpa_args_init(attn_sdpa_args *args)
{
    const attn_sdpa_args init = ATTN_SDPA_ARGS_INIT;
    *args = init;
}

/* ------------------------------------------------------------------------------------ sequences */

/* Sequence n of the call: of packed ones, or the only one. The last packed one holds the rows that
 * are left over; it has no keys. */
static attni_view view_of(const attni_plan *p, int64_t b, int64_t h, int64_t n)
{
    const attn_sdpa_args *a = &p->args;
    attni_view view = {.args = a, .b = b, .h = h, .hk = p->H ? h / (p->H / p->Hk) : 0};
    view.T = p->T;
    view.S = p->S;
    if (a->sequences || a->cu_seqlens_q) {
        const bool packed = n < a->sequences;
        view.i_base = a->cu_seqlens_q[n];
        view.T = (packed ? a->cu_seqlens_q[n + 1] : p->T) - view.i_base;
        view.j_base = packed ? a->cu_seqlens_k[n] : 0;
        view.S = packed ? a->cu_seqlens_k[n + 1] - view.j_base : 0;
    }
    if (a->causal == ATTN_CAUSAL_OFFSET)
        view.off = a->causal_offset;
    if (a->causal == ATTN_CAUSAL_BOTTOM_RIGHT)
        view.off = (a->key_lengths ? a->key_lengths[b] : view.S) - view.T;
    return view;
}

static int64_t rows_per_task(const attni_plan *p)
{
    return (int64_t)p->tiles * p->nv * p->kernels->lanes;
}

static int64_t tasks_of(const attni_plan *p, int64_t T)
{
    const int64_t rows = rows_per_task(p);
    return T / rows + (T % rows != 0);
}

/* ----------------------------------------------------------------------------------------- plan */

static bool in_place(const attni_plan *p, const attn_tensor *t)
{
    return t->dtype == p->real_dtype && (t->stride[3] == 1 || t->shape[3] <= 1);
}

/* Tiles share a chunk of keys while it is in cache: worth it until there are too few tasks for the
 * threads, or until the tiles themselves do not fit. */
static int tiles_per_task(const attni_plan *p, int threads)
{
    const double W = p->nv * p->kernels->lanes;
    const double tile_bytes = (double)(p->D + p->Dv) * W * (double)p->real;
    int tiles = ATTNI_TILES;
    while (tiles > 1 &&
           (tiles * tile_bytes > 512 * 1024 ||
            (double)p->B * (double)p->H * ceil((double)p->T / (W * tiles)) < 4.0 * threads))
        tiles /= 2;
    return tiles;
}

/* False: more tasks than can be counted. */
static bool count_tasks(attni_plan *p, int threads)
{
    p->sequences = p->args.cu_seqlens_q ? p->args.sequences + 1 : 1;
    p->tiles = tiles_per_task(p, threads);
    p->tasks_per_head = 0;
    if (p->B && p->H)
        for (int64_t n = 0; n < p->sequences; n++)
            p->tasks_per_head += tasks_of(p, view_of(p, 0, 0, n).T);
    int64_t heads;
    if (__builtin_mul_overflow(p->B, p->H, &heads) ||
        __builtin_mul_overflow(p->tasks_per_head, heads, &p->tasks))
        return false;
    p->workers = p->tasks < threads ? (int)p->tasks : threads;
    return true;
}

static attn_status make_plan(attni_plan *p, int isa, int threads, attn_error *err)
{
    p->kernels = attni_kernels_of(isa, p->real == sizeof(float) ? 32 : 64);
    p->q_in_place = in_place(p, &p->args.q);
    p->k_in_place = in_place(p, &p->args.k);
    p->v_in_place = in_place(p, &p->args.v);
    p->out_in_place = in_place(p, &p->args.out);
    p->nv = 1;
    while (p->nv < p->kernels->vectors && p->nv * p->kernels->lanes < p->T)
        p->nv *= 2;
    const bool counted = count_tasks(p, threads);
    p->worker_bytes = attni_tile_scratch(p);
    if (!counted || p->worker_bytes == SIZE_MAX ||
        !attni_size_mul(p->worker_bytes, (size_t)(p->workers > 1 ? p->workers : 1),
                        &p->scratch_bytes))
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
    atomic_llong next; /* task to take */
} job;

/* Task number -> head and run of queries. Later queries first: with a causal mask they see more,
 * and the longest work should not start last. */
static void run_task(const attni_plan *p, int64_t task, char *scratch)
{
    const int64_t head = task / p->tasks_per_head;
    int64_t left = p->tasks_per_head - 1 - task % p->tasks_per_head;
    int64_t n = 0;
    attni_view view = view_of(p, head / p->H, head % p->H, 0);
    for (int64_t here; left >= (here = tasks_of(p, view.T)); left -= here)
        view = view_of(p, head / p->H, head % p->H, ++n);
    const int64_t i0 = left * rows_per_task(p);
    const int64_t rows = view.T - i0 < rows_per_task(p) ? view.T - i0 : rows_per_task(p);
    attni_tile_task(p, &view, i0, rows, scratch);
}

static void run_worker(void *arg, int worker)
{
    job *j = arg;
    char *scratch = j->scratch + (size_t)worker * j->plan->worker_bytes;
    for (;;) {
        const int64_t task = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (task >= j->plan->tasks)
            return;
        run_task(j->plan, task, scratch);
    }
}

attn_status attni_sdpa_prepare(attni_plan *plan, attn_context *ctx, const attn_sdpa_args *args,
                               attn_error *err)
{
    const attn_status status = attni_sdpa_check(plan, args, err);
    if (status)
        return status;
    return make_plan(plan, attni_context_isa_index(ctx), attn_context_threads(ctx), err);
}

void attni_sdpa_run(const attni_plan *plan, attni_call *call, char *scratch)
{
    job j = {.plan = plan, .scratch = scratch};
    atomic_init(&j.next, 0);
    if (plan->tasks)
        attni_call_run(call, plan->workers, run_worker, &j);
}

attn_status attn_sdpa_forward(attn_context *ctx, const attn_sdpa_args *args, attn_error *err)
{
    attni_plan plan;
    attni_call call;
    attn_status status = attni_sdpa_prepare(&plan, ctx, args, err);
    if (status)
        return status;
    status = attni_call_begin(&call, ctx, plan.scratch_bytes, plan.args.workspace,
                              plan.args.workspace_bytes, err);
    if (status)
        return status;
    attni_sdpa_run(&plan, &call, call.scratch);
    attni_call_end(&call);
    return ATTN_OK;
}

/* -------------------------------------------------------------------------------- what will run */

static double tensor_bytes(const attn_tensor *t)
{
    double bytes = (double)attn_dtype_size(t->dtype);
    for (int d = 0; d < 4; d++)
        bytes *= t->stride[d] ? (double)t->shape[d] : t->shape[d] > 0;
    return bytes;
}

/* Pairs that the rules other than a dense mask leave visible, over all batches of one head. */
static double visible_pairs(const attni_plan *p)
{
    double pairs = 0;
    for (int64_t b = 0; b < p->B && p->H; b++) {
        for (int64_t n = 0; n < p->sequences; n++) {
            const attni_view view = view_of(p, b, 0, n);
            for (int64_t i = 0; i < view.T; i++) {
                const attni_span s = attni_mask_span(&view, i, i + 1);
                if (s.any1 > s.any0)
                    pairs += (double)(s.any1 - s.any0);
            }
        }
    }
    return pairs;
}

attn_status attn_sdpa_plan(attn_context *ctx, const attn_sdpa_args *args, attn_plan_info *info,
                           attn_error *err)
{
    attni_plan plan;
    attn_status status = attni_sdpa_prepare(&plan, ctx, args, err);
    if (status)
        return status;
    if (!info || info->struct_size < sizeof *info)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "info",
                          "info is NULL or its struct_size is not sizeof(attn_plan_info)");
    const attn_sdpa_args *a = &plan.args;
    snprintf(info->kernel, sizeof info->kernel, "%s f%d %dx%d", plan.kernels->isa,
             plan.kernels->bits, plan.nv * plan.kernels->lanes, ATTNI_CHUNK);
    /* room to align a workspace that is not */
    info->scratch_bytes = plan.scratch_bytes + ATTNI_ALIGN - 1;
    info->threads = plan.workers > 1 ? plan.workers : 1;
    info->tasks = plan.tasks;
    info->flop = 2 * visible_pairs(&plan) * (double)plan.H * (double)(plan.D + plan.Dv);
    info->bytes =
        tensor_bytes(&a->q) + tensor_bytes(&a->k) + tensor_bytes(&a->v) + tensor_bytes(&a->out);
    if (a->mask)
        info->bytes += tensor_bytes(a->mask);
    if (a->lse)
        info->bytes += tensor_bytes(a->lse);
    if (a->scores)
        info->bytes += tensor_bytes(a->scores);
    return ATTN_OK;
}
