/* Processes one chunk of keys for a tile of few rows (the decode path), with keys and components of
 * values in the lanes; tile_task.c calls attni_decode_chunk() for each chunk. The steps and the
 * resulting bits are those of chunk.c:
 *
 *   S scores   W weights   V sums += weights V   J merge into the totals
 *
 * With few rows the work is memory-bound, so the order of reads decides its speed. S0 is step S of
 * block 0; [ ] is one loop; v0 and j are steps of the chunk before:
 *
 *   time ->
 *   decode             S0 W0 V0   S1 W1 V1   S2 W2 V2   S3 W3 V3 J       | next chunk: S0 W0 V0 ...
 *   keys first         S0 S1 S2 S3   W0 W1 W2 W3   V0 V1 V2 V3 J         | next chunk: S0 S1 ...
 *   deferred values    [S0 v0] [S1 v1] [S2 v2] [S3 v3] j   W0 W1 W2 W3   | next chunk: [S0 v0] ...
 *
 * Rows that are converted are read block by block. Rows that are read in place are read in address
 * order: first all keys of a chunk, then all of its values (docs/decisions/0008).
 * With one query, an f32 cache and some head sizes, the values of a chunk are deferred until the
 * keys of the next chunk are read (docs/decisions/0014). The sums are kept one row per query until
 * after the final division, with three exceptions. If there is a sink, or if the task is cut into
 * parts, they are transposed to a tile before the division. The sweeps that skip masked keys have a
 * tile of sums from the start.
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

#include <string.h>

/* Are the scores of block b stored in rows, the layout of the *_decode operations? */
static bool in_rows(const attni_chunk_block *b) { return b->route != ATTNI_ROUTE_DECODE_TILES; }

/* Are all keys of the chunk of block b read before all of its values? */
static bool keys_first(const attni_chunk_block *b)
{
    return b->route == ATTNI_ROUTE_DECODE_KEYS_FIRST || b->route == ATTNI_ROUTE_DECODE_DEFERRED;
}

/* ------------------------------------------------------------------------------------- scores */

/* Scores in rows, of n keys from block b on. */
static void score_decode(const attni_worker *w, const attni_tile *t, const attni_chunk_block *b,
                         char *st, int n)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const char *q = t->rows == 1 ? w->q_row : t->qt;
    const attni_next_rows next = attni_tile_next_rows(w, t, false, b, b->j + n);
    if (b->interleaved)
        kernels->scores_interleaved(st, b->mx, q, b->k, b->dtype, n, p->D, t->rows, &next);
    else
        kernels->scores_decode(st, b->mx, q, b->k, b->ldk, b->dtype, n, p->D, t->rows, &next);
}

/* The same scores, stored in the tile layout [key][W]. Interleaved keys can be read only from the
 * start of a group, so up to ATTNI_GROUP - 1 extra scores are computed and skipped. */
static void score_decode_tile(const attni_worker *w, const attni_tile *t,
                              const attni_chunk_block *b, int n)
{
    const attni_plan *p = w->plan;
    const int skip = b->interleaved ? (int)(b->j % ATTNI_GROUP) : 0, all = skip + n;
    attni_chunk_block from = *b;
    if (skip) {
        from.j -= skip;
        attni_block_rows(w, &from, true);
    }
    score_decode(w, t, &from, w->score_rows, all);
    for (int j = skip, end; j < all; j = end) { /* the skip may push the last keys into a second
                                                   block */
        const int block = j / ATTNI_BLOCK * ATTNI_BLOCK;
        end = all < block + ATTNI_BLOCK ? all : block + ATTNI_BLOCK;
        p->kernels->pack(b->st + (size_t)((j - skip) * t->W) * p->real,
                         w->score_rows +
                             (size_t)(block * p->kernels->max_decode_rows + j - block) * p->real,
                         ATTNI_BLOCK, t->rows, end - j, 1, t->nv);
    }
    p->kernels->maxima(b->mx, b->st, n, t->nv);
}

void attni_decode_products(attni_worker *w, const attni_tile *t, const attni_chunk_block *b, int n)
{
    if (in_rows(b))
        score_decode(w, t, b, b->st, n);
    else
        score_decode_tile(w, t, b, n);
}

/* Updates the maximum and replaces the block's scores by weights. weights_decode() does not update
 * the sum of weights l: begin_sums() and values_decode() do that when the values are added. */
static void weigh_block(attni_worker *w, attni_tile *t, attni_partial *x, attni_chunk_block *b)
{
    const attni_kernels *kernels = w->plan->kernels;
    if (!in_rows(b)) {
        attni_block_weights(w, t, x, b);
        return;
    }
    b->max_raised =
        kernels->update_max(x->m, b->a, x->top, b->mx, t->c, t->nv) && !(b->flags & ATTNI_FIRST);
    kernels->weights_decode(b->st, b->st, t->c, x->m, b->n, t->rows);
}

/* Returns how many blocks, from b[0] on, one call can process: their keys must follow each other (a
 * block that a mask hides as a whole is not listed), and their keys (or values, if `values`) must
 * lie at one constant row stride. Values also stop before a block that raised the maximum, because
 * the sums are rescaled there. */
