/* The gradients of multi-head attention. The forward pass is computed again from x and the weights;
 * then the gradients run back through its parts in reverse order:
 *
 *   forward   q, k, v = projections of x      heads = sdpa(q, k, v), lse
 *   back      dheads = dout w_o               dw_o, db_o from dout and heads
 *             dq, dk, dv = sdpa_backward      dw_q, ... from dq, ... and x
 *             dx = [dq dk dv] [w_q; w_k; w_v], in one product
 *
 * Everything is one call on one block of scratch, planned as a whole before anything is written.
 * dq, dk and dv are columns of one matrix with a row per token, and their weights are copied below
 * each other. So dx is one product with one sum.
 */
#include "../grad/backward.h"
#include "../sdpa/sdpa.h"
#include "module.h"

typedef struct mha_backward {
    const attn_mha_args *args;
    const attn_mha_grads *grads;
    attni_mha_sizes n;
    bool self;                       /* keys and values come from x */
    attn_tensor dout;                /* gradient of the output before its dropout */
    attn_tensor q, k, v, heads, lse; /* [B,H,T,.]; heads shares the memory of joined */
    attn_tensor joined;              /* [B,1,T,H*Dv] */
    attn_tensor dheads, djoined;     /* shapes of heads and joined */
    attn_tensor dq, dk, dv;      /* columns of dq_all and dkv_all, which are one matrix if `self` */
    attn_tensor dq_all, dkv_all; /* [B,1,T,.], [B,1,S,.] */
    attn_tensor w_all, w_kv;     /* [1,1,.,rows]: the factors of dq_all and dkv_all, transposed */
    attni_linear to_q, to_k, to_v;
    attni_plan attention;
    attni_backward back;
    attni_linear_grads by_o, by_q, by_k, by_v, by_x, by_source;
    char *work; /* scratch that the parts use one after the other */
    size_t work_bytes, bytes;
} mha_backward;

/* ------------------------------------------------------------------------------------- Checking */

typedef struct pair {
    const attn_tensor *grad, *of;
    const char *name, *of_name;
} pair;

static attn_status check_grads(const mha_backward *p, attn_error *err)
{
    const attn_mha_args *a = p->args;
    const attn_mha_grads *g = p->grads;
    const pair pairs[] = {
        {&g->dx, &a->x, "dx", "x"},         {&g->dsource, &a->source, "dsource", "source"},
        {&g->dw_q, &a->w_q, "dw_q", "w_q"}, {&g->dw_k, &a->w_k, "dw_k", "w_k"},
        {&g->dw_v, &a->w_v, "dw_v", "w_v"}, {&g->db_q, &a->b_q, "db_q", "b_q"},
        {&g->db_k, &a->b_k, "db_k", "b_k"}, {&g->db_v, &a->b_v, "db_v", "b_v"},
        {&g->dw_o, &a->w_o, "dw_o", "w_o"}, {&g->db_o, &a->b_o, "db_o", "b_o"},
    };
    attn_status s = ATTN_OK;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && s == ATTN_OK; i++) {
        const pair *q = &pairs[i];
        const int64_t *n = q->of->shape;
        if (!q->grad->data)
            continue;
        if (!q->of->data && i > 0)
            return attni_fail(err, ATTN_ERR_ARGUMENT, q->name, "%s is wanted, but %s is not given",
                              q->name, q->of_name);
        s = attni_module_check_output(q->grad, q->name, &a->x, "x", err);
        if (s == ATTN_OK)
            s = attni_module_check_shape(q->grad, q->name, n[0], n[1], n[2], n[3], err);
    }
    return s;
}

static attn_status check(mha_backward *p, attn_error *err)
{
    const attn_mha_grads *g = p->grads;
    attn_mha_args forward;
    attn_status s;
    /* The forward's arguments: its output has the type and shape of dout. */
    forward = *p->args;
    forward.out = g->dout;
    p->self = !p->args->source.data;
    if ((s = attni_mha_check(&p->n, &forward, true, err)))
        return s;
    return check_grads(p, err);
}

/* ------------------------------------------------------------------------------------- Planning */

