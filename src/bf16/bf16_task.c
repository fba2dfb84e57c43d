/* The bf16 engine: sweeps over the keys of a task on instruction sets that multiply bf16, with the
 * matrix unit of AMX (unit_amx.c) or with the dot products of AVX512-BF16 (unit_dot.c).
 * bf16_engine.c calls attni_bf16_sweep_keys() for the tiles of each task.
 *
 *   for each tile chunk: 256 keys and a tile of up to 32 queries, if one of them sees a key
 *     for each block of 64 keys
 *       S   S^T = K Q^T                (unit->compute_step)
 *       W   P = 2^(S - m)              (unit->compute_step, or weigh_aside)
 *       V   acc += V^T P               (unit->compute_step)
 *     M   soft cap, biases and masks, for each block that needs any of them; then
 *         m = maximum of all scores. M comes after S of all blocks and before W of the first
 *     J   merge acc into the total O. J comes after V of the last block
 *   out = O / l
 *
 * On the matrix unit each call of unit->compute_step, made by take_step(), does S of one block, W
 * of a second and V of a third, with interleaved instructions. A call is most efficient if it does
 * all three. So the work on successive tile chunks A, B, C overlaps (A3: block 3 of A; a column is
 * a step):
 *
 *   time ->  | advance(B)                 | advance(C)                 |
 *   S        | B0    B1    B2    B3       | C0    C1    C2    C3       |
 *   M        |                         B  |                         C  |
 *   W        | A0    A1    A2    A3       | B0    B1    B2    B3       |
 *   V        | .     A0    A1    A2       | A3    B0    B1    B2       |
 *   J        |                            |    A                       |
 *
 * Dot products finish one tile chunk before the next (process()), so that scores and weights are
 * used while they are in L1: S0 S1 S2 S3, M, W0 V0, W1 V1, W2 V2, W3 V3, J.
 *
 * unit.h fixes the shapes and the order of sums. The bits do not depend on which blocks share a
 * step. Tasks of a few queries take the decode path (bf16_decode.c).
 *
 * Terms (tile, block, chunk, interleaved): the glossary in kernel/kernel.h. Arrays: unit.h
 * (operands: k, q, st, p, vt, acc) and bf16_task.h (those of a task).
 */
#include "bf16_task.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ scratch */

static void carve(bf16_worker *w, attni_layout *layout)
{
    const attni_plan *p = w->plan;
    const size_t W = (size_t)p->nv * 16, D = (size_t)attni_bf16_padded(p->D),
                 Dv = (size_t)attni_bf16_padded(p->Dv);
    const size_t wide = D > Dv ? D : Dv;
    for (int t = 0; t < p->tiles; t++) {
        bf16_tile *x = &w->tiles[t];
        x->q = attni_layout_take(layout, D, W * 2);
        x->total = attni_layout_take(layout, Dv, W * 4);
        x->c = attni_layout_take(layout, 5, W * 4);
        if (x->c)
            x->value_scale = x->c + W, x->M = x->value_scale + W, x->L = x->M + W,
            x->top = x->L + W;
    }
    for (int n = 0; n < 2; n++) {
        w->st[n] = attni_layout_take(layout, ATTNI_CHUNK, W * 4);
        w->p[n] = attni_layout_take(layout, ATTNI_BLOCK, W * 2);
    }
    for (int n = 0; n < 3; n++)
        w->vt[n] = attni_layout_take(layout, ATTNI_CHUNK * 2, Dv);
    w->columns = attni_layout_take(layout, 3, sizeof *w->columns);
    w->acc = attni_layout_take(layout, Dv, W * 4);
    const size_t rows = (size_t)w->unit->rows;
    w->row_sums = attni_layout_take(layout, Dv, rows * 4);
    w->row_total = attni_layout_take(layout, Dv, rows * 4);
    w->row_q = attni_layout_take(layout, D, rows * 2);
    w->row_p = attni_layout_take(layout, ATTNI_CHUNK, rows * 2);
    w->k = attni_layout_take(layout, ATTNI_CHUNK * 2, D);
    w->rows = attni_layout_take(layout, ATTNI_BLOCK * 4, wide);
    if (p->args.mask)
        w->biases = attni_layout_take(layout, ATTNI_BLOCK, W * 4);
    if (p->args.scores)
        w->lines = attni_layout_take(layout, ATTNI_BLOCK, W * 4);
}

