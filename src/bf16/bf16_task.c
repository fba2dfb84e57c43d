/* The bf16 engine, for instruction sets that multiply bf16: with the matrix unit of AMX
 * (unit_amx.c) or with the dot products of AVX512-BF16 (unit_dot.c). This file computes sweeps over
 * the keys of a task; a task is some tiles of queries. A tile has queries of one head,
 * or of several heads that share keys. bf16_engine.c calls attni_bf16_sweep_keys() for the tiles of
 * a task. If the task is cut along the keys, it calls
 * attni_bf16_sweep_chunk() for each chunk instead.
 *
 *   for each tile chunk (256 keys and a tile of up to 32 queries) with a key that a query sees
 *     for each such block of 64 keys
 *       S^T = K Q^T                (unit->scores; it may also find the maxima, see
 *                                  identity_scores)
 *     soft cap, biases and masks, for each block that needs any of them; then
 *     m = c * the largest score of each query in the chunk, rounded up; c turns a score into log2
 *         units
 *     for each block
 *       P = 2^(S c - m)            (unit->weights, or weigh_aside)
 *       acc += V^T P               (unit->values; on the matrix unit for all blocks at once)
 *     merge acc into the total O, and the sum of the weights into L, both relative to the largest
 *         m so far
 *   out = O / L
 *
 * unit.h fixes the shapes, the rounding of m, and the order of sums on the matrix unit; unit_dot.c
 * states the order of its own sums. Tasks of a few queries take the decode path (bf16_decode.c).
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
        x->scores = NULL;
        if (p->kept_keys)
            x->scores = attni_layout_take(layout, (size_t)p->kept_keys, W * 4);
    }
    /* The decode path stores the scores of a chunk as up to 16 rows, [row][CHUNK]. Masks work on
     * columns, so mask() in bf16_decode.c copies a block of these scores to [BLOCK][W], behind the
     * rows. If W is 16, the rows may fill all of [CHUNK][W], so space for this copy is added. */
    w->st = attni_layout_take(layout, W == 16 ? ATTNI_CHUNK + ATTNI_BLOCK : ATTNI_CHUNK, W * 4);
    w->p = attni_layout_take(layout, (size_t)w->unit->blocks * ATTNI_BLOCK, W * 2);
    w->vt = attni_layout_take(layout, ATTNI_CHUNK * 2, Dv);
    w->columns = attni_layout_take(layout, 1, sizeof *w->columns);
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

/* ------------------------------------------------------------------------- a tile chunk */

/* Are the scores of this tile with block `at`, and all intermediate sums, certainly finite? */
static bool finite_scores(const bf16_worker *w, const bf16_tile *t, int at)
{
    const int q = t->exponent, k = w->exponent[at];
    /* q and k are biased exponents: of the tile's largest query component and of the block's
     * largest key component. So every component of a query is below 2^(q - 126), and of a key below
     * 2^(k - 126). ilogb() rounds down, so D is below 2^(ilogb(D) + 1), and if the condition holds,
     * a sum of D products is below 2^126. */
    return q < 255 && k < 255 &&
           q - 126 + k - 126 + ilogb((double)attni_bf16_padded(w->plan->D)) < 126;
}

static float *scores_of(const bf16_worker *w, const bf16_tile_chunk *x, int b)
{
    const bf16_tile *t = x->t;
    return t->scores ? t->scores + x->blocks[b].j0 * t->W
                     : w->st + (ptrdiff_t)b * ATTNI_BLOCK * t->W;
}

/* May unit->scores find the maxima of this block? It may if products are the final scores (no soft
 * cap, bias or mask) and certainly finite, and if the unit computes no key beyond the block's. */
static bool identity_scores(const bf16_worker *w, const bf16_block *x)
{
    return x->visible == ATTNI_FULL && x->n % w->unit->keys == 0 && !w->plan->scaled_scores &&
           w->mode == SWEEP_FAST && x->clean;
}

