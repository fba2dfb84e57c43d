/* The operands and results of bf16_task.c. Terms (tile, block, chunk, sweep, interleaved): the
 * glossary in kernel/kernel.h. Arrays: unit.h (operands: k, q, st, vt, acc) and bf16_task.h (those
 * of a task).
 *
 *   load queries, find keys, find values   from the caller's tensors into the shapes of unit.h
 *   new chunk                              forget the keys and packed values of the chunk before
 *   mask                                   apply biases and masks to scores
 *   clear a tile                           its maxima, its sums of weights and its factors c and
 *                                          value_scale (bf16_task.h), before a sweep
 *   rescale a tile                         clear it and set factors that keep its sums finite,
 *                                          before SWEEP_RESCALED, its third and last sweep
 *   write a tile                           out and lse, after a sweep
 *   write scores                           the scores that the caller requested
 */
#include "bf16_task.h"

#include "../cache/cache.h"

#if defined(__x86_64__)

#include <math.h>
#include <string.h>

/* -------------------------------------------------------------------------- rows of the tensors */

void attni_bf16_load_queries(bf16_worker *w, bf16_tile *t)
{
    if (t->loaded)
        return;
    t->loaded = true;
    const attni_plan *p = w->plan;
    const attn_tensor *q = &p->args.q;
    const attni_bf16 *from = (const attni_bf16 *)column_row(w, t, q, 0, 0);
    ptrdiff_t ldq = (ptrdiff_t)q->stride[t->heads > 1 ? 1 : 2];
    if ((q->stride[3] != 1 && p->D > 1) || (t->heads > 1 && t->per_head > 1)) {
        attni_bf16 *rows = (attni_bf16 *)(void *)w->rows;
        for (int i = 0; i < t->rows; i++)
            attni_bf16_copy_row(rows + i * p->D, column_row(w, t, q, i, 0), q->stride[3], p->D);
        from = rows, ldq = (ptrdiff_t)p->D;
    }
    attni_bf16_pack_queries(t->q, from, ldq, t->rows, p->D, (float)p->scale_pow2, t->nv);
    t->exponent = attni_bf16_exponent(t->q, 64, attni_bf16_padded(p->D) / 2 * t->nv, 32);
}

const void *attni_bf16_find_keys(bf16_worker *w, int64_t j0, int n, int at, ptrdiff_t *ldk)
{
    const attni_plan *p = w->plan;
    const attn_tensor *k = &p->args.k;
    const int64_t D = attni_bf16_padded(p->D);
    const bool in_place = !p->k_interleaved && n % w->unit->keys == 0 && k->stride[3] == 1 &&
                          p->D > 0 && p->D % w->unit->granule == 0;
    *ldk = (ptrdiff_t)(in_place ? k->stride[2] : D) * 2;
    if (w->keys[at])
        return w->keys[at];
    attni_bf16 *copy = w->k + at * ATTNI_BLOCK * D;
    if (!in_place) {
        memset(copy, 0, (size_t)D * 2 * ATTNI_BLOCK);
        if (p->k_interleaved && p->D)
            attni_cache_keys_as_rows(p->args.cache, w->sequence->b, w->sequence->hk, j0, n, copy,
                                     (size_t)D * 2);
        for (int r = 0; r < n && p->D && !p->k_interleaved; r++)
            attni_bf16_copy_row(copy + r * D, attni_stored_row(w->sequence, k, j0 + r),
                                k->stride[3], p->D);
    }
    w->keys[at] = in_place ? attni_stored_row(w->sequence, k, j0) : (const void *)copy;
    w->exponent[at] = attni_bf16_exponent(w->keys[at], *ldk, n, in_place ? p->D : D);
    return w->keys[at];
}

/* Prefetches `rows` rows of t, but at most a block; the first one is at `row`. */
static void prefetch_rows(const attn_tensor *t, const char *row, int64_t rows)
{
    const int64_t apart = t->stride[2] * 2;
    int64_t n = rows < ATTNI_BLOCK ? rows : ATTNI_BLOCK, bytes = t->shape[3] * 2;
    if (apart == bytes) /* rows without gaps are one long row */
        bytes *= n, n = n > 0;
    for (; n > 0; n--, row += apart)
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(row + at);
}

/* Prefetches the values of the block that begins at j. If the sequence ends there, and the call has
 * much data (far_blocks), prefetches the first rows of the next task instead. */
