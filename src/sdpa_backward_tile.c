/* The arithmetic of the backward: a chunk of keys of one key/value head against a tile of queries.
 *
 *   for each tile of W queries, the last first, for each query head of the group
 *     for each block of 64 keys of the chunk that some query of the tile sees
 *       S^T = K Q^T;  scale, cap, biases, masks;  P = 2^(S - lse)
 *       dP^T = V dO^T;  dS = P (dP - delta), by the cap's derivative
 *       dV += P^T dO;  dK += dS^T Q            components in lanes: the linear layer's product
 *       dQ^T += K^T dS                         queries in lanes: the forward's
 *     dQ^T joins that of the chunks before it
 *
 * What is hidden has P = dS = 0, put there and not computed. In the last three products that 0
 * would still meet a NaN or an infinity of a q, dout or k that others see. So such rows are taken
 * out, as zeros, and what they add, where they are seen, is added element by element (add_bad_*):
 * other results get the bits that they have without them.
 */
#include "sdpa_backward_tile.h"

#include <math.h>
#include <string.h>

/* ----------------------------------------------------------------------------- loading a tile */

/* Rows of R as panels; bad rows, a bit each, as zeros. */
static void fill_panels(const attni_plan *p, char *to, const attni_panels *panels, const char *rows,
                        ptrdiff_t ld, int n, uint64_t bad)
{
    for (int64_t c = 0; c < panels->columns; c += panels->widest) {
        const int64_t left = panels->padded - c;
        const size_t width = (size_t)(left < panels->widest ? left : panels->widest) * p->real;
        const size_t used = (size_t)(panels->columns - c) * p->real;
        const size_t bytes = used < width ? used : width;
        for (int i = 0; i < n; i++, to += width) {
            memcpy(to, rows + (i * ld + c) * (ptrdiff_t)p->real, bytes);
            memset(to + bytes, 0, width - bytes);
            if (bad >> i & 1)
                memset(to, 0, width);
        }
    }
}

static const char *tile_rows(const attni_grad_worker *w, const attn_tensor *t, int64_t i, int n,
                             ptrdiff_t *ld)
{
    const attni_plan *p = &w->bw->plan;
    const char *from = attni_at(t, w->view.b, w->view.h, w->view.i_base + i, 0);
    *ld = (ptrdiff_t)t->stride[2];
    if (t->shape[3] == 0) {
        *ld = 0;
        return w->converted;
    }
    if (attni_in_place(p, t))
        return from;
    attni_convert_rows(p, w->converted, from, *ld, t->dtype, t->stride[3], n, t->shape[3]);
    *ld = (ptrdiff_t)t->shape[3];
    return w->converted;
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
    w->bad_q = w->bad_dout = 0;
    w->scaled = false;
    for (int i = 0; i < t->rows; i++) {
        const uint64_t bad = bw->bad[w->row0 + i];
        w->bad_q |= (uint64_t)((bad & ATTNI_BAD_Q) != 0) << i;
        w->bad_dout |= (uint64_t)((bad & ATTNI_BAD_DOUT) != 0) << i;
        w->scaled |= attni_real(p, w->factor, i) != 1;
    }
    if (bw->unit) {
        attni_grad_bf16_load_tile(w);
        return;
    }
    ptrdiff_t ld;
    const char *rows = tile_rows(w, &p->args.q, t->i0, t->rows, &ld);
    p->kernels->pack(t->qt, rows, ld, t->rows, p->D, p->power, t->nv);
    if (bw->want_k)
        fill_panels(p, w->q_rows, &bw->q_panels, rows, ld, t->rows, w->bad_q);
    rows = tile_rows(w, &bw->grads.dout, t->i0, t->rows, &ld);
    if (bw->want_scores)
        p->kernels->pack(w->dot, rows, ld, t->rows, p->Dv, 1, t->nv);
    if (bw->want_v)
        fill_panels(p, w->dout_rows, &bw->v_panels, rows, ld, t->rows, w->bad_dout);
}

/* ------------------------------------------------------------------------------------ products */

/* sum[j][:] += sum_i x[j][i] rows[i][:] for n keys, `rows` in panels. */
static void add_rows(const attni_grad_worker *w, char *sum, const attni_panels *panels,
                     const char *x, const char *rows, int n)
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
        product.sums = product.out;
        product.wt = rows + (size_t)c * (size_t)w->tile.rows * p->real;
        p->kernels->linear(&product, (int)(width / lanes));
    }
}

/* The lanes that see each key of the block, from the marks that hidden weights have. */
static void note_seen(attni_grad_worker *w, int n)
{
    const attni_plan *p = &w->bw->plan;
    for (int j = 0; j < n; j++) {
        w->seen[j] = 0;
        for (int i = 0; i < w->tile.rows; i++)
            if (!(attni_real(p, w->forward.st, (int64_t)j * w->tile.W + i) < 0))
                w->seen[j] |= UINT64_C(1) << i;
    }
}

