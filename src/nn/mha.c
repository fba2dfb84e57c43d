/* Multi-head attention: three linear layers, attention, and a fourth linear layer.
 *
 *   check_*     every argument, under its own name
 *   make_plan   plans the parts with tensors that have no data yet
 *   place       lays out q, k, v and the joined heads in scratch and sets the parts' data
 *
 * All parts run inside one call, on one block of scratch. So the context is locked once, and an
 * allocation can fail only before anything is written. q, k and v are in scratch as [H, B, T, D]:
 * the rows of a head follow each other, as attention reads them. All batches of a head are one
 * sequence of rows, for which the linear layer packs its weights once.
 *
 * The parts run one after the other. Fusing them by blocks of rows (project 64 queries, attend with
 * all heads, project the block) would save one write and one read of q and of the joined heads. At
 * E = 768 and 25 GB/s, the L3 bandwidth of a core, that is 0.06 ms of 6 at T = 128 and 1 ms of 200
 * at T = 2048, so at most 1 %. In return the weights would be read once per block. Measured with
 * blocks of 60 rows and packed weights, the fused call took 1.05 (T = 128), 1.01 (512) and 0.97
 * (2048) of the time, which is noise except for the first. So fusing gains nothing
 * (docs/decisions/0023-linear-layer-fusion.md).
 */
#include <string.h>

#include "../sdpa/sdpa.h"
#include "module.h"

typedef struct mha_plan {
    const attn_mha_args *args;
    const attn_mha *module; /* NULL: the weights are those of args */
    attni_mha_sizes n;
    bool joins;          /* w_o is given: the heads are joined in scratch, not in out */
    attn_tensor q, k, v; /* in scratch */
    attn_tensor heads;   /* [B,H,T,Dv], in scratch or in out */
    attn_tensor joined;  /* [1,1,B*T,H*Dv]: the memory of heads, if it is in scratch */
    attni_linear to_q, to_k, to_v, to_out;
    attni_plan attention;
    size_t scratch_bytes;
    char *work; /* scratch that the parts use one after the other */
} mha_plan;

/* ------------------------------------------------------------------------------- Packed weights */

/* Contiguous rows, from `row` on, as [1, heads, D, columns]. */
static attn_tensor packed_view(const void *data, attn_dtype dtype, int64_t row, int64_t heads,
                               int64_t D, int64_t columns)
{
    const size_t offset = (size_t)row * (size_t)columns * attn_dtype_size(dtype);
    return attn_bhtd(data ? (const char *)data + offset : NULL, dtype, 1, heads, D, columns);
}

/* A bias as one row per head: [1, heads, 1, D]. */
static attn_tensor packed_bias(const void *data, attn_dtype dtype, int64_t row, int64_t heads,
                               int64_t D)
{
    attn_tensor t = packed_view(data, dtype, row, heads, D, 1);
    if (!data)
        return (attn_tensor){0};
    t.shape[2] = 1;
    t.shape[3] = D;
    return t;
}

attn_status attni_mha_views(attn_tensor w[3], attn_tensor b[3], const void *weight,
                            const void *bias, attn_dtype dtype, int64_t E, int64_t heads,
                            attn_error *err)
{
    if (dtype != ATTN_F32 && dtype != ATTN_F64)
        return attni_fail(err, ATTN_ERR_DTYPE, "dtype", "dtype is %s; modules work on f32 and f64",
                          attn_dtype_name(dtype));
    if (heads < 1)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "heads", "heads is %lld; it must be at least 1",
                          (long long)heads);
    if (E < 0 || E % heads != 0)
        return attni_fail(err, ATTN_ERR_SHAPE, "E",
                          "E is %lld and heads is %lld; E must be a multiple of heads",
                          (long long)E, (long long)heads);
    size_t bytes;
    if (!attni_size_mul((uint64_t)E, (uint64_t)E, &bytes) ||
        !attni_size_mul(bytes, 3 * attn_dtype_size(dtype), &bytes) || bytes > PTRDIFF_MAX)
        return attni_fail(err, ATTN_ERR_LIMIT, "E",
                          "E is %lld; 3 * E * E is more than can be "
                          "addressed",
                          (long long)E);
    if (!weight && E > 0)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "in_proj_weight",
                          "in_proj_weight is NULL; it must be [%lld, %lld]", (long long)(3 * E),
                          (long long)E);
    for (int i = 0; i < 3; i++) {
        w[i] = packed_view(weight, dtype, i * E, heads, E / heads, E);
        b[i] = packed_bias(bias, dtype, i * E, heads, E / heads);
    }
    return ATTN_OK;
}