static void prefetch_block(const bf16_worker *w, int64_t j)
{
    const attn_sdpa_args *a = &w->plan->args;
    const int64_t left = attni_keys_there(w->sequence) - j;
    if (left > 0) {
        const int64_t together = attni_rows_together(w->sequence, j);
        prefetch_rows(&a->v, attni_stored_row(w->sequence, &a->v, j),
                      left < together ? left : together);
    } else if (w->next && w->plan->far_blocks) {
        const attni_sequence *next = &w->next->sequence;
        int64_t keys;
        const char *k = attni_first_row(w->next, &a->k, &keys);
        prefetch_rows(&a->q, attni_at(&a->q, next->b, next->h, next->i_base + w->next->i0, 0),
                      w->next->rows);
        if (k && !w->plan->k_interleaved)
            prefetch_rows(&a->k, k, keys);
        if (k)
            prefetch_rows(&a->v, attni_first_row(w->next, &a->v, NULL), keys);
    }
}

const attni_bf16 *attni_bf16_find_values(bf16_worker *w, int64_t j0, int n, int at)
{
    const attni_plan *p = w->plan;
    const attn_tensor *v = &p->args.v;
    attni_bf16 *vt = w->vt + at * ATTNI_BLOCK * attni_bf16_padded(p->Dv);
    if (w->packed >> at & 1 || p->Dv == 0)
        return vt;
    w->packed |= 1u << at;
    const attni_bf16 *from = (const attni_bf16 *)attni_stored_row(w->sequence, v, j0);
    ptrdiff_t apart = (ptrdiff_t)v->stride[2];
    if (v->stride[3] != 1 && p->Dv > 1) {
        attni_bf16 *rows = (attni_bf16 *)(void *)w->rows;
        for (int r = 0; r < n; r++)
            attni_bf16_copy_row(rows + r * p->Dv, attni_stored_row(w->sequence, v, j0 + r),
                                v->stride[3], p->Dv);
        from = rows, apart = (ptrdiff_t)p->Dv;
    }
    if (p->far && w->unit->prefetch_values)
        prefetch_block(w, j0 + n);
    if ((w->few ? w->unit->pack_few : w->unit->pack_values)(vt, from, apart, n, p->Dv,
                                                            w->mode != SWEEP_FAST))
        w->nonfinite |= 1u << at;
    return vt;
}

void attni_bf16_new_chunk(bf16_worker *w)
{
    w->packed = w->nonfinite = 0;
    memset(w->keys, 0, sizeof w->keys);
}

void attni_bf16_mask(const bf16_worker *w, const bf16_tile *t, float *st, int64_t j0, int n)
{
    float mx[ATTNI_BF16_W] __attribute__((aligned(ATTNI_ALIGN)));
    const attni_block part = {.st = st,
                              .mx = mx,
                              .kernels = w->plan->kernels,
                              .i0 = t->i0,
                              .j0 = j0,
                              .rows = t->per_head,
                              .heads = t->heads,
                              .n = n,
                              .nv = t->nv,
                              .biases = w->biases};
    attni_mask_apply(w->sequence, &part);
}

/* --------------------------------------------------------------------------------- the result */

void attni_bf16_clear(const attni_plan *p, bf16_tile *t)
{
    for (int i = 0; i < t->W; i++) {
        t->L[i] = 0;
        t->value_scale[i] = 1;
        t->M[i] = t->top[i] = -INFINITY;
        t->c[i] = (float)p->log2_scale;
    }
}

void attni_bf16_clear_columns(const bf16_tile *t, attni_bf16_columns *x)
{
    memcpy(x->c, t->c, (size_t)t->W * 4);
    for (int i = 0; i < t->W; i++)
        x->l[i] = 0, x->top[i] = -INFINITY;
}

static float sink_of(const bf16_worker *w, const bf16_tile *t, int i)
{
    return w->plan->args.sink_logits[w->sequence->h + (i < t->rows ? i / t->per_head : 0)];
}

/* Adds the sink like one more key in a chunk of its own. Its score is the sink's logit, in
 * natural-log units; its value is 0. */
static void add_sink(bf16_worker *w, bf16_tile *t)
{
    const attni_plan *p = w->plan;
    attni_bf16_columns *x = w->columns;
    /* x->c[i] is log2(e), or log2(e) / 2^8 if attni_bf16_rescale_tile() divided t->c[i] by 2^8. */
    for (int i = 0; i < t->W; i++) {
        x->c[i] = (float)((double)t->c[i] / p->log2_scale * ATTNI_LOG2E);
        x->top[i] = sink_of(w, t, i);
    }
    attni_bf16_one_key(x, t->nv);
    memset(w->acc, 0, (size_t)attni_bf16_padded(p->Dv) * (size_t)t->W * 4);
    if (w->row)
        attni_bf16_join_rows(w->row_total, t->M, t->L, w->acc, x, t->rows,
                             attni_bf16_padded(p->Dv));
    else
        attni_bf16_join(t->total, t->M, t->L, w->acc, x, p->Dv, t->nv);
}

