/* One task of the backward: a chunk of keys of one key/value head against every query that sees it.
 *
 *   for each tile of W queries, the last first, for each query head of the group
 *     for each block of 64 keys of the chunk that some query of the tile sees
 *       S^T = K Q^T;  scale, cap, biases, masks;  P = 2^(S - lse)
 *       dP^T = V dO^T;  dS = P (dP - delta), by the cap's derivative
 *       dV += P^T dO;  dK += dS^T Q            components in lanes: the linear layer's product
 *       dQ^T += K^T dS                         queries in lanes: the forward's
 *     dQ^T joins that of the chunks before it
 *
 * What is hidden has P = dS = 0, put there and not computed. In the last three products that 0 would
 * still meet a NaN or an infinity of a q, dout or k that others see. So such rows are taken out, as
 * zeros, and what they add, where they are seen, is added element by element (add_bad_*): other
 * results get the bits that they have without them.
 */
#include "sdpa_backward.h"

#include <math.h>
#include <sched.h>
#include <string.h>

typedef struct grad_worker {
    attni_worker forward; /* its st holds scores, then weights */
    const attni_backward *bw;
    attni_view view;
    attni_tile tile;
    int64_t task, pair, chunk; /* chunk of the view's keys */
    int64_t b, head;           /* head: of the view, within the group */
    int64_t j0, n;             /* the chunk's keys */
    int64_t row0;              /* of the tile, in [B,H,T] */
    bool scaled;               /* some factor of the tile is not 1 */
    uint64_t bad_q, bad_dout;  /* of the tile's lanes */
    uint64_t bad_k[ATTNI_CHUNK / ATTNI_BLOCK];
    char *dot;                          /* [Dv][W] dout, transposed */
    char *q_rows, *dout_rows;           /* panels of the tile's rows */
    char *converted;                    /* [W][max(D, Dv)] rows as R */
    char *lse, *factor, *delta, *scale; /* [W] */
    char *one;                          /* [2][W], as factors of fold() */
    char *dp, *raw, *kept;              /* [block][W] */
    char *dk, *dv;                      /* [chunk][padded] */
    char *dq;                           /* [D][W] of this chunk */
    char *clean_k;                      /* [block][D] keys without the bad ones */
    double *sums;                       /* [W] of dS, of this chunk */
} grad_worker;

static void carve(grad_worker *w, attni_layout *layout)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_worker *f = &w->forward;
    const size_t line = (size_t)bw->W * p->real, keys = (size_t)bw->keys * p->real;
    const size_t D = (size_t)p->D, Dv = (size_t)p->Dv;
    w->tile.qt = attni_layout_take(layout, D, line);
    w->dot = attni_layout_take(layout, Dv, line);
    w->q_rows = attni_layout_take(layout, (size_t)bw->q_panels.padded, line);
    w->dout_rows = attni_layout_take(layout, (size_t)bw->v_panels.padded, line);
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
    if (!p->k_in_place)
        f->k = attni_layout_take(layout, keys, D);
    if (!p->v_in_place)
        f->v = attni_layout_take(layout, keys, Dv);
    w->dk = attni_layout_take(layout, keys, (size_t)bw->q_panels.padded);
    w->dv = attni_layout_take(layout, keys, (size_t)bw->v_panels.padded);
    w->dq = attni_layout_take(layout, D, line);
    w->clean_k = attni_layout_take(layout, ATTNI_BLOCK * p->real, D);
    w->sums = attni_layout_take(layout, (size_t)bw->W, sizeof(double));
}

size_t attni_backward_task_scratch(const attni_backward *bw)
{
    grad_worker w = {.bw = bw};
    attni_layout layout = {0};
    carve(&w, &layout);
    return layout.overflow ? SIZE_MAX : layout.used;
}

/* ------------------------------------------------------------------------------------- in turn */

/* Until `task` has done more than `tiles` tiles. It is of a lower number than the caller's own, and
 * so has been taken by a thread that is at work on it. */
static void wait_for(const attni_backward *bw, int64_t task, int64_t tiles)
{
    atomic_llong *progress = &bw->progress[task];
    for (int spins = 0; atomic_load_explicit(progress, memory_order_acquire) <= tiles; spins++) {
        if (spins > 2000)
            sched_yield();
#if defined(__x86_64__)
        else
            __builtin_ia32_pause();
#endif
    }
}