/* Computes the scores of all blocks, and the maxima of those whose scores are then final. */
static void compute_scores(bf16_worker *w, bf16_tile_chunk *c)
{
    const attni_plan *p = w->plan;
    for (int b = 0; b < c->count; b++) {
        bf16_block *y = &c->blocks[b];
        y->counted = identity_scores(w, y);
        const attni_bf16_scores x = {.nv = c->t->nv,
                                     .n = y->n,
                                     .k = y->k,
                                     .ldk = y->ldk,
                                     .q = c->t->q,
                                     .same_q = b > 0,
                                     .inner_tiles = (int)(attni_bf16_padded(p->D) / 32),
                                     .pairs = (int)((p->D + 1) / 2),
                                     .st = scores_of(w, c, b),
                                     .highest = y->counted ? c->columns : NULL};
        for (int part = 0; part < ATTNI_MASK_PREFETCH_PARTS / BLOCKS; part++)
            attni_mask_prefetch_part(&w->mask_prefetch);
        w->unit->scores(&x);
    }
}

/* Completes the blocks whose maxima unit->scores did not find (`counted` is false). Applies soft
 * cap, biases and masks, includes these scores in the maxima, and sets `clean` to whether no score
 * is NaN or +inf. Then computes m from the maxima, and updates t->top, the largest score of each
 * query in all chunks so far. */
