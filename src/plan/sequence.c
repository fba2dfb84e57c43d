/* Finds the queries, keys and values of one sequence in the tensors or in a cache (sequence.h). */
#include "plan.h"

attni_sequence attni_sequence_of(const attni_plan *p, int64_t b, int64_t h, int64_t n)
{
    const attn_sdpa_args *a = &p->args;
    const attni_run *run = p->runs ? &p->runs[n] : NULL;
    n = run ? run->n : n;
    attni_sequence sequence = {.args = a,
                               .kinds = p->kinds,
                               .kernels = p->kernels,
                               .b = b,
                               .h = h,
                               .hk = h ? attni_div(h, attni_div(p->H, p->Hk)) : 0};
    sequence.T = p->whole_T;
    sequence.S = p->S;
    if (a->sequences || a->cu_seqlens_q) {
        const bool packed = n < a->sequences;
        sequence.i_base = a->cu_seqlens_q[n];
        sequence.T = attni_queries_of(p, n);
        sequence.j_base = packed ? a->cu_seqlens_k[n] : 0;
        sequence.S = attni_keys_of(p, n);
    }
    if (a->causal == ATTN_CAUSAL_OFFSET || a->diagonal == ATTN_DIAGONAL_OFFSET)
        sequence.off = a->causal_offset;
    if (a->causal == ATTN_CAUSAL_BOTTOM_RIGHT || a->diagonal == ATTN_DIAGONAL_BOTTOM_RIGHT)
        sequence.off = attni_keys_there(&sequence) - sequence.T;
    sequence.drop_head = (uint64_t)(b * p->whole_H + p->head_offset + h);
    sequence.drop_row = (uint64_t)sequence.i_base;
    if (run) {
        sequence.off += run->position - sequence.i_base;
        sequence.drop_row = (uint64_t)run->position;
        sequence.i_base = run->row;
        sequence.T = run->rows;
    }
    return sequence;
}

char *attni_stored_row(const attni_sequence *sequence, const attn_tensor *t, int64_t j)
{
    if (sequence->args->cache) /* a block never straddles two of its pages */
        return attni_cache_rows(sequence->args->cache, attni_part_of(sequence, t), sequence->b,
                                sequence->hk, j);
    return attni_at(t, sequence->b, sequence->hk, sequence->j_base + j, 0);
}

int64_t attni_rows_together(const attni_sequence *sequence, int64_t j)
{
    const attn_cache *cache = sequence->args->cache;
    const int64_t left = sequence->S - j, page = cache ? cache->options.page_keys : 0;
    return !cache || left <= page - j % page ? left : page - j % page;
}