/* Where several heads add to one element of dmask, they do so in order: the task before this one of
 * the same chunk, or -1. */
static int64_t dmask_before(const grad_worker *w)
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
    return pairs && pairs <= w->pair ? w->task - pairs * bw->tasks_per_pair : -1;
}

/* The place for this pair's dq: the pair that had it before is done. */
static void wait_for_slot(const grad_worker *w)
{
    const attni_backward *bw = w->bw;
    if (!bw->totals || w->pair < bw->slots)
        return;
    const int64_t first = (w->pair - bw->slots) * bw->tasks_per_pair;
    for (int64_t t = 0; t < bw->tasks_per_pair; t++)
        wait_for(bw, first + t, ATTNI_TASK_DONE - 1);
}

/* -------------------------------------------------------------------------------- loading a tile */

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

static const char *tile_rows(const grad_worker *w, const attn_tensor *t, int64_t i, int n,
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

static void load_tile(grad_worker *w)
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
static void add_rows(const grad_worker *w, char *sum, const attni_panels *panels, const char *x,
                     const char *rows, int n)
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

/* What the bad rows of q or dout add to the keys that see them. */
static void add_bad_rows(const grad_worker *w, char *sum, const attni_panels *panels, const char *x,
                         const attn_tensor *t, uint64_t bad, int n)
{
    const attni_plan *p = &w->bw->plan;
    for (; bad; bad &= bad - 1) {
        const int i = __builtin_ctzll(bad);
        ptrdiff_t ld;
        const char *row = tile_rows(w, t, w->tile.i0 + i, 1, &ld);
        for (int j = 0; j < n; j++) {
            const double s = attni_real(p, x, (int64_t)j * w->tile.W + i);
            for (int64_t c = 0; c < panels->columns && s != 0; c++) {
                const int64_t at = j * panels->padded + c;
                attni_set_real(p, sum, at, attni_real(p, sum, at) + s * attni_real(p, row, c));
            }
        }
    }
}

static void add_bad_keys(const grad_worker *w, const char *k, ptrdiff_t ld, uint64_t bad)
{
    const attni_plan *p = &w->bw->plan;
    const int W = w->tile.W;
    for (; bad; bad &= bad - 1) {
        const int j = __builtin_ctzll(bad);
        for (int i = 0; i < w->tile.rows; i++) {
            const double s = attni_real(p, w->dp, (int64_t)j * W + i);
            for (int64_t d = 0; d < p->D && s != 0; d++)
                attni_set_real(p, w->dq, d * W + i,
                               attni_real(p, w->dq, d * W + i) +
                                   s * attni_real(p, k, j * (int64_t)ld + d));
        }
    }
}

static void add_queries(const grad_worker *w, int64_t j, int n, bool first)
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
                       first ? ATTNI_FIRST : 0);
    if (bad)
        add_bad_keys(w, k, ld, n < 64 ? bad & ((UINT64_C(1) << n) - 1) : bad);
}

/* ------------------------------------------------------------------------------ sums on request */

static void add_dmask(const grad_worker *w, int64_t j, int n)
{
    const attni_backward *bw = w->bw;
    const attn_tensor *t = bw->grads.dmask;
    for (int i = 0; i < w->tile.rows; i++)
        for (int r = 0; r < n; r++) {
            char *to = attni_at(t, w->view.b, w->view.h, w->view.i_base + w->tile.i0 + i,
                                w->view.j_base + j + r);
            const double ds = attni_real(&bw->plan, w->dp, (int64_t)r * w->tile.W + i);
            if (t->dtype == ATTN_F32) {
                float x;
                memcpy(&x, to, sizeof x);
                x = (float)((double)x + ds);
                memcpy(to, &x, sizeof x);
            } else {
                double x;
                memcpy(&x, to, sizeof x);
                x += ds;
                memcpy(to, &x, sizeof x);
            }
        }
}

