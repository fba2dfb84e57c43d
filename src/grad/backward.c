/* Attention, backward: check, plan, cut into tasks, run. Read this first.
 *
 *   attni_backward_check      (backward_check.c)  every argument, once
 *   attni_backward_make_plan                      chunks of keys, tasks, scratch
 *   attni_backward_rows       (backward_rows.c)   values per query: lse, delta
 *   attni_backward_work_item  (backward_task.c)   one chunk of keys of one key/value head, or all
 *                                                 chunks of a private head
 *   attni_backward_sums       (backward_rows.c)   gradients that are sums over tasks
 *
 * A task owns its chunk's dk and dv. A row of dq is a sum over the chunks of its sequence, in their
 * order: the first chunk that a tile of queries sees begins the tile's total, each later chunk adds
 * its part, and the last one writes the result. As many key/value heads as can be divided evenly
 * among the threads are private: one thread computes all tasks of such a head, in order. The tasks
 * of the remaining heads are shared by all threads, and one rule orders their additions:
 *
 *     a chunk adds its part of a tile after the chunk before it has finished the same tile.
 *
 * Each tile of a shared head has its own total in memory, so no other order matters for dq. (Tasks
 * of heads that share elements of the mask's gradient add to them in an order of their own:
 * backward_task.c.) All tasks
 * visit their tiles in the same order, and tasks are claimed in order. So waits are short, and a
 * task waits only for an earlier task, on which some thread is already working: there is no
 * deadlock. The bits of the result do not depend on the number of threads. docs/models/backward.pml
 * states this rule as a model; a model checker explores it in every order of steps.
 */
#include "../bf16/bf16_engine.h"
#include "../bf16/unit.h"
#include "../core/hand_over.h"
#include "backward.h"

#include <math.h>
#include <stdio.h>

/* ----------------------------------------------------------------------------------------- plan */

attni_panels attni_panels_of(const attni_plan *p, int64_t columns)
{
    const int lanes = p->kernels->lanes, widest = p->kernels->vectors * lanes;
    attni_panels panels = {.columns = columns, .widest = widest};
    int64_t last = columns % widest, width = lanes;
    while (width < last)
        width *= 2;
    panels.padded = columns - last + (last ? width : 0);
    return panels;
}

/* The keys and values of a chunk and their gradients stay in L2 while all queries pass by. A chunk
 * is a whole number of blocks and a function of the sizes alone, because the bits depend on it. */
#define CHUNK_BYTES (512 * 1024)
static int keys_per_chunk(const attni_plan *p)
{
    int keys = ATTNI_CHUNK;
    const double key_bytes = 2 * (double)(p->D + p->Dv) * (double)p->real;
    while (keys > ATTNI_BLOCK && keys * key_bytes > CHUNK_BYTES)
        keys /= 2;
    return keys;
}

/* Returns false if there are more tasks than can be counted. If bw->nothing, tensors may
 * have no memory, so the numbers of sequences, heads and rows may be huge: their products are only
 * formed where they are needed. */
static bool count_tasks(attni_backward *bw)
{
    const attni_plan *p = &bw->plan;
    int64_t heads;
    if (!bw->nothing && __builtin_mul_overflow(p->B, p->Hk, &bw->kv_heads))
        return false;
    for (int64_t n = 0; n < p->sequences && bw->kv_heads; n++) {
        const int64_t tiles = attni_backward_tiles_of(bw, n);
        bw->tasks_per_kv_head += attni_backward_tasks_of(bw, n);
        bw->most_tiles = tiles > bw->most_tiles ? tiles : bw->most_tiles;
        bw->all_tiles += tiles;
    }
    if (__builtin_mul_overflow(bw->tasks_per_kv_head, bw->kv_heads, &bw->tasks))
        return false;
    if (bw->nothing && (!bw->grads.dsink_logits || !p->T))
        return true;
    bw->query_blocks_per_head = attni_div_up(p->T, ATTNI_BLOCK);
    return !__builtin_mul_overflow(p->B, p->H, &heads) &&
           !__builtin_mul_overflow(heads, bw->query_blocks_per_head, &bw->query_blocks);
}