/* Does dropout keep the weight of lane i and key j? */
static bool keeps(const attni_grad_worker *w, int i, int64_t j)
{
    const attni_plan *p = &w->bw->plan;
    return !w->kept || attni_dropout_keep(p->args.dropout_seed, p->drop_threshold,
                                          (uint64_t)(w->view.b * p->H + w->view.h),
                                          (uint64_t)(w->view.i_base + w->tile.i0 + i),
                                          (uint64_t)(w->view.j_base + j));
}

void attni_grad_bad_rows(const attni_grad_worker *w, char *sum, const attni_panels *panels,
                         const char *x, const attn_tensor *t, uint64_t bad, int64_t j0, int n)
{
    const attni_plan *p = &w->bw->plan;
    const bool drops = t == &w->bw->grads.dout;
    for (; bad; bad &= bad - 1) {
        const int i = __builtin_ctzll(bad);
        ptrdiff_t ld;
        const char *row = tile_rows(w, t, w->tile.i0 + i, 1, &ld);
        for (int j = 0; j < n; j++) {
            if (!(w->seen[j] >> i & 1) || (drops && !keeps(w, i, j0 + j)))
                continue;
            const double s = attni_real(p, x, (int64_t)j * w->tile.W + i);
            for (int64_t c = 0; c < panels->columns; c++) {
                const int64_t at = j * panels->padded + c;
                attni_set_real(p, sum, at, attni_real(p, sum, at) + s * attni_real(p, row, c));
            }
        }
    }
}

void attni_grad_bad_key(const attni_grad_worker *w, int j, const char *row)
{
    const attni_plan *p = &w->bw->plan;
    for (uint64_t lanes = w->seen[j]; lanes; lanes &= lanes - 1) {
        const int i = __builtin_ctzll(lanes);
        const double s = attni_real(p, w->dp, (int64_t)j * w->tile.W + i);
        for (int64_t d = 0; d < p->D; d++) {
            const int64_t at = d * w->tile.W + i;
            attni_set_real(p, w->dq, at, attni_real(p, w->dq, at) + s * attni_real(p, row, d));
        }
    }
}

static void add_queries(const attni_grad_worker *w, int64_t j, int n, bool first)
{
    const attni_plan *p = &w->bw->plan;
    ptrdiff_t ld;
    const char *k = attni_tile_rows(&w->forward, false, j, &ld);
    const uint64_t bad = w->bad_k[(j - w->j0) / ATTNI_BLOCK];
    const char *clean = k;
    ptrdiff_t ld_clean = ld;
    if (bad) {
        const size_t row = (size_t)p->D * p->real;
        for (int r = 0; r < n; r++)
            if (bad >> r & 1)
                memset(w->clean_k + (size_t)r * row, 0, row);
            else
                memcpy(w->clean_k + (size_t)r * row, k + r * ld * (ptrdiff_t)p->real, row);
        clean = w->clean_k;
        ld_clean = (ptrdiff_t)p->D;
    }
    p->kernels->values(w->dq, NULL, NULL, clean, ld_clean, w->dp, n, p->D, w->tile.nv,
                       first ? ATTNI_FIRST : 0, NULL);
    for (int r = 0; r < n && bad >> r; r++)
        if (bad >> r & 1)
            attni_grad_bad_key(w, r, k + r * ld * (ptrdiff_t)p->real);
}

/* ------------------------------------------------------------------------------ sums on request */

/* To the elements of the mask that lie `step` elements apart from `to` on, ds, W apart. */
#define ADD_COLUMN(M, R)                                                                           \
    for (int r = 0; r < n; r++) {                                                                  \
        M x;                                                                                       \
        char *at = to + r * step * (int64_t)sizeof x;                                              \
        memcpy(&x, at, sizeof x);                                                                  \
        x = (M)((double)x + (double)((const R *)(const void *)ds)[r * W]) + (M)0;                  \
        memcpy(at, &x, sizeof x);                                                                  \
    }

static void add_dmask(const attni_grad_worker *w, int64_t j, int n)
{
    const attni_plan *p = &w->bw->plan;
    const attn_tensor *t = w->bw->grads.dmask;
    const int64_t step = t->stride[3];
    const int W = w->tile.W;
    for (int i = 0; i < w->tile.rows; i++) {
        char *to =
            attni_at(t, w->view.b, w->view.h, w->view.i_base + w->tile.i0 + i, w->view.j_base + j);
        const char *ds = w->dp + (size_t)i * p->real;
        if (t->dtype == ATTN_F32 && p->real == sizeof(float)) {
            ADD_COLUMN(float, float)
        } else if (t->dtype == ATTN_F32) {
            ADD_COLUMN(float, double)
        } else if (p->real == sizeof(float)) {
            ADD_COLUMN(double, float)
        } else {
            ADD_COLUMN(double, double)
        }
    }
}