attn_status attn_mha_packed(attn_mha_args *args, const void *in_proj_weight,
                            const void *in_proj_bias, attn_dtype dtype, int64_t E, int64_t heads,
                            attn_error *err)
{
    attn_tensor w[3], b[3];
    const attn_status s = attni_mha_views(w, b, in_proj_weight, in_proj_bias, dtype, E, heads, err);
    if (s != ATTN_OK)
        return s;
    args->w_q = w[0];
    args->w_k = w[1];
    args->w_v = w[2];
    args->b_q = b[0];
    args->b_k = b[1];
    args->b_v = b[2];
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------- Checking */

static const attn_tensor *source_of(const attn_mha_args *a)
{
    return a->source.data ? &a->source : &a->x;
}

static const attn_tensor *given(const attn_tensor *t) { return t->data ? t : NULL; }

attn_status attni_mha_read(attni_mha_call *to, const attn_mha_args *from, attn_error *err)
{
    attn_status s = attni_struct_read(ATTNI_MHA_ARGS, &to->args, from, "args", err);
    if (s != ATTN_OK)
        return s;
    attni_struct_init(ATTNI_SDPA_ARGS, &to->attention, sizeof to->attention);
    if (to->args.attention)
        s = attni_struct_read(ATTNI_SDPA_ARGS, &to->attention, to->args.attention, "attention",
                              err);
    if (s != ATTN_OK)
        return s;
    to->args.attention = &to->attention;
    if (to->attention.cache)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "cache",
                          "cache is set in attention, whose keys and values are projected from "
                          "source; leave it NULL");
    return ATTN_OK;
}

static attn_status check_tensors(const attn_mha_args *a, bool backward, attn_error *err)
{
    const struct {
        const attn_tensor *t;
        const char *name;
        bool optional;
    } inputs[] = {
        {&a->x, "x", false},     {&a->source, "source", true}, {&a->w_q, "w_q", false},
        {&a->w_k, "w_k", false}, {&a->w_v, "w_v", false},      {&a->b_q, "b_q", true},
        {&a->b_k, "b_k", true},  {&a->b_v, "b_v", true},       {&a->w_o, "w_o", true},
        {&a->b_o, "b_o", true},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        if (inputs[i].optional && !inputs[i].t->data)
            continue;
        const attn_status s = attni_module_check(inputs[i].t, inputs[i].name, &a->x, "x", err);
        if (s != ATTN_OK)
            return s;
    }
    return backward ? attni_module_check(&a->out, "dout", &a->x, "x", err)
                    : attni_module_check_output(&a->out, "out", &a->x, "x", err);
}

