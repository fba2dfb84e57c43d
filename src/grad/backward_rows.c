/* The first and the last step of the backward. The first step treats each query by itself: its lse,
 * by which its weights are normalised, and delta = dout . out - dlse. The last step adds up
 * gradients that are sums over many tasks, in one fixed order. */
#include "backward.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------- the first step */

typedef struct rows_worker {
    char *a, *b; /* [block][D or Dv]: rows after conversion to R */
    char *sums;  /* [block] */
    char *norms; /* [block] */
} rows_worker;

static void carve(const attni_plan *p, rows_worker *w, attni_layout *layout)
{
    const size_t width = (size_t)(p->D > p->Dv ? p->D : p->Dv), line = ATTNI_BLOCK * p->real;
    w->a = attni_layout_take(layout, width, line);
    w->b = attni_layout_take(layout, width, line);
    w->sums = attni_layout_take(layout, 1, line);
    w->norms = attni_layout_take(layout, 1, line);
}

size_t attni_backward_rows_scratch(const attni_backward *bw)
{
    rows_worker w;
    attni_layout layout = {0};
    carve(&bw->plan, &w, &layout);
    return layout.overflow ? SIZE_MAX : layout.used;
}

/* Rows i0 .. i0+n-1 of t as R: in place if possible, otherwise converted into `buffer`. */
static const char *rows_of(const attni_plan *p, const attn_tensor *t, int64_t b, int64_t h,
                           int64_t i0, int n, char *buffer, ptrdiff_t *ld)
{
    const char *from = attni_at(t, b, h, i0, 0);
    const int64_t width = t->shape[3];
    *ld = (ptrdiff_t)(width ? t->stride[2] : 0);
    if (width && attni_in_place(p, t))
        return from;
    if (width) /* if width is 0, data may be NULL: no offset may be added to it */
        attni_convert_rows(p, buffer, from, *ld, t->dtype, t->stride[3], n, width);
    *ld = (ptrdiff_t)width;
    return buffer;
}

/* dout . out, skipping outputs that are 0. A row that sees no key has out = 0, and its dout may be
 * NaN. */
static double careful_delta(const attni_plan *p, const char *dout, const char *out)
{
    double sum = 0;
    for (int64_t c = 0; c < p->Dv; c++) {
        const double o = attni_real(p, out, c);
        if (o != 0)
            sum += attni_real(p, dout, c) * o;
    }
    return sum;
}

static double number(const attn_tensor *t, int64_t b, int64_t h, int64_t i)
{
    double x;
    attni_load_row_f64(&x, attni_at(t, b, h, i, 0), t->dtype, 1, 1);
    return x;
}

/* The weights of a row are 2^((score - lse) * c) * factor. Here lse is in the unit of the scores
 * and rounded to R; factor corrects this rounding. A row that sees no key has lse = -inf; 0 is
 * stored instead, since it has no weights. */
void attni_set_lse(const attni_plan *p, char *lse, char *factor, int64_t i, double x)
{
    const double unit = p->scaled_scores ? 1 : p->scale_mantissa;
    if (x == -(double)INFINITY)
        x = 0;
    attni_set_real(p, lse, i, x / unit);
    const double off = attni_real(p, lse, i) * unit - x;
    double correction = 1;
    if (fabs(off) <
        0x1p-12) /* nearly every lse; the error of this series of e^off is below 2^-52 */
        correction = 1 + off * (1 + off * (0.5 + off * (1. / 6)));
    else if (!isnan(off))
        correction = exp(fmax(fmin(off, 60), -60));
    attni_set_real(p, factor, i, correction);
}

/* The row's part of the gradient of its head's sink. The sink has the weight e^(sink - lse) but no
 * value. A huge lse may have a huge rounding error, which would make the weight huge. So it is at
 * most e^11, just below 2^16, the limit of weights_from_lse(). A sink of -inf has no part. Any
 * other sink has one, even if its weight underflows to 0: a NaN in delta must show, as it does in
 * the gradients of keys. */
