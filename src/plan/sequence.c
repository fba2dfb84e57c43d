/* Finds the queries, keys and values of one sequence in the tensors or in a cache (sequence.h), and
 * divides heads that share keys and values into groups. */
#include "plan.h"

/* ---------------------------------------------------------------------------- groups of heads
 *
 * Heads that share keys are divided into groups of p->group: 71 heads with p->group = 36 into 36
 * and 35. */

static int64_t groups_of_key_head(const attni_plan *p)
{
    return attni_div_up(p->H / p->Hk, p->group);
}

int64_t attni_groups_of_heads(const attni_plan *p)
{
    return p->group > 1 ? p->Hk * groups_of_key_head(p) : p->H;
}

int64_t attni_first_head(const attni_plan *p, int64_t group)
{
    if (p->group == 1)
        return group;
    const int64_t groups = groups_of_key_head(p), hk = group / groups;
    return hk * (p->H / p->Hk) + (group - hk * groups) * p->group;
}

int attni_heads_of_group(const attni_plan *p, int64_t h)
{
    if (p->group == 1)
        return 1;
    const int64_t sharing = p->H / p->Hk;
    const int64_t left = sharing - h % sharing;
    return left < p->group ? (int)left : p->group;
}

/* ---------------------------------------------------------------------------------- sequences */

/* Bottom-right: the last query of the sequence sees its last key. */
static void set_offset(const attn_sdpa_args *a, attni_sequence *sequence)
{
    if (a->causal == ATTN_CAUSAL_OFFSET || a->diagonal == ATTN_DIAGONAL_OFFSET)
        sequence->off = a->causal_offset;
    if (a->causal == ATTN_CAUSAL_BOTTOM_RIGHT || a->diagonal == ATTN_DIAGONAL_BOTTOM_RIGHT)
        sequence->off = attni_keys_there(sequence) - sequence->T;
}

/* Changes the sequence to packed sequence n. If n is args->sequences, the sequence becomes the rows
 * that belong to no packed sequence. */
static void set_packed(const attni_plan *p, int64_t n, attni_sequence *sequence)
{
    const attn_sdpa_args *a = &p->args;
    sequence->i_base = a->cu_seqlens_q[n];
    sequence->T = attni_queries_of(p, n);
    sequence->j_base = n < a->sequences ? a->cu_seqlens_k[n] : 0;
    sequence->S = attni_keys_of(p, n);
    sequence->drop_row = (uint64_t)sequence->i_base;
}

void attni_narrow_to_run(const attni_run *run, attni_sequence *sequence)
{
    sequence->off += run->position - sequence->i_base;
    sequence->drop_row = (uint64_t)run->position;
    sequence->i_base = run->row;
    sequence->T = run->rows;
}

void attni_find_sequence(const attni_plan *p, int64_t b, int64_t h, int64_t n,
                         attni_sequence *sequence)
{
    const attn_sdpa_args *a = &p->args;
    const attni_run *run = p->runs ? &p->runs[n] : NULL;
    sequence->args = a;
    sequence->kinds = p->kinds;
    sequence->heads = attni_heads_of_group(p, h);
    sequence->kernels = p->kernels;
    sequence->b = b;
    sequence->h = h;
    sequence->hk = h ? h / (p->H / p->Hk) : 0;
    sequence->T = p->whole_T;
    sequence->S = p->S;
    sequence->i_base = sequence->j_base = sequence->off = 0;
    sequence->drop_head = (uint64_t)(b * p->whole_H + p->head_offset + h);
    sequence->drop_row = 0;
    if (a->sequences || a->cu_seqlens_q)
        set_packed(p, run ? run->n : n, sequence);
    if (a->causal || a->diagonal)
        set_offset(a, sequence);
    if (run)
        attni_narrow_to_run(run, sequence);
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
