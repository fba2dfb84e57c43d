/* Masks (mask.c, mask_dense.c): which keys some queries see, and what is added to the scores. */
#ifndef ATTNI_MASK_H
#define ATTNI_MASK_H

#include "sequence.h"

/* The visible keys of queries i0 <= i < i1, as two intervals: keys any0 .. any1-1 are seen by at
 * least one of these queries, keys all0 .. all1-1 by all of them. Rules without a span, such as
 * dense masks, are left out. Blocks outside `any` are skipped. Blocks inside `all` go through
 * attni_mask_apply() only if a rule without a span concerns them. */
typedef struct attni_span {
    int64_t any0, any1, all0, all1;
} attni_span;

typedef enum attni_class { ATTNI_EMPTY, ATTNI_PARTIAL, ATTNI_FULL } attni_class;

/* A block of scores st[j][i], of keys j0 .. j0+n-1 and queries i0 .. i0+rows-1; the rows of st
 * are W apart. If the lanes hold several heads, the lanes of each head follow those of the head
 * before. */
typedef struct attni_block {
    void *st;
    void *mx; /* [W] out: the maxima of st */
    const attni_kernels *kernels;
    int64_t i0, j0;
    int rows, heads, n, nv;
    void *biases; /* [W][ATTNI_BLOCK] of R: buffer for this block's part of a dense mask */
} attni_block;

typedef struct attni_plan attni_plan;
/* The rules that a call uses, one bit each: `kinds` of the plan and of its sequences. */
unsigned attni_mask_kinds(const attn_sdpa_args *args);
attn_status attni_mask_check(const attni_plan *plan, attn_error *err);
/* Does any rule add to the scores? Then scores must be multiplied by the scale before
 * (scaled_scores of the plan). */
bool attni_mask_biases(unsigned kinds);
attni_span attni_mask_span(const attni_sequence *sequence, int64_t i0, int64_t i1);
/* The class of queries i0 .. i1-1 and keys j0 .. j1-1. ATTNI_FULL: nothing has to be applied.
 * `span` must be the span of queries i0 .. i1-1. */
attni_class attni_mask_classify(const attni_sequence *sequence, const attni_span *span, int64_t i0,
                                int64_t i1, int64_t j0, int64_t j1);
/* May heads that share keys be lanes of one tile? True if every rule is the same for all of them
 * and, with a dense mask, T is 1. */
bool attni_mask_shared(const attni_plan *plan);
/* What to prefetch of a dense mask (nothing if there is none): the part for queries i0 .. i0+rows-1
 * and for n keys, at most a chunk, from key j0 on. */
attni_prefetch attni_mask_prefetch(const attni_sequence *sequence, int64_t i0, int rows, int64_t j0,
                                   int64_t n);
/* Prefetches the next of ATTNI_MASK_PREFETCH_PARTS parts of what attni_mask_prefetch() returned. */
#define ATTNI_MASK_PREFETCH_PARTS (3 * ATTNI_CHUNK / ATTNI_BLOCK)
void attni_mask_prefetch_part(attni_prefetch *prefetch);
/* Adds the biases, writes -inf wherever a key is not visible, and computes the maxima of the
 * result. */
void attni_mask_apply(const attni_sequence *sequence, const attni_block *block);

#endif
