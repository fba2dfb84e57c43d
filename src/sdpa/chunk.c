/* Processes one chunk of keys for one query tile; tile_task.c calls attni_tile_sweep_chunk() for
 * each chunk and tile:
 *
 *   for each block of 64 keys:
 *     S  scores = Q K^T, soft cap, biases, masks   (score_blocks, score_block)
 *     W  weights = 2^(scores - m)                  (weigh_block)
 *     V  sums += weights V                         (add_values)
 *   J  merge the chunk's maximum, sum of weights and weighted values into the tile's (join, fold)
 *
 * There are three orders of this work. S0 is step S of block 0; [ ] is one loop; v0 and j are steps
 * of the chunk before:
 *
 *   time ->
 *   many queries        S0 W0 V0   S1 W1 V1   S2 W2 V2   S3 W3 V3 J  | next chunk: S0 W0 V0 ...
 *   few rows            S0 S1 S2 S3   W0 W1 W2 W3   V0 V1 V2 V3 J    | next chunk: S0 S1 ...
 *   one query, cache    [S0 v0] [S1 v1] [S2 v2] [S3 v3] j   W0 W1 W2 W3  | next chunk: [S0 v0] ...
 *
 * With many queries the work is compute-bound, and each block is finished before the next one. With
 * few rows (the decode path) it is memory-bound. All keys of the chunk are then read before all of
 * its values, both in address order without a gap (docs/decisions/0008). The sums are kept one row
 * per query until after the final division; a sink or a task in parts needs them as a tile earlier.
 * With one query and a cache, the values of a chunk are even deferred until the keys of the next
 * chunk are read (docs/decisions/0014).
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

#include <string.h>

/* Query i's row of `rows`: w->sums (the weighted values of one chunk) or w->totals (those of all
 * chunks before it). The decode path keeps both as one row per query. */
static char *row_of(const attni_plan *p, char *rows, int i)
{
    return rows + (size_t)i * attni_sums_width(p) * p->real;
}

/* Rescales the sums when they are stored one row per query: row i is multiplied by a[i], broadcast
 * to all lanes. */
static void rescale_sums(attni_worker *w, const attni_tile *t, const char *a)
{
    const attni_plan *p = w->plan;
    const int64_t vectors = (int64_t)attni_sums_width(p) / p->kernels->lanes;
    for (int i = 0; i < t->rows; i++) {
        attni_fill_lanes(p, w->mx, attni_lane(p, a, i), t->W);
        p->kernels->rescale(row_of(p, w->sums, i), vectors, w->mx, 1);
    }
}

/* Adds the chunk's sums, in rows, to the totals, with the factors that join() computed. */
static void fold_sums(attni_worker *w, const attni_tile *t)
{
    const attni_plan *p = w->plan;
    const int64_t vectors = (int64_t)attni_sums_width(p) / p->kernels->lanes;
    const size_t line = (size_t)t->W * p->real;
    for (int i = 0; i < t->rows; i++) {
        attni_fill_lanes(p, w->a, attni_lane(p, w->factors, i), t->W);
        attni_fill_lanes(p, w->a + line, attni_lane(p, w->factors + line, i), t->W);
        p->kernels->fold(row_of(p, w->totals, i), row_of(p, w->sums, i), vectors, w->a, 1);
    }
}

/* Updates the maximum and replaces the block's scores by weights. */
static void weigh_block(attni_worker *w, attni_tile *t, attni_partial *x, attni_chunk_block *b)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    b->raised =
        kernels->update_max(x->m, b->a, x->top, b->mx, t->c, t->nv) && !(b->flags & ATTNI_FIRST);
    if (w->in_rows) {
        /* weights_decode() does not update the sum of weights l: begin_sums() and values_decode()
         * do that when the values are added. */
        kernels->weights_decode(b->st, b->st, t->c, x->m, b->n, t->rows);
        return;
    }
    if (b->raised)
        kernels->rescale(x->l, 1, b->a, t->nv);
    kernels->weights(b->st, x->l, b->st, t->c, x->m, b->n, t->nv, b->flags);
    if (p->args.dropout > 0)
        kernels->drop(b->st, b->st, b->n, p->args.dropout_seed, p->drop_threshold,
                      (uint64_t)(w->sequence->b * p->H + w->sequence->h),
                      (uint64_t)(w->sequence->i_base + t->i0),
                      (uint64_t)(w->sequence->j_base + b->j), 1 / (1 - p->args.dropout), t->nv);
    if (t->rescaled)
        kernels->rescale(b->st, b->n, t->value_scale, t->nv);
}

