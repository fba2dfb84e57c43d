/* One sequence of one head: where its queries, keys and values lie. */
#ifndef ATTNI_SEQUENCE_H
#define ATTNI_SEQUENCE_H

#include "../cache/cache.h"
#include "../core/internal.h"
#include "../kernel/kernel.h"

/* One sequence's queries and keys, of one batch and head. i and j count from its start; its first
 * query is row i_base of the tensors, its first key row j_base. */
typedef struct attni_sequence {
    const attn_sdpa_args *args;
    unsigned kinds; /* of masks: attni_mask_kinds */
    const attni_kernels *kernels;
    int64_t b, h, hk;
    int64_t T, S; /* of this sequence */
    int64_t i_base, j_base;
    int64_t off; /* causal offset */
} attni_sequence;

/* How many of the view's keys exist: a cache has no pages for a sequence's later ones. */
static inline int64_t attni_keys_there(const attni_sequence *sequence)
{
    const int64_t *lengths = sequence->args->key_lengths;
    return lengths ? lengths[sequence->b] : sequence->S;
}

/* sdpa.c. Row j of the view's keys or values - `t` is args->k or args->v - as they are stored, in a
 * tensor or in a cache. Up to a block of rows, from a multiple of ATTNI_BLOCK on, lie t->stride[2]
 * apart; but a cache's keys, if the plan says k_interleaved, are no rows (cache.h), and take as
 * many bytes. */
char *attni_stored_row(const attni_sequence *sequence, const attn_tensor *t, int64_t j);
/* How many rows from j on, up to the sequence's end, are surely no further apart. */
int64_t attni_rows_together(const attni_sequence *sequence, int64_t j);
/* Asks for the first lines of what is read next, so that they come while scores become weights; 32
 * of them are no better. */
static inline void attni_prefetch_lines(const void *next)
{
    const uintptr_t at = (uintptr_t)next; /* an address, not a pointer: it may be anywhere */
    for (uintptr_t line = 0; line < 16; line++)
        __builtin_prefetch((const void *)(at + 64 * line));
}
/* Which of the two `t` is, for a cache. */
static inline attni_cache_part attni_part_of(const attni_sequence *sequence, const attn_tensor *t)
{
    return t == &sequence->args->v ? ATTNI_VALUES : ATTNI_KEYS;
}

#endif