attn_status attni_mha_check_weights(attni_mha_sizes *n, const attn_mha_args *a, attn_error *err)
{
    n->H = a->w_q.shape[1];
    n->D = a->w_q.shape[2];
    n->Hk = a->w_k.shape[1];
    n->Dv = a->w_v.shape[2];
    if (n->Hk == 0 ? n->H != 0 : n->H % n->Hk != 0)
        return attni_fail(err, ATTN_ERR_SHAPE, "w_k",
                          "w_k has %lld heads and w_q has %lld; w_q's must be a multiple of w_k's",
                          (long long)n->Hk, (long long)n->H);
    int64_t joined;
    if (__builtin_mul_overflow(n->H, n->Dv, &joined))
        return attni_fail(err, ATTN_ERR_LIMIT, "w_v",
                          "w_v has Dv=%lld; %lld heads of it are more than can be addressed",
                          (long long)n->Dv, (long long)n->H);
    n->Out = a->w_o.data ? a->w_o.shape[2] : joined;
    attn_status s;
    if ((s = attni_module_check_shape(&a->w_q, "w_q", 1, n->H, n->D, n->E, err)) ||
        (s = attni_module_check_shape(&a->w_k, "w_k", 1, n->Hk, n->D, n->Es, err)) ||
        (s = attni_module_check_shape(&a->w_v, "w_v", 1, n->Hk, n->Dv, n->Es, err)))
        return s;
    if ((a->b_q.data && (s = attni_module_check_shape(&a->b_q, "b_q", 1, n->H, 1, n->D, err))) ||
        (a->b_k.data && (s = attni_module_check_shape(&a->b_k, "b_k", 1, n->Hk, 1, n->D, err))) ||
        (a->b_v.data && (s = attni_module_check_shape(&a->b_v, "b_v", 1, n->Hk, 1, n->Dv, err))))
        return s;
    if (!a->w_o.data && a->b_o.data)
        return attni_fail(err, ATTN_ERR_ARGUMENT, "b_o",
                          "b_o is given without w_o; it is the bias of that projection");
    if ((a->w_o.data &&
         (s = attni_module_check_shape(&a->w_o, "w_o", 1, 1, n->Out, joined, err))) ||
        (a->b_o.data && (s = attni_module_check_shape(&a->b_o, "b_o", 1, 1, 1, n->Out, err))))
        return s;
    return ATTN_OK;
}

static attn_status check_sizes(attni_mha_sizes *n, const attn_mha_args *a, bool backward,
                               attn_error *err)
{
    const attn_tensor *source = source_of(a);
    *n = (attni_mha_sizes){.B = a->x.shape[0], .T = a->x.shape[2], .E = a->x.shape[3]};
    n->S = source->shape[2];
    n->Es = source->shape[3];
    attn_status s;
    if ((s = attni_module_check_shape(&a->x, "x", n->B, 1, n->T, n->E, err)) ||
        (s = attni_module_check_shape(source, "source", n->B, 1, n->S, n->Es, err)) ||
        (s = attni_mha_check_weights(n, a, err)))
        return s;
    return attni_module_check_shape(&a->out, backward ? "dout" : "out", n->B, 1, n->T, n->Out, err);
}

static attn_status check_output_dropout(const attn_mha_args *a, const attni_mha_sizes *n,
                                        attn_error *err)
{
    int64_t rows;
    if (!(a->output_dropout >= 0 && a->output_dropout < 1))
        return attni_fail(err, ATTN_ERR_ARGUMENT, "output_dropout",
                          "output_dropout is %g; it must be at least 0 and less than 1",
                          a->output_dropout);
    if (a->output_dropout > 0 &&
        (__builtin_mul_overflow(n->B, n->T, &rows) || rows > UINT32_MAX || n->Out / 8 > UINT32_MAX))
        return attni_fail(
            err, ATTN_ERR_LIMIT, "output_dropout",
            "output_dropout counts %lld x %lld rows of %lld; B*T and Out/8 must be less "
            "than 2^32",
            (long long)n->B, (long long)n->T, (long long)n->Out);
    return ATTN_OK;
}

attn_status attni_mha_check(attni_mha_sizes *n, const attn_mha_args *args, bool backward,
                            attn_error *err)
{
    attn_status s;
    if ((s = check_tensors(args, backward, err)) || (s = check_sizes(n, args, backward, err)))
        return s;
    return check_output_dropout(args, n, err);
}

/* ------------------------------------------------------------------------------------- Planning */

/* Stands for scratch that is not allocated yet. Plans may copy this pointer but never dereference
 * it. */
static char *const unplaced = (char *)ATTNI_ALIGN;

/* A tensor [B,H,T,D] whose memory is [H,B,T,D]. */
static attn_tensor head_major(attn_dtype dtype, int64_t B, int64_t H, int64_t T, int64_t D)
{
    attn_tensor t = attn_bhtd(unplaced, dtype, H, B, T, D);
    const int64_t stride = t.stride[0];
    t.shape[0] = B;
    t.shape[1] = H;
    t.stride[0] = t.stride[1];
    t.stride[1] = stride;
    return t;
}

