/* The short path for a task whose keys are one block, all of them visible. tile_task()
 * (tile_task.c) calls attni_task_one_block() first:
 *
 *   scores = Q K^T, maximum, weights, sums += weights V, out = sums / l
 *
 * The arithmetic of such calls (six words, or the next token after few) takes about 100 ns; chunks,
 * totals and joins would double that (docs/decisions/0020).
 *
 * The result is bit-identical: the general path multiplies the totals of a single chunk by 1 and
 * adds 0.
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

#include <string.h>

static char *take(char **at, size_t bytes)
{
    char *piece = *at;
    *at += (bytes + ATTNI_ALIGN - 1) / ATTNI_ALIGN * ATTNI_ALIGN;
    return piece;
}

/* Takes the arrays from scratch. Its size comes from tile_scratch(), which counts each of these
 * arrays too. */
static void carve(attni_worker *w, attni_tile *t, char *at)
{
    const attni_plan *p = w->plan;
    const size_t line = (size_t)t->W * p->real;
    const size_t D = (size_t)p->D, Dv = (size_t)p->Dv;
    t->l = take(&at, 5 * line);
    t->m = t->l + line, t->m_first = t->m + line, t->top = t->m_first + line;
    t->c = t->top + line;
    w->chunk.m = take(&at, 2 * line); /* for a sink */
    w->chunk.l = w->chunk.m + line;
    w->mx = take(&at, 4 * line);
    w->a = w->mx + line, w->factors = w->a + line;
    t->qt = take(&at, D * line);
    t->total = take(&at, Dv * line);
    w->totals = take(&at, (size_t)p->kernels->max_decode_rows * p->real * attni_sums_width(p));
    w->st = take(&at, ATTNI_BLOCK * line);
    w->q_row = take(&at, D * p->real + line);
    if (!p->q_in_place || !p->out_in_place || p->group > 1)
        w->rows = take(&at, (D > Dv ? D : Dv) * line);
}

/* Processes all keys and values, for one tile. */
static void sweep(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const int n = (int)w->sequence->S;
    ptrdiff_t ldv;
    const char *v = attni_tile_rows(w, true, 0, &ldv);
    w->in_rows = attni_tile_decodes(p, t);
    attni_tile_products(w, t, 0, n);
    kernels->update_max(t->m, w->a, t->top, w->mx, t->c, t->nv);
    if (w->in_rows) {
        const attni_next_rows next = attni_tile_next_rows(w, t, true, n);
        kernels->weights_decode(w->st, w->st, t->c, t->m, n, t->rows);
        kernels->values_decode(w->totals, t->l, v, ldv, p->real_dtype, w->st, 1, n, p->Dv, t->rows,
                               ATTNI_FIRST, &next);
    } else {
        kernels->weights(w->st, t->l, w->st, t->c, t->m, n, t->nv, 0);
        kernels->values(t->total, NULL, NULL, v, ldv, w->st, n, p->Dv, t->nv, ATTNI_FIRST, NULL);
    }
    t->in_totals = w->in_rows;
}

bool attni_task_one_block(const attni_plan *plan, const attni_task *task, const attni_task *next,
                          char *scratch)
{
    const attni_sequence *sequence = &task->sequence;
    if (!plan->no_postprocessing || sequence->S < 1 || sequence->S > ATTNI_BLOCK)
        return false;
    attni_worker w;
    attni_zero(&w, offsetof(attni_worker, tiles));
    w.plan = plan, w.sequence = sequence, w.next = next;
    attni_tile *t = &w.tiles[0];
    attni_tile_shape(&w, t, task->i0, task->rows);
    if (t->per_head < task->rows ||
        attni_mask_classify(sequence, &t->span, t->i0, t->i0 + t->per_head, 0, sequence->S) !=
            ATTNI_FULL)
        return false;
    carve(&w, t, scratch);
    attni_tile_queries(&w, t);
    attni_tile_clear(plan, t, false);
    sweep(&w, t);
    return !attni_tile_finish(&w, t);
}
