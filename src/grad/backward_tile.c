/* The arithmetic of the backward: a chunk of keys of one key/value head against a tile of queries.
 *
 *   for each tile of W queries, the last first, for each query head of the group
 *     for each block of 64 keys of the chunk that some query of the tile sees
 *       S^T = K Q^T;  scale, cap, biases, masks;  P = 2^(S - lse)
 *       dP^T = V dO^T;  dS = P (dP - delta), times the derivative of the cap
 *       dV += P^T dO;  dK += dS^T Q            components in lanes: the product linear()
 *       dQ^T += K^T dS^T                       queries in lanes: the product values()
 *     add dQ^T to that of the chunks before
 *
 * A masked pair has P = dS = 0: the code selects this 0, it does not compute it. In the last three
 * products such a 0 would still be multiplied by the NaN or infinity of a q, dout or k that other
 * rows see, and 0 * NaN is NaN. So non-finite rows are replaced by zeros in these products, and
 * their contributions are added element by element where they are seen (attni_grad_nonfinite_rows,
 * attni_grad_nonfinite_key). All other results keep the bits that they have without such rows.
 */
#include "backward_tile.h"

#include <math.h>
#include <string.h>

/* ----------------------------------------------------------------------------- loading a tile */

/* Copies rows of R into panels; rows whose bit is set in `nonfinite` become zeros. */
static void fill_panels(const attni_plan *p, char *to, const attni_panels *panels, const char *rows,
                        ptrdiff_t ld, int n, uint64_t nonfinite)
{
    for (int64_t c = 0; c < panels->columns; c += panels->widest) {
        const int64_t left = panels->padded - c;
        const size_t width = (size_t)(left < panels->widest ? left : panels->widest) * p->real;
        const size_t used = (size_t)(panels->columns - c) * p->real;
        const size_t bytes = used < width ? used : width;
        for (int i = 0; i < n; i++, to += width) {
            memcpy(to, rows + (i * ld + c) * (ptrdiff_t)p->real, bytes);
            if (bytes < width)
                memset(to + bytes, 0, width - bytes);
            if (nonfinite >> i & 1)
                memset(to, 0, width);
        }
    }
}

/* Copies the only query of a tile array [n][W] to a row. */
static void copy_lane(const attni_grad_worker *w, char *row, const char *tile, int64_t n)
{
    const size_t real = w->bw->plan.real, line = (size_t)w->tile.W * real;
    for (int64_t d = 0; d < n; d++)
        memcpy(row + (size_t)d * real, tile + (size_t)d * line, real);
}

static void load_tile(attni_grad_worker *w)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_tile *t = &w->tile;
    const size_t bytes = (size_t)t->rows * p->real, at = (size_t)w->row0 * p->real;
    memset(w->lse, 0, 3 * (size_t)bw->W * p->real);
    memcpy(w->lse, bw->lse + at, bytes);
    memcpy(w->factor, bw->factor + at, bytes);
    memcpy(w->delta, bw->delta + at, bytes);
    w->nonfinite_q = w->nonfinite_dout = 0;
    w->scaled = false;
    for (int i = 0; i < t->rows; i++) {
        const uint64_t nonfinite = bw->nonfinite[w->row0 + i];
        w->nonfinite_q |= (uint64_t)((nonfinite & ATTNI_NONFINITE_Q) != 0) << i;
        w->nonfinite_dout |= (uint64_t)((nonfinite & ATTNI_NONFINITE_DOUT) != 0) << i;
        w->scaled |= attni_real(p, w->factor, i) != 1;
    }
    if (bw->unit) {
        attni_grad_bf16_load_tile(w);
        return;
    }
    ptrdiff_t ld;
    const char *rows = attni_grad_tile_rows(w, &p->args.q, t->i0, t->rows, &ld);
    p->kernels->pack(t->qt, rows, ld, t->rows, p->D, p->scale_pow2, t->nv);
    if (bw->want_k)
        fill_panels(p, w->q_rows, &bw->q_panels, rows, ld, t->rows, w->nonfinite_q);
    rows = attni_grad_tile_rows(w, &bw->grads.dout, t->i0, t->rows, &ld);
    if (bw->want_scores)
        p->kernels->pack(w->dot, rows, ld, t->rows, p->Dv, 1, t->nv);
    if (bw->want_v)
        fill_panels(p, w->dout_rows, &bw->v_panels, rows, ld, t->rows, w->nonfinite_dout);
    if (t->rows > 1)
        return;
    copy_lane(w, w->q_row, t->qt, p->D);
    if (bw->want_scores)
        copy_lane(w, w->dout_row, w->dot, p->Dv);
}

/* ------------------------------------------------------------------------------------ products */