/* Columns of a matrix [B,T,columns], from `first` on, as [B,H,T,D]. */
static attn_tensor columns_of(const attn_tensor *all, int64_t first, int64_t H, int64_t D)
{
    attn_tensor t = *all;
    t.shape[1] = H;
    t.shape[3] = D;
    t.stride[1] = D;
    t.data = (char *)all->data + (size_t)first * attn_dtype_size(all->dtype);
    return t;
}

static attn_tensor take(attni_layout *layout, attn_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                        int64_t n3)
{
    void *data = attni_module_take(layout, attn_dtype_size(dtype), n0, n1, n2, n3);
    return attn_bhtd(data ? data : (void *)ATTNI_ALIGN, dtype, n0, n1, n2, n3);
}

/* Places the tensors that the parts pass on. With a layout whose base is NULL it only sizes
 * them. */
static bool place_tensors(mha_backward *p, attni_layout *layout)
{
    const attni_mha_sizes *n = &p->n;
    const attn_dtype R = p->args->x.dtype;
    int64_t q, k, v, all;
    if (__builtin_mul_overflow(n->H, n->D, &q) || __builtin_mul_overflow(n->Hk, n->D, &k) ||
        __builtin_mul_overflow(n->Hk, n->Dv, &v) || __builtin_add_overflow(q, k, &all) ||
        __builtin_add_overflow(all, v, &all))
        return false;
    p->q = take(layout, R, n->B, n->H, n->T, n->D);
    p->k = take(layout, R, n->B, n->Hk, n->S, n->D);
    p->v = take(layout, R, n->B, n->Hk, n->S, n->Dv);
    p->lse = take(layout, R, n->B, n->H, n->T, 1);
    p->joined = take(layout, R, n->B, 1, n->T, n->H * n->Dv);
    p->heads = columns_of(&p->joined, 0, n->H, n->Dv);
    p->dout = p->grads->dout;
    if (p->args->output_dropout > 0)
        p->dout = take(layout, R, n->B, 1, n->T, n->Out);
    p->djoined = p->dout;
    if (p->args->w_o.data)
        p->djoined = take(layout, R, n->B, 1, n->T, n->H * n->Dv);
    p->dheads = columns_of(&p->djoined, 0, n->H, n->Dv);
    p->dheads.stride[1] = (int64_t)((uint64_t)n->Dv * (uint64_t)p->djoined.stride[3]);
    p->dq_all = take(layout, R, n->B, 1, n->T, p->self ? all : q);
    p->dkv_all = p->self ? p->dq_all : take(layout, R, n->B, 1, n->S, k + v);
    p->dq = columns_of(&p->dq_all, 0, n->H, n->D);
    p->dk = columns_of(&p->dkv_all, p->self ? q : 0, n->Hk, n->D);
    p->dv = columns_of(&p->dkv_all, p->self ? q + k : k, n->Hk, n->Dv);
    p->w_all = take(layout, R, 1, 1, p->self ? all : q, n->E);
    p->w_kv = p->self ? p->w_all : take(layout, R, 1, 1, k + v, n->Es);
    return !layout->overflow;
}

static const attn_tensor *given(const attn_tensor *t) { return t->data ? t : NULL; }

static const attn_tensor *source_of(const mha_backward *p)
{
    return p->self ? &p->args->x : &p->args->source;
}

/* Plans the parts of the forward pass. */
static attn_status plan_forward(mha_backward *p, attn_context *ctx, attn_sdpa_args *a,
                                attn_error *err)
{
    const int isa = attni_context_isa_index(ctx), threads = attn_context_threads(ctx);
    const attn_mha_args *args = p->args;
    attn_status s;
    *a = *args->attention;
    a->q = p->q;
    a->k = p->k;
    a->v = p->v;
    a->out = p->heads;
    a->lse = &p->lse;
    a->scores = NULL;
    a->workspace = NULL;
    a->workspace_bytes = 0;
    if ((s = attni_linear_plan(&p->to_q, isa, threads, &args->x, &args->w_q, NULL,
                               given(&args->b_q), &p->q, err)) ||
        (s = attni_linear_plan(&p->to_k, isa, threads, source_of(p), &args->w_k, NULL,
                               given(&args->b_k), &p->k, err)) ||
        (s = attni_linear_plan(&p->to_v, isa, threads, source_of(p), &args->w_v, NULL,
                               given(&args->b_v), &p->v, err)))
        return s;
    return attni_sdpa_prepare(&p->attention, ctx, a, err);
}

