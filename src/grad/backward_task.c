/* One task of the backward: a chunk of keys of one key/value head against every query that sees it,
 * tile by tile, the last tile first (backward_tile.c). The task owns its dk and dv. Several
 * tasks add to the same rows of dq, and to the same elements of dmask if heads share it. They add
 * in a fixed order. */
#include "../core/hand_over.h"
#include "backward_tile.h"

#include <math.h>
#include <sched.h>
#include <string.h>

/* Reserves scratch for the operands of products in R; attni_grad_bf16_carve() does so for bf16. */
static void carve_operands(attni_grad_worker *w, attni_layout *layout)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    const size_t line = (size_t)bw->W * p->real, keys = (size_t)bw->keys * p->real;
    const size_t D = (size_t)p->D, Dv = (size_t)p->Dv;
    w->tile.qt = attni_layout_take(layout, D, line);
    w->dot = attni_layout_take(layout, Dv, line);
    w->q_rows = attni_layout_take(layout, (size_t)bw->q_panels.padded, line);
    w->dout_rows = attni_layout_take(layout, (size_t)bw->v_panels.padded, line);
    w->q_row = attni_layout_take(layout, D, p->real);
    w->dout_row = attni_layout_take(layout, Dv, p->real);
    w->score_rows =
        attni_layout_take(layout, ATTNI_BLOCK, (size_t)p->kernels->max_decode_rows * p->real);
    if (!p->k_in_place)
        w->forward.k = attni_layout_take(layout, keys, D);
    if (!p->v_in_place)
        w->forward.v = attni_layout_take(layout, keys, Dv);
    w->clean_k = attni_layout_take(layout, ATTNI_BLOCK * p->real, D);
    w->dq_rows = attni_layout_take(layout, (size_t)p->kernels->max_decode_rows * p->real,
                                   (size_t)bw->q_panels.padded);
}

static void carve(attni_grad_worker *w, attni_layout *layout)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_worker *f = &w->forward;
    const size_t line = (size_t)bw->W * p->real, keys = (size_t)bw->keys * p->real;
    const size_t D = (size_t)p->D, Dv = (size_t)p->Dv;
    if (bw->unit)
        attni_grad_bf16_carve(w, layout);
    else
        carve_operands(w, layout);
    w->converted = attni_layout_take(layout, D > Dv ? D : Dv, line);
    w->lse = attni_layout_take(layout, 7, line);
    if (w->lse)
        w->factor = w->lse + line, w->delta = w->factor + line, w->scale = w->delta + line,
        w->one = w->scale + line, f->mx = w->one + 2 * line;
    f->st = attni_layout_take(layout, ATTNI_BLOCK, line);
    w->dp = attni_layout_take(layout, ATTNI_BLOCK, line);
    if (p->args.softcap > 0)
        w->raw = attni_layout_take(layout, ATTNI_BLOCK, line);
    if (p->args.dropout > 0)
        w->kept = attni_layout_take(layout, ATTNI_BLOCK, line);
    if (p->args.mask)
        f->biases = attni_layout_take(layout, ATTNI_BLOCK, line);
    w->dk = attni_layout_take(layout, keys, (size_t)bw->q_panels.padded);
    w->dv = attni_layout_take(layout, keys, (size_t)bw->v_panels.padded);
    w->dq = attni_layout_take(layout, (size_t)attni_bf16_padded(p->D), line);
    w->sums = attni_layout_take(layout, (size_t)bw->W, sizeof(double));
}

size_t attni_backward_task_scratch(const attni_backward *bw)
{
    attni_grad_worker w = {.bw = bw};
    attni_layout layout = {0};
    carve(&w, &layout);
    return layout.overflow ? SIZE_MAX : layout.used;
}

/* -------------------------------------------------------------------------- order of additions */

/* Waits until `task` has completed more than `tiles` tiles. Its number is lower than that of the
 * caller's task, so some thread has claimed it and is working on it. */
static void wait_for(const attni_backward *bw, int64_t task, int64_t tiles)
{
    atomic_llong *progress = &bw->progress[task];
    attni_hand_over();
    for (int spins = 0; atomic_load_explicit(progress, memory_order_acquire) <= tiles; spins++) {
        if (spins > 2000)
            sched_yield();
#if defined(__x86_64__)
        else
            __builtin_ia32_pause();
#endif
    }
}