/* Would a score of this row, or its sink, be too large for a float in log2 units (kernel.h)? */
static bool too_large(const bf16_worker *w, const bf16_tile *t, int i)
{
    const attn_sdpa_args *a = &w->plan->args;
    double x = (double)t->top[i] * w->plan->log2_scale;
    if (a->sink_logits)
        x = fmax(x, (double)sink_of(w, t, i) * ATTNI_LOG2E);
    return attni_log2_too_large(sizeof(float), x);
}

/* Is too_large() true for some row of the tile? Without sinks, the largest |top| of all rows is
 * tested first: it is nearly always small enough, and then no row is too large. */
static bool some_too_large(const bf16_worker *w, const bf16_tile *t)
{
    float most = 0; /* the largest |top| that is not NaN */
    for (int i = 0; i < t->rows; i++)
        most = fabsf(t->top[i]) > most ? fabsf(t->top[i]) : most;
    if (!w->plan->args.sink_logits && (double)most * w->plan->log2_scale < 1.6e38)
        return false;
    bool some = false;
    for (int i = 0; i < t->rows; i++)
        some |= too_large(w, t, i);
    return some;
}

static double kept_factor(const attni_plan *p)
{
    return p->args.dropout > 0 ? 1 / (1 - p->args.dropout) : 1;
}

/* Writes out and lse. Returns true if some result is NaN or infinite, or if a score or a sink is
 * too large for log2 units. The tile must then be swept again in the next sweep_mode, if there is
 * one. */
bool attni_bf16_write(bf16_worker *w, bf16_tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *out = &p->args.out;
    if (p->args.sink_logits)
        add_sink(w, t);
    bool again = some_too_large(w, t);
    const float *l = t->L;
    float scaled_sums[ATTNI_BF16_W];
    for (int i = 0; i < t->rows && w->mode == SWEEP_RESCALED; i++) {
        scaled_sums[i] = t->L[i] * t->value_scale[i];
        l = scaled_sums;
    }
    const bool direct = (out->dtype == ATTN_BF16 || out->dtype == ATTN_F32) &&
                        out->stride[3] == 1 && (t->heads == 1 || t->per_head == 1);
    const int64_t apart = out->stride[t->heads > 1 ? 1 : 2];
    void *to = direct ? column_row(w, t, out, 0, 0) : w->rows;
    const ptrdiff_t ldo = (ptrdiff_t)(direct ? apart : p->Dv);
    const bool narrow = direct && out->dtype == ATTN_BF16;
    again |= w->row ? attni_bf16_finish_rows(to, narrow, ldo, w->row_total, l, t->rows, p->Dv)
                    : attni_bf16_finish(to, narrow, ldo, t->total, l, (float)kept_factor(p),
                                        t->rows, p->Dv, t->nv);
    for (int i = 0; i < t->rows && !direct; i++)
        attni_store_row(p, column_row(w, t, out, i, 0), out,
                        w->rows + (size_t)(i * p->Dv) * sizeof(float), p->Dv);
    for (int i = 0; i < t->rows && p->args.lse; i++) {
        const double x =
            attni_log_sum((double)t->L[i], (double)t->M[i], p->log2_scale / (double)t->c[i]);
        attni_store_row_f64(column_row(w, t, p->args.lse, i, 0), p->args.lse->dtype, 1, &x, 1);
    }
    return again;
}

/* Prepares the rescaled sweep, which computes the whole tile again. Two factors are set for some
 * of the tile's columns. Each column of the tile becomes one row of the result.
 *
 *   value_scale  2^-40 if the row was not finite, or if a score or the sink is too large for log2
 *                units. Each weight is multiplied by value_scale before it multiplies a value, so
 *                no sum overflows. attni_bf16_write() multiplies L by it, too, so the quotient is
 *                unchanged.
 *   c            divided by 2^8 if a score or the sink is too large for log2 units. This changes no
 *                weight: floats of this size are so far apart that every score below the row's
 *                largest one has weight 0 with either c. */
