/* The arithmetic of the backward on instruction sets that multiply bf16: the five products of
 * backward_tile.c, computed by unit_dot.c or unit_amx.c.
 *
 *   product               left operand                      right operand
 *   S^T = K Q^T           rows of k                         q, as pairs of components
 *   dP^T = V dO^T         rows of v                         dout, as pairs of components
 *   dV += P^T dO          weights, a row for each key       dout, as pairs of rows
 *   dK += dS^T Q          gradients, a row for each key     q, as pairs of rows
 *   dQ^T += K^T dS^T      keys, transposed                  gradients, as pairs of rows
 *
 * The first two products are floats. Masks, soft cap and dropout work on these floats, and the
 * gradients of a mask or the ALiBi slopes are summed from them. Then weights and gradients
 * are rounded to bf16 (bf16/unit_grads.c) and multiplied. The sums of the last three products stay
 * floats.
 *
 * Keys and values are copied, and keys also transposed, once per task, which takes 1 % of the time
 * of the backward. Queries are packed once per tile, which takes 5 %. With
 * few queries (few_queries()), keys and values are read as they are stored, and the functions of
 * the decode path compute the products, with the same bits.
 */
#include "backward_tile.h"

#include <string.h>

#if defined(__x86_64__)

#define OPERAND 512 /* bf16 elements in one operand of a product: 16 rows of 32 */

void attni_grad_bf16_carve(attni_grad_worker *w, attni_layout *layout)
{
    const attni_backward *bw = w->bw;
    attni_grad_operands *o = &w->bf16;
    const size_t D = (size_t)bw->q_panels.padded, Dv = (size_t)bw->v_panels.padded;
    const size_t keys = (size_t)bw->keys * sizeof(attni_bf16);
    const size_t queries = (size_t)bw->W * sizeof(attni_bf16);
    const size_t block = ATTNI_BLOCK * sizeof(attni_bf16);
    o->k = attni_layout_take(layout, keys, D);
    o->v = attni_layout_take(layout, keys, Dv);
    o->kt = attni_layout_take(layout, keys, D);
    o->q = attni_layout_take(layout, queries, D);
    o->dout = attni_layout_take(layout, queries, Dv);
    o->q_pairs = attni_layout_take(layout, block, D);
    o->dout_pairs = attni_layout_take(layout, block, Dv);
    o->rows = attni_layout_take(layout, block, D > Dv ? D : Dv);
    o->largest = attni_layout_take(layout, (size_t)bw->W, sizeof(float));
    const size_t few = (size_t)bw->unit->rows;
    o->few_q = attni_layout_take(layout, few * sizeof(attni_bf16), D);
    o->few_dout = attni_layout_take(layout, few * sizeof(attni_bf16), Dv);
    o->few_grads = attni_layout_take(layout, few * sizeof(attni_bf16), ATTNI_CHUNK);
    o->few_scores = attni_layout_take(layout, few * sizeof(float), ATTNI_CHUNK);
    o->few_sums = attni_layout_take(layout, few * sizeof(float), D);
    o->few_dq = attni_layout_take(layout, few * sizeof(float), D);
}

/* -------------------------------------------------------------------------------------- loading */

/* Copies the chunk's rows of k or v. Zeros fill each row up to ld elements, and rows of zeros fill
 * the last block. */
static void load_rows(const attni_grad_worker *w, const attn_tensor *t, attni_bf16 *to, int64_t ld)
{
    const int64_t width = t->shape[3],
                  end = w->n + (ATTNI_BLOCK - w->n % ATTNI_BLOCK) % ATTNI_BLOCK;
    for (int64_t r = 0; r < end; r++, to += ld) {
        const bool copied = r < w->n && width;
        if (copied)
            attni_bf16_copy_row(to, attni_stored_row(&w->sequence, t, w->j0 + r), t->stride[3],
                                width);
        const int64_t filled = copied ? width : 0;
        memset(to + filled, 0, (size_t)(ld - filled) * sizeof *to);
    }
}

/* If the functions of the decode path can compute the products of this chunk: returns the number
 * of queries, rounded up to a number that they take. Returns 0 if there are too many queries, if
 * keys or values cannot be read in place or have no elements, or if a key of the chunk is not
 * finite. */