static attn_status plan_attention_back(mha_backward *p, attn_context *ctx, const attn_sdpa_args *a,
                                       attn_error *err)
{
    attn_sdpa_grads g = ATTN_SDPA_GRADS_INIT;
    g.dout = p->dheads;
    g.dq = p->dq;
    g.dk = p->dk;
    g.dv = p->dv;
    g.dmask = p->grads->dmask;
    g.dalibi_slopes = p->grads->dalibi_slopes;
    g.dsink_logits = p->grads->dsink_logits;
    return attni_backward_prepare(&p->back, ctx, a, &g, err);
}

/* Plans the backward of all linear layers, each with the copies that it needs. */
static attn_status plan_linear_back(mha_backward *p, attn_context *ctx, attni_layout *layout,
                                    attn_error *err)
{
    const attn_mha_grads *g = p->grads;
    const attn_tensor *x = &p->args->x, *source = source_of(p);
    attni_linear_grads *parts[] = {&p->by_o, &p->by_q, &p->by_k, &p->by_v, &p->by_x, &p->by_source};
    p->by_o = (attni_linear_grads){.dout = &p->dout};
    if (p->args->w_o.data) {
        p->by_o.x = &p->joined;
        p->by_o.weight = &p->args->w_o;
        p->by_o.dx = &p->djoined;
        p->by_o.dweight = given(&g->dw_o);
        p->by_o.dbias = given(&g->db_o);
    }
    p->by_q = (attni_linear_grads){&p->dq,         x, NULL, NULL, given(&g->dw_q), given(&g->db_q),
                                   .work_bytes = 0};
    p->by_k = (attni_linear_grads){&p->dk,          source,          NULL,           NULL,
                                   given(&g->dw_k), given(&g->db_k), .work_bytes = 0};
    p->by_v = (attni_linear_grads){&p->dv,          source,          NULL,           NULL,
                                   given(&g->dw_v), given(&g->db_v), .work_bytes = 0};
    p->by_x = (attni_linear_grads){.dout = &p->dq_all, .weight = &p->w_all, .dx = given(&g->dx)};
    p->by_source =
        (attni_linear_grads){.dout = &p->dkv_all, .weight = &p->w_kv, .dx = given(&g->dsource)};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const attn_status s = attni_linear_backward_plan(parts[i], ctx, layout, err);
        if (s != ATTN_OK)
            return s;
        if (parts[i]->work_bytes > p->work_bytes)
            p->work_bytes = parts[i]->work_bytes;
    }
    return ATTN_OK;
}

/* Plans everything. Called twice: with base NULL to size the scratch, then with the scratch. */
static attn_status make_plan(mha_backward *p, attn_context *ctx, char *base, attn_error *err)
{
    attni_layout layout = {.base = base};
    attn_sdpa_args attention;
    attn_status s;
    const bool placed = place_tensors(p, &layout);
    p->work_bytes = 0;
    if (placed && ((s = plan_forward(p, ctx, &attention, err)) ||
                   (s = plan_attention_back(p, ctx, &attention, err)) ||
                   (s = plan_linear_back(p, ctx, &layout, err))))
        return s;
    const size_t parts[] = {p->to_q.bytes, p->to_k.bytes, p->to_v.bytes, p->attention.scratch_bytes,
                            p->back.scratch_bytes};
    for (size_t i = 0; placed && i < sizeof parts / sizeof *parts; i++)
        if (parts[i] > p->work_bytes)
            p->work_bytes = parts[i];
    p->work = attni_layout_take(&layout, p->work_bytes, 1);
    p->bytes = layout.used;
    if (!placed || layout.overflow || p->bytes > PTRDIFF_MAX)
        return attni_fail(err, ATTN_ERR_LIMIT, "x",
                          "x is [%lld, 1, %lld, %lld]; the gradients of its heads are more than "
                          "can be addressed",
                          (long long)p->n.B, (long long)p->n.T, (long long)p->n.E);
    return ATTN_OK;
}