/* Sums of dS over the tile's queries, over the block's keys, and weighted with ALiBi's distance. */
static void add_sums(grad_worker *w, int64_t j, int n)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    if (bw->dmask == ATTNI_DENSE)
        add_dmask(w, j, n);
    if (bw->dmask == ATTNI_OVER_KEYS)
        for (int r = 0; r < n; r++)
            for (int i = 0; i < w->tile.rows; i++)
                w->sums[i] += attni_real(p, w->dp, (int64_t)r * w->tile.W + i);
    double *keys = bw->key_sums;
    if (keys)
        keys += (w->view.b * p->H + w->view.h) * p->S + w->view.j_base + j;
    double alibi = 0;
    for (int r = 0; r < n && (keys || bw->alibi_sums); r++) {
        double sum = 0, moment = 0; /* of i */
        for (int i = 0; i < w->tile.rows; i++) {
            const double ds = attni_real(p, w->dp, (int64_t)r * w->tile.W + i);
            sum += ds;
            moment += ds * i;
        }
        if (keys)
            keys[r] += sum;
        alibi += sum * (double)(j + r - w->tile.i0 - w->view.off) - moment;
    }
    if (bw->alibi_sums)
        bw->alibi_sums[w->task * bw->group + w->head] += alibi;
}

/* -------------------------------------------------------------------------------- a block of keys */

/* Weights into st, and those that dropout leaves into the array that is returned. */
static char *weigh_block(grad_worker *w, int64_t j, int n, attni_class visible)
{
    const attni_plan *p = &w->bw->plan;
    const attni_kernels *kernels = p->kernels;
    attni_worker *f = &w->forward;
    attni_tile *t = &w->tile;
    const size_t bytes = (size_t)n * (size_t)t->W * p->real;
    attni_tile_products(f, t, j, n);
    if (w->raw)
        memcpy(w->raw, f->st, bytes);
    attni_tile_biases(f, t, j, n, visible, ATTN_STAGE_BIASED);
    kernels->recall(f->st, f->st, w->lse, p->c, n, t->nv);
    if (w->scaled)
        kernels->rescale(f->st, n, w->factor, t->nv);
    if (!w->kept)
        return f->st;
    memcpy(w->kept, f->st, bytes);
    kernels->drop(w->kept, n, p->args.dropout_seed, p->drop_threshold,
                  (uint64_t)(w->view.b * p->H + w->view.h), (uint64_t)(w->view.i_base + t->i0),
                  (uint64_t)(w->view.j_base + j), 1 / (1 - p->args.dropout), t->nv);
    return w->kept;
}

static void do_block(grad_worker *w, int64_t j, int n, attni_class visible, bool first)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    const attni_kernels *kernels = p->kernels;
    attni_worker *f = &w->forward;
    attni_tile *t = &w->tile;
    char *kept = weigh_block(w, j, n, visible);
    if (bw->want_scores) {
        ptrdiff_t ld;
        const char *v = attni_tile_rows(f, true, j, &ld);
        kernels->scores(w->dp, f->mx, w->dot, v, ld, n, p->Dv, t->nv);
    } else { /* only what is hidden is to be made 0 */
        memset(w->dp, 0, (size_t)n * (size_t)t->W * p->real);
    }
    kernels->score_grads(w->dp, f->st, w->kept, w->delta, n, t->nv);
    if (bw->dmask || bw->alibi_sums)
        add_sums(w, j, n);
    if (w->raw && bw->want_scores)
        kernels->cap_grads(w->dp, w->raw, n, p->rest, p->args.softcap, t->nv);
    const size_t at = (size_t)(j - w->j0) * p->real;
    if (bw->want_v) {
        char *sum = w->dv + at * (size_t)bw->v_panels.padded;
        add_rows(w, sum, &bw->v_panels, kept, w->dout_rows, n);
        add_bad_rows(w, sum, &bw->v_panels, kept, &bw->grads.dout, w->bad_dout, n);
    }
    if (bw->want_k) {
        char *sum = w->dk + at * (size_t)bw->q_panels.padded;
        add_rows(w, sum, &bw->q_panels, w->dp, w->q_rows, n);
        add_bad_rows(w, sum, &bw->q_panels, w->dp, &p->args.q, w->bad_q, n);
    }
    if (bw->want_q)
        add_queries(w, j, n, first);
}

/* ------------------------------------------------------------------------------------------ dq */