/* The sum of ds[i] * -|d - i|: what ALiBi's slope was multiplied with, where that is symmetric. */
static double symmetric_moment(const double *ds, int rows, double d)
{
    double sum = 0;
    for (int i = 0; i < rows; i++)
        sum -= ds[i] * fabs(d - i);
    return sum;
}

/* Sums of dS over the tile's queries, over the block's keys, and weighted with ALiBi's distance. */
void attni_grad_sums(attni_grad_worker *w, int64_t j, int n)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    const int rows = w->tile.rows;
    if (bw->dmask == ATTNI_DENSE)
        add_dmask(w, j, n);
    if (bw->dmask != ATTNI_OVER_KEYS && !bw->key_sums && !bw->alibi_sums)
        return;
    double *keys = bw->key_sums;
    if (keys)
        keys += (w->view.b * p->H + w->view.h) * p->S + w->view.j_base + j;
    double alibi = 0, ds[ATTNI_MAX_LANES];
    for (int r = 0; r < n; r++) {
        attni_load_row_f64(ds, w->dp + (size_t)(r * w->tile.W) * p->real, p->real_dtype, 1, rows);
        double sum = 0, moment = 0; /* of i */
        for (int i = 0; i < rows; i++) {
            w->sums[i] += ds[i];
            sum += ds[i];
            moment += ds[i] * i;
        }
        if (keys)
            keys[r] += sum;
        const double d = (double)(j + r - w->tile.i0 - w->view.off);
        alibi += p->args.alibi_form == ATTN_ALIBI_SYMMETRIC ? symmetric_moment(ds, rows, d)
                                                            : sum * d - moment;
    }
    if (bw->alibi_sums)
        bw->alibi_sums[w->task * bw->group + w->head] += alibi;
}

/* ------------------------------------------------------------------------------ a block of keys */

char *attni_grad_weigh(attni_grad_worker *w, int64_t j, int n)
{
    const attni_plan *p = &w->bw->plan;
    const attni_kernels *kernels = p->kernels;
    attni_worker *f = &w->forward;
    attni_tile *t = &w->tile;
    kernels->recall(f->st, f->st, w->lse, p->c, n, t->nv);
    if (w->scaled)
        kernels->rescale(f->st, n, w->factor, t->nv);
    if (!w->kept)
        return f->st;
    kernels->drop(w->kept, f->st, n, p->args.dropout_seed, p->drop_threshold,
                  (uint64_t)(w->view.b * p->H + w->view.h), (uint64_t)(w->view.i_base + t->i0),
                  (uint64_t)(w->view.j_base + j), 1 / (1 - p->args.dropout), t->nv);
    return w->kept;
}

void attni_grad_scores(attni_grad_worker *w, char *kept, int64_t j, int n)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    const attni_kernels *kernels = p->kernels;
    attni_worker *f = &w->forward;
    if (w->bad_q | w->bad_dout | w->bad_k[(j - w->j0) / ATTNI_BLOCK])
        note_seen(w, n);
    kernels->score_grads(w->dp, f->st, kept == f->st ? NULL : kept, w->delta, n, w->tile.nv);
    attni_grad_sums(w, j, n);
    if (w->raw && bw->want_scores)
        kernels->cap_grads(w->dp, w->raw, n, p->rest, p->args.softcap, w->tile.nv);
}

static void do_block(attni_grad_worker *w, int64_t j, int n, attni_class visible, bool first)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_worker *f = &w->forward;
    attni_tile *t = &w->tile;
    attni_tile_products(f, t, j, n);
    if (w->raw)
        memcpy(w->raw, f->st, (size_t)n * (size_t)t->W * p->real);
    attni_tile_biases(f, t, j, n, visible, ATTN_STAGE_BIASED);
    char *kept = attni_grad_weigh(w, j, n);
    if (bw->want_scores) {
        ptrdiff_t ld;
        const char *v = attni_tile_rows(f, true, j, &ld);
        p->kernels->scores(w->dp, f->mx, w->dot, v, ld, n, p->Dv, t->nv, NULL);
    } else { /* only what is hidden is to be made 0 */
        memset(w->dp, 0, (size_t)n * (size_t)t->W * p->real);
    }
    attni_grad_scores(w, kept, j, n);
    const size_t at = (size_t)(j - w->j0) * p->real;
    if (bw->want_v) {
        char *sum = w->dv + at * (size_t)bw->v_panels.padded;
        add_rows(w, sum, &bw->v_panels, kept, w->dout_rows, n);
        attni_grad_bad_rows(w, sum, &bw->v_panels, kept, &bw->grads.dout, w->bad_dout, j, n);
    }
    if (bw->want_k) {
        char *sum = w->dk + at * (size_t)bw->q_panels.padded;
        add_rows(w, sum, &bw->q_panels, w->dp, w->q_rows, n);
        attni_grad_bad_rows(w, sum, &bw->q_panels, w->dp, &p->args.q, w->bad_q, j, n);
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
            attni_mask_classify(&w->view, &t->span, t->i0, t->i0 + t->rows, j, end);
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
    return seen;
}