static void finish_scores(bf16_worker *w, bf16_tile_chunk *x)
{
    const attni_plan *p = w->plan;
    bf16_tile *t = x->t;
    for (int b = 0; b < x->count; b++) {
        bf16_block *y = &x->blocks[b];
        float *st = scores_of(w, x, b);
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

/* The weights of blocks that unit->weights does not accept: with dropout; in a repeated sweep
 * (bf16_engine.c repeats the sweep of a tile whose result is not finite); with scores of NaN or
 * +inf; or with maxima far from 0 (attni_bf16_near). Computes the weights of block b of a tile
 * chunk and applies dropout. In SWEEP_RESCALED, multiplies the weights by value_scale, which
 * attni_bf16_rescale_tile() has set. Rounds the weights to bf16 and stores them in `to`, in the
 * layout of p (unit.h). */
static void weigh_aside(bf16_worker *w, bf16_tile_chunk *x, int b, attni_bf16 *to)
{
    const attni_plan *p = w->plan;
    float *st = scores_of(w, x, b);
    for (int i = x->blocks[b].n * x->t->W; i < ATTNI_BLOCK * x->t->W; i++)
        st[i] = -INFINITY; /* past the last key: unit->scores may not have written these */
    attni_bf16_weigh(st, x->columns, true, w->seen[b], x->t->nv);
    if (p->args.dropout > 0) /* out is scaled by 1 / (1 - dropout) at the end */
        p->kernels->drop(st, st, x->blocks[b].n, p->args.dropout_seed, p->drop_threshold,
                         w->sequence->drop_head, w->sequence->drop_row + (uint64_t)x->t->i0,
                         (uint64_t)(w->sequence->j_base + x->blocks[b].j0), 1, x->t->nv);
    if (w->mode == SWEEP_RESCALED)
        p->kernels->rescale(st, ATTNI_BLOCK, x->t->value_scale, x->t->nv);
    attni_bf16_pack_weights(to, st, x->t->nv);
}

/* Adds the NaN and infinite values of block b, times their weights p, to the sums of the queries
 * that see them. (The values were replaced by 0 in the products.) */
static void add_nonfinite_values(bf16_worker *w, const bf16_tile_chunk *x, int b,
                                 const attni_bf16 *p)
{
    const attn_tensor *v = &w->plan->args.v;
    const bf16_block *block = &x->blocks[b];
    const int nv = x->t->nv, W = x->t->W;
    for (int r = 0; r < block->n; r++)
        for (int64_t c = 0; c < w->plan->Dv; c++) {
            const char *row = attni_stored_row(w->sequence, v, block->j0 + r);
            float value;
            attni_load_row_f32(&value, row + c * v->stride[3] * 2, v->dtype, 1, 1);
            if (isfinite(value))
                continue;
            for (int i = 0; i < W; i++) {
                const attni_bf16 *at = p + ((r / 32 * nv + i / 16) * 16 + r % 32 / 2) * 32;
                float weight;
                attni_load_row_f32(&weight, at + i % 16 * 2 + r % 2, v->dtype, 1, 1);
                if (w->seen[b][r] >> i & 1)
                    x->acc[c * W + i] += weight * value;
            }
        }
}

/* Computes the weights of block b into p. */
static void compute_weights(bf16_worker *w, bf16_tile_chunk *c, int b, attni_bf16 *p)
{
    const bf16_block *y = &c->blocks[b];
    const bool whole = y->n == ATTNI_BLOCK || y->j0 + y->n == w->plan->S;
    const uint64_t bit = c->t->scores && whole ? UINT64_C(1) << y->j0 / ATTNI_BLOCK : 0;
    if (w->mode == SWEEP_FAST && w->plan->args.dropout == 0 && y->clean &&
        attni_bf16_near(c->columns, c->t->nv)) {
        const attni_bf16_weights x = {
            .nv = c->t->nv, .n = y->n, .st = scores_of(w, c, b), .p = p, .columns = c->columns};
        w->unit->weights(&x);
        c->t->kept |= bit;
    } else { /* overwrites the scores */
        weigh_aside(w, c, b, p);
        c->t->kept &= ~bit;
    }
}

/* Computes the weights of all blocks and adds their values, as many blocks at a time as the unit
 * takes. */
static void add_values(bf16_worker *w, bf16_tile_chunk *c)
{
    const attni_plan *p = w->plan;
    const int each = w->unit->blocks;
    attni_bf16_values x = {.nv = c->t->nv,
                           .few = w->few,
                           .acc = c->acc,
                           .panels = p->Dv ? (int)(attni_bf16_padded(p->Dv) / 16) : 0,
                           .components = (int)p->Dv};
    for (int from = 0; from < c->count; from += each) {
        x.count = c->count - from < each ? c->count - from : each;
        x.first = from == 0;
        for (int i = 0; i < x.count; i++) {
            attni_bf16 *weights = w->p + i * ATTNI_BLOCK * c->t->W;
            compute_weights(w, c, from + i, weights);
            x.blocks[i].n = c->blocks[from + i].n;
            x.blocks[i].p = weights;
            x.blocks[i].vt = c->blocks[from + i].vt;
        }
        w->unit->values(&x);
        for (int i = 0; i < x.count; i++)
            if (c->blocks[from + i].nonfinite)
                add_nonfinite_values(w, c, from + i, x.blocks[i].p);
    }
}

static void process(bf16_worker *w, bf16_tile_chunk *c)
{
    compute_scores(w, c);
    finish_scores(w, c);
    add_values(w, c);
    if (!c->apart)
        attni_bf16_join(c->t->total, c->t->M, c->t->L, c->acc, c->columns, w->plan->Dv, c->t->nv);
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
    const bf16_partial own = {w->columns, w->acc};
    const bf16_partial *to = into ? into : &own;
    bf16_tile_chunk x = {.t = t, .columns = to->columns, .acc = to->acc, .apart = into || w->row};
    attni_bf16_load_queries(w, t);
    attni_bf16_clear_columns(t, x.columns);
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
    process(w, &x);
    if (w->row && !into)
        attni_bf16_row_join(w, t, &own);
}

void attni_bf16_begin_sweep(bf16_worker *w, bf16_tile *tiles, int count, sweep_mode mode)
{
    w->mode = mode;
    w->few = count == 1 && tiles->nv == 1 && w->unit->pack_few;
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
        /* A chunk is shorter than ATTNI_CHUNK only at the end of the sequence. It is not cut at
         * `end`, although its keys from there on are not visible: a shorter block could not always
         * be read in place, and would be copied. */
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
    t->route = attni_bf16_route_of(p, t->rows, w->sequence->S);
    t->span = attni_mask_span(w->sequence, i0, i0 + t->per_head);
    t->loaded = false;
    t->kept = 0;
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