static void store_queries(const grad_worker *w, char *total)
{
    const attni_plan *p = &w->bw->plan;
    const attni_tile *t = &w->tile;
    const attn_tensor *dq = &w->bw->grads.dq;
    const bool direct = attni_in_place(p, dq);
    char *to = attni_at(dq, w->view.b, w->view.h, w->view.i_base + t->i0, 0);
    p->kernels->rescale(total, p->D, w->scale, t->nv);
    p->kernels->finish(direct ? to : w->converted, (ptrdiff_t)(direct ? dq->stride[2] : p->D),
                       total, w->one, t->rows, p->D, t->nv);
    for (int i = 0; i < t->rows && !direct; i++)
        attni_store_row(p, attni_at(dq, w->view.b, w->view.h, w->view.i_base + t->i0 + i, 0), dq,
                        w->converted + (size_t)i * (size_t)p->D * p->real, p->D);
}

/* This chunk's part of a tile's dq, and of its sums, joins those before it, of chunks `first` .. ;
 * after `last` they are written out. */
static void join_tile(grad_worker *w, int64_t x, int64_t first, int64_t last)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    const attni_tile *t = &w->tile;
    const size_t bytes = (size_t)p->D * (size_t)t->W * p->real;
    char *part = w->dq;
    double *sums = w->sums;
    if (first < last) {
        const int64_t slot = (w->pair % bw->slots * bw->group + w->head) * bw->tiles + x;
        char *total = bw->totals + (size_t)slot * bw->tile_bytes;
        double *all = (double *)(void *)(total + (size_t)p->D * (size_t)bw->W * p->real);
        if (w->chunk > first) {
            wait_for(bw, w->task - 1, x);
            p->kernels->fold(total, part, p->D, w->one, t->nv);
            for (int i = 0; i < t->W; i++)
                all[i] += sums[i];
        } else {
            wait_for_slot(w);
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

/* The chunks that some query of the tile sees: from `first` to `last`; chunk 0 if there is none. */
static void chunks_of(const grad_worker *w, int64_t *first, int64_t *last)
{
    const attni_span *span = &w->tile.span;
    const int64_t begin = span->any0 > 0 ? span->any0 : 0;
    const int64_t end = span->any1 < w->view.S ? span->any1 : w->view.S;
    *first = begin < end ? begin / w->bw->keys : 0;
    *last = begin < end ? (end - 1) / w->bw->keys : 0;
}

static void do_tile(grad_worker *w, int64_t x)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_tile *t = &w->tile;
    t->rows = t->per_head = w->view.T - t->i0 < t->W ? (int)(w->view.T - t->i0) : t->W;
    t->span = attni_mask_span(&w->view, t->i0, t->i0 + t->rows);
    w->row0 = (w->view.b * p->H + w->view.h) * p->T + w->view.i_base + t->i0;
    int64_t first, last;
    chunks_of(w, &first, &last);
    if (w->chunk < first || w->chunk > last)
        return;
    memset(w->sums, 0, (size_t)t->W * sizeof *w->sums);
    bool loaded = false;
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
        if (!loaded)
            load_tile(w);
        do_block(w, j, (int)(end - j), visible, !loaded);
        loaded = true;
    }
    if (!bw->totals)
        return;
    if (!loaded)
        memset(w->dq, 0, (size_t)p->D * (size_t)t->W * p->real);
    join_tile(w, x, first, last);
}

/* ------------------------------------------------------------------------------------ the task */

/* Rows of sums, times a factor, to where t has them. -0 becomes 0. */
static void store_keys(const grad_worker *w, const attn_tensor *t, char *sums, int64_t padded,
                       double factor)
{
    const attni_plan *p = &w->bw->plan;
    for (int64_t j = 0; j < w->n; j++) {
        char *row = sums + (size_t)(j * padded) * p->real;
        if (p->real == sizeof(float))
            for (int64_t c = 0; c < t->shape[3]; c++)
                ((float *)(void *)row)[c] = ((float *)(void *)row)[c] * (float)factor + 0.0F;
        else
            for (int64_t c = 0; c < t->shape[3]; c++)
                ((double *)(void *)row)[c] = ((double *)(void *)row)[c] * factor + 0.0;
        attni_store_row(p, attni_at(t, w->b, w->view.hk, w->view.j_base + w->j0 + j, 0), t, row,
                        t->shape[3]);
    }
}

/* Keys that belong to no sequence. */
static void zero_left_keys(grad_worker *w)
{
    const attni_backward *bw = w->bw;
    const attn_sdpa_args *a = &bw->plan.args;
    for (int64_t j = a->cu_seqlens_k[a->sequences]; j < bw->plan.S; j++) {
        const attn_tensor *outputs[] = {&bw->grads.dk, &bw->grads.dv};
        for (int o = 0; o < 2; o++)
            for (int64_t c = 0; c < outputs[o]->shape[3]; c++)
                memset(attni_at(outputs[o], w->b, w->view.hk, j, c), 0,
                       attn_dtype_size(outputs[o]->dtype));
    }
}