/* Has the tile so few queries, and are there enough keys, that the operations of the decode path
 * are faster? */
static bool decodes(const attni_grad_worker *w, int64_t keys)
{
    const attni_kernels *kernels = w->bw->plan.kernels;
    return w->tile.nv == 1 && w->tile.rows <= kernels->max_decode_rows && keys >= kernels->lanes;
}

/* st = K Q^T for n keys and a tile that decodes. It also computes dP^T = V dO^T: then k is the
 * values, and q is dout. q is a tile
 * array or, for a single query, its row. The rows of `next` are prefetched meanwhile. */
static void multiply_few(attni_grad_worker *w, char *st, const char *q, const char *k,
                         ptrdiff_t ldk, int n, int64_t D, const attni_next_rows *next)
{
    const attni_plan *p = &w->bw->plan;
    const int rows = w->tile.rows;
    p->kernels->scores_decode(w->score_rows, w->forward.mx, q, k, ldk, p->real_dtype, n, D, rows,
                              next);
    p->kernels->pack(st, w->score_rows, ATTNI_BLOCK, rows, n, 1, 1);
}

/* sum[j][:] += sum_i x[j][i] rows[i][:] for n keys, `rows` in panels; without `add`, sum[j][:] is
 * written. */
static void add_rows(const attni_grad_worker *w, char *sum, const attni_panels *panels,
                     const char *x, const char *rows, int n, bool add)
{
    const attni_plan *p = &w->bw->plan;
    const int lanes = p->kernels->lanes;
    attni_product product = {.ldo = (ptrdiff_t)panels->padded,
                             .ld_sums = (ptrdiff_t)panels->padded,
                             .x = x,
                             .ldx = w->tile.W,
                             .n = n,
                             .D = w->tile.rows};
    for (int64_t c = 0; c < panels->padded; c += panels->widest) {
        const int64_t left = panels->padded - c,
                      width = left < panels->widest ? left : panels->widest;
        product.out = sum + (size_t)c * p->real;
        product.sums = add ? product.out : NULL;
        product.wt = rows + (size_t)c * (size_t)w->tile.rows * p->real;
        p->kernels->linear(&product, (int)(width / lanes));
    }
}

/* Is the tile's dq summed in dq_rows, with components of keys in the lanes, as in the decode path?
 */
static bool sums_queries_in_rows(const attni_grad_worker *w)
{
    for (int b = 0; b < ATTNI_CHUNK / ATTNI_BLOCK; b++)
        if (w->nonfinite_k[b])
            return false;
    return decodes(w, w->n);
}

/* dq [D][W] = dq_rows [rows][D, rounded up to whole vectors]. */
static void transpose_queries(attni_grad_worker *w)
{
    const attni_plan *p = &w->bw->plan;
    const int64_t lanes = p->kernels->lanes;
    p->kernels->pack(w->dq, w->dq_rows, (ptrdiff_t)(attni_div_up(p->D, lanes) * lanes),
                     w->tile.rows, p->D, 1, w->tile.nv);
}

/* Adds to dq for n keys from j on: to dq_rows, if it holds the sums of this tile, else to w->dq. */
static void add_queries(const attni_grad_worker *w, int64_t j, int n, bool first)
{
    const attni_plan *p = &w->bw->plan;
    ptrdiff_t ld;
    const char *k = attni_tile_rows(&w->forward, false, j, &ld);
    const int flags = first ? ATTNI_FIRST : 0;
    if (sums_queries_in_rows(w)) {
        const attni_next_rows nothing = {.rows = w->dp, .count = INT64_MAX};
        p->kernels->values_decode(w->dq_rows, NULL, k, ld, p->real_dtype, w->dp, 0, n, p->D,
                                  w->tile.rows, flags, &nothing);
        return;
    }
    const uint64_t nonfinite = w->nonfinite_k[(j - w->j0) / ATTNI_BLOCK];
    const char *clean = k;
    ptrdiff_t ld_clean = ld;
    if (nonfinite) {
        const size_t row = (size_t)p->D * p->real;
        for (int r = 0; r < n; r++)
            if (nonfinite >> r & 1)
                memset(w->clean_k + (size_t)r * row, 0, row);
            else
                memcpy(w->clean_k + (size_t)r * row, k + r * ld * (ptrdiff_t)p->real, row);
        clean = w->clean_k;
        ld_clean = (ptrdiff_t)p->D;
    }
    p->kernels->values(w->dq, NULL, NULL, clean, ld_clean, w->dp, n, p->D, w->tile.nv, flags, NULL);
    for (int r = 0; r < n && nonfinite >> r; r++)
        if (nonfinite >> r & 1)
            attni_grad_nonfinite_key(w, r, k + r * ld * (ptrdiff_t)p->real);
}

