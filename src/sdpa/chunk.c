/* Processes one chunk of keys for one tile of many queries; tile_task.c calls attni_tile_chunk()
 * for each chunk and tile:
 *
 *   for each block of 64 keys with a key that some query sees:
 *     S  scores = Q K^T, soft cap, biases, masks   (score_block)
 *     W  weights = 2^(scores - m)                  (attni_block_weights)
 *     V  sums += weights V                         (attni_block_values)
 *   J  merge the chunk's maximum and sum of weights into the tile's (join); the last V then merges
 *      the weighted values
 *
 * With many queries the work is compute-bound, and each block is finished before the next one:
 *
 *   time ->   S0 W0 V0   S1 W1 V1   S2 W2 V2   S3 W3 J V3  | next chunk: S0 W0 V0 ...
 *
 * decode.c does the same for few rows, in another order.
 *
 * Terms (tile, lane, block, chunk, R, interleaved): the glossary in kernel/kernel.h. Arrays (st, m,
 * l, acc, sums, totals): tile.h.
 */
#include "tile.h"

#include <string.h>

/* Not inlined in its three callers, which keeps the library small. */
__attribute__((noinline)) attni_prefetch *attni_prefetch_now(attni_worker *w)
{
    while (w->prefetch_next < w->prefetch_count &&
           w->prefetch[w->prefetch_next].line >= w->prefetch[w->prefetch_next].lines)
        w->prefetch_next++;
    return w->prefetch_next < w->prefetch_count ? &w->prefetch[w->prefetch_next] : NULL;
}

/* ------------------------------------------------------------------------------------- scores */

void attni_tile_products(attni_worker *w, const attni_tile *t, const attni_chunk_block *b)
{
    w->plan->kernels->scores(b->st, b->mx, t->qt, b->k, b->ldk, b->n, w->plan->D, t->nv,
                             attni_prefetch_now(w));
}

void attni_tile_biases(attni_worker *w, const attni_tile *t, const attni_chunk_block *b,
                       attn_stage stage)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    const bool masked = b->visible != ATTNI_FULL && stage >= ATTN_STAGE_BIASED;
    if (p->scaled_scores || stage <= ATTN_STAGE_SOFTCAP)
        attni_scale_softcap(p, b->st, b->n, stage >= ATTN_STAGE_SOFTCAP ? p->args.softcap : 0,
                            t->nv);
    if (masked) {
        const attni_block block = {.st = b->st,
                                   .mx = b->mx,
                                   .kernels = kernels,
                                   .i0 = t->i0,
                                   .j0 = b->j,
                                   .rows = t->per_head,
                                   .heads = t->heads,
                                   .n = b->n,
                                   .nv = t->nv,
                                   .biases = w->biases};
        attni_mask_apply(w->sequence, &block);
    } else if (p->scaled_scores)
        kernels->maxima(b->mx, b->st, b->n, t->nv);
}

static void score_block(attni_worker *w, attni_tile *t, attni_chunk_block *b)
{
    if (w->plan->tiles == 1)
        attni_tile_load(w, b->j, b->n, true);
    attni_block_rows(w, b, false);
    attni_tile_products(w, t, b);
    attni_tile_biases(w, t, b, ATTN_STAGE_BIASED);
}

/* -------------------------------------------------------------------------- weights and values */

void attni_block_weights(attni_worker *w, attni_tile *t, attni_partial *x, attni_chunk_block *b)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    b->max_raised =
        kernels->update_max(x->m, b->a, x->top, b->mx, t->c, t->nv) && !(b->flags & ATTNI_FIRST);
    if (b->max_raised)
        kernels->rescale(x->l, 1, b->a, t->nv);
    kernels->weights(b->st, x->l, b->st, t->c, x->m, b->n, t->nv, b->flags);
    if (p->args.dropout > 0)
        kernels->drop(b->st, b->st, b->n, p->args.dropout_seed, p->drop_threshold,
                      w->sequence->drop_head, w->sequence->drop_row + (uint64_t)t->i0,
                      (uint64_t)(w->sequence->j_base + b->j), 1 / (1 - p->args.dropout), t->nv);
    if (t->rescaled)
        kernels->rescale(b->st, b->n, t->value_scale, t->nv);
}

void attni_block_values(attni_worker *w, attni_tile *t, attni_partial *x,
                        const attni_chunk_block *b)
{
    const attni_plan *p = w->plan;
    const attni_kernels *kernels = p->kernels;
    if (b->flags & ATTNI_LAST)
        kernels->join(t->m, t->l, w->factors, x->m, x->l, t->nv);
    if (b->max_raised)
        kernels->rescale(x->acc, p->Dv, b->a, t->nv);
    kernels->values(x->acc, t->total, w->factors, b->v, b->ldv, b->st, b->n, p->Dv, t->nv, b->flags,
                    attni_prefetch_now(w));
}

/* ---------------------------------------------------------------------------------- the chunk */

int attni_cut_chunk(const attni_worker *w, const attni_tile *t, int64_t j0, int n,
                    attni_chunk_block blocks[ATTNI_BLOCKS], attni_sweep mode)
{
    int count = 0;
    for (int64_t r = j0; r < j0 + n; r += ATTNI_BLOCK) {
        const int64_t end = r + ATTNI_BLOCK < j0 + n ? r + ATTNI_BLOCK : j0 + n;
        const attni_class visible =
            attni_mask_classify(w->sequence, &t->span, t->i0, t->i0 + t->per_head, r, end);
        if (visible == ATTNI_EMPTY)
            continue;
        /* Keys before the first and after the last visible key are cut off; they would add 0. */
        const int64_t first = t->span.any0 > r ? t->span.any0 : r;
        const int64_t past = t->span.any1 < end ? t->span.any1 : end;
        blocks[count] =
            (attni_chunk_block){.j = first,
                                .n = (int)(past - first),
                                .visible = visible,
                                .route = t->route,
                                .flags = (mode == ATTNI_SWEEP_FAST ? 0 : ATTNI_SKIP_MASKED) |
                                         (visible == ATTNI_FULL ? 0 : ATTNI_MASKED) |
                                         (count ? 0 : ATTNI_FIRST),
                                .st = w->st,
                                .mx = w->mx,
                                .a = w->a};
        count++;
    }
    return count;
}

void attni_begin_chunk(const attni_worker *w, const attni_tile *t, const attni_partial *x)
{
    const size_t line = (size_t)t->W * w->plan->real;
    memset(x->l, 0, line);
    memcpy(x->m, t->m_first, line);
    memcpy(x->top, t->top, line);
}

/* Prefetches a part of a dense mask, if there is one. */
static void prefetch_mask(attni_worker *w)
{
    if (w->mask_prefetch.rows)
        attni_mask_prefetch_part(&w->mask_prefetch);
}

bool attni_tile_chunk(attni_worker *w, attni_tile *t, attni_partial *x, int64_t j0, int n,
                      attni_sweep mode, bool joins)
{
    attni_chunk_block blocks[ATTNI_BLOCKS];
    const int count = attni_cut_chunk(w, t, j0, n, blocks, mode);
    if (count == 0)
        return false;
    blocks[count - 1].flags |= joins ? ATTNI_LAST : 0;
    attni_begin_chunk(w, t, x);
    for (int b = 0; b < count; b++) {
        prefetch_mask(w);
        score_block(w, t, &blocks[b]);
        prefetch_mask(w);
        attni_block_weights(w, t, x, &blocks[b]);
        prefetch_mask(w);
        attni_block_values(w, t, x, &blocks[b]);
    }
    if (joins)
        memcpy(t->top, x->top, (size_t)t->W * w->plan->real);
    return true;
}