static int few_queries(const attni_grad_worker *w)
{
    const attni_backward *bw = w->bw;
    const attn_tensor *k = &bw->plan.args.k, *v = &bw->plan.args.v;
    const int T = (int)w->sequence.T;
    if (w->sequence.T > bw->unit->rows || bw->plan.D == 0 || bw->plan.Dv == 0 ||
        (k->stride[3] != 1 && bw->plan.D > 1) || (v->stride[3] != 1 && bw->plan.Dv > 1) ||
        attni_bf16_exponent(attni_stored_row(&w->sequence, k, w->j0),
                            (ptrdiff_t)k->stride[2] * (ptrdiff_t)sizeof(attni_bf16), w->n,
                            bw->plan.D) == 255)
        return 0;
    return attni_bf16_decode_rows(T);
}

void attni_grad_bf16_load_keys(attni_grad_worker *w)
{
    const attni_backward *bw = w->bw;
    const attn_sdpa_args *a = &bw->plan.args;
    attni_grad_operands *o = &w->bf16;
    const int64_t D = bw->q_panels.padded;
    o->few = few_queries(w);
    if (o->few)
        return; /* nonfinite_k is still 0: each task begins with a zeroed attni_grad_worker */
    load_rows(w, &a->k, o->k, D);
    if (bw->want_scores)
        load_rows(w, &a->v, o->v, bw->v_panels.padded);
    for (int64_t j = 0; j < w->n; j += ATTNI_BLOCK) {
        attni_bf16 *k = o->k + j * D;
        uint64_t nonfinite = 0;
        for (int r = 0; r < ATTNI_BLOCK; r++)
            nonfinite |= (uint64_t)(attni_bf16_exponent(k + r * D, 0, 1, D) == 255) << r;
        w->nonfinite_k[j / ATTNI_BLOCK] = nonfinite;
        if (nonfinite) {
            memcpy(o->rows, k, (size_t)D * ATTNI_BLOCK * sizeof *k);
            for (int r = 0; r < ATTNI_BLOCK; r++)
                if (nonfinite >> r & 1)
                    memset(o->rows + r * D, 0, (size_t)D * sizeof *k);
            k = o->rows;
        }
        attni_bf16_pack_values(o->kt + j * D, k, (ptrdiff_t)D, ATTNI_BLOCK, D, false);
    }
}

/* Packs the tile's rows of q or dout twice: as pairs of components, and as pairs of rows. In the
 * pairs of rows, non-finite rows are zeros. */
static void load_queries(const attni_grad_worker *w, const attn_tensor *t, attni_bf16 *components,
                         double power, attni_bf16 *pairs, uint64_t nonfinite)
{
    const attni_tile *tile = &w->tile;
    const int64_t width = t->shape[3], padded = attni_bf16_padded(width);
    if (width == 0) { /* data may be NULL: no offset may be added to it */
        memset(components, 0, (size_t)(padded * tile->W) * sizeof *components);
        memset(pairs, 0, (size_t)(padded * ATTNI_BLOCK) * sizeof *pairs);
        return;
    }
    const char *row = attni_at(t, w->sequence.b, w->sequence.h, w->sequence.i_base + tile->i0, 0);
    const attni_bf16 *from = (const attni_bf16 *)(const void *)row;
    ptrdiff_t ld = (ptrdiff_t)t->stride[2];
    if (nonfinite || (t->stride[3] != 1 && width > 1)) {
        for (int i = 0; i < tile->rows; i++)
            attni_bf16_copy_row(w->bf16.rows + i * width,
                                row + i * ld * (ptrdiff_t)sizeof(attni_bf16), t->stride[3], width);
        from = w->bf16.rows, ld = (ptrdiff_t)width;
    }
    attni_bf16_pack_queries(components, from, ld, tile->rows, width, (float)power, tile->nv);
    for (; nonfinite; nonfinite &= nonfinite - 1)
        memset(w->bf16.rows + __builtin_ctzll(nonfinite) * width, 0, (size_t)width * sizeof *from);
    attni_bf16_pack_pairs(pairs, from, ld, tile->rows, width, false);
}