size_t attni_bf16_scratch(const attni_plan *plan)
{
    bf16_worker w = {.plan = plan, .unit = plan->unit};
    attni_layout layout = {0};
    carve(&w, &layout);
    return layout.overflow ? SIZE_MAX : layout.used;
}

/* ------------------------------------------------------------------------- parts of a step */

/* Are the scores of this tile with block `at`, and all intermediate sums, certainly finite? */
static bool finite_scores(const bf16_worker *w, const bf16_tile *t, int at)
{
    const int q = t->exponent, k = w->exponent[at];
    /* q and k are biased exponents: of the tile's largest query component and of the block's
     * largest key component. So every component is below 2^(q - 126) or 2^(k - 126). The condition
     * says that a sum of D of their products is below 2^126. */
    return q < 255 && k < 255 &&
           q - 126 + k - 126 + ilogb((double)attni_bf16_padded(w->plan->D)) < 126;
}

static float *scores_of(const bf16_tile_chunk *x, int b)
{
    return x->st + (ptrdiff_t)b * ATTNI_BLOCK * x->t->W;
}

/* Are the products of step S already the final scores, so that step M has nothing to apply? */
static bool identity_scores(const bf16_worker *w, const bf16_block *x)
{
    return x->visible == ATTNI_FULL && x->n % w->unit->keys == 0 && !w->plan->scaled_scores &&
           w->mode == SWEEP_FAST && x->clean;
}

/* Step M. Blocks that are `counted` have their final scores, and these are in the maxima already
 * (add_maxima()). In all other blocks, applies soft cap, biases and masks, and updates the maxima.
 * Then computes m from the maxima. */
static void finish_scores(bf16_worker *w, bf16_tile_chunk *x)
{
    const attni_plan *p = w->plan;
    bf16_tile *t = x->t;
    for (int b = 0; b < x->count; b++) {
        bf16_block *y = &x->blocks[b];
        float *st = scores_of(x, b);
        if (y->counted)
            continue;
        if (p->scaled_scores)
            attni_scale_softcap(p, st, y->n, p->args.softcap, t->nv);
        if (y->visible != ATTNI_FULL)
            attni_bf16_mask(w, t, st, y->j0, y->n);
        y->clean = attni_bf16_maxima(x->columns, st, y->n, t->nv);
    }
    attni_bf16_set_maxima(x->columns, t->nv);
    for (int i = 0; i < t->W; i++)
        t->top[i] = fmaxf(t->top[i], x->columns->top[i]);
}

/* Step W for blocks that unit->compute_step does not accept: with dropout, after the first sweep,
 * or with scores that are not finite or far from 0 (attni_bf16_near). Computes the weights of block
 * b of a tile chunk, and applies dropout and, in SWEEP_RESCALED, the factor value_scale. Rounds the
 * weights to bf16 and stores them in `to`, in the layout of p (unit.h). */
static void weigh_aside(bf16_worker *w, bf16_tile_chunk *x, int b, attni_bf16 *to, uint32_t *seen)
{
    const attni_plan *p = w->plan;
    float *st = scores_of(x, b);
    for (int i = x->blocks[b].n * x->t->W; i < ATTNI_BLOCK * x->t->W; i++)
        st[i] = -INFINITY; /* past the last key: the step may not have written these */
    attni_bf16_weigh(st, x->columns, true, seen, x->t->nv);
    if (p->args.dropout > 0) /* kept weights are scaled by 1 / (1 - p) once, at the end */
        p->kernels->drop(st, st, x->blocks[b].n, p->args.dropout_seed, p->drop_threshold,
                         w->sequence->drop_head, w->sequence->drop_row + (uint64_t)x->t->i0,
                         (uint64_t)(w->sequence->j_base + x->blocks[b].j0), 1, x->t->nv);
    if (w->mode == SWEEP_RESCALED)
        p->kernels->rescale(st, ATTNI_BLOCK, x->t->value_scale, x->t->nv);
    attni_bf16_pack_weights(to, st, x->t->nv);
}

/* Adds the NaN and infinite values of a block, times their weights, to the queries that see them.
 * (The values were replaced by 0 in the products.) */
