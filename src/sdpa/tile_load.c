/* Brings what a tile reads into the form that the kernels read:
 *
 *   attni_tile_shape, _queries, _clear      a tile at the start of a task
 *   attni_tile_load                         converts keys and values, if they are not stored as
 *                                           rows of R
 *   attni_tile_rows, attni_tile_next_rows   where the rows are; what to prefetch next
 *   attni_transpose_sums                    turns the decode path's sums, one row per query, into
 *                                           a tile array
 *
 * tile_task.c, chunk.c, tile_scores.c, one_block.c, result.c and the gradients call these
 * functions.
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

#include <math.h>
#include <string.h>

/* --------------------------------------------------------------------------------- one tile */

void attni_tile_shape(const attni_worker *w, attni_tile *t, int64_t i0, int64_t rows)
{
    const attni_plan *p = w->plan;
    const int lanes = p->kernels->lanes;
    t->i0 = i0;
    t->heads = p->group;
    t->nv = 1;
    while (t->nv < p->nv && t->nv * lanes < rows * t->heads)
        t->nv *= 2;
    t->W = t->nv * lanes;
    t->per_head = rows * t->heads < t->W ? (int)rows : t->W / t->heads;
    t->rows = t->per_head * t->heads;
    t->span = attni_mask_span(w->sequence, i0, i0 + t->per_head);
}

void attni_tile_clear(const attni_plan *p, attni_tile *t, bool total)
{
    t->in_totals = t->rescaled = false;
    if (total)
        memset(t->total, 0, (size_t)p->Dv * (size_t)t->W * p->real);
    memset(t->l, 0, (size_t)t->W * p->real);
    attni_fill_lanes(p, t->m, -(double)INFINITY, t->W);
    attni_fill_lanes(p, t->m_first, -(double)INFINITY, t->W);
    attni_fill_lanes(p, t->top, -(double)INFINITY, t->W);
    attni_fill_lanes(p, t->c, p->log2_scale, t->W);
}

void attni_convert_rows(const attni_plan *p, char *to, const char *from, ptrdiff_t ld,
                        attn_dtype dtype, int64_t stride, int rows, int64_t n)
{
    if (n == 0) /* `from` may be NULL, and nothing may be added to NULL */
        return;
    if (stride == 1) {
        p->kernels->widen(to, from, ld, dtype, rows, n);
        return;
    }
    for (int r = 0; r < rows; r++) {
        const char *row = from + r * ld * (ptrdiff_t)attn_dtype_size(dtype);
        if (p->real == sizeof(float))
            attni_load_row_f32((float *)to + r * n, row, dtype, stride, n);
        else
            attni_load_row_f64((double *)to + r * n, row, dtype, stride, n);
    }
}

void attni_tile_queries(attni_worker *w, attni_tile *t)
{
    const attni_plan *p = w->plan;
    const attn_tensor *q = &p->args.q;
    /* Are the tile's rows one constant stride apart? They are if they all belong to one head, or if
     * there is one row per head. */
    const bool even = t->heads == 1 || t->per_head == 1;
    const char *from = attni_lane_row(w, t, q, 0, 0);
    ptrdiff_t ldq = (ptrdiff_t)q->stride[t->heads > 1 ? 1 : 2];
    if (!p->q_in_place || !even) {
        if (even)
            attni_convert_rows(p, w->rows, from, ldq, q->dtype, q->stride[3], t->rows, p->D);
        for (int i = 0; i < t->rows && !even; i++)
            attni_convert_rows(p, w->rows + (size_t)i * (size_t)p->D * p->real,
                               attni_lane_row(w, t, q, i, 0), 0, q->dtype, q->stride[3], 1, p->D);
        from = w->rows;
        ldq = (ptrdiff_t)p->D;
    }
    if (t->rows > 1 || !attni_tile_decodes(p, t)) {
        p->kernels->pack(t->qt, from, ldq, t->rows, p->D, p->scale_pow2, t->nv);
        if (p->k_interleaved)
            memset(t->qt + (size_t)(p->D * t->W) * p->real, 0, (size_t)t->W * p->real);
        return;
    }
    const size_t line = (size_t)t->W * p->real, bytes = (size_t)p->D * p->real;
    const size_t lines = (bytes + line - 1) / line;
    memset(w->q_row + bytes, 0, lines * line - bytes);
    if (bytes > 0) /* else `from` may be NULL */
        memcpy(w->q_row, from, bytes);
    attni_fill_lanes(p, w->mx, p->scale_pow2, t->W);
    p->kernels->rescale(w->q_row, (int64_t)lines, w->mx, 1);
}

/* ------------------------------------------------------------------------------ keys and values */

/* Converts up to one block of a cache's interleaved keys to rows of R: first to rows of the cache's
 * type, in w->interleaved (directly in `to` if that type is R), then to R. */