void attni_grad_bf16_load_tile(attni_grad_worker *w)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_grad_operands *o = &w->bf16;
    load_queries(w, &p->args.q, o->q, p->scale_pow2, o->q_pairs, w->nonfinite_q);
    load_queries(w, &bw->grads.dout, o->dout, 1, o->dout_pairs, w->nonfinite_dout);
    if (o->few) {
        attni_bf16_first_queries(o->few_q, o->q, bw->q_panels.padded, o->few, w->tile.nv);
        attni_bf16_first_queries(o->few_dout, o->dout, bw->v_panels.padded, o->few, w->tile.nv);
        memset(o->few_dq, 0, (size_t)(o->few * bw->q_panels.padded) * sizeof(float));
    } else {
        memset(w->dq, 0, (size_t)bw->q_panels.padded * (size_t)w->tile.W * sizeof(float));
    }
}

void attni_grad_bf16_end_tile(attni_grad_worker *w)
{
    const int64_t D = w->bw->q_panels.padded;
    if (w->bf16.few)
        w->bw->plan.kernels->pack(w->dq, w->bf16.few_dq, (ptrdiff_t)D, w->tile.rows, D, 1,
                                  w->tile.nv);
}

/* ------------------------------------------------------------------------------------- products */

/* n rounded up to a multiple of `to`. */
static int filled(int n, int to) { return (n + to - 1) / to * to; }

/* c [n][W] = rows of n keys or values, times queries packed as pairs of components. */
static void score(const attni_grad_worker *w, void *c, const attni_bf16 *rows, int64_t width,
                  const attni_bf16 *queries, int n)
{
    const attni_bf16_product x = {.a = rows,
                                  .row = (ptrdiff_t)width,
                                  .rows16 = (ptrdiff_t)(16 * width),
                                  .inner_stride = 32,
                                  .b = queries,
                                  .pair = 32,
                                  .columns16 = OPERAND,
                                  .pairs16 = w->tile.nv * OPERAND,
                                  .c = c,
                                  .ldc = w->tile.W,
                                  .m = filled(n, 16),
                                  .n = w->tile.W,
                                  .inner_tiles = (int)(width / 32)};
    w->bw->unit->multiply(&x);
}

/* sum [n][width] = rows times pairs, or += if `add`. `rows` are weights or gradients of n keys, as
 * attni_bf16_score_grads writes them; `pairs` are pairs of rows of dout or q. */
static void add_rows(const attni_grad_worker *w, char *sum, const attni_bf16 *rows,
                     const attni_bf16 *pairs, int64_t width, int n, bool add)
{
    const attni_bf16_product x = {.a = rows,
                                  .row = 2 * w->tile.W,
                                  .rows16 = 32 * w->tile.W,
                                  .inner_stride = 64,
                                  .b = pairs,
                                  .pair = (ptrdiff_t)(2 * width),
                                  .columns16 = 32,
                                  .pairs16 = (ptrdiff_t)(32 * width),
                                  .c = (float *)(void *)sum,
                                  .ldc = (ptrdiff_t)width,
                                  .m = filled(n, 16),
                                  .n = (int)width,
                                  .inner_tiles = filled(w->tile.rows, 32) / 32,
                                  .add = add};
    if (w->bf16.few)
        w->bw->unit->row_products(x.c, rows, x.row, pairs, (w->tile.rows + 1) / 2, n, width, add);
    else
        w->bw->unit->multiply(&x);
}

/* dq [D][W] += keys transposed, times pairs of rows of gradients. */
static void add_queries(const attni_grad_worker *w, int64_t at, int n)
{
    const int64_t D = w->bw->q_panels.padded;
    const attni_bf16_product x = {.a = w->bf16.kt + at * D,
                                  .row = 32,
                                  .rows16 = OPERAND,
                                  .inner_stride = (ptrdiff_t)(D / 16 * OPERAND),
                                  .b = (const attni_bf16 *)(const void *)w->dp,
                                  .pair = 4 * w->tile.W,
                                  .columns16 = 32,
                                  .pairs16 = 64 * w->tile.W,
                                  .c = (float *)(void *)w->dq,
                                  .ldc = w->tile.W,
                                  .m = (int)D,
                                  .n = w->tile.W,
                                  .inner_tiles = filled(n, 32) / 32,
                                  .add = true,
                                  .factors = w->bf16.largest};
    w->bw->unit->multiply(&x);
}