static void add_nonfinite_values(bf16_worker *w, const bf16_weighted_block *x)
{
    const attn_tensor *v = &w->plan->args.v;
    const int nv = x->t->nv, W = x->t->W;
    for (int r = 0; r < x->block.n; r++)
        for (int64_t c = 0; c < w->plan->Dv; c++) {
            const char *row = attni_stored_row(w->sequence, v, x->block.j0 + r);
            float value;
            attni_load_row_f32(&value, row + c * v->stride[3] * 2, v->dtype, 1, 1);
            if (isfinite(value))
                continue;
            for (int i = 0; i < W; i++) {
                const attni_bf16 *at = x->p + ((r / 32 * nv + i / 16) * 16 + r % 32 / 2) * 32;
                float weight;
                attni_load_row_f32(&weight, at + i % 16 * 2 + r % 2, v->dtype, 1, 1);
                if (x->seen[r] >> i & 1)
                    x->acc[c * W + i] += weight * value;
            }
        }
}

/* A step without work, for tiles of nv vectors. */
static attni_bf16_step empty_step(const bf16_worker *w, int nv)
{
    const attni_plan *p = w->plan;
    return (attni_bf16_step){.nv = nv,
                             .inner_tiles = (int)(attni_bf16_padded(p->D) / 32),
                             .pairs = (int)((p->D + 1) / 2),
                             .panels = p->Dv ? (int)(attni_bf16_padded(p->Dv) / 16) : 0,
                             .components = (int)p->Dv};
}

static void add_mask_prefetch(bf16_worker *w)
{
    for (int part = 0; part < ATTNI_MASK_PREFETCH_PARTS / BLOCKS; part++)
        attni_mask_prefetch_part(&w->mask_prefetch);
}

/* Adds the scores of block b to a step. */
static void add_scores(attni_bf16_step *x, bf16_tile_chunk *c, int b)
{
    x->k = c->blocks[b].k;
    x->ldk = c->blocks[b].ldk;
    x->q = c->t->q;
    x->to_score = c->blocks[b].n;
    x->st_next = scores_of(c, b);
}

/* Adds the maxima of block b to a step, if its scores are final. */
static void add_maxima(const bf16_worker *w, attni_bf16_step *x, bf16_tile_chunk *c, int b)
{
    if (!identity_scores(w, &c->blocks[b]))
        return;
    x->st_seen = scores_of(c, b);
    x->highest = c->columns;
    c->blocks[b].counted = true;
}

/* Adds the weights of block b to a step if the step can compute them; else computes them now. The
 * block becomes w->weighed. */
static void add_weights(bf16_worker *w, attni_bf16_step *x, bf16_tile_chunk *c, int b)
{
    const int buffer = w->blocks++ & 1;
    w->weighed = (bf16_weighted_block){.t = c->t,
                                       .block = c->blocks[b],
                                       .columns = c->columns,
                                       .acc = c->acc,
                                       .first = b == 0,
                                       .last = b == c->count - 1,
                                       .apart = c->apart,
                                       .p = w->p[buffer],
                                       .seen = w->seen[buffer]};
    if (w->mode == SWEEP_FAST && w->plan->args.dropout == 0 && c->blocks[b].clean &&
        attni_bf16_near(c->columns, c->t->nv)) {
        x->to_weigh = c->blocks[b].n;
        x->st = scores_of(c, b);
        x->p = w->p[buffer];
        x->columns = c->columns;
    } else {
        weigh_aside(w, c, b, w->p[buffer], w->seen[buffer]);
    }
}

/* Adds the values of a weighted block to a step. */
static void add_values(attni_bf16_step *x, const bf16_weighted_block *b)
{
    x->p_before = b->p;
    x->vt = b->block.vt;
    x->to_add = b->block.n;
    x->acc = b->acc;
    x->first = b->first;
}

/* Finishes a weighted block after the step that added its values. */
static void end_values(bf16_worker *w, const bf16_weighted_block *b)
{
    if (b->block.nonfinite)
        add_nonfinite_values(w, b);
    if (b->last && !b->apart)
        attni_bf16_join(b->t->total, b->t->M, b->t->L, b->acc, b->columns, w->plan->Dv, b->t->nv);
}

/* ------------------------------------------------------------------------------- dot products */