/* Chooses where the heads are written: joined in scratch as [B,T,H*Dv], or directly in out. */
static void place_heads(mha_plan *p)
{
    const attni_mha_sizes *n = &p->n;
    const attn_tensor *out = &p->args->out;
    p->joins = p->args->w_o.data != NULL;
    if (p->joins) {
        p->heads = attn_bthd(unplaced, out->dtype, n->B, n->T, n->H, n->Dv);
        p->joined = attn_bhtd(unplaced, out->dtype, n->B, 1, n->T, n->H * n->Dv);
        return;
    }
    p->heads = *out;
    p->heads.shape[1] = n->H;
    p->heads.shape[3] = n->Dv;
    /* unsigned: if out is empty, its strides may be anything */
    p->heads.stride[1] = (int64_t)((uint64_t)n->Dv * (uint64_t)out->stride[3]);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Lays out scratch; with base NULL it only sizes it. */
static bool place(mha_plan *p, char *base)
{
    const attni_mha_sizes *n = &p->n;
    const size_t R = attn_dtype_size(p->args->x.dtype);
    attni_layout layout = {.base = base};
    void *q = attni_module_take(&layout, R, n->B, n->H, n->T, n->D);
    void *k = attni_module_take(&layout, R, n->B, n->Hk, n->S, n->D);
    void *v = attni_module_take(&layout, R, n->B, n->Hk, n->S, n->Dv);
    void *joined = p->joins ? attni_module_take(&layout, R, n->B, n->T, n->H, n->Dv) : NULL;
    const size_t inputs = larger(larger(p->to_q.bytes, p->to_k.bytes), p->to_v.bytes);
    const size_t outputs = larger(p->attention.scratch_bytes, p->to_out.bytes);
    p->work = attni_layout_take(&layout, larger(inputs, outputs), 1);
    p->scratch_bytes = layout.used;
    if (!base)
        return !layout.overflow;
    p->to_q.out.data = p->attention.args.q.data = q;
    p->to_k.out.data = p->attention.args.k.data = k;
    p->to_v.out.data = p->attention.args.v.data = v;
    if (p->joins)
        p->to_out.x.data = p->attention.args.out.data = joined;
    return true;
}

static attn_status plan_attention(mha_plan *p, attn_context *ctx, attn_error *err)
{
    attn_sdpa_args a = *p->args->attention;
    a.q = p->q;
    a.k = p->k;
    a.v = p->v;
    a.out = p->heads;
    return attni_sdpa_prepare(&p->attention, ctx, &a, err);
}

static attn_status plan_projections(mha_plan *p, attn_context *ctx, attn_error *err)
{
    const attn_mha_args *a = p->args;
    const attn_mha *m = p->module;
    const attn_tensor *source = source_of(a);
    const int isa = attni_context_isa_index(ctx), threads = attn_context_threads(ctx);
    attn_status s;
    if ((s = attni_linear_plan(&p->to_q, isa, threads, &a->x, &a->w_q, m ? &m->q : NULL,
                               given(&a->b_q), &p->q, err)) ||
        (s = attni_linear_plan(&p->to_k, isa, threads, source, &a->w_k, m ? &m->k : NULL,
                               given(&a->b_k), &p->k, err)) ||
        (s = attni_linear_plan(&p->to_v, isa, threads, source, &a->w_v, m ? &m->v : NULL,
                               given(&a->b_v), &p->v, err)))
        return s;
    if (!p->joins)
        return ATTN_OK;
    return attni_linear_plan(&p->to_out, isa, threads, &p->joined, &a->w_o, m ? &m->o : NULL,
                             given(&a->b_o), &a->out, err);
}

static attn_status make_plan(mha_plan *p, attn_context *ctx, attn_error *err)
{
    const attni_mha_sizes *n = &p->n;
    const attn_dtype dtype = p->args->x.dtype;
    p->q = head_major(dtype, n->B, n->H, n->T, n->D);
    p->k = head_major(dtype, n->B, n->Hk, n->S, n->D);
    p->v = head_major(dtype, n->B, n->Hk, n->S, n->Dv);
    place_heads(p);
    attn_status s;
    if ((s = plan_attention(p, ctx, err)) || (s = plan_projections(p, ctx, err)))
        return s;
    if (!place(p, NULL))
        return attni_fail(
            err, ATTN_ERR_LIMIT, "x",
            "x is [%lld, 1, %lld, %lld]; the heads of it are more than can be addressed",
            (long long)n->B, (long long)n->T, (long long)n->E);
    return ATTN_OK;
}

/* -------------------------------------------------------------------------------------- Running */

static void drop_element(char *x, attn_dtype dtype, unsigned keep, double factor)
{
    if (dtype == ATTN_F64) {
        double value;
        memcpy(&value, x, sizeof value);
        value = keep ? value * factor : 0;
        memcpy(x, &value, sizeof value);
    } else {
        float value;
        memcpy(&value, x, sizeof value);
        value = keep ? value * (float)factor : 0;
        memcpy(x, &value, sizeof value);
    }
}

typedef struct dropout {
    const attn_tensor *t;
    double p;
    uint64_t seed;
} dropout;

/* Row r is b * T + i. */
static void drop_rows(void *arg, int64_t first, int64_t end)
{
    const dropout *d = arg;
    const uint32_t threshold = attni_dropout_threshold(d->p);
    const double factor = 1 / (1 - d->p);
    for (int64_t r = first; r < end; r++) {
        unsigned bits = 0;
        for (int64_t j = 0; j < d->t->shape[3]; j++) {
            if (j % 8 == 0)
                bits = attni_dropout_keep8(d->seed, threshold, 0, (uint64_t)r, (uint64_t)j / 8);
            drop_element(attni_module_row(d->t, r) +
                             j * d->t->stride[3] * (int64_t)attn_dtype_size(d->t->dtype),
                         d->t->dtype, bits >> (j % 8) & 1, factor);
        }
    }
}

void attni_mha_drop(attni_call *call, const attn_tensor *t, double p, uint64_t seed)
{
    dropout d = {t, p, seed};
    if (p > 0)
        attni_module_share(call, attni_module_rows(t), t->shape[3], drop_rows, &d);
}

/* False if nothing is to be written. The call then returns at once: x and out may have any number
 * of rows. */
static bool writes(const attn_mha_args *args)
{
    const attn_tensor *lse = args->attention->lse, *scores = args->attention->scores;
    return !attni_empty(&args->out) || (lse && !attni_empty(lse)) ||
           (scores && !attni_empty(scores));
}

attn_status attni_mha_forward(attn_context *ctx, const attn_mha_args *args, const attn_mha *module,
                              attn_error *err)
{
    ATTNI_CALL_MODE;
    mha_plan p = {.args = args, .module = module};
    attni_call call;
    attn_status s;
    if ((s = attni_mha_check(&p.n, args, false, err)) || (s = make_plan(&p, ctx, err)) ||
        !writes(args) ||
        (s = attni_call_begin(&call, ctx, p.scratch_bytes, args->attention->workspace,
                              args->attention->workspace_bytes, err)))
        return s;
    place(&p, call.scratch);
    attni_linear_run(&p.to_q, &call, p.work);
    attni_linear_run(&p.to_k, &call, p.work);
    attni_linear_run(&p.to_v, &call, p.work);
    attni_sdpa_run(&p.attention, &call, p.work);
    if (p.joins)
        attni_linear_run(&p.to_out, &call, p.work);
    attni_mha_drop(&call, &args->out, args->output_dropout, args->output_dropout_seed);
    attni_call_end(&call);
    return ATTN_OK;
}

attn_status attn_mha_forward(attn_context *ctx, const attn_mha_args *args, attn_error *err)
{
    attni_mha_call c;
    const attn_status s = attni_mha_read(&c, args, err);
    return s != ATTN_OK ? s : attni_mha_forward(ctx, &c.args, NULL, err);
}