/* ----------------------------------------------------------------- products with few queries */

/* c [n][W] = n rows of t (keys or values), from row j on, times `queries` (few_q or few_dout). */
static void score_few(const attni_grad_worker *w, void *c, const attn_tensor *t, int64_t j, int n,
                      const attni_bf16 *queries)
{
    const attni_grad_operands *o = &w->bf16;
    attni_bf16_rows rows = {.at = attni_stored_row(&w->sequence, t, j),
                            .ld = (ptrdiff_t)t->stride[2] * (ptrdiff_t)sizeof(attni_bf16),
                            .n = n};
    rows.next = j + n < w->j0 + w->n ? (const char *)rows.at + n * rows.ld : rows.at;
    attni_bf16_row_scores(w->bw->unit, o->few_scores, queries, &rows, t->stride[3],
                          (int)t->shape[3], o->few, o->rows);
    w->bw->plan.kernels->pack(c, o->few_scores, ATTNI_CHUNK, w->tile.rows, n, 1, w->tile.nv);
}

/* few_dq += gradients of n keys from j on, times these keys. */
static void add_few_queries(const attni_grad_worker *w, int64_t j, int n)
{
    const attni_grad_operands *o = &w->bf16;
    const attn_tensor *k = &w->bw->plan.args.k;
    const int64_t D = w->bw->q_panels.padded;
    const attni_bf16 *pairs = (const attni_bf16 *)(const void *)w->dp;
    for (int i = 0; i < ATTNI_BLOCK; i += 2, pairs += 4 * w->tile.W)
        for (int r = 0; r < o->few; r++)
            memcpy(o->few_grads + r * ATTNI_CHUNK + i, pairs + 2 * r, 2 * sizeof *pairs);
    const char *at = attni_stored_row(&w->sequence, k, j);
    const attni_bf16_rows keys = {.at = at,
                                  .ld = (ptrdiff_t)k->stride[2] * (ptrdiff_t)sizeof(attni_bf16),
                                  .next = at,
                                  .n = n};
    float unused[16] = {0}; /* the sums of the gradients */
    w->bw->unit->row_values(o->few_sums, unused, o->few_grads, &keys, k->shape[3], true, o->few);
    attni_bf16_add_scaled_rows(o->few_dq, o->few_sums, o->largest, w->tile.rows, D);
}

/* ------------------------------------------------------------------------------ a block of keys */

/* The sums of dv, and of dk, for key `at` of the chunk. */
static char *dv_of(const attni_grad_worker *w, int64_t at)
{
    return w->dv + (size_t)(at * w->bw->v_panels.padded) * sizeof(float);
}

static char *dk_of(const attni_grad_worker *w, int64_t at)
{
    return w->dk + (size_t)(at * w->bw->q_panels.padded) * sizeof(float);
}

/* Adds what non-finite rows of q, dout and k contribute, from weights and gradients that are not
 * rounded yet. A pair of a query and a key counts only if the masks let the query see the key. */
static void add_nonfinite(const attni_grad_worker *w, const char *weights, int64_t j, int n)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    const int64_t at = j - w->j0, D = bw->q_panels.padded;
    if (bw->want_v)
        attni_grad_nonfinite_rows(w, dv_of(w, at), &bw->v_panels, weights, &bw->grads.dout,
                                  w->nonfinite_dout, j, n);
    if (bw->want_k)
        attni_grad_nonfinite_rows(w, dk_of(w, at), &bw->q_panels, w->dp, &p->args.q, w->nonfinite_q,
                                  j, n);
    const uint64_t nonfinite = bw->want_q ? w->nonfinite_k[at / ATTNI_BLOCK] : 0;
    for (int r = 0; r < n && nonfinite >> r; r++)
        if (nonfinite >> r & 1) {
            attni_convert_rows(p, w->converted, (const char *)(w->bf16.k + (at + r) * D), 0,
                               ATTN_BF16, 1, 1, p->D);
            attni_grad_nonfinite_key(w, r, w->converted);
        }
}