/* ------------------------------------------------------------------------------ a block of keys */

/* With few queries a block is read once, from memory. find_nonfinite_keys() has read its keys; its
 * values are prefetched while the first tile multiplies the keys (docs/decisions/0039). Tiles that
 * decode do not need this: multiply_few() prefetches. */
static void choose_prefetch(attni_grad_worker *w, const attni_chunk_block *b)
{
    const attni_plan *p = &w->bw->plan;
    attni_worker *f = &w->forward;
    f->prefetch_count = f->prefetch_next = 0;
    if (w->bw->want_scores && p->v_in_place && !w->summed[(b->j - w->j0) / ATTNI_BLOCK])
        attni_add_prefetch(f, b->v, b->ldv * (ptrdiff_t)p->real, b->n, p->Dv * (int64_t)p->real);
}

static void do_block(attni_grad_worker *w, int64_t j, int n, attni_class visible, bool first)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_worker *f = &w->forward;
    attni_tile *t = &w->tile;
    attni_chunk_block b = {j, n, visible, ATTNI_ROUTE_TILES, .st = f->st, .mx = f->mx};
    attni_block_rows(f, &b, false);
    const bool few = decodes(w, n);
    const attni_next_rows values =
        attni_rows_to_prefetch(b.v, b.ldv * (ptrdiff_t)p->real, p->Dv * (int64_t)p->real, n, 0,
                               false, false);
    if (few) {
        multiply_few(w, f->st, t->rows == 1 ? w->q_row : t->qt, b.k, b.ldk, n, p->D, &values);
    } else {
        choose_prefetch(w, &b);
        attni_tile_products(f, t, &b);
    }
    if (w->raw)
        memcpy(w->raw, f->st, (size_t)n * (size_t)t->W * p->real);
    attni_tile_biases(f, t, &b, ATTN_STAGE_BIASED);
    char *kept = attni_grad_weigh(w, j, n);
    if (bw->want_scores && few) {
        multiply_few(w, w->dp, t->rows == 1 ? w->dout_row : w->dot, b.v, b.ldv, n, p->Dv, &values);
    } else if (bw->want_scores) {
        p->kernels->scores(w->dp, f->mx, w->dot, b.v, b.ldv, n, p->Dv, t->nv, NULL);
    } else { /* dp is not needed, but attni_grad_scores() also sets masked weights to 0 */
        memset(w->dp, 0, (size_t)n * (size_t)t->W * p->real);
    }
    attni_grad_scores(w, kept, j, n);
    const size_t at = (size_t)(j - w->j0) * p->real;
    const bool add = attni_grad_has_sums(w, j - w->j0, n);
    if (bw->want_v) {
        char *sum = w->dv + at * (size_t)bw->v_panels.padded;
        add_rows(w, sum, &bw->v_panels, kept, w->dout_rows, n, add);
        attni_grad_nonfinite_rows(w, sum, &bw->v_panels, kept, &bw->grads.dout, w->nonfinite_dout,
                                  j, n);
    }
    if (bw->want_k) {
        char *sum = w->dk + at * (size_t)bw->q_panels.padded;
        add_rows(w, sum, &bw->q_panels, w->dp, w->q_rows, n, add);
        attni_grad_nonfinite_rows(w, sum, &bw->q_panels, w->dp, &p->args.q, w->nonfinite_q, j, n);
    }
    if (bw->want_q)
        add_queries(w, j, n, first);
}

bool attni_backward_tile(attni_grad_worker *w)
{
    const attni_tile *t = &w->tile;
    bool seen = false;
    for (int64_t j = w->j0; j < w->j0 + w->n; j += ATTNI_BLOCK) {
        int64_t end = j + ATTNI_BLOCK < w->j0 + w->n ? j + ATTNI_BLOCK : w->j0 + w->n;
        if (t->span.any1 < end)
            end = t->span.any1;
        if (end <= j)
            continue;
        const attni_class visible =
            attni_mask_classify(&w->sequence, &t->span, t->i0, t->i0 + t->rows, j, end);
        if (visible == ATTNI_EMPTY)
            continue;
        if (!seen) {
            load_tile(w);
            memset(w->sums, 0, (size_t)t->W * sizeof *w->sums);
        }
        if (w->bw->unit)
            attni_grad_bf16_block(w, j, (int)(end - j), visible);
        else
            do_block(w, j, (int)(end - j), visible, !seen);
        seen = true;
    }
    if (seen && w->bw->unit)
        attni_grad_bf16_end_tile(w);
    else if (seen && w->bw->want_q && sums_queries_in_rows(w))
        transpose_queries(w);
    return seen;
}