static int contiguous(const attni_chunk_block *b, int count, bool values)
{
    const ptrdiff_t size = (ptrdiff_t)attn_dtype_size(b->dtype);
    const ptrdiff_t bytes = ATTNI_BLOCK * size * (values ? b->ldv : b->ldk);
    int n = 1;
    while (n < count && b[n].j == b[n - 1].j + ATTNI_BLOCK && !(values && b[n].max_raised) &&
           (values ? b[n - 1].v + bytes == b[n].v : b[n - 1].k + bytes == b[n].k))
        n++;
    return n;
}

static int keys_of(const attni_chunk_block *b, int count)
{
    return (int)(b[count - 1].j - b->j) + b[count - 1].n;
}

/* The sweep that skips masked keys needs rows of R: it calls values(), which reads no other
 * type. */
static void score_block(attni_worker *w, attni_tile *t, attni_chunk_block *b)
{
    const bool as_stored = w->plan->decode_as_stored && !(b->flags & ATTNI_SKIP_MASKED);
    if (w->plan->tiles == 1 && !as_stored)
        attni_tile_load(w, b->j, b->n, true);
    attni_block_rows(w, b, as_stored);
    attni_mask_prefetch_part(&w->mask_prefetch);
    attni_decode_products(w, t, b, b->n);
    attni_tile_biases(w, t, b, ATTN_STAGE_BIASED);
    attni_mask_prefetch_part(&w->mask_prefetch);
}

/* ------------------------------------------------------------------------------------- values */

/* Query i's row of `rows`: w->sums (the weighted values of one chunk) or w->totals (those of all
 * chunks before it). The decode path keeps both as one row per query. */
static char *row_of(const attni_plan *p, char *rows, int i)
{
    return rows + (size_t)i * p->sums_width * p->real;
}

/* Rescales the sums when they are stored one row per query: row i is multiplied by a[i], broadcast
 * to all lanes of w->factors. (That array holds no factors before join(). w->mx is not free: while
 * values are deferred, it has maxima of the next chunk.) */
static void rescale_sums(attni_worker *w, const attni_tile *t, const char *a)
{
    const attni_plan *p = w->plan;
    const int64_t vectors = (int64_t)p->sums_width / p->kernels->lanes;
    for (int i = 0; i < t->rows; i++) {
        attni_fill_lanes(p, w->factors, attni_lane(p, a, i), t->W);
        p->kernels->rescale(row_of(p, w->sums, i), vectors, w->factors, 1);
    }
}

/* Adds the chunk's sums, in rows, to the totals, with the factors that join() computed. */
static void fold_sums(attni_worker *w, const attni_tile *t)
{
    const attni_plan *p = w->plan;
    const int64_t vectors = (int64_t)p->sums_width / p->kernels->lanes;
    const size_t line = (size_t)t->W * p->real;
    for (int i = 0; i < t->rows; i++) {
        attni_fill_lanes(p, w->a, attni_lane(p, w->factors, i), t->W);
        attni_fill_lanes(p, w->a + line, attni_lane(p, w->factors + line, i), t->W);
        p->kernels->fold(row_of(p, w->totals, i), row_of(p, w->sums, i), vectors, w->a, 1);
    }
}

void attni_transpose_sums(const attni_worker *w, const attni_tile *t, char *to, const char *rows)
{
    const attni_plan *p = w->plan;
    p->kernels->pack(to, rows, (ptrdiff_t)p->sums_width, t->rows, p->Dv, 1, t->nv);
}

/* Before the values of a block are added: if the block raised the maximum, rescales the sums to it.
 * Rescales the sum of weights l too, unless weigh_block() has done so. */
static void begin_sums(attni_worker *w, attni_tile *t, attni_partial *x, const attni_chunk_block *b)
{
    if (b->max_raised)
        rescale_sums(w, t, b->a);
    if (b->max_raised && in_rows(b))
        w->plan->kernels->rescale(x->l, 1, b->a, 1);
}

/* After the values of a block were added: if it was the chunk's last block, merges the
 * chunk's maximum and sum of weights into the tile's and adds its sums to the totals. */
static void end_sums(attni_worker *w, attni_tile *t, attni_partial *x, const attni_chunk_block *b)
{
    if (b->flags & ATTNI_LAST) {
        w->plan->kernels->join(t->m, t->l, w->factors, x->m, x->l, t->nv);
        fold_sums(w, t);
    }
}

/* Adds the weighted values of one block, or of `count` contiguous blocks. After the chunk's last
 * block, the chunk's sums are added to the tile's totals. values_decode() cannot skip marked keys,
 * so the sweep that skips masked keys calls values(), through attni_block_values(). */
