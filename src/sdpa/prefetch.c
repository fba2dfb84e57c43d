/* Prefetches what a task reads next, while it computes. tile_task.c chooses the regions at each
 * chunk; scores() and values() of kernel.h issue the prefetches between their multiplications.
 *
 *   during a chunk:           the next chunk's keys and values
 *   during the last chunk:    the rows of out that the task will write;
 *                             the queries and the first keys and values of the next task
 *
 * The hardware prefetcher cannot predict these reads: keys are read six rows at a time, values a
 * few columns at a time, and the next head may be anywhere. With data in L3 the gain was 2 to 9 %
 * of a call at T = S = 2048 and 5 to 11 % at 512 (docs/decisions/0004). The decode path has its own
 * prefetch (attni_tile_next_rows()).
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

#include <limits.h>

void attni_add_prefetch(attni_worker *w, const char *first, ptrdiff_t ld, int64_t rows,
                        int64_t bytes)
{
    if (rows <= 0 || bytes <= 0)
        return;
    if (ld == bytes)
        bytes *= rows, rows = 1;
    if (bytes > INT_MAX) /* more than any cache holds */
        bytes = INT_MAX;
    w->prefetch[w->prefetch_count++] = (attni_prefetch){.first = first,
                                                        .ld = ld,
                                                        .rows = (int)rows,
                                                        .lines = (int)((bytes + 63) / 64)};
}

/* Adds rows i .. i+rows-1 of the sequence's head of a [B,H,T,...] tensor. */
static void add_queries(attni_worker *w, const attni_sequence *sequence, const attn_tensor *t,
                        int64_t i, int64_t rows)
{
    const int64_t size = (int64_t)attn_dtype_size(t->dtype);
    if (t->stride[3] == 1 && t->shape[3] > 0) /* else data may be NULL */
        attni_add_prefetch(w, attni_at(t, sequence->b, sequence->h, sequence->i_base + i, 0),
                           (ptrdiff_t)(t->stride[2] * size), rows, t->shape[3] * size);
}

/* Adds the rows of keys or values from j up to `end`, but at most a chunk. */
static void add_keys(attni_worker *w, const attni_sequence *sequence, const attn_tensor *t,
                     int64_t j, int64_t end)
{
    const int64_t size = (int64_t)attn_dtype_size(t->dtype);
    const int64_t most = sequence->args->cache ? ATTNI_BLOCK : ATTNI_CHUNK; /* contiguous rows */
    if (end > j + ATTNI_CHUNK)
        end = j + ATTNI_CHUNK;
    if (t->stride[3] == 1 && t->shape[3] > 0 && t->dtype != ATTN_I8)
        for (; j < end; j += most)
            attni_add_prefetch(w, attni_stored_row(sequence, t, j),
                               (ptrdiff_t)(t->stride[2] * size), end - j < most ? end - j : most,
                               t->shape[3] * size);
}

void attni_choose_prefetch(attni_worker *w, int count, int64_t j, int64_t end)
{
    const attni_plan *p = w->plan;
    const attni_sequence *sequence = w->sequence;
    w->prefetch_count = w->prefetch_next = 0;
    if (j >= end) {
        const attni_tile *first = &w->tiles[0], *last = &w->tiles[count - 1];
        if (p->group == 1)
            add_queries(w, sequence, &p->args.out, first->i0, last->i0 + last->rows - first->i0);
        if (!w->next)
            return;
        sequence = &w->next->sequence;
        const attni_span span = attni_mask_span(sequence, w->next->i0, w->next->i0 + w->next->rows);
        j = span.any0 - span.any0 % ATTNI_CHUNK;
        end = span.any1;
        if (p->group == 1)
            add_queries(w, sequence, &p->args.q, w->next->i0, w->next->rows);
    }
    add_keys(w, sequence, &p->args.k, j, end);
    add_keys(w, sequence, &p->args.v, j, end);
}