/* Computes weights and gradients, as bf16, from the scores (st) and the products of dout and v
 * (dp). Returns one row for each key: for each 32 queries, 32 weights and then 32 gradients. Also
 * overwrites dp with the gradients, as pairs of keys (attni_bf16_score_grads). One pass does all,
 * unless a step must run before the rounding: dropout, the sums for gradients of a mask or of ALiBi
 * slopes, non-finite rows, or the derivative of the cap. The bits are the same either way. */
static const attni_bf16 *differentiate(attni_grad_worker *w, int64_t j, int n, bool nonfinite)
{
    const attni_backward *bw = w->bw;
    char *weights = w->forward.st;
    const bool apart =
        w->raw || w->kept || nonfinite || bw->dmask != ATTNI_NO_DMASK || bw->alibi_sums;
    if (apart) {
        weights = attni_grad_weigh(w, j, n);
        attni_grad_scores(w, weights, j, n);
        if (nonfinite)
            add_nonfinite(w, weights, j, n);
    }
    const attni_bf16_grads x = {.n = n,
                                .rows = w->tile.rows,
                                .nv = w->tile.nv,
                                .ready = apart,
                                .st = (float *)(void *)weights,
                                .dp = (float *)(void *)w->dp,
                                .lse = (const float *)(const void *)w->lse,
                                .factor = (const float *)(const void *)w->factor,
                                .delta = (const float *)(const void *)w->delta,
                                .c = (float)bw->plan.log2_scale,
                                .largest = w->bf16.largest};
    attni_bf16_score_grads(&x);
    return (const attni_bf16 *)(const void *)weights;
}

void attni_grad_bf16_block(attni_grad_worker *w, int64_t j, int n, attni_class visible)
{
    const attni_backward *bw = w->bw;
    const attni_grad_operands *o = &w->bf16;
    attni_worker *f = &w->forward;
    const int64_t D = bw->q_panels.padded, Dv = bw->v_panels.padded, at = j - w->j0;
    const size_t bytes = (size_t)n * (size_t)w->tile.W * sizeof(float);
    if (o->few)
        score_few(w, f->st, &bw->plan.args.k, j, n, o->few_q);
    else
        score(w, f->st, o->k + at * D, D, o->q, n);
    if (w->raw)
        memcpy(w->raw, f->st, bytes);
    const attni_chunk_block b = {j, n, visible, ATTNI_ROUTE_TILES, .st = f->st, .mx = f->mx};
    attni_tile_biases(f, &w->tile, &b, ATTN_STAGE_BIASED);
    if (bw->want_scores && o->few)
        score_few(w, w->dp, &bw->plan.args.v, j, n, o->few_dout);
    else if (bw->want_scores)
        score(w, w->dp, o->v + at * Dv, Dv, o->dout, n);
    else
        memset(w->dp, 0, bytes);
    /* If non-finite rows contribute, sums that have no value yet are first set to 0. Then the
     * contributions are added, then the products. */
    const bool nonfinite = w->nonfinite_q || w->nonfinite_dout || w->nonfinite_k[at / ATTNI_BLOCK];
    const bool add = attni_grad_has_sums(w, at, nonfinite ? 0 : n) || nonfinite;
    const attni_bf16 *rows = differentiate(w, j, n, nonfinite);
    if (bw->want_v)
        add_rows(w, dv_of(w, at), rows, o->dout_pairs, Dv, n, add);
    if (bw->want_k)
        add_rows(w, dk_of(w, at), rows + 32, o->q_pairs, D, n, add);
    if (bw->want_q && o->few)
        add_few_queries(w, j, n);
    else if (bw->want_q)
        add_queries(w, at, n);
}

#else
/* Other CPUs have no code for products of bf16, so these functions are never called. */
void attni_grad_bf16_carve(attni_grad_worker *w, attni_layout *layout) { (void)w, (void)layout; }
void attni_grad_bf16_load_keys(attni_grad_worker *w) { (void)w; }
void attni_grad_bf16_load_tile(attni_grad_worker *w) { (void)w; }
void attni_grad_bf16_end_tile(attni_grad_worker *w) { (void)w; }
void attni_grad_bf16_block(attni_grad_worker *w, int64_t j, int n, attni_class visible)
{
    (void)w, (void)j, (void)n, (void)visible;
}
#endif