/* -------------------------------------------------------------------------------------- Running */

static void copy_rows(const attn_tensor *to, int64_t first, const attn_tensor *from)
{
    const int64_t *n = from->shape;
    for (int64_t r = 0; r < attni_module_rows(from); r++)
        attni_module_copy_row(attni_module_row(to, first + r), to->stride[3],
                              attni_module_row(from, r), from->stride[3], n[3],
                              attn_dtype_size(from->dtype));
}

static void run(mha_backward *p, attni_call *call)
{
    const attn_mha_args *a = p->args;
    const int64_t k = p->n.Hk * p->n.D, first = p->self ? p->n.H * p->n.D : 0;
    attni_linear_run(&p->to_q, call, p->work);
    attni_linear_run(&p->to_k, call, p->work);
    attni_linear_run(&p->to_v, call, p->work);
    attni_sdpa_run(&p->attention, call, p->work);
    if (a->output_dropout > 0) {
        copy_rows(&p->dout, 0, &p->grads->dout);
        attni_mha_drop(call, &p->dout, a->output_dropout, a->output_dropout_seed);
    }
    attni_linear_backward_run(&p->by_o, call, p->work);
    attni_backward_run(&p->back, call, p->work);
    attni_linear_backward_run(&p->by_q, call, p->work);
    attni_linear_backward_run(&p->by_k, call, p->work);
    attni_linear_backward_run(&p->by_v, call, p->work);
    copy_rows(&p->w_all, 0, &a->w_q);
    copy_rows(&p->w_kv, first, &a->w_k);
    copy_rows(&p->w_kv, first + k, &a->w_v);
    attni_linear_backward_run(&p->by_x, call, p->work);
    attni_linear_backward_run(&p->by_source, call, p->work);
}

static bool written(const attn_tensor *t) { return t->data && !attni_empty(t); }

/* False if nothing is to be written; the call then returns at once, whatever the number of rows. */
static bool writes(const mha_backward *p)
{
    const attn_mha_grads *g = p->grads;
    const attn_tensor *const all[] = {&g->dx,   &g->dsource, &g->dw_q, &g->dw_k, &g->dw_v,
                                      &g->db_q, &g->db_k,    &g->db_v, &g->dw_o, &g->db_o};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (written(all[i]))
            return true;
    return (g->dmask && written(g->dmask)) || (p->n.H && (g->dalibi_slopes || g->dsink_logits));
}

attn_status attn_mha_backward(attn_context *ctx, const attn_mha_args *args,
                              const attn_mha_grads *grads, attn_error *err)
{
    ATTNI_CALL_MODE;
    attni_mha_call c;
    attn_mha_grads g;
    mha_backward p = {.args = &c.args, .grads = &g};
    attni_call call;
    attn_status s;
    if ((s = attni_mha_read(&c, args, err)) ||
        (s = attni_struct_read(ATTNI_MHA_GRADS, &g, grads, "grads", err)) || (s = check(&p, err)) ||
        (s = make_plan(&p, ctx, NULL, err)) || !writes(&p) ||
        (s = attni_call_begin(&call, ctx, p.bytes, c.attention.workspace,
                              c.attention.workspace_bytes, err)))
        return s;
    (void)make_plan(&p, ctx, call.scratch, NULL);
    run(&p, &call);
    attni_call_end(&call);
    return ATTN_OK;
}

attn_status attn_mha_packed_grads(attn_mha_grads *grads, void *in_proj_weight, void *in_proj_bias,
                                  attn_dtype dtype, int64_t E, int64_t heads, attn_error *err)
{
    attn_tensor w[3], b[3];
    const attn_status s = attni_mha_views(w, b, in_proj_weight, in_proj_bias, dtype, E, heads, err);
    if (s != ATTN_OK)
        return s;
    grads->dw_q = w[0];
    grads->dw_k = w[1];
    grads->dw_v = w[2];
    grads->db_q = b[0];
    grads->db_k = b[1];
    grads->db_v = b[2];
    return ATTN_OK;
}
