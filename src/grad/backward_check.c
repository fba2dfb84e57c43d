/* Checks the arguments of attn_sdpa_backward, including those of the forward call. Everything is
 * checked before anything is read or written. */
#include "backward.h"

attn_status attni_check_gradient(const attni_plan *p, const attn_tensor *t, const char *name,
                                 const attn_tensor *like, int64_t last, bool output,
                                 attn_error *err)
{
    const attn_dtype q = p->args.q.dtype;
    const attn_status status =
        output ? attni_check_output(t, name, err) : attni_check_input(t, name, err);
    if (status)
        return status;
    if (t->dtype != q && t->dtype != ATTN_F32 && t->dtype != ATTN_F64)
        return attni_fail(err, ATTN_ERR_DTYPE, name, "%s is %s; it must be %s, f32 or f64", name,
                          attn_dtype_name(t->dtype), attn_dtype_name(q));
    for (int d = 0; d < 4; d++) {
        const int64_t want = d == 3 ? last : like->shape[d];
        if (t->shape[d] != want)
            return attni_fail(err, ATTN_ERR_SHAPE, name,
                              "%s has %lld in dimension %d; it must be %lld", name,
                              (long long)t->shape[d], d, (long long)want);
    }
    return ATTN_OK;
}

attn_status attni_check_wide(const attn_tensor *t, const char *name, attn_error *err)
{
    if (t->dtype == ATTN_F32 || t->dtype == ATTN_F64)
        return ATTN_OK;
    return attni_fail(err, ATTN_ERR_DTYPE, name, "%s is %s; it must be f32 or f64", name,
                      attn_dtype_name(t->dtype));
}

attn_status attni_check_forward(attni_plan *p, const attn_sdpa_args *args,
                                const attn_pieces_options *part, attn_error *err)
{
    if (args && args->struct_size > offsetof(attn_sdpa_args, cache) && args->cache)
        return attni_fail(
            err, ATTN_ERR_ARGUMENT, "cache",
            "cache is given, but there are no derivatives with respect to a cache; give k and v");
    const attn_status status = attni_sdpa_check(p, args, true, part, err);
    if (status)
        return status;
    if (!p->args.lse)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "lse",
                          "lse is NULL; derivatives need the lse that attn_sdpa_forward wrote");
    return attni_check_wide(p->args.lse, "lse", err);
}

static attn_status check_dmask(attni_backward *bw, attn_error *err)
{
    const attn_sdpa_args *a = &bw->plan.args;
    const attn_tensor *dmask = bw->grads.dmask;
    if (!dmask)
        return ATTN_OK;
    if (!a->mask || a->mask->dtype == ATTN_BOOL)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "dmask",
                          "dmask is given, but the mask is %s; only a float mask has a gradient",
                          a->mask ? "bool" : "NULL");
    attn_status status =
        attni_check_gradient(&bw->plan, dmask, "dmask", a->mask, a->mask->shape[3], true, err);
    if (status == ATTN_OK)
        status = attni_check_wide(dmask, "dmask", err);
    if (status)
        return status;
    bw->dmask_view = *dmask;
    for (int d = 0; d < 4; d++)
        if (dmask->shape[d] == 1)
            bw->dmask_view.stride[d] = 0;
    bw->grads.dmask = &bw->dmask_view;
    bw->dmask = dmask->shape[3] == 1   ? ATTNI_OVER_KEYS
                : dmask->shape[2] == 1 ? ATTNI_OVER_QUERIES
                                       : ATTNI_DENSE;
    return ATTN_OK;
}

static attn_status check_extras(attni_backward *bw, attn_error *err)
{
    const attn_sdpa_args *a = &bw->plan.args;
    const attn_sdpa_grads *g = &bw->grads;
    if (g->dalibi_slopes && !a->alibi_slopes)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "dalibi_slopes",
                          "dalibi_slopes is given, but alibi_slopes is NULL");
    if (g->dsink_logits && !a->sink_logits)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "dsink_logits",
                          "dsink_logits is given, but sink_logits is NULL");
    if (!g->dlse)
        return ATTN_OK;
    attn_status status = attni_check_gradient(&bw->plan, g->dlse, "dlse", &a->q, 1, false, err);
    if (status == ATTN_OK)
        status = attni_check_wide(g->dlse, "dlse", err);
    bw->dlse = *g->dlse;
    bw->grads.dlse = &bw->dlse;
    return status;
}

bool attni_backward_writes(const attn_sdpa_grads *g, int64_t H)
{
    return !attni_empty(&g->dq) || !attni_empty(&g->dk) || !attni_empty(&g->dv) ||
           (g->dmask && !attni_empty(g->dmask)) || (H && (g->dalibi_slopes || g->dsink_logits));
}

attn_status attni_backward_check(attni_backward *bw, const attn_sdpa_args *args,
                                 const attn_sdpa_grads *grads, const attn_pieces_options *part,
                                 attn_error *err)
{
    *bw = (attni_backward){0};
    attn_sdpa_grads *g = &bw->grads;
    attn_status s = attni_struct_read(ATTNI_SDPA_GRADS, g, grads, "grads", err);
    if (s)
        return s;
    attni_plan *p = &bw->plan;
    if ((s = attni_check_forward(p, args, part, err)))
        return s;
    const attn_sdpa_args *a = &p->args;
    const bool memory = !part; /* in pieces, dk and dv have none yet */
    bw->want_q = attni_wanted(&g->dq);
    bw->want_k = attni_wanted(&g->dk);
    bw->want_v = attni_wanted(&g->dv);
    if ((s = attni_check_gradient(p, &g->dout, "dout", &a->out, p->Dv, false, err)) ||
        (bw->want_q && (s = attni_check_gradient(p, &g->dq, "dq", &a->q, p->D, true, err))) ||
        (bw->want_k && (s = attni_check_gradient(p, &g->dk, "dk", &a->k, p->D, memory, err))) ||
        (bw->want_v && (s = attni_check_gradient(p, &g->dv, "dv", &a->v, p->Dv, memory, err))))
        return s;
    if ((s = check_dmask(bw, err)) || (s = check_extras(bw, err)))
        return s;
    const bool writes = attni_backward_writes(g, p->H);
    if ((s = attni_check_keys(p, writes, err)))
        return s;
    bw->nothing = !writes || !p->B || !p->H || !p->T || !p->S;
    bw->want_scores = bw->want_q || bw->want_k || g->dmask || g->dalibi_slopes;
    return ATTN_OK;
}