static double visible_flop(const attni_backward *bw, double pairs)
{
    const attni_plan *p = &bw->plan;
    double width = (double)p->D; /* q . k */
    width += bw->want_v ? (double)p->Dv : 0;
    width += bw->want_scores ? (double)p->Dv : 0;
    width += bw->want_k ? (double)p->D : 0;
    width += bw->want_q ? (double)p->D : 0;
    return 2 * pairs * width;
}

/* For less than some microseconds of work, waking a thread does not pay. */
#define WORK_SECONDS 10e-6
static void count_workers(attni_backward *bw, int threads)
{
    const attni_plan *p = &bw->plan;
    const double all = (double)p->B * (double)p->H * (double)p->T * (double)p->S;
    const double worth = visible_flop(bw, all) / 1e11 / WORK_SECONDS;
    const int64_t most = bw->tasks < threads ? bw->tasks : threads;
    bw->workers = worth < (double)most ? 1 + (int)worth : (int)most;
    if (bw->workers > most)
        bw->workers = (int)most;
    if (bw->workers < 1)
        bw->workers = 1;
    bw->private_pairs = bw->in_pieces ? 0 : bw->kv_heads - bw->kv_heads % bw->workers;
}

/* a * b * c, or SIZE_MAX if that does not fit. */
static size_t product(int64_t a, int64_t b, int64_t c)
{
    size_t ab, abc;
    return attni_size_mul((uint64_t)a, (uint64_t)b, &ab) && attni_size_mul(ab, (uint64_t)c, &abc)
               ? abc
               : SIZE_MAX;
}

void attni_backward_carve(attni_backward *bw, attni_layout *layout)
{
    const attni_plan *p = &bw->plan;
    const size_t rows = bw->query_blocks ? product(p->B, p->H, p->T) : 0;
    bw->lse = attni_layout_take(layout, rows, p->real);
    bw->factor = attni_layout_take(layout, rows, p->real);
    bw->delta = attni_layout_take(layout, rows, p->real);
    bw->nonfinite = attni_layout_take(layout, rows, 1);
    bw->progress = attni_layout_take(layout, (uint64_t)bw->tasks, sizeof *bw->progress);
    if (bw->want_rows) {
        const int64_t own = bw->private_pairs ? bw->workers : 0,
                      shared = bw->kv_heads - bw->private_pairs;
        bw->private_dq =
            attni_layout_take(layout, product(own, bw->group, bw->most_tiles), bw->tile_bytes);
        bw->shared_dq =
            attni_layout_take(layout, product(shared, bw->group, bw->all_tiles), bw->tile_bytes);
    }
    if (bw->dmask == ATTNI_OVER_KEYS)
        bw->row_sums = attni_layout_take(layout, rows, sizeof(double));
    if (bw->dmask == ATTNI_OVER_QUERIES && !bw->nothing)
        bw->key_sums = attni_layout_take(layout, product(p->B, p->H, p->S), sizeof(double));
    if (bw->grads.dalibi_slopes && !bw->nothing)
        bw->alibi_sums =
            attni_layout_take(layout, product(bw->tasks, bw->group, 1), sizeof(double));
    if (bw->grads.dsink_logits)
        bw->sink_sums = attni_layout_take(layout, (uint64_t)bw->query_blocks, sizeof(double));
}

static void carve(attni_backward *bw, attni_layout *layout)
{
    attni_backward_carve(bw, layout);
    bw->workers_scratch = attni_layout_take(layout, (size_t)bw->workers, bw->worker_bytes);
}

void attni_backward_size_worker(attni_backward *bw)
{
    const size_t rows = attni_backward_rows_scratch(bw), task = attni_backward_task_scratch(bw);
    bw->worker_bytes = rows > task ? rows : task;
}