static void add_values(attni_worker *w, attni_tile *t, attni_partial *x, const attni_chunk_block *b,
                       int count)
{
    const attni_plan *p = w->plan;
    const int n = keys_of(b, count);
    if (b->flags & ATTNI_SKIP_MASKED) {
        attni_block_values(w, t, x, b);
        return;
    }
    begin_sums(w, t, x, b);
    const attni_next_rows next = attni_tile_next_rows(w, t, true, b, b->j + n);
    p->kernels->values_decode(w->sums, x->l, b->v, b->ldv, b->dtype, b->st, in_rows(b), n, p->Dv,
                              t->rows, b->flags, &next);
    end_sums(w, t, x, &b[count - 1]);
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
        begin_sums(w, t, x, v);
        p->kernels->values_and_next_scores(b[i].st, b[i].mx, w->q_row, b[i].k, w->sums, x->l, v->v,
                                           v->ldv, v->st, p->D, v->flags);
        end_sums(w, t, x, v);
    }
    if (i) {
        const attni_chunk_block *k = &b[i - 1], *v = &w->pending[i - 1];
        attni_prefetch_lines(attni_tile_next_rows(w, t, false, k, k->j + ATTNI_BLOCK).rows);
        attni_prefetch_lines(attni_tile_next_rows(w, t, true, v, v->j + ATTNI_BLOCK).rows);
    }
    for (int l = i, n; l < w->pending_count; l += n) {
        n = contiguous(&w->pending[l], w->pending_count - l, true);
        add_values(w, t, x, &w->pending[l], n);
    }
    for (int n; i < count; i += n) {
        n = contiguous(b + i, count - i, false);
        attni_decode_products(w, t, b + i, keys_of(b + i, n));
    }
    w->pending_count = 0;
}

void attni_decode_end(attni_worker *w, attni_tile *t) { score_and_add(w, t, &w->chunk, NULL, 0); }

/* ---------------------------------------------------------------------------------- the chunk */

/* Lists the blocks, each with its route. A block of which a key is masked, and every block of the
 * sweep that skips masked keys, needs its scores as a tile. If a chunk has such a block, its other
 * blocks are computed one after the other. If it has none and its keys are read first, each block
 * gets buffers of its own, and the addresses of its rows are found here, before all scores. If the
 * chunk before has pending values, block i shares the array st of pending block i, which still
 * holds the weights of that block. score_and_add() uses these weights before the new scores replace
 * them. */
static int cut_chunk(const attni_worker *w, const attni_tile *t, int64_t j0, int n,
                     attni_chunk_block blocks[ATTNI_BLOCKS], attni_sweep mode)
{
    const attni_plan *p = w->plan;
    const int count = attni_cut_chunk(w, t, j0, n, blocks, mode);
    const size_t line = (size_t)t->W * p->real,
                 rows = (size_t)p->kernels->max_decode_rows * p->real;
    bool uniform = true;
    for (int i = 0; i < count; i++)
        if (blocks[i].flags & (ATTNI_MASKED | ATTNI_SKIP_MASKED)) {
            blocks[i].route = ATTNI_ROUTE_DECODE_TILES;
            uniform = false;
        }
    for (int i = 0; i < count; i++) {
        attni_chunk_block *b = &blocks[i];
        if (!keys_first(b))
            continue;
        if (!uniform) {
            b->route = ATTNI_ROUTE_DECODE;
            continue;
        }
        b->st = w->st + (size_t)i * ATTNI_BLOCK * rows;
        b->mx = w->mx + (size_t)i * line;
        b->a = w->a + (size_t)i * line;
        attni_block_rows(w, b, p->decode_as_stored);
    }
    return count;
}

bool attni_decode_chunk(attni_worker *w, attni_tile *t, attni_partial *x, int64_t j0, int n,
                        attni_sweep mode, bool joins)
{
    const attni_plan *p = w->plan;
    attni_chunk_block blocks[ATTNI_BLOCKS];
    const int count = cut_chunk(w, t, j0, n, blocks, mode);
    if (count == 0)
        return false;
    blocks[count - 1].flags |= joins ? ATTNI_LAST : 0;
    const bool all = keys_first(blocks);
    const bool defer = blocks->route == ATTNI_ROUTE_DECODE_DEFERRED && joins;
    if (w->pending_count && !defer)
        attni_decode_end(w, t);
    if (all)
        score_and_add(w, t, x, blocks, count);
    attni_begin_chunk(w, t, x);
    for (int i = 0; i < count && all; i++)
        weigh_block(w, t, x, &blocks[i]);
    for (int i = 0, together; i < count && !defer; i += together) {
        if (!all) {
            score_block(w, t, &blocks[i]);
            weigh_block(w, t, x, &blocks[i]);
        }
        together = all ? contiguous(&blocks[i], count - i, true) : 1;
        attni_mask_prefetch_part(&w->mask_prefetch);
        add_values(w, t, x, &blocks[i], together);
    }
    if (defer) {
        memcpy(w->pending, blocks, sizeof blocks);
        w->pending_count = count;
    }
    if (joins)
        memcpy(t->top, x->top, (size_t)t->W * p->real);
    else if (mode == ATTNI_SWEEP_FAST)
        attni_transpose_sums(w, t, x->acc, w->sums);
    return true;
}