/* Number of blocks, starting at b[0], whose keys (or values, if `values`) are contiguous: one row
 * stride from the first row to the last, so that one call can process them. */
static int contiguous(const attni_worker *w, const attni_chunk_block *b, int count, bool values)
{
    ptrdiff_t ld;
    int n = 1;
    while (n < count && b[n - 1].n == ATTNI_BLOCK && !(values && b[n].raised)) {
        const char *row = attni_tile_rows(w, values, b[n - 1].j, &ld);
        const attn_dtype dtype = attni_tile_dtype(w);
        if (row + ATTNI_BLOCK * ld * (ptrdiff_t)attn_dtype_size(dtype) !=
            attni_tile_rows(w, values, b[n].j, &ld))
            break;
        n++;
    }
    return n;
}

static int keys_of(const attni_chunk_block *b, int count)
{
    return (int)(b[count - 1].j - b->j) + b[count - 1].n;
}

/* Computes q . k of the first n blocks, whose keys are contiguous. */
static void score_blocks(attni_worker *w, attni_tile *t, const attni_chunk_block *b, int n)
{
    char *const st = w->st, *const mx = w->mx;
    w->st = b->st, w->mx = b->mx;
    attni_tile_products(w, t, b->j, keys_of(b, n));
    w->st = st, w->mx = mx;
}

static void score_block(attni_worker *w, attni_tile *t, attni_partial *x, attni_chunk_block *b)
{
    if (w->plan->tiles == 1 && !w->as_stored)
        attni_tile_load(w, b->j, b->n, true);
    attni_mask_prefetch_part(&w->mask_prefetch);
    attni_tile_scores(w, t, b->j, b->n, b->visible, ATTN_STAGE_BIASED);
    attni_mask_prefetch_part(&w->mask_prefetch);
    weigh_block(w, t, x, b);
}

/* Decode path, before the values of a block are added: if the block raised the maximum, rescales
 * the sums to it. Rescales the sum of weights l too, unless weigh_block() has done so. */
static void begin_sums(attni_worker *w, attni_tile *t, attni_partial *x, const attni_chunk_block *b)
{
    if (b->raised)
        rescale_sums(w, t, b->a);
    if (b->raised && w->in_rows)
        w->plan->kernels->rescale(x->l, 1, b->a, 1);
}

/* Decode path, after the values of a block were added: if it was the chunk's last block, merges the
 * chunk's maximum and sum of weights into the tile's and adds its sums to the totals. */
static void end_sums(attni_worker *w, attni_tile *t, attni_partial *x, const attni_chunk_block *b)
{
    if (b->flags & ATTNI_LAST) {
        w->plan->kernels->join(t->m, t->l, w->factors, x->m, x->l, t->nv);
        fold_sums(w, t);
    }
}

/* Adds the weighted values of one block, or of `count` contiguous blocks. After the chunk's last
 * block, the chunk's sums are added to the tile's totals. */
static void add_values(attni_worker *w, attni_tile *t, attni_partial *x, const attni_chunk_block *b,
                       int count)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const int n = keys_of(b, count);
    ptrdiff_t ld;
    const char *v = attni_tile_rows(w, true, b->j, &ld);
    if (attni_tile_decodes(p, t) && !(b->flags & ATTNI_SKIP_MASKED)) {
        begin_sums(w, t, x, b);
        const attni_next_rows next = attni_tile_next_rows(w, t, true, b->j + n);
        kernels->values_decode(w->sums, x->l, v, ld, attni_tile_dtype(w), b->st, w->in_rows, n,
                               p->Dv, t->rows, b->flags, &next);
        end_sums(w, t, x, &b[count - 1]);
        return;
    }
    if (b->flags & ATTNI_LAST)
        kernels->join(t->m, t->l, w->factors, x->m, x->l, t->nv);
    if (b->raised)
        kernels->rescale(x->acc, p->Dv, b->a, t->nv);
    kernels->values(x->acc, t->total, w->factors, v, ld, b->st, n, p->Dv, t->nv, b->flags,
                    attni_prefetch_now(w));
}

/* Do the kernels read this tile's keys and values in a stored form that is not rows of R? These
 * forms are f16 and bf16, which then need no widening, and interleaved keys, which need no
 * conversion to rows. False also for rows of R, which k_in_place and v_in_place stand for. */