/* Heads that share elements of dmask add to them one after the other. Returns the task that must
 * add just before this one: the task of the same chunk in the previous head that shares these
 * elements. -1: this task is the first. */
static int64_t dmask_before(const attni_grad_worker *w)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    if (bw->dmask != ATTNI_DENSE)
        return -1;
    const int64_t *shape = bw->grads.dmask->shape;
    const bool over_b = shape[0] == 1, over_h = shape[1] == 1;
    const int64_t hk = w->pair - w->b * p->Hk;
    int64_t pairs = 0;
    if (over_h && (hk > 0 || over_b))
        pairs = 1;
    else if (over_b && !over_h)
        pairs = p->Hk;
    return pairs && pairs <= w->pair ? w->task - pairs * bw->tasks_per_kv_head : -1;
}

/* Multiplies rows of sums by scale. A scale below the normal numbers of R would lose digits as one
 * number of R, or become 0. It is applied as two factors. */
static void multiply_by_scale(const attni_grad_worker *w, char *x, int64_t rows, int nv)
{
    const attni_plan *p = &w->bw->plan;
    const double factors[] = {p->scale_pow2, p->scale_mantissa};
    const double least = p->real == sizeof(float) ? 0x1p-126 : 0x1p-1022;
    if (fabs(w->bw->scale) >= least) {
        p->kernels->rescale(x, rows, w->scale, nv);
        return;
    }
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < w->bw->W; i++)
            attni_set_real(p, w->scale, i, factors[f]);
        p->kernels->rescale(x, rows, w->scale, nv);
    }
}

/* ------------------------------------------------------------------------------------------ dq */

static void store_queries(const attni_grad_worker *w, char *total)
{
    const attni_plan *p = &w->bw->plan;
    const attni_tile *t = &w->tile;
    const attn_tensor *dq = &w->bw->grads.dq;
    const bool direct = attni_in_place(p, dq);
    char *to = attni_at(dq, w->sequence.b, w->sequence.h, w->sequence.i_base + t->i0, 0);
    multiply_by_scale(w, total, p->D, t->nv);
    p->kernels->finish(direct ? to : w->converted, (ptrdiff_t)(direct ? dq->stride[2] : p->D),
                       total, w->one, t->rows, p->D, t->nv);
    for (int i = 0; i < t->rows && !direct; i++)
        attni_store_row(p,
                        attni_at(dq, w->sequence.b, w->sequence.h, w->sequence.i_base + t->i0 + i,
                                 0),
                        dq, w->converted + (size_t)i * (size_t)p->D * p->real, p->D);
}

/* The totals of tile number x, counted from the last tile of the sequence, hold its dq and sums
 * over the chunks before this chunk. Adds this chunk's part to them. The tile sees the chunks
 * `first` .. `last`. The task of chunk `last` writes the results. */
static void join_tile(attni_grad_worker *w, int64_t x, int64_t first, int64_t last)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    const attni_tile *t = &w->tile;
    const size_t bytes = (size_t)p->D * (size_t)t->W * p->real;
    char *part = w->dq;
    double *sums = w->sums;
    if (first < last) {
        char *total = w->totals + (size_t)w->head * w->head_totals + (size_t)x * bw->tile_bytes;
        double *all = (double *)(void *)(total + (size_t)p->D * (size_t)bw->W * p->real);
        if (w->chunk > first) {
            wait_for(bw, w->task - 1, x);
            p->kernels->fold(total, part, p->D, w->one, t->nv);
            for (int i = 0; i < t->W; i++)
                all[i] += sums[i];
        } else {
            memcpy(total, part, bytes);
            memcpy(all, sums, (size_t)t->W * sizeof *sums);
        }
        part = total;
        sums = all;
    }
    if (w->chunk < last)
        return;
    if (bw->want_q)
        store_queries(w, part);
    if (bw->row_sums)
        memcpy(bw->row_sums + w->row0, sums, (size_t)t->rows * sizeof *sums);
}

/* ------------------------------------------------------------------------------------ one tile */

/* The range of chunks that some query of the tile sees, `first` .. `last`; chunk 0 if there is
 * none. */
