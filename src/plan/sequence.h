/* One sequence of one head, or of heads that share keys: where its queries, keys and values are
 * (sequence.c). The plan describes the whole call; a task works on some queries of one sequence. */
#ifndef ATTNI_SEQUENCE_H
#define ATTNI_SEQUENCE_H

#include "../cache/cache.h"
#include "../core/internal.h"
#include "../kernel/kernel.h"

/* The queries and keys of one sequence and batch element, of head h or of the `heads` heads from h
 * on. Indices i (queries) and j (keys) count from the start of the sequence; its first query is row
 * i_base of the tensors and its first key is row j_base. */
typedef struct attni_sequence {
    const attn_sdpa_args *args;
    unsigned kinds; /* of masks: a bit for each (attni_mask_kinds) */
    int heads;      /* query heads in a tile: h and those after it */
    const attni_kernels *kernels;
    int64_t b, h, hk;
    int64_t T, S; /* of this sequence */
    int64_t i_base, j_base;
    int64_t off; /* the diagonal is at j = i + off */
    /* Dropout makes its random bits from the numbers of the head (b H + h), the query and the key.
     * drop_head is the number of head h, drop_row that of the sequence's first query. If this call
     * computes a part of a larger call, they are the numbers in that call. */
    uint64_t drop_head, drop_row;
} attni_sequence;

/* The number of keys that may be read: key_lengths, if the caller gives them. In a cache, a batch
 * element with fewer keys than S has no memory for more. */
static inline int64_t attni_keys_there(const attni_sequence *sequence)
{
    const int64_t *lengths = sequence->args->key_lengths;
    return lengths ? lengths[sequence->b] : sequence->S;
}

/* Address of row j of the sequence's keys or values, as stored in a tensor or in a cache; `t` is
 * &args->k or &args->v. Rows are t->stride[2] elements apart. In a cache this is so within a page
 * only; a page has whole blocks (a block begins at each multiple of ATTNI_BLOCK). Interleaved keys
 * of a cache (k_interleaved of the plan) are not rows (cache.h), but a block of them takes as many
 * bytes as a block of rows: the address of a block's first row is that of the block. */
char *attni_stored_row(const attni_sequence *sequence, const attn_tensor *t, int64_t j);
/* The number of rows from row j on that are t->stride[2] elements apart: up to the end of the page
 * or of the sequence. */
int64_t attni_rows_together(const attni_sequence *sequence, int64_t j);
/* Prefetches the first 16 cache lines of what is read next, so that they arrive while scores become
 * weights; 32 lines are no better. */
static inline void attni_prefetch_lines(const void *next)
{
    const uintptr_t at = (uintptr_t)next; /* an address, not a pointer: it may lie outside any
                                             object */
    for (uintptr_t line = 0; line < 16; line++)
        __builtin_prefetch((const void *)(at + 64 * line));
}
/* The part of a cache that `t` stands for: its keys or its values. */
static inline attni_cache_part attni_part_of(const attni_sequence *sequence, const attn_tensor *t)
{
    return t == &sequence->args->v ? ATTNI_VALUES : ATTNI_KEYS;
}

#endif