static bool reads_as_stored(const attni_plan *p, const attni_tile *t, attni_sweep mode)
{
    const attn_tensor *k = &p->args.k, *v = &p->args.v;
    if (mode != ATTNI_SWEEP_FAST || p->tiles > 1 || !attni_tile_decodes(p, t))
        return false;
    if (k->dtype == p->real_dtype)
        return p->k_interleaved;
    return p->kernels->halves && (k->dtype == ATTN_BF16 || k->dtype == ATTN_F16) &&
           k->stride[3] == 1 && v->stride[3] == 1;
}

/* Lists the blocks of keys j0 .. j0+n-1 (one chunk) of which the tile sees some key; returns their
 * number. */
static int cut_chunk(const attni_worker *w, const attni_tile *t, int64_t j0, int n,
                     attni_chunk_block blocks[ATTNI_BLOCKS], attni_sweep mode)
{
    const int flags = mode == ATTNI_SWEEP_FAST ? 0 : ATTNI_SKIP_MASKED;
    int count = 0;
    for (int64_t r = j0; r < j0 + n; r += ATTNI_BLOCK) {
        const int64_t end = r + ATTNI_BLOCK < j0 + n ? r + ATTNI_BLOCK : j0 + n;
        const attni_class visible =
            attni_mask_classify(w->sequence, &t->span, t->i0, t->i0 + t->per_head, r, end);
        if (visible == ATTNI_EMPTY)
            continue;
        /* Keys before the first and after the last visible key are cut off; they would add 0. */
        const int64_t first = t->span.any0 > r ? t->span.any0 : r;
        const int64_t past = t->span.any1 < end ? t->span.any1 : end;
        blocks[count++] = (attni_chunk_block){.j = first,
                                              .n = (int)(past - first),
                                              .visible = visible,
                                              .flags = flags};
    }
    return count;
}

/* Is the block's st stored one row per query, the layout of the *_decode operations? Not if scores
 * or weights must be changed before they are used: soft cap, biases, masks and dropout work on the
 * tile layout. */
static bool in_rows(const attni_plan *p, const attni_tile *t, attni_sweep mode,
                    const attni_chunk_block *b)
{
    return attni_tile_decodes(p, t) && mode == ATTNI_SWEEP_FAST && b->visible == ATTNI_FULL &&
           !p->scaled_scores && p->args.dropout == 0;
}

/* Are all keys of the chunk read before all of its values? Reading in address order is faster when
 * few rows make the work memory-bound. It is possible because st has room for the scores of all
 * blocks of the chunk and nothing has to be converted first. */
static bool keys_first(const attni_worker *w, const attni_tile *t, attni_sweep mode,
                       const attni_chunk_block *blocks, int count)
{
    const attni_plan *p = w->plan;
    bool all = (p->k_in_place && p->v_in_place) || w->as_stored;
    for (int i = 0; i < count; i++)
        all &= in_rows(p, t, mode, &blocks[i]);
    return all;
}

/* ------------------------------------------------------- deferred values
 *
 * For one query that reads a cache, the values of a chunk are read in one loop with the keys of the
 * next chunk: two ascending address streams. 32 heads, 4096 keys, D = 128, one query, one thread,
 * Zen 5: 3.32 ms per call instead of 3.48; reading alone takes 3.20 (docs/decisions/0014). */
static bool waits(const attni_worker *w, const attni_tile *t, bool joins)
{
    const attni_plan *p = w->plan;
    return joins && t->rows == 1 && w->as_stored && p->k_interleaved &&
           p->args.k.dtype == p->real_dtype && p->D == p->Dv &&
           attni_has_values_and_next_scores(p->kernels, p->D);
}