static void chunks_of(const attni_grad_worker *w, int64_t *first, int64_t *last)
{
    const attni_span *span = &w->tile.span;
    const int64_t begin = span->any0 > 0 ? span->any0 : 0;
    const int64_t end = span->any1 < w->sequence.S ? span->any1 : w->sequence.S;
    *first = begin < end ? begin / w->bw->keys : 0;
    *last = begin < end ? (end - 1) / w->bw->keys : 0;
}

static void do_tile(attni_grad_worker *w, int64_t x)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_tile *t = &w->tile;
    t->rows = t->per_head = w->sequence.T - t->i0 < t->W ? (int)(w->sequence.T - t->i0) : t->W;
    t->span = attni_mask_span(&w->sequence, t->i0, t->i0 + t->rows);
    w->row0 = (w->sequence.b * p->H + w->sequence.h) * p->T + w->sequence.i_base + t->i0;
    int64_t first, last;
    chunks_of(w, &first, &last);
    if (w->chunk < first || w->chunk > last)
        return;
    const bool seen = attni_backward_tile(w);
    if (!bw->want_rows)
        return;
    if (!seen) {
        memset(w->dq, 0, (size_t)p->D * (size_t)t->W * p->real);
        memset(w->sums, 0, (size_t)t->W * sizeof *w->sums);
    }
    join_tile(w, x, first, last);
}

/* ------------------------------------------------------------------------------------ the task */

/* Element 0 of t, which is dk or dv, for key j of the chunk. */
static char *gradient_of_key(const attni_grad_worker *w, const attn_tensor *t, int64_t j)
{
    return attni_at(t, w->b, w->sequence.hk, w->sequence.j_base + w->j0 + j, 0);
}

/* Copies the sums that t holds. */
static void load_keys(const attni_grad_worker *w, const attn_tensor *t, char *sums, int64_t padded)
{
    const attni_plan *p = &w->bw->plan;
    for (int64_t j = 0; j < w->n && t->shape[3]; j++)
        attni_convert_rows(p, sums + (size_t)(j * padded) * p->real, gradient_of_key(w, t, j), 0,
                           t->dtype, t->stride[3], 1, t->shape[3]);
}

/* Stores the sums in t, multiplied by w->scale if `scaled`. */
static void store_keys(const attni_grad_worker *w, const attn_tensor *t, char *sums, int64_t padded,
                       bool scaled)
{
    const attni_plan *p = &w->bw->plan;
    const int64_t width = t->shape[3];
    const bool no_gaps = padded == width && t->stride[2] == width && t->stride[3] == 1;
    if (scaled)
        multiply_by_scale(w, sums, w->n * padded / p->kernels->lanes, 1);
    for (int64_t j = 0; j < w->n; j += no_gaps ? w->n : 1)
        attni_store_row(p, gradient_of_key(w, t, j), t, sums + (size_t)(j * padded) * p->real,
                        no_gaps ? w->n * width : width);
}

/* Keys that belong to no sequence get zeros. */
static void zero_left_keys(attni_grad_worker *w)
{
    const attni_backward *bw = w->bw;
    const attn_sdpa_args *a = &bw->plan.args;
    for (int64_t j = a->cu_seqlens_k[a->sequences]; j < bw->plan.S; j++) {
        const attn_tensor *outputs[] = {&bw->grads.dk, &bw->grads.dv};
        for (int o = 0; o < 2; o++)
            for (int64_t c = 0; c < outputs[o]->shape[3]; c++)
                memset(attni_at(outputs[o], w->b, w->sequence.hk, j, c), 0,
                       attn_dtype_size(outputs[o]->dtype));
    }
}

/* Sets one bit for each key that holds a NaN or an infinity, or whose sum of squares overflows. */
static void find_nonfinite_keys(attni_grad_worker *w)
{
    const attni_plan *p = &w->bw->plan;
    for (int64_t r = 0; r < w->n; r += ATTNI_BLOCK) {
        const int n = w->n - r < ATTNI_BLOCK ? (int)(w->n - r) : ATTNI_BLOCK;
        ptrdiff_t ld;
        const char *k = attni_tile_rows(&w->forward, false, w->j0 + r, &ld);
        uint64_t nonfinite = 0;
        p->kernels->dots(w->dp, k, ld, k, ld, n, p->D);
        for (int i = 0; i < n; i++)
            nonfinite |= (uint64_t)!isfinite(attni_real(p, w->dp, i)) << i;
        w->nonfinite_k[r / ATTNI_BLOCK] = nonfinite;
    }
}