static double sink_part(const attni_backward *bw, int64_t h, double lse, double delta)
{
    const double sink = (double)bw->plan.args.sink_logits[h];
    const double x = sink - lse; /* NaN stays NaN; fmin would lose it */
    return sink == -(double)INFINITY ? 0 : -exp(x > 11 ? 11 : x) * delta;
}

void attni_backward_rows(const attni_backward *bw, int64_t query_block, attni_grad_cursor *at)
{
    const attni_plan *p = &bw->plan;
    const attn_sdpa_args *a = &p->args;
    rows_worker w;
    attni_layout layout = {.base = attni_backward_scratch(bw, at->worker)};
    carve(p, &w, &layout);
    const int64_t head = query_block / bw->query_blocks_per_head;
    const int64_t i0 = (query_block - head * bw->query_blocks_per_head) * ATTNI_BLOCK,
                  row0 = head * p->T + i0;
    const int64_t b = head / p->H, h = head - b * p->H;
    const int n = p->T - i0 < ATTNI_BLOCK ? (int)(p->T - i0) : ATTNI_BLOCK;
    ptrdiff_t ld_dout, ld_out, ldq;
    const char *q = rows_of(p, &a->q, b, h, i0, n, w.a, &ldq);
    p->kernels->dots(w.norms, q, ldq, q, ldq, n, p->D);
    for (int i = 0; i < n; i++)
        bw->nonfinite[row0 + i] =
            (unsigned char)(isfinite(attni_real(p, w.norms, i)) ? 0 : ATTNI_NONFINITE_Q);
    const char *dout = rows_of(p, &bw->grads.dout, b, h, i0, n, w.a, &ld_dout);
    const char *out = rows_of(p, &a->out, b, h, i0, n, w.b, &ld_out);
    p->kernels->dots(w.sums, dout, ld_dout, out, ld_out, n, p->Dv);
    p->kernels->dots(w.norms, dout, ld_dout, dout, ld_dout, n, p->Dv);
    double sink = 0;
    for (int i = 0; i < n; i++) {
        const double lse = number(a->lse, b, h, i0 + i);
        double delta = attni_real(p, w.sums, i);
        if (!isfinite(attni_real(p, w.norms, i)))
            bw->nonfinite[row0 + i] =
                (unsigned char)(bw->nonfinite[row0 + i] | ATTNI_NONFINITE_DOUT);
        if (!isfinite(delta))
            delta = careful_delta(p, dout + i * ld_dout * (ptrdiff_t)p->real,
                                  out + i * ld_out * (ptrdiff_t)p->real);
        if (bw->grads.dlse)
            delta -= number(bw->grads.dlse, b, h, i0 + i);
        attni_set_lse(p, bw->lse, bw->factor, row0 + i, lse);
        attni_set_real(p, bw->delta, row0 + i, delta);
        if (bw->sink_sums)
            sink += sink_part(bw, h, lse, delta);
    }
    if (bw->sink_sums)
        bw->sink_sums[query_block] = sink;
}

/* -------------------------------------------------------------------------------- the last step */

void attni_backward_zero(const attn_tensor *t)
{
    const size_t size = attn_dtype_size(t->dtype);
    if (attni_empty(t)) /* data may be NULL, and the sizes may be huge */
        return;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t i = 0; i < t->shape[2]; i++)
                if (t->stride[3] == 1)
                    memset(attni_at(t, b, h, i, 0), 0, (size_t)t->shape[3] * size);
                else
                    for (int64_t j = 0; j < t->shape[3]; j++)
                        memset(attni_at(t, b, h, i, j), 0, size);
}

