/* Scores of one block of keys, for chunk.c, result.c and the gradients:
 *
 *   attni_tile_products   st = Q K^T, by scores(), scores_decode() or scores_interleaved()
 *   attni_tile_biases     soft cap, biases, masks, maxima
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

/* Decode path: scores in rows, of keys j0 .. j0+n-1. */
static void score_decode(const attni_worker *w, const attni_tile *t, char *st, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const char *q = t->rows == 1 ? w->q_row : t->qt;
    ptrdiff_t ld;
    const char *k = attni_tile_rows(w, false, j0, &ld);
    const attni_next_rows next = attni_tile_next_rows(w, t, false, j0 + n);
    if (w->as_stored && p->k_interleaved)
        kernels->scores_interleaved(st, w->mx, q, k, p->args.k.dtype, n, p->D, t->rows, &next);
    else
        kernels->scores_decode(st, w->mx, q, k, ld, attni_tile_dtype(w), n, p->D, t->rows, &next);
}

/* The same scores, stored in the tile layout [key][W]. Interleaved keys can be read only from the
 * start of a group, so up to ATTNI_GROUP - 1 extra scores are computed and skipped. */
static void score_decode_lanes(const attni_worker *w, const attni_tile *t, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const int skip = w->as_stored && p->k_interleaved ? (int)(j0 % ATTNI_GROUP) : 0, all = skip + n;
    score_decode(w, t, w->score_rows, j0 - skip, all);
    for (int j = skip, end; j < all; j = end) { /* the skip may push the last keys into a second
                                                   block */
        const int block = j / ATTNI_BLOCK * ATTNI_BLOCK;
        end = all < block + ATTNI_BLOCK ? all : block + ATTNI_BLOCK;
        p->kernels->pack(w->st + (size_t)((j - skip) * t->W) * p->real,
                         w->score_rows +
                             (size_t)(block * p->kernels->max_decode_rows + j - block) * p->real,
                         ATTNI_BLOCK, t->rows, end - j, 1, t->nv);
    }
    p->kernels->maxima(w->mx, w->st, n, t->nv);
}

void attni_tile_products(attni_worker *w, const attni_tile *t, int64_t j0, int n)
{
    const attni_plan *p = w->plan;
    const bool few = attni_tile_decodes(p, t) && w->q_row; /* the gradients have no q_row */
    if (few && w->in_rows)
        score_decode(w, t, w->st, j0, n);
    else if (few)
        score_decode_lanes(w, t, j0, n);
    else {
        ptrdiff_t ld;
        const char *k = attni_tile_rows(w, false, j0, &ld);
        p->kernels->scores(w->st, w->mx, t->qt, k, ld, n, p->D, t->nv, attni_prefetch_now(w));
    }
}

void attni_tile_biases(attni_worker *w, const attni_tile *t, int64_t j0, int n, attni_class visible,
                       attn_stage stage)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const bool masked = visible != ATTNI_FULL && stage >= ATTN_STAGE_BIASED;
    if (p->scaled_scores || stage <= ATTN_STAGE_SOFTCAP)
        attni_scale_softcap(p, w->st, n, stage >= ATTN_STAGE_SOFTCAP ? p->args.softcap : 0, t->nv);
    if (masked) {
        const attni_block block = {.st = w->st,
                                   .mx = w->mx,
                                   .kernels = kernels,
                                   .i0 = t->i0,
                                   .j0 = j0,
                                   .rows = t->per_head,
                                   .heads = t->heads,
                                   .n = n,
                                   .nv = t->nv,
                                   .biases = w->biases};
        attni_mask_apply(w->sequence, &block);
    } else if (p->scaled_scores)
        kernels->maxima(w->mx, w->st, n, t->nv);
}

void attni_tile_scores(attni_worker *w, const attni_tile *t, int64_t j0, int n, attni_class visible,
                       attn_stage stage)
{
    attni_tile_products(w, t, j0, n);
    attni_tile_biases(w, t, j0, n, visible, stage);
}