/* Sets w->totals to the totals of the task's sequence. `tiles` is the number of tiles of all
 * earlier sequences of the head. If all tasks of the head run on one worker (private_pairs), the
 * totals are in the memory of this worker, which is used again for each sequence. Otherwise they
 * are in the memory of the head, which holds the totals of all sequences. */
static void find_totals(attni_grad_worker *w, int64_t tiles, int worker)
{
    const attni_backward *bw = w->bw;
    const bool own = w->pair < bw->private_pairs;
    const int64_t per_head = own ? bw->most_tiles : bw->all_tiles;
    const int64_t index = own ? worker : w->pair - bw->private_pairs;
    const int64_t first = index * bw->group * per_head + (own ? 0 : tiles);
    w->head_totals = (size_t)per_head * bw->tile_bytes;
    if (bw->want_rows)
        w->totals = (own ? bw->private_dq : bw->shared_dq) + (size_t)first * bw->tile_bytes;
}

int64_t attni_backward_tasks_of(const attni_backward *bw, int64_t n)
{
    const int64_t S = attni_keys_of(&bw->plan, n);
    return S <= bw->keys ? 1 : attni_div_up(S, bw->keys);
}

int64_t attni_backward_first_run(const attni_backward *bw, int64_t n)
{
    int64_t low = 0, high = bw->run_count;
    if (!bw->row_runs)
        return n;
    while (low < high) { /* the first run of sequence n or of a later one */
        const int64_t middle = low + (high - low) / 2;
        if (bw->row_runs[middle].n >= n)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

attni_run attni_backward_run_at(const attni_backward *bw, int64_t number)
{
    const attni_plan *p = &bw->plan;
    if (bw->row_runs)
        return bw->row_runs[number];
    const int64_t first = p->args.cu_seqlens_q ? p->args.cu_seqlens_q[number] : 0;
    return (attni_run){.row = first,
                       .rows = attni_queries_of(p, number),
                       .position = first,
                       .n = number};
}

int64_t attni_backward_tiles_of(const attni_backward *bw, int64_t n)
{
    int64_t tiles = 0;
    if (attni_keys_of(&bw->plan, n) <= bw->keys)
        return 0;
    const int64_t past = attni_backward_first_run(bw, n + 1);
    for (int64_t r = attni_backward_first_run(bw, n); r < past; r++)
        tiles += attni_div_up(attni_backward_run_at(bw, r).rows, bw->W);
    return tiles;
}

void attni_backward_move(const attni_backward *bw, attni_grad_cursor *at, int64_t task)
{
    if (task < at->tasks_before)
        at->n = at->tasks_before = at->tiles_before = 0;
    for (int64_t tasks; task >= at->tasks_before + (tasks = attni_backward_tasks_of(bw, at->n));
         at->n++) {
        at->tasks_before += tasks;
        at->tiles_before += attni_backward_tiles_of(bw, at->n);
    }
}

/* Task number -> key/value head (pair: b * Hk + hk), sequence, chunk. */
static void find_task(attni_grad_worker *w, int64_t task, attni_grad_cursor *at)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    w->task = task;
    w->pair = task / bw->tasks_per_kv_head;
    w->b = w->pair / p->Hk;
    const int64_t h = (w->pair - w->b * p->Hk) * bw->group;
    const int64_t of_pair = task - w->pair * bw->tasks_per_kv_head;
    attni_backward_move(bw, at, of_pair);
    attni_find_sequence(p, w->b, h, at->n, &w->sequence);
    find_totals(w, at->tiles_before, at->worker);
    w->sequence.hk = w->pair - w->b * p->Hk; /* also set if there are no query heads */
    w->chunk = of_pair - at->tasks_before;
    w->j0 = w->chunk * bw->keys;
    w->n = w->sequence.S - w->j0 < bw->keys ? w->sequence.S - w->j0 : bw->keys;
    if (bw->without_keys)
        w->n = 0;
    if (p->args.cu_seqlens_q && at->n == p->args.sequences && !bw->in_pieces)
        zero_left_keys(w);
}

/* Sets the width of a run's tiles: bw->W, or a smaller width if one narrower tile holds all of its
 * queries. The bits are the same, because the run then is one tile in both cases. */
static void shape_tile(attni_grad_worker *w)
{
    const attni_plan *p = &w->bw->plan;
    attni_tile *t = &w->tile;
    t->heads = 1;
    t->nv = attni_backward_vectors(w->bw, w->sequence.T, p->nv);
    t->W = t->nv * p->kernels->lanes;
}

static void begin_task(attni_grad_worker *w, int64_t task, attni_grad_cursor *at)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_layout layout = {.base = attni_backward_scratch(bw, at->worker)};
    carve(w, &layout);
    find_task(w, task, at);
    w->forward.plan = p;
    w->forward.sequence = &w->sequence;
    for (int i = 0; i < bw->W; i++) {
        attni_set_real(p, w->scale, i, bw->scale);
        attni_set_real(p, w->one, i, 1);
        attni_set_real(p, w->one, bw->W + i, 1);
    }
    if (w->n > 0 && bw->unit) {
        attni_grad_bf16_load_keys(w);
    } else if (w->n > 0) {
        attni_tile_load(&w->forward, w->j0, (int)w->n, bw->want_scores);
        find_nonfinite_keys(w);
    }
    attni_grad_begin_sums(w);
    if (bw->sums_in && bw->want_k)
        load_keys(w, &bw->grads.dk, w->dk, bw->q_panels.padded);
    if (bw->sums_in && bw->want_v)
        load_keys(w, &bw->grads.dv, w->dv, bw->v_panels.padded);
    for (int64_t g = 0; g < bw->group && bw->alibi_sums; g++)
        bw->alibi_sums[task * bw->group + g] = 0;
}

