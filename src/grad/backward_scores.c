/* The steps that arithmetic in R and in bf16 share: first sums of dk and dv, weights from lse,
 * gradients of scores, contributions of non-finite rows and keys, requested sums. The products are
 * in backward_tile.c and backward_bf16.c. */
#include "backward_tile.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------- sums of dk and dv */

/* Zeroes dk and dv of the chunk's keys `at` to end-1. */
static void zero_keys(const attni_grad_worker *w, int64_t at, int64_t end)
{
    const attni_backward *bw = w->bw;
    const size_t k = (size_t)bw->q_panels.padded * bw->plan.real,
                 v = (size_t)bw->v_panels.padded * bw->plan.real;
    memset(w->dk + (size_t)at * k, 0, (size_t)(end - at) * k);
    memset(w->dv + (size_t)at * v, 0, (size_t)(end - at) * v);
}

/* The number of keys with sums; for products of bf16 a multiple of 16. */
static int64_t keys_with_sums(const attni_grad_worker *w)
{
    return w->bw->unit ? attni_div_up(w->n, 16) * 16 : w->n;
}

/* Marks all blocks as without sums. The first product of a block writes its sums, so nothing is
 * zeroed, which would take up to a tenth of the time of a call with few queries. If the call
 * continues earlier sums, the caller loads them next. */
void attni_grad_begin_sums(attni_grad_worker *w)
{
    if (w->bw->sums_in)
        zero_keys(w, 0, keys_with_sums(w));
    memset(w->summed, w->bw->sums_in, sizeof w->summed);
}

bool attni_grad_has_sums(attni_grad_worker *w, int64_t at, int n)
{
    bool *summed = &w->summed[at / ATTNI_BLOCK];
    const int64_t end = keys_with_sums(w);
    if (*summed)
        return true;
    *summed = true;
    zero_keys(w, at + n, at + ATTNI_BLOCK < end ? at + ATTNI_BLOCK : end);
    return false;
}

void attni_grad_complete_sums(attni_grad_worker *w)
{
    for (int64_t at = 0; at < w->n; at += ATTNI_BLOCK)
        attni_grad_has_sums(w, at, 0);
}

/* ------------------------------------------------------------------------------ rows of a tile */

const char *attni_grad_tile_rows(const attni_grad_worker *w, const attn_tensor *t, int64_t i, int n,
                                 ptrdiff_t *ld)
{
    const attni_plan *p = &w->bw->plan;
    const char *from = attni_at(t, w->sequence.b, w->sequence.h, w->sequence.i_base + i, 0);
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

/* Finds the lanes that see each key of the block: a masked weight is the mark -1. */
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

/* True if dropout keeps the weight of lane i and key j. */
static bool keeps(const attni_grad_worker *w, int i, int64_t j)
{
    const attni_plan *p = &w->bw->plan;
    return !w->kept ||
           attni_dropout_keep(p->args.dropout_seed, p->drop_threshold, w->sequence.drop_head,
                              w->sequence.drop_row + (uint64_t)(w->tile.i0 + i),
                              (uint64_t)(w->sequence.j_base + j));
}

void attni_grad_nonfinite_rows(const attni_grad_worker *w, char *sum, const attni_panels *panels,
                               const char *x, const attn_tensor *t, uint64_t nonfinite, int64_t j0,
                               int n)
{
    const attni_plan *p = &w->bw->plan;
    const bool drops = t == &w->bw->grads.dout;
    for (; nonfinite; nonfinite &= nonfinite - 1) {
        const int i = __builtin_ctzll(nonfinite);
        ptrdiff_t ld;
        const char *row = attni_grad_tile_rows(w, t, w->tile.i0 + i, 1, &ld);
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

void attni_grad_nonfinite_key(const attni_grad_worker *w, int j, const char *row)
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

/* ------------------------------------------------------------------------------- requested sums */

/* Adds ds, whose elements are W apart, to n elements of the mask's gradient, `step` elements
 * apart. */
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
        char *to = attni_at(t, w->sequence.b, w->sequence.h, w->sequence.i_base + w->tile.i0 + i,
                            w->sequence.j_base + j);
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

/* The sum of ds[i] * -|d - i|, where -|d - i| is the factor of a symmetric ALiBi slope. */
static double symmetric_moment(const double *ds, int rows, double d)
{
    double sum = 0;
    for (int i = 0; i < rows; i++)
        sum -= ds[i] * fabs(d - i);
    return sum;
}

/* Sums of dS: over the tile's queries, over the block's keys, and weighted with ALiBi's
 * distance. */
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
        keys += (w->sequence.b * p->H + w->sequence.h) * p->S + w->sequence.j_base + j;
    double alibi = 0, ds[ATTNI_MAX_LANES];
    for (int r = 0; r < n; r++) {
        attni_load_row_f64(ds, w->dp + (size_t)(r * w->tile.W) * p->real, p->real_dtype, 1, rows);
        double sum = 0, moment = 0; /* moment: the sum of ds[i] * i */
        for (int i = 0; i < rows; i++) {
            w->sums[i] += ds[i];
            sum += ds[i];
            moment += ds[i] * i;
        }
        if (keys)
            keys[r] += sum;
        const double d = (double)(j + r - w->tile.i0 - w->sequence.off);
        alibi += p->args.alibi_form == ATTN_ALIBI_SYMMETRIC ? symmetric_moment(ds, rows, d)
                                                            : sum * d - moment;
    }
    if (bw->alibi_sums)
        bw->alibi_sums[w->task * bw->group + w->head] += alibi;
}

char *attni_grad_weigh(attni_grad_worker *w, int64_t j, int n)
{
    const attni_plan *p = &w->bw->plan;
    const attni_kernels *kernels = p->kernels;
    attni_worker *f = &w->forward;
    attni_tile *t = &w->tile;
    kernels->weights_from_lse(f->st, f->st, w->lse, p->log2_scale, n, t->nv);
    if (w->scaled)
        kernels->rescale(f->st, n, w->factor, t->nv);
    if (!w->kept)
        return f->st;
    kernels->drop(w->kept, f->st, n, p->args.dropout_seed, p->drop_threshold, w->sequence.drop_head,
                  w->sequence.drop_row + (uint64_t)t->i0, (uint64_t)(w->sequence.j_base + j),
                  1 / (1 - p->args.dropout), t->nv);
    return w->kept;
}

void attni_grad_scores(attni_grad_worker *w, char *kept, int64_t j, int n)
{
    const attni_backward *bw = w->bw;
    const attni_plan *p = &bw->plan;
    const attni_kernels *kernels = p->kernels;
    attni_worker *f = &w->forward;
    if (w->nonfinite_q | w->nonfinite_dout | w->nonfinite_k[(j - w->j0) / ATTNI_BLOCK])
        note_seen(w, n);
    kernels->score_grads(w->dp, f->st, kept == f->st ? NULL : kept, w->delta, n, w->tile.nv);
    attni_grad_sums(w, j, n);
    if (w->raw && bw->want_scores)
        kernels->cap_grads(w->dp, w->raw, n, p->capped_mantissa, p->args.softcap, w->tile.nv);
}
