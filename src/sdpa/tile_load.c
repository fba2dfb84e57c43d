/* Where a tile reads its keys and values, and their conversion to R:
 *
 *   attni_tile_load         converts keys and values, if they are not stored as rows of R
 *   attni_tile_rows         where the rows are: in place, or as they were converted
 *   attni_block_rows        the same for a block; the decode path can also get rows as they are
 *                           stored, without conversion to R: bf16, f16, interleaved keys
 *   attni_tile_next_rows    what to prefetch next
 *
 * tile_task.c, chunk.c, decode.c, result.c and the gradients call these functions.
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

#include <math.h>
#include <string.h>

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
                               (ptrdiff_t)t->stride[2], scales, n,
                               attni_keys_there(sequence) - j - n, t->shape[3]);
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

/* The rows of keys or values from j on: where they are stored, or where they were converted to. */
static const char *find_rows(const attni_worker *w, bool values, bool stored, int64_t j,
                             ptrdiff_t *ld)
{
    const attni_plan *p = w->plan;
    const attn_tensor *t = values ? &p->args.v : &p->args.k;
    const char *converted = values ? w->v : w->k;
    const int64_t width = t->shape[3];
    if (width == 0) { /* data may be NULL, and nothing may be added to NULL */
        *ld = 0;
        return w->st;
    }
    if (stored) {
        *ld = (ptrdiff_t)t->stride[2];
        return attni_stored_row(w->sequence, t, j);
    }
    *ld = (ptrdiff_t)width;
    return converted + (size_t)(j - w->loaded) * (size_t)width * p->real;
}

const char *attni_tile_rows(const attni_worker *w, bool values, int64_t j, ptrdiff_t *ld)
{
    const attni_plan *p = w->plan;
    return find_rows(w, values, values ? p->v_in_place : p->k_in_place, j, ld);
}

void attni_block_rows(const attni_worker *w, attni_chunk_block *b, bool as_stored)
{
    const attni_plan *p = w->plan;
    b->dtype = as_stored ? p->args.k.dtype : p->real_dtype;
    b->interleaved = as_stored && p->k_interleaved;
    b->k = find_rows(w, false, as_stored || p->k_in_place, b->j, &b->ldk);
    b->v = find_rows(w, true, as_stored || p->v_in_place, b->j, &b->ldv);
}

/* ------------------------------------------------------------------------------------- blocks */

/* attni_next_rows.l2_ahead of f32 keys or values, for a tile of `rows` queries. With several
 * queries, values_decode() passes several times over a block of values, so the prefetch is at least
 * a block ahead; that of keys is as far. With more than four queries, a distance of more than a
 * block made calls with a small D up to 10 % slower. */
static int distance_into_l2(const attni_plan *p, bool values, int rows)
{
    const int l2_ahead = values ? p->v_l2_ahead : p->k_l2_ahead;
    if (l2_ahead == 0 || rows == 1)
        return l2_ahead;
    return l2_ahead < ATTNI_BLOCK || rows > 4 ? ATTNI_BLOCK : l2_ahead;
}

attni_next_rows attni_tile_next_rows(const attni_worker *w, const attni_tile *tile, bool values,
                                     const attni_chunk_block *b, int64_t j)
{
    const attni_plan *p = w->plan;
    const attn_tensor *t = values ? &p->args.v : &p->args.k;
    const bool in_place =
        (values ? p->v_in_place : p->k_in_place) || b->dtype != p->real_dtype || b->interleaved;
    const char *rows = NULL;
    int64_t count = tile->span.any1 - j;
    /* The next task's first rows are prefetched only if S <= SHORT_KEYS. Measured with 12 heads,
     * one query, data in memory: 4 to 6 % faster with 537 keys, 1 to 2 % slower with 4096. */
    enum { SHORT_KEYS = 1024 };
    /* Rows that are converted before they are used are prefetched only if they are i8. Then the
     * rows of the next block are prefetched while this block is computed. */
    if ((in_place || t->dtype == ATTN_I8) && t->shape[3] > 0) {
        if (count > 0)
            rows = attni_stored_row(w->sequence, t, j);
        else if (w->next && p->S <= SHORT_KEYS)
            rows = attni_first_row(w->next, t, &count);
    }
    const bool f32 = t->dtype == ATTN_F32, one = f32 && tile->rows == 1;
    const bool l2_only = one && values && p->v_l2_only;
    const bool one_vector = one && p->one_stream && p->D >= 64;
    const int l2_ahead = l2_only ? p->v_l2_only : f32 ? distance_into_l2(p, values, tile->rows) : 0;
    if (!rows)
        return (attni_next_rows){w->st, 0, 0, INT64_MAX, l2_ahead, l2_only, one_vector};
    const ptrdiff_t size = (ptrdiff_t)attn_dtype_size(t->dtype);
    const ptrdiff_t bytes = (ptrdiff_t)t->stride[2] * size;
    /* Interleaved keys are read with their padding: `bytes` counts it, shape[3] does not. */
    const bool interleaved = p->k_interleaved && !values;
    return attni_rows_to_prefetch(rows, bytes, interleaved ? bytes : t->shape[3] * size, count,
                                  l2_ahead, l2_only, one_vector);
}