/* Processes the tiles of a run, the last one first, for all heads of the group. `sequence`
 * contains the run. x is the number of the first of these tiles; returns the number of the next
 * tile. */
static int64_t do_run(attni_grad_worker *w, const attni_sequence *sequence, const attni_run *run,
                      int64_t x)
{
    const attni_backward *bw = w->bw;
    const int64_t before = dmask_before(w), h = sequence->hk * bw->group;
    w->sequence = *sequence;
    attni_narrow_to_run(run, &w->sequence);
    shape_tile(w);
    for (int64_t left = attni_div_up(run->rows, bw->W); left > 0; left--, x++) {
        if (before >= 0)
            wait_for(bw, before, x);
        w->tile.i0 = (left - 1) * bw->W;
        for (w->head = 0; w->head < bw->group; w->head++) {
            w->sequence.h = h + w->head;
            w->sequence.drop_head = sequence->drop_head + (uint64_t)w->head;
            do_tile(w, x);
        }
        attni_hand_over();
        atomic_store_explicit(&bw->progress[w->task], x + 1, memory_order_release);
    }
    return x;
}

static void do_task(const attni_backward *bw, int64_t task, attni_grad_cursor *at)
{
    attni_grad_worker w = {.bw = bw};
    begin_task(&w, task, at);
    if (bw->unit)
        bw->unit->begin();
    const attni_sequence sequence = w.sequence;
    const int64_t first = attni_backward_first_run(bw, at->n);
    int64_t x = 0;
    for (int64_t r = attni_backward_first_run(bw, at->n + 1); r > first; r--) {
        const attni_run run = attni_backward_run_at(bw, r - 1);
        x = do_run(&w, &sequence, &run, x);
    }
    if (bw->unit)
        bw->unit->end();
    attni_grad_complete_sums(&w);
    if (bw->want_k)
        store_keys(&w, &bw->grads.dk, w.dk, bw->q_panels.padded, !bw->sums_out);
    if (bw->want_v)
        store_keys(&w, &bw->grads.dv, w.dv, bw->v_panels.padded, false);
    atomic_store_explicit(&bw->progress[task], ATTNI_TASK_DONE, memory_order_release);
}

void attni_backward_work_item(const attni_backward *bw, int64_t unit, attni_grad_cursor *at)
{
    const int64_t n = bw->tasks_per_kv_head;
    for (int64_t t = 0; unit < bw->private_pairs && t < n; t++)
        do_task(bw, unit * n + t, at);
    if (unit >= bw->private_pairs)
        do_task(bw, bw->private_pairs * n + unit - bw->private_pairs, at);
}