/* Keys with a NaN or an infinity, or too large to be squared, a bit each. */
static void find_bad_keys(grad_worker *w)
{
    const attni_plan *p = &w->bw->plan;
    for (int64_t r = 0; r < w->n; r += ATTNI_BLOCK) {
        const int n = w->n - r < ATTNI_BLOCK ? (int)(w->n - r) : ATTNI_BLOCK;
        ptrdiff_t ld;
        const char *k = attni_tile_rows(&w->forward, false, w->j0 + r, &ld);
        uint64_t bad = 0;
        p->kernels->dots(w->dp, k, ld, k, ld, n, p->D);
        for (int i = 0; i < n; i++)
            bad |= (uint64_t)!isfinite(attni_real(p, w->dp, i)) << i;
        w->bad_k[r / ATTNI_BLOCK] = bad;
    }
}

/* Task number -> pair, sequence, chunk. */
static void find_task(grad_worker *w, int64_t task)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    w->task = task;
    w->pair = attni_div(task, bw->tasks_per_pair);
    w->b = attni_div(w->pair, p->Hk);
    const int64_t h = (w->pair - w->b * p->Hk) * bw->group;
    int64_t left = task - w->pair * bw->tasks_per_pair, n = 0;
    for (;; n++) {
        w->view = attni_view_of(p, w->b, h, n);
        const int64_t chunks = attni_div_up(w->view.S, bw->keys);
        if (left < (chunks ? chunks : 1))
            break;
        left -= chunks ? chunks : 1;
    }
    w->view.hk = w->pair - w->b * p->Hk; /* also where there are no query heads */
    w->chunk = left;
    w->j0 = left * bw->keys;
    w->n = w->view.S - w->j0 < bw->keys ? w->view.S - w->j0 : bw->keys;
    if (p->args.cu_seqlens_q && n == p->args.sequences)
        zero_left_keys(w);
}

static void begin_task(grad_worker *w, int64_t task, char *scratch)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    attni_layout layout = {.base = scratch};
    carve(w, &layout);
    find_task(w, task);
    w->forward.plan = p;
    w->forward.view = &w->view;
    w->tile.heads = 1;
    w->tile.nv = p->nv;
    w->tile.W = bw->W;
    for (int i = 0; i < bw->W; i++) {
        attni_set_real(p, w->scale, i, bw->scale);
        attni_set_real(p, w->one, i, 1);
        attni_set_real(p, w->one, bw->W + i, 1);
    }
    if (w->n > 0) {
        attni_tile_load(&w->forward, w->j0, (int)w->n, bw->want_scores);
        find_bad_keys(w);
    }
    memset(w->dk, 0, (size_t)(w->n * bw->q_panels.padded) * p->real);
    memset(w->dv, 0, (size_t)(w->n * bw->v_panels.padded) * p->real);
    for (int64_t g = 0; g < bw->group && bw->alibi_sums; g++)
        bw->alibi_sums[task * bw->group + g] = 0;
}

void attni_backward_task(const attni_backward *bw, int64_t task, char *scratch)
{
    grad_worker w = {.bw = bw};
    begin_task(&w, task, scratch);
    const int64_t tiles = attni_div_up(w.view.T, bw->W), before = dmask_before(&w);
    const int64_t h = w.view.hk * bw->group;
    for (int64_t x = 0; x < tiles; x++) {
        if (before >= 0)
            wait_for(bw, before, x);
        w.tile.i0 = (tiles - 1 - x) * bw->W;
        for (w.head = 0; w.head < bw->group; w.head++) {
            w.view.h = h + w.head;
            do_tile(&w, x);
        }
        atomic_store_explicit(&bw->progress[task], x + 1, memory_order_release);
    }
    if (bw->want_k)
        store_keys(&w, &bw->grads.dk, w.dk, bw->q_panels.padded, bw->scale);
    if (bw->want_v)
        store_keys(&w, &bw->grads.dv, w.dv, bw->v_panels.padded, 1);
    atomic_store_explicit(&bw->progress[task], ATTNI_TASK_DONE, memory_order_release);
}