static bool size_scratch(attni_backward *bw)
{
    const attni_plan *p = &bw->plan;
    const size_t W = (size_t)bw->W, sums = W * sizeof(double);
    attni_backward_size_worker(bw);
    if (!attni_size_mul(W * p->real, (uint64_t)p->D, &bw->tile_bytes) ||
        !attni_size_add(bw->tile_bytes, sums, &bw->tile_bytes))
        return false;
    attni_layout layout = {0};
    carve(bw, &layout);
    bw->scratch_bytes = layout.used;
    return !layout.overflow;
}

int attni_plan_derivative(attni_plan *p, int64_t rows, int isa)
{
    const attn_sdpa_args *a = &p->args;
    p->kernels = attni_kernels_of(isa, p->real == sizeof(float) ? 32 : 64);
    p->q_in_place = attni_in_place(p, &a->q);
    p->k_in_place = attni_in_place(p, &a->k);
    p->v_in_place = attni_in_place(p, &a->v);
    p->tiles = p->group = 1;
    if (p->scale_mantissa < 1) { /* lse / scale_mantissa (attni_set_lse) could overflow */
        p->scaled_scores = true;
        p->log2_scale = ATTNI_LOG2E;
    }
    p->sequences = a->cu_seqlens_q ? a->sequences + 1 : 1;
    p->nv = attni_vectors_for(p, rows, p->kernels->vectors);
    return p->nv * p->kernels->lanes;
}

attn_status attni_derivative_too_large(const attni_plan *p, attn_error *err)
{
    return attni_fail(err, ATTN_ERR_LIMIT, "q",
                      "q is too large: its B x H x T, or the scratch for D=%lld and Dv=%lld, "
                      "is more than this machine can address",
                      (long long)p->D, (long long)p->Dv);
}

/* Uses products of bf16 if q, k, v and dout are all bf16. */
static void choose_unit(attni_backward *bw, int64_t rows)
{
    attni_plan *p = &bw->plan;
    bw->unit = bw->grads.dout.dtype == ATTN_BF16 ? attni_bf16_unit_for(p) : NULL;
    if (!bw->unit)
        return;
    p->nv = attni_backward_vectors(bw, rows, p->kernels->vectors);
    bw->W = p->nv * p->kernels->lanes;
}

static int64_t longest_run(const attni_backward *bw)
{
    int64_t most = bw->row_runs ? 0 : bw->plan.T;
    for (int64_t r = 0; bw->row_runs && r < bw->run_count; r++)
        most = bw->row_runs[r].rows > most ? bw->row_runs[r].rows : most;
    return most;
}

static attni_panels panels_of(const attni_backward *bw, int64_t columns)
{
    const int64_t padded = attni_bf16_padded(columns);
    return bw->unit ? (attni_panels){.columns = columns, .padded = padded}
                    : attni_panels_of(&bw->plan, columns);
}

attn_status attni_backward_make_plan(attni_backward *bw, int isa, int threads, attn_error *err)
{
    attni_plan *p = &bw->plan;
    const int64_t rows = longest_run(bw);
    bw->W = attni_plan_derivative(p, rows, isa);
    choose_unit(bw, rows);
    bw->scale = p->scale_pow2 * p->scale_mantissa;
    bw->group = p->Hk ? p->H / p->Hk : 0;
    bw->want_rows = bw->want_q || bw->dmask == ATTNI_OVER_KEYS;
    bw->keys = keys_per_chunk(p);
    bw->q_panels = panels_of(bw, p->D);
    bw->v_panels = panels_of(bw, p->Dv);
    const bool counted = count_tasks(bw);
    if (counted)
        count_workers(bw, threads);
    if (!counted || !size_scratch(bw))
        return attni_derivative_too_large(p, err);
    return ATTN_OK;
}

attn_status attni_backward_prepare(attni_backward *bw, attn_context *ctx,
                                   const attn_sdpa_args *args, const attn_sdpa_grads *grads,
                                   attn_error *err)
{
    const attn_status status = attni_backward_check(bw, args, grads, NULL, err);
    if (status)
        return status;
    return attni_backward_make_plan(bw, attni_context_isa_index(ctx), attn_context_threads(ctx),
                                    err);
}