/* Computes the scores of the blocks and adds the pending values of the chunk before. */
static void score_and_add(attni_worker *w, attni_tile *t, attni_partial *x, attni_chunk_block *b,
                          int count)
{
    const attni_plan *p = w->plan;
    int i = 0;
    for (; i < count && i < w->pending_count; i++) {
        const attni_chunk_block *v = &w->pending[i];
        if (b[i].n != ATTNI_BLOCK || v->n != ATTNI_BLOCK)
            break;
        ptrdiff_t ldk, ldv;
        const char *keys = attni_tile_rows(w, false, b[i].j, &ldk);
        const char *values = attni_tile_rows(w, true, v->j, &ldv);
        begin_sums(w, t, x, v);
        p->kernels->values_and_next_scores(b[i].st, b[i].mx, w->q_row, keys, w->sums, x->l, values,
                                           ldv, v->st, p->D, v->flags);
        end_sums(w, t, x, v);
    }
    if (i) {
        attni_prefetch_lines(attni_tile_next_rows(w, t, false, b[i - 1].j + ATTNI_BLOCK).rows);
        attni_prefetch_lines(
            attni_tile_next_rows(w, t, true, w->pending[i - 1].j + ATTNI_BLOCK).rows);
    }
    for (int l = i, run; l < w->pending_count; l += run) {
        run = contiguous(w, &w->pending[l], w->pending_count - l, true);
        add_values(w, t, x, &w->pending[l], run);
    }
    for (int run; i < count; i += run) {
        run = contiguous(w, b + i, count - i, false);
        score_blocks(w, t, b + i, run);
    }
    w->pending_count = 0;
}

void attni_tile_end_chunks(attni_worker *w, attni_tile *t)
{
    w->in_rows = true;
    score_and_add(w, t, &w->chunk, NULL, 0);
}

/* ------------------------------------------------------------------------------- the chunk */

static void begin_chunk(const attni_worker *w, const attni_tile *t, const attni_partial *x)
{
    const size_t line = (size_t)t->W * w->plan->real;
    memset(x->l, 0, line);
    memcpy(x->m, t->m_first, line);
    memcpy(x->top, t->top, line);
}

/* Sets each block's flags and buffers (st, mx, a). If all keys are read first (`all`), every block
 * has its own buffers; otherwise all blocks share the first ones. If the chunk before has pending
 * values, block i gets the st of pending block i, which still holds that block's weights:
 * score_and_add() uses these weights up before the new scores replace them. */
static void place_blocks(const attni_worker *w, const attni_tile *t, attni_chunk_block *blocks,
                         int count, bool all)
{
    const attni_plan *p = w->plan;
    const size_t line = (size_t)t->W * p->real,
                 rows = (size_t)p->kernels->max_decode_rows * p->real;
    for (int i = 0; i < count; i++) {
        attni_chunk_block *b = &blocks[i];
        const size_t at = all ? (size_t)i : 0;
        b->st = w->st + at * ATTNI_BLOCK * rows;
        b->mx = w->mx + at * line;
        b->a = w->a + at * line;
        b->flags |= b->visible == ATTNI_FULL ? 0 : ATTNI_MASKED;
    }
    blocks[0].flags |= ATTNI_FIRST;
}

bool attni_tile_sweep_chunk(attni_worker *w, attni_tile *t, attni_partial *x, int64_t j0, int n,
                            attni_sweep mode, bool joins)
{
    const attni_plan *p = w->plan;
    attni_chunk_block blocks[ATTNI_BLOCKS];
    const int count = cut_chunk(w, t, j0, n, blocks, mode);
    if (count == 0)
        return false;
    blocks[count - 1].flags |= joins ? ATTNI_LAST : 0;
    w->as_stored = reads_as_stored(p, t, mode);
    const bool all = keys_first(w, t, mode, blocks, count), wait = all && waits(w, t, joins);
    if (w->pending_count && !wait)
        attni_tile_end_chunks(w, t);
    place_blocks(w, t, blocks, count, all);
    w->in_rows = true;
    if (all)
        score_and_add(w, t, x, blocks, count);
    begin_chunk(w, t, x);
    for (int i = 0; i < count && all; i++)
        weigh_block(w, t, x, &blocks[i]);
    for (int i = 0, run; i < count && !wait; i += run) {
        run = all ? contiguous(w, &blocks[i], count - i, true) : 1;
        if (!all) {
            w->in_rows = in_rows(p, t, mode, &blocks[i]);
            score_block(w, t, x, &blocks[i]);
        }
        attni_mask_prefetch_part(&w->mask_prefetch);
        add_values(w, t, x, &blocks[i], run);
    }
    if (wait) {
        memcpy(w->pending, blocks, sizeof blocks);
        w->pending_count = count;
    }
    if (joins)
        memcpy(t->top, x->top, (size_t)t->W * p->real);
    else if (attni_tile_decodes(p, t) && mode == ATTNI_SWEEP_FAST)
        attni_transpose_sums(w, t, x->acc, w->sums);
    return true;
}