/* Without any query-key pair, every gradient except that of the sinks is 0. */
static void clear_all(const attni_backward *bw)
{
    const attn_sdpa_grads *g = &bw->grads;
    attni_backward_zero(&g->dq);
    attni_backward_zero(&g->dk);
    attni_backward_zero(&g->dv);
    if (g->dmask)
        attni_backward_zero(g->dmask);
    for (int64_t h = 0; h < bw->plan.H && g->dalibi_slopes; h++)
        g->dalibi_slopes[h] = 0;
}

void attni_backward_clear(const attni_backward *bw)
{
    const attni_plan *p = &bw->plan;
    if (bw->nothing) {
        clear_all(bw);
        return;
    }
    for (int64_t t = 0; t < bw->tasks; t++)
        atomic_init(&bw->progress[t], 0);
    if (bw->key_sums)
        memset(bw->key_sums, 0, (size_t)(p->B * p->H * p->S) * sizeof(double));
    if (bw->dmask == ATTNI_DENSE)
        attni_backward_zero(bw->grads.dmask);
}

/* The gradient of element (b, h, n) of the mask. If the mask has size 1 in a dimension, the element
 * was repeated there, and the sum goes over the whole dimension. sums is [B,H,count]. */
static double repeated_sum(const attni_backward *bw, const double *sums, int64_t count, int64_t b,
                           int64_t h, int64_t n, int dimension)
{
    const attni_plan *p = &bw->plan;
    const int64_t *shape = bw->grads.dmask->shape;
    const bool all_b = shape[0] == 1, all_h = shape[1] == 1, all_n = shape[dimension] == 1;
    double sum = 0;
    if (count == 0)
        return 0;
    for (int64_t x = all_b ? 0 : b; x < (all_b ? p->B : b + 1); x++)
        for (int64_t y = all_h ? 0 : h; y < (all_h ? p->H : h + 1); y++)
            for (int64_t z = all_n ? 0 : n; z < (all_n ? count : n + 1); z++)
                sum += sums[(x * p->H + y) * count + z];
    return sum;
}

static void sum_dmask(const attni_backward *bw)
{
    const attn_tensor *t = bw->grads.dmask;
    const bool keys = bw->dmask == ATTNI_OVER_QUERIES;
    const int dimension = keys ? 3 : 2;
    const double *sums = keys ? bw->key_sums : bw->row_sums;
    const int64_t count = keys ? bw->plan.S : bw->plan.T;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t n = 0; n < t->shape[dimension]; n++) {
                const double x = repeated_sum(bw, sums, count, b, h, n, dimension);
                char *to = attni_at(t, b, h, keys ? 0 : n, keys ? n : 0);
                attni_store_row_f64(to, t->dtype, 1, &x, 1);
                attni_clear_signs(to, t->dtype, 1, 1);
            }
}

void attni_backward_sums(const attni_backward *bw)
{
    const attni_plan *p = &bw->plan;
    const int64_t B = p->T ? p->B : 0; /* without rows there is nothing to add up */
    if (!bw->nothing && (bw->dmask == ATTNI_OVER_QUERIES || bw->dmask == ATTNI_OVER_KEYS))
        sum_dmask(bw);
    for (int64_t h = 0; h < p->H && bw->sink_sums; h++) {
        double sum = 0;
        for (int64_t b = 0; b < B; b++)
            for (int64_t r = 0; r < bw->query_blocks_per_head; r++)
                sum += bw->sink_sums[(b * p->H + h) * bw->query_blocks_per_head + r];
        bw->grads.dsink_logits[h] = sum;
    }
    for (int64_t h = 0; h < p->H && bw->alibi_sums; h++) {
        double sum = 0;
        for (int64_t b = 0; b < B; b++)
            for (int64_t t = 0; t < bw->tasks_per_kv_head; t++) {
                const int64_t pair = b * p->Hk + h / bw->group;
                const int64_t task = pair * bw->tasks_per_kv_head + t;
                sum += bw->alibi_sums[task * bw->group + h % bw->group];
            }
        bw->grads.dalibi_slopes[h] = sum;
    }
}