/* ------------------------------------------------------------------------------------------ run */

typedef struct job {
    const attni_backward *bw;
    void (*step)(const attni_backward *bw, int64_t index, attni_grad_cursor *at);
    int64_t count;
    atomic_llong next;
} job;

static void run_worker(void *arg, int worker)
{
    job *j = arg;
    attni_grad_cursor at = {.worker = worker};
    for (;;) {
        const int64_t next = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (next >= j->count)
            return;
        attni_hand_over();
        j->step(j->bw, next, &at);
    }
}

void attni_backward_step(const attni_backward *bw, attni_call *call, int64_t count,
                         void (*step)(const attni_backward *, int64_t, attni_grad_cursor *))
{
    job j = {.bw = bw, .step = step, .count = count};
    atomic_init(&j.next, 0);
    if (count)
        attni_call_run(call, bw->workers, run_worker, &j);
}

void attni_backward_run(attni_backward *bw, attni_call *call, char *scratch)
{
    attni_layout layout = {.base = scratch};
    carve(bw, &layout);
    attni_backward_clear(bw);
    attni_backward_step(bw, call, bw->query_blocks, attni_backward_rows);
    attni_backward_step(bw, call,
                        bw->private_pairs +
                            (bw->kv_heads - bw->private_pairs) * bw->tasks_per_kv_head,
                        attni_backward_work_item);
    attni_backward_sums(bw);
}

attn_status attn_sdpa_backward(attn_context *ctx, const attn_sdpa_args *args,
                               const attn_sdpa_grads *grads, attn_error *err)
{
    ATTNI_CALL_MODE;
    attni_backward bw;
    attn_status status = attni_backward_prepare(&bw, ctx, args, grads, err);
    if (status)
        return status;
    attni_call call;
    status = attni_call_begin(&call, ctx, bw.scratch_bytes, bw.plan.args.workspace,
                              bw.plan.args.workspace_bytes, err);
    if (status)
        return status;
    attni_backward_run(&bw, &call, call.scratch);
    attni_call_end(&call);
    return ATTN_OK;
}

/* -------------------------------------------------------------------------------- what will run */

attn_status attn_sdpa_backward_plan(attn_context *ctx, const attn_sdpa_args *args,
                                    const attn_sdpa_grads *grads, attn_plan_info *info,
                                    attn_error *err)
{
    ATTNI_DEFAULT_MODE;
    attni_backward bw;
    const attn_status status = attni_backward_prepare(&bw, ctx, args, grads, err);
    if (status)
        return status;
    attn_plan_info made = {0};
    const attni_plan *p = &bw.plan;
    const attn_sdpa_args *a = &p->args;
    snprintf(made.kernel, sizeof made.kernel, "%s %s %dx%d backward", p->kernels->isa,
             bw.unit                  ? "bf16"
             : p->kernels->bits == 32 ? "f32"
                                      : "f64",
             bw.W, bw.keys);
    made.scratch_bytes = bw.scratch_bytes + ATTNI_ALIGN - 1;
    made.threads = bw.workers;
    made.tasks = bw.tasks;
    snprintf(made.route, sizeof made.route, "%s", bw.unit ? "bf16 gradients" : "gradients");
    snprintf(made.why, sizeof made.why, "a task is %d keys of a head against all of its queries",
             bw.keys);
    made.tiles = 1;
    made.parts = 1;
    made.flop = visible_flop(&bw, attni_visible_pairs(p) * (double)p->H);
    const attn_tensor *tensors[] = {&a->q,        &a->k,        &a->v,          &a->out,
                                    a->lse,       a->mask,      &bw.grads.dout, &bw.grads.dq,
                                    &bw.grads.dk, &bw.grads.dv, bw.grads.dmask};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (tensors[i] && attni_wanted(tensors[i]))
            made.bytes += attni_tensor_bytes(tensors[i]);
    return attni_struct_write(ATTNI_PLAN_INFO, info, &made, "info", err);
}
