/* Which keys a run of queries sees, and what masks add to scores (mask.c). */
#ifndef ATTNI_MASK_H
#define ATTNI_MASK_H

#include "sequence.h"

/* Which keys a run of queries sees. A rule gives, for queries i0 <= i < i1, the keys that any of
 * them sees and the keys that all of them see, each one interval: tiles outside `any` are skipped,
 * tiles inside `all` are left alone, the others get attni_mask_apply().
 */
typedef struct attni_span {
    int64_t any0, any1, all0, all1;
} attni_span;

typedef enum attni_class { ATTNI_EMPTY, ATTNI_PARTIAL, ATTNI_FULL } attni_class;

/* A block of scores: st[j][i] of keys j0 .. j0+n-1 and queries i0 .. i0+rows-1, W apart; of `heads`
 * heads, a head's lanes after those of the head before. */
typedef struct attni_block {
    void *st;
    void *mx; /* [W] becomes the maxima of st */
    const attni_kernels *kernels;
    int64_t i0, j0;
    int rows, heads, n, nv;
    void *biases; /* [W][ATTNI_BLOCK], R: room for a dense mask's part of this block */
} attni_block;

typedef struct attni_plan attni_plan;
/* The rules that a call uses, a bit each. All that follows looks at no others. */
unsigned attni_mask_kinds(const attn_sdpa_args *args);
attn_status attni_mask_check(const attni_plan *plan, attn_error *err);
/* Does any rule add to the scores, so that they must be in natural units? */
bool attni_mask_biases(unsigned kinds);
attni_span attni_mask_span(const attni_sequence *sequence, int64_t i0, int64_t i1);
/* FULL: nothing to apply. `span` is that of the queries i0 <= i < i1. */
attni_class attni_mask_classify(const attni_sequence *sequence, const attni_span *span, int64_t i0,
                                int64_t i1, int64_t j0, int64_t j1);
/* May heads that share keys be lanes of one tile: is every rule the same for all of them? */
bool attni_mask_shared(const attni_plan *plan);
/* The part of a dense mask, if there is one, of queries i0 .. i0+rows-1 and of n keys, but no more
 * than a chunk, from j0 on. */
attni_prefetch attni_mask_prefetch(const attni_sequence *sequence, int64_t i0, int rows, int64_t j0,
                                   int64_t n);
/* Asks for one part of it in ATTNI_MASK_PREFETCH_PARTS. */
#define ATTNI_MASK_PREFETCH_PARTS (3 * ATTNI_CHUNK / ATTNI_BLOCK)
void attni_mask_prefetch_part(attni_prefetch *ahead);
/* Adds biases, then writes -inf wherever a key is not visible; then come the maxima. */
void attni_mask_apply(const attni_sequence *sequence, const attni_block *block);

#endif
