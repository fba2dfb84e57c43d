/* The forward: attn_sdpa_forward(). Read this file first.
 *
 *   attni_sdpa_prepare
 *     attni_sdpa_check (plan/sdpa_check.c)   check every argument, once
 *     attni_make_plan  (make_plan.c)         choose kernels, engine, tile width, tasks, scratch
 *   attni_sdpa_run: on each thread, run_worker
 *     for each task that this thread takes   task numbers are taken in order, until none is left
 *       attni_find_task (plan/task_list.c)   find the task's queries: a range, of one head or of
 *                                            heads that share keys
 *       engine->task                         compute their attention over all keys that they see:
 *                                            tile_task.c, or bf16/bf16_engine.c on bf16 hardware
 *
 * plan/mask.c decides which keys a query sees, prefetch.c what is prefetched. The arithmetic is in
 * kernel/, and for bf16 hardware in bf16/unit_*.c. The glossary in kernel/kernel.h explains tile,
 * block and chunk; plan/engine.h describes an engine.
 *
 * If there are too few tasks for the threads, each task is cut into parts along the keys.
 * engine->part computes one part: a range of chunks of 256 keys. The thread that finishes the last
 * part of a task calls engine->fold, which merges the parts.
 *
 * The results have the same bits for any width of tiles, any number of tasks and workers, and any
 * order of them.
 */
#include "../core/hand_over.h"
#include "sdpa.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct job {
    const attni_plan *plan;
    char *scratch;
    char *partials;        /* [tasks][chunks][partial_bytes] */
    atomic_llong *arrived; /* [tasks]: number of finished parts */
    atomic_llong next;     /* the next task, or part of a task, to take */
} job;

/* Computes one part of a task; merges all parts if it is the last one to finish. */
static void run_part(job *j, int64_t task, int64_t part, const attni_sequence *sequence, int64_t i0,
                     int64_t rows, char *scratch)
{
    const attni_plan *p = j->plan;
    char *partials = j->partials + (size_t)task * (size_t)p->chunks * p->partial_bytes;
    p->engine->part(p, sequence, i0, rows, p->chunks * part / p->parts,
                    p->chunks * (part + 1) / p->parts, partials, scratch);
    attni_hand_over();
    if (atomic_fetch_add_explicit(&j->arrived[task], 1, memory_order_acq_rel) + 1 == p->parts)
        p->engine->fold(p, sequence, i0, rows, p->chunks, partials, scratch);
}

static void run_task(job *j, int64_t number, int64_t part, attni_cursor *cursor, char *scratch)
{
    const attni_plan *p = j->plan;
    attni_task task, next;
    attni_find_task(p, number, cursor, &task);
    if (p->parts > 1) {
        run_part(j, number, part, &task.sequence, task.i0, task.rows, scratch);
        return;
    }
    const int64_t free =
        p->workers <= 1 ? number + 1 : atomic_load_explicit(&j->next, memory_order_relaxed);
    const bool prefetch = p->far && free < p->tasks;
    if (prefetch) {
        attni_cursor of_next = *cursor;
        attni_find_task(p, free, &of_next, &next);
    }
    p->engine->task(p, &task, prefetch ? &next : NULL, scratch);
}

static void run_worker(void *arg, int worker)
{
    job *j = arg;
    const attni_plan *p = j->plan;
    char *scratch = j->scratch + (size_t)worker * p->worker_bytes;
    attni_cursor cursor = attni_last_sequence(p);
    const bool alone = p->workers <= 1;
    for (int64_t count = 0;; count++) {
        const int64_t next =
            alone ? count : atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (next >= p->tasks * p->parts)
            return;
        const int64_t task = p->parts > 1 ? next / p->parts : next;
        attni_hand_over();
        run_task(j, task, next - task * p->parts, &cursor, scratch);
    }
}

attn_status attni_sdpa_prepare(attni_plan *plan, attn_context *ctx, const attn_sdpa_args *args,
                               attn_error *err)
{
    attn_status status = attni_sdpa_check(plan, args, false, NULL, err);
    if (status == ATTN_OK && plan->D + plan->Dv == 0)
        status = attni_check_keys(plan, attni_sdpa_writes(&plan->args), err);
    if (status)
        return status;
    return attni_make_plan(plan, attni_context_isa_index(ctx), attn_context_threads(ctx), err);
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

/* Scratch on the stack. For a few short rows, allocating memory would take longer than
 * attention. */
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