static void load_interleaved(const attni_worker *w, char *to, int64_t j, int n)
{
    const attni_plan *p = w->plan;
    const size_t bytes = p->args.cache->row_bytes[ATTNI_KEYS];
    char *rows = w->interleaved ? w->interleaved : to;
    attni_cache_keys_as_rows(p->args.cache, w->sequence->b, w->sequence->hk, j, n, rows, bytes);
    if (rows != to)
        attni_convert_rows(p, to, rows, (ptrdiff_t)p->args.k.stride[2], p->args.k.dtype, 1, n,
                           p->D);
}

/* Converts up to one block of rows of an i8 cache to R. */
static void load_i8(const attni_worker *w, const attn_tensor *t, char *to, int64_t j, int n)
{
    const attni_sequence *sequence = w->sequence;
    const float *scales = attni_cache_scales(w->plan->args.cache, attni_part_of(sequence, t),
                                             sequence->b, sequence->hk, j);
    w->plan->kernels->widen_i8(to, (const int8_t *)attni_stored_row(sequence, t, j),
                               (ptrdiff_t)t->stride[2], scales, n, t->shape[3]);
}

static void load_blocks(const attni_worker *w, const attn_tensor *t, char *to, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const int64_t width = t->shape[3];
    for (int r = 0; r < n; r += ATTNI_BLOCK) {
        char *block = to + (size_t)r * (size_t)width * p->real;
        const int rows = n - r < ATTNI_BLOCK ? n - r : ATTNI_BLOCK;
        if (p->k_interleaved && t == &p->args.k)
            load_interleaved(w, block, j0 + r, rows);
        else if (t->dtype == ATTN_I8)
            load_i8(w, t, block, j0 + r, rows);
        else
            attni_convert_rows(p, block, attni_stored_row(w->sequence, t, j0 + r),
                               (ptrdiff_t)t->stride[2], t->dtype, t->stride[3], rows, width);
    }
}

void attni_tile_load(attni_worker *w, int64_t j0, int n, bool values)
{
    const attni_plan *p = w->plan;
    if (!p->k_in_place)
        load_blocks(w, &p->args.k, w->k, j0, n);
    if (!p->v_in_place && values)
        load_blocks(w, &p->args.v, w->v, j0, n);
    w->loaded = j0;
}

const char *attni_tile_rows(const attni_worker *w, bool values, int64_t j, ptrdiff_t *ld)
{
    const attni_plan *p = w->plan;
    const attn_tensor *t = values ? &p->args.v : &p->args.k;
    const char *converted = values ? w->v : w->k;
    const int64_t width = t->shape[3];
    if (width == 0) { /* data may be NULL, and nothing may be added to NULL */
        *ld = 0;
        return w->st;
    }
    if ((values ? p->v_in_place : p->k_in_place) || w->as_stored) {
        *ld = (ptrdiff_t)t->stride[2];
        return attni_stored_row(w->sequence, t, j);
    }
    *ld = (ptrdiff_t)width;
    return converted + (size_t)(j - w->loaded) * (size_t)width * p->real;
}

/* ------------------------------------------------------------------------------------- blocks */

attni_next_rows attni_tile_next_rows(const attni_worker *w, const attni_tile *tile, bool values,
                                     int64_t j)
{
    const attni_plan *p = w->plan;
    const attn_tensor *t = values ? &p->args.v : &p->args.k;
    attni_next_rows next = {w->st, 0, 0};
    const bool in_place = (values ? p->v_in_place : p->k_in_place) || w->as_stored;
    /* Rows that are converted are not prefetched, except i8: these are converted block by block, so
     * the next block's stored rows are prefetched while this block is computed. */
    if ((!in_place && t->dtype != ATTN_I8) || t->shape[3] == 0)
        return next;
    const char *rows = NULL;
    /* The next task's first rows are prefetched only if S <= SHORT_KEYS. Measured with 12 heads,
     * one query, data in memory: 4 to 6 % faster with 537 keys, 1 to 2 % slower with 4096. */
    enum { SHORT_KEYS = 1024 };
    if (j < tile->span.any1)
        rows = attni_stored_row(w->sequence, t, j);
    else if (w->next && p->S <= SHORT_KEYS)
        rows = attni_first_row(w->next, t);
    if (rows) {
        const ptrdiff_t size = (ptrdiff_t)attn_dtype_size(t->dtype);
        const ptrdiff_t bytes = (ptrdiff_t)t->stride[2] * size;
        /* Interleaved keys are read in whole lines, with the padding between D and the stride. */
        const bool interleaved = p->k_interleaved && !values;
        next = (attni_next_rows){rows, bytes, interleaved ? bytes : t->shape[3] * size};
    }
    return next;
}

attn_dtype attni_tile_dtype(const attni_worker *w)
{
    return w->as_stored ? w->plan->args.k.dtype : w->plan->real_dtype;
}

void attni_transpose_sums(const attni_worker *w, const attni_tile *t, char *to, const char *rows)
{
    const attni_plan *p = w->plan;
    p->kernels->pack(to, rows, (ptrdiff_t)attni_sums_width(p), t->rows, p->Dv, 1, t->nv);
}
