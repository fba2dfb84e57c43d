/* Which segments a rank must see. Every rank computes this for every rank, from what all of them
 * know: the layout and the rules that depend on positions. The result is the same as what
 * attn_sdpa_next or attn_sdpa_backward_next asks for on that rank (tests compare them), but no
 * state is needed. */
#include "ranks.h"

#include <string.h>

#define FAR (INT64_MAX / 4)

/* A packed sequence, or the whole: queries q0 .. q0+T-1, keys k0 .. k0+S-1. Only the first `length`
 * of these keys are visible. */
typedef struct sequence {
    int64_t q0, k0, T, S, length;
} sequence;

/* The offset of the diagonal, as attn.h defines it. */
static int64_t offset_of(const attn_sdpa_args *a, const sequence *s)
{
    const int choice = a->causal ? (int)a->causal - 1 : (int)a->diagonal;
    return choice == ATTN_DIAGONAL_BOTTOM_RIGHT ? s->length - s->T
           : choice == ATTN_DIAGONAL_OFFSET     ? a->causal_offset
                                                : 0;
}

/* The segment of a key. A segment begins at most a chunk before its multiple of segment_keys. */
static int64_t segment_at(const attni_mpi_plan *p, int64_t key)
{
    const int64_t n = key / p->segment_keys;
    return key < p->starts[n + 1] ? n : n + 1;
}

/* Adds to `counts` the segments that queries i0 .. i1-1 of the sequence need: +1 at the first
 * segment, -1 after the last. If a query sees one key of a chunk, it needs the whole chunk. */
static void add_rows(const attni_mpi_plan *p, const sequence *s, int64_t i0, int64_t i1,
                     int64_t *counts)
{
    const attn_sdpa_args *a = p->args;
    const int64_t off = offset_of(a, s);
    int64_t first = 0, past = s->length;
    if (a->causal)
        past = attni_mpi_min(past, i1 + off);
    if (a->window_left >= 0)
        first = attni_mpi_max(first, i0 + off - attni_mpi_min(a->window_left, FAR));
    if (a->window_right >= 0)
        past = attni_mpi_min(past, i1 + off + attni_mpi_min(a->window_right, FAR));
    if (first >= past)
        return;
    first -= first % KEYS_OF_CHUNK;
    past = attni_mpi_min((past + KEYS_OF_CHUNK - 1) / KEYS_OF_CHUNK * KEYS_OF_CHUNK, s->S);
    counts[segment_at(p, s->k0 + first)]++;
    counts[segment_at(p, s->k0 + past - 1) + 1]--;
}

/* The first packed sequence that ends after query i. */
static int64_t sequence_at(const attn_sdpa_args *a, int64_t i)
{
    int64_t low = 0, high = a->sequences;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (a->cu_seqlens_q[middle + 1] > i)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void add_block(const attni_mpi_plan *p, int64_t i0, int64_t i1, int64_t *counts)
{
    const attn_sdpa_args *a = p->args;
    for (int64_t b = 0; b < (a->key_lengths ? p->B : 1) && !a->cu_seqlens_q; b++) {
        const sequence s = {0, 0, p->T, p->S, a->key_lengths ? a->key_lengths[b] : p->S};
        add_rows(p, &s, i0, i1, counts);
    }
    if (!a->cu_seqlens_q)
        return;
    for (int64_t n = sequence_at(a, i0); n < a->sequences && a->cu_seqlens_q[n] < i1; n++) {
        const int64_t q0 = a->cu_seqlens_q[n], k0 = a->cu_seqlens_k[n];
        const int64_t keys = a->cu_seqlens_k[n + 1] - k0;
        const sequence s = {q0, k0, a->cu_seqlens_q[n + 1] - q0, keys, keys};
        const int64_t from = attni_mpi_max(i0, q0) - q0, past = attni_mpi_min(i1, q0 + s.T) - q0;
        if (from < past)
            add_rows(p, &s, from, past, counts);
    }
}

void attni_mpi_needs(const attni_mpi_plan *plan, int rank, int64_t *counts, uint8_t *needs)
{
    memset(counts, 0, (size_t)(plan->segments + 1) * sizeof *counts);
    for (int64_t i = (int64_t)rank * ATTN_MPI_BLOCK; i < plan->T;
         i += (int64_t)plan->size * ATTN_MPI_BLOCK)
        add_block(plan, i, attni_mpi_min(i + ATTN_MPI_BLOCK, plan->T), counts);
    int64_t sum = 0;
    for (int64_t n = 0; n < plan->segments; n++) {
        sum += counts[n];
        needs[n] = sum > 0;
    }
}