void attni_bf16_rescale_tile(const bf16_worker *w, bf16_tile *t)
{
    const attni_plan *p = w->plan;
    bool huge[ATTNI_BF16_W], stays[ATTNI_BF16_W];
    for (int i = 0; i < t->W; i++) {
        huge[i] = too_large(w, t, i);
        stays[i] = isfinite(t->L[i]) && !huge[i];
        for (int64_t c = 0; c < p->Dv && stays[i]; c++)
            stays[i] = isfinite(t->total[c * t->W + i] / (t->L[i] != 0 ? t->L[i] : 1)) != 0;
    }
    attni_bf16_clear(p, t);
    for (int i = 0; i < t->W; i++) {
        if (huge[i])
            t->c[i] = (float)(p->log2_scale / 256);
        if (!stays[i])
            t->value_scale[i] = 0x1p-40F; /* so a sum of 2^31 finite values is finite */
    }
}

/* --------------------------------------------------------------------------------- scores out */

/* Computes a block of scores up to the requested stage, in w->st. */
static void compute_requested(bf16_worker *w, bf16_tile *t, int64_t j0, int n, attni_class visible)
{
    const attni_plan *p = w->plan;
    const attn_stage stage = p->args.scores_stage;
    float *st = w->st;
    attni_bf16_load_queries(w, t);
    attni_bf16_scores x = {.nv = t->nv,
                           .n = n,
                           .q = t->q,
                           .inner_tiles = (int)(attni_bf16_padded(p->D) / 32),
                           .pairs = (int)((p->D + 1) / 2),
                           .st = st};
    attni_bf16_new_chunk(w);
    x.k = attni_bf16_find_keys(w, j0, n, 0, &x.ldk);
    w->unit->scores(&x);
    if (p->scaled_scores || stage <= ATTN_STAGE_SOFTCAP)
        attni_scale_softcap(p, st, n, stage >= ATTN_STAGE_SOFTCAP ? p->args.softcap : 0, t->nv);
    if (visible != ATTNI_FULL && stage >= ATTN_STAGE_BIASED)
        attni_bf16_mask(w, t, st, j0, n);
    if (stage == ATTN_STAGE_BIASED && !p->scaled_scores)
        p->kernels->scale_softcap(st, n, p->scale_mantissa, 0, t->nv);
}

/* A block of requested scores or weights, as rows in w->lines. */
static void score_rows(bf16_worker *w, bf16_tile *t, int64_t j0, int n, attni_class visible)
{
    const bool weights = w->plan->args.scores_stage == ATTN_STAGE_WEIGHTS;
    const bool kept = t->kept && t->kept >> j0 / ATTNI_BLOCK & 1;
    float *st = kept ? t->scores + j0 * t->W : w->st;
    uint32_t *seen = w->seen[0];
    if (!kept)
        compute_requested(w, t, j0, n, visible);
    if (weights) {
        attni_bf16_columns *columns = w->columns;
        memcpy(columns->c, t->c, (size_t)t->W * 4);
        memcpy(columns->m, t->M, (size_t)t->W * 4);
        attni_bf16_weigh(st, columns, false, seen, t->nv);
    }
    attni_bf16_scores_as_rows(w->lines, st, n, weights ? t->L : NULL, seen, t->nv);
}

/* Writes the scores that the caller requested. Now M and L are final. Scores that the tile has not
 * kept are computed once more. The loop runs over all keys of the tensor. j0 counts from the first
 * key of this sequence, so it can be negative or beyond the end. */
void attni_bf16_write_scores(bf16_worker *w, bf16_tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *s = p->args.scores;
    const bool hides = p->args.scores_stage >= ATTN_STAGE_BIASED;
    const float hidden = p->args.scores_stage == ATTN_STAGE_WEIGHTS ? 0 : -INFINITY;
    for (int64_t g = 0; g < p->S; g += ATTNI_BLOCK) { /* g counts from the tensor's first key */
        const int64_t j0 = g - w->sequence->j_base;
        const int n = p->S - g < ATTNI_BLOCK ? (int)(p->S - g) : ATTNI_BLOCK;
        attni_class visible = ATTNI_PARTIAL;
        if (hides)
            visible =
                attni_mask_classify(w->sequence, &t->span, t->i0, t->i0 + t->rows, j0, j0 + n);
        if (visible != ATTNI_EMPTY)
            score_rows(w, t, j0, n, visible);
        else
            for (int i = 0; i < t->rows * ATTNI_BLOCK; i++)
                w->lines[i] = hidden;
        for (int i = 0; i < t->rows; i++)
            attni_store_row(p,
                            attni_at(s, w->sequence->b, w->sequence->h,
                                     w->sequence->i_base + t->i0 + i, g),
                            s, (const char *)(w->lines + i * ATTNI_BLOCK), n);
    }
}

#endif