/* Processes one tile chunk: the scores of all blocks, then weights and values of each. */
static void process(bf16_worker *w, bf16_tile_chunk *c)
{
    for (int b = 0; b < c->count; b++) {
        attni_bf16_step x = empty_step(w, c->t->nv);
        add_mask_prefetch(w);
        add_scores(&x, c, b);
        add_maxima(w, &x, c, b);
        w->unit->compute_step(&x);
    }
    finish_scores(w, c);
    for (int b = 0; b < c->count; b++) {
        attni_bf16_step weights = empty_step(w, c->t->nv), values = weights;
        add_weights(w, &weights, c, b);
        w->unit->compute_step(&weights);
        add_values(&values, &w->weighed);
        w->unit->compute_step(&values);
        end_values(w, &w->weighed);
    }
    w->weighed.t = NULL;
}

/* ------------------------------------------------------------------------------- matrix unit */

/* One step: scores of block b of `next`, weights of block b of `now`, and values of the block
 * weighed in the step before. Each part is skipped if it has no block. */
static void take_step(bf16_worker *w, bf16_tile_chunk *next, bf16_tile_chunk *now, int b)
{
    const bf16_weighted_block before = w->weighed;
    attni_bf16_step x = empty_step(w, (next ? next->t : now->t ? now->t : before.t)->nv);
    add_mask_prefetch(w);
    if (next && b < next->count)
        add_scores(&x, next, b);
    if (next && b > 0 && b - 1 < next->count)
        add_maxima(w, &x, next, b - 1);
    w->weighed.t = NULL;
    if (now->t && b < now->count)
        add_weights(w, &x, now, b);
    if (before.t)
        add_values(&x, &before);
    w->unit->compute_step(&x);
    if (before.t)
        end_values(w, &before);
}

/* Advances the pipeline by one tile chunk. Adds the values of w->weighed, the last block of the
 * tile chunk before w->scored. Computes the weights of w->scored, and adds the values of its blocks
 * but the last. Computes the scores of `next` (NULL: none); then `next` becomes w->scored. */
static void advance(bf16_worker *w, bf16_tile_chunk *next)
{
    bf16_tile_chunk *now = &w->scored;
    int steps = now->t ? now->count : w->weighed.t ? 1 : 0;
    if (next && next->count > steps)
        steps = next->count;
    for (int b = 0; b < steps; b++)
        take_step(w, next, now, b);
    if (next)
        finish_scores(w, next);
    if (next)
        w->scored = *next;
    else
        w->scored.t = NULL;
}

void attni_bf16_drain(bf16_worker *w)
{
    while (w->scored.t || w->weighed.t)
        advance(w, NULL);
}

/* ------------------------------------------------------------------------------------- sweeps */

void attni_bf16_clear_total(const bf16_worker *w, bf16_tile *t)
{
    const size_t Dv = (size_t)attni_bf16_padded(w->plan->Dv);
    if (w->row)
        memset(w->row_total, 0, Dv * (size_t)w->row * sizeof *w->row_total);
    else
        memset(t->total, 0, Dv * (size_t)t->W * 4);
}

static bf16_tile_chunk begin_tile_chunk(bf16_worker *w, bf16_tile *t, const bf16_partial *into)
{
    bf16_tile_chunk x = {.t = t,
                         .columns = into ? into->columns : &w->columns[w->tile_chunks % 3],
                         .st = w->st[w->unit->pipelined ? w->tile_chunks % 2 : 0],
                         .acc = into ? into->acc : w->acc,
                         .apart = into != NULL};
    w->tile_chunks++;
    attni_bf16_load_queries(w, t);
    attni_bf16_clear_columns(t, x.columns);
    return x;
}

