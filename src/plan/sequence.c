/* Where one sequence's queries, keys and values stand in tensors and in a cache. */
#include "plan.h"

attni_view attni_view_of(const attni_plan *p, int64_t b, int64_t h, int64_t n)
{
    const attn_sdpa_args *a = &p->args;
    attni_view view = {.args = a,
                       .kinds = p->kinds,
                       .kernels = p->kernels,
                       .b = b,
                       .h = h,
                       .hk = h ? attni_div(h, attni_div(p->H, p->Hk)) : 0};
    view.T = p->T;
    view.S = p->S;
    if (a->sequences || a->cu_seqlens_q) {
        const bool packed = n < a->sequences;
        view.i_base = a->cu_seqlens_q[n];
        view.T = (packed ? a->cu_seqlens_q[n + 1] : p->T) - view.i_base;
        view.j_base = packed ? a->cu_seqlens_k[n] : 0;
        view.S = packed ? a->cu_seqlens_k[n + 1] - view.j_base : 0;
    }
    if (a->causal == ATTN_CAUSAL_OFFSET || a->diagonal == ATTN_DIAGONAL_OFFSET)
        view.off = a->causal_offset;
    if (a->causal == ATTN_CAUSAL_BOTTOM_RIGHT || a->diagonal == ATTN_DIAGONAL_BOTTOM_RIGHT)
        view.off = attni_keys_there(&view) - view.T;
    return view;
}

char *attni_stored_row(const attni_view *view, const attn_tensor *t, int64_t j)
{
    if (view->args->cache) /* a block never straddles two of its pages */
        return attni_cache_rows(view->args->cache, attni_part_of(view, t), view->b, view->hk, j);
    return attni_at(t, view->b, view->hk, view->j_base + j, 0);
}

int64_t attni_rows_together(const attni_view *view, int64_t j)
{
    const attn_cache *cache = view->args->cache;
    const int64_t left = view->S - j, page = cache ? cache->options.page_keys : 0;
    return !cache || left <= page - j % page ? left : page - j % page;
}