void attni_bf16_sweep_chunk(bf16_worker *w, bf16_tile *t, int64_t j0, int n,
                            const bf16_partial *into)
{
    attni_class class[BLOCKS] = {ATTNI_EMPTY};
    int seen = 0;
    for (int b = 0; b * ATTNI_BLOCK < n; b++) {
        const int64_t from = j0 + b * ATTNI_BLOCK;
        const int64_t to = from + ATTNI_BLOCK < j0 + n ? from + ATTNI_BLOCK : j0 + n;
        class[b] = attni_mask_classify(w->sequence, &t->span, t->i0, t->i0 + t->per_head, from, to);
        seen += class[b] != ATTNI_EMPTY;
    }
    if (seen == 0 || (w->row && attni_bf16_row_chunk(w, t, class, j0, n, into)))
        return;
    /* A step works on tiles of one width. */
    if ((w->scored.t && w->scored.t->nv != t->nv) || (w->weighed.t && w->weighed.t->nv != t->nv))
        attni_bf16_drain(w);
    const bf16_partial own = {w->columns, w->acc};
    const bool joins_row = w->row && !into;
    bf16_tile_chunk x = begin_tile_chunk(w, t, joins_row ? &own : into);
    for (int b = 0; b * ATTNI_BLOCK < n; b++) {
        if (class[b] == ATTNI_EMPTY)
            continue;
        bf16_block *y = &x.blocks[x.count++];
        y->j0 = j0 + b * ATTNI_BLOCK;
        y->n = j0 + n - y->j0 < ATTNI_BLOCK ? (int)(j0 + n - y->j0) : ATTNI_BLOCK;
        y->visible = class[b];
        y->k = attni_bf16_find_keys(w, y->j0, y->n, b, &y->ldk);
        y->vt = attni_bf16_find_values(w, y->j0, y->n, b);
        y->nonfinite = w->nonfinite >> b & 1;
        y->clean = finite_scores(w, t, b);
    }
    if (w->unit->pipelined)
        advance(w, &x);
    else
        process(w, &x);
    if (w->row) /* attni_bf16_row_chunk() may compute the next chunk and reuse the buffers */
        attni_bf16_drain(w);
    if (joins_row)
        attni_bf16_row_join(w, t, &own);
}

void attni_bf16_begin_sweep(bf16_worker *w, bf16_tile *tiles, int count, sweep_mode mode)
{
    w->mode = mode;
    w->row = 0;
    if (mode == SWEEP_FAST && count == 1 && tiles->route == ATTNI_ROUTE_BF16_DECODE)
        attni_bf16_row_begin(w, tiles);
}

void attni_bf16_sweep_keys(bf16_worker *w, bf16_tile *tiles, int count)
{
    int64_t begin = INT64_MAX, end = 0;
    for (int t = 0; t < count; t++) {
        begin = tiles[t].span.any0 < begin ? tiles[t].span.any0 : begin;
        end = tiles[t].span.any1 > end ? tiles[t].span.any1 : end;
    }
    begin -= begin % ATTNI_CHUNK;
    for (int64_t j0 = begin; j0 < end; j0 += ATTNI_CHUNK) {
        /* The last chunk ends at the end of the sequence, even if its last keys are not visible:
         * shorter blocks could not always be read in place and would be copied. */
        const int64_t left = w->sequence->S - j0;
        const int n = left < ATTNI_CHUNK ? (int)left : ATTNI_CHUNK;
        attni_bf16_new_chunk(w);
        for (int t = 0; t < count; t++) {
            const bf16_tile *next = t + 1 < count ? &tiles[t + 1] : &tiles[0];
            const int64_t from = t + 1 < count ? j0 : j0 + ATTNI_CHUNK;
            w->mask_prefetch =
                attni_mask_prefetch(w->sequence, next->i0, next->per_head, from, end - from);
            if (tiles[t].span.any0 < j0 + n && tiles[t].span.any1 > j0)
                attni_bf16_sweep_chunk(w, &tiles[t], j0, n, NULL);
        }
    }
    attni_bf16_row_end(w, tiles);
    attni_bf16_drain(w);
}

/* ------------------------------------------------------------------------ tiles and the worker */

void attni_bf16_size_tile(const attni_plan *p, bf16_tile *t, int heads, int64_t rows)
{
    t->heads = heads;
    t->nv = p->nv == 2 && rows * t->heads > 16 ? 2 : 1;
    t->W = t->nv * 16;
    t->per_head = rows * t->heads < t->W ? (int)rows : t->W / t->heads;
    t->rows = t->per_head * t->heads;
}

void attni_bf16_begin_tile(bf16_worker *w, bf16_tile *t, int64_t i0, int64_t rows)
{
    const attni_plan *p = w->plan;
    t->i0 = i0;
    attni_bf16_size_tile(p, t, w->sequence->heads, rows);
    t->route = attni_bf16_route_of(p, t->rows);
    t->span = attni_mask_span(w->sequence, i0, i0 + t->per_head);
    t->loaded = false;
}

void attni_bf16_begin_worker(bf16_worker *w, const attni_plan *plan, const attni_sequence *sequence,
                             char *scratch)
{
    attni_zero(w, offsetof(bf16_worker, tiles));
    w->plan = plan;
    w->sequence = sequence;
    w->unit = plan->unit;
    attni_layout layout = {.base = scratch};
    carve(w, &layout);
    w->unit->begin();
}

#endif
