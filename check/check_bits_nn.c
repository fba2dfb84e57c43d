/* Problems of the record of bits that run modules (attn_nn.h); see check_bits_case.h. */
#include <inttypes.h>
#include <string.h>

#include "check_bits_case.h"

static attn_dtype module_type(bits_case *c)
{
    const attn_dtype dtype = bits_chance(c, 65) ? ATTN_F32 : ATTN_F64;
    bits_say(c, "%s", attn_dtype_name(dtype));
    return dtype;
}

static attn_tensor filled(bits_case *c, attn_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                          int64_t n3, double scale)
{
    attn_tensor t =
        bits_new(c, dtype, n0, n1, n2, n3, bits_chance(c, 70) ? BITS_DENSE : BITS_REPEAT);
    bits_fill(c, &t, scale);
    return t;
}

/* A tensor for a result with t's shape. */
static attn_tensor result(bits_case *c, const attn_tensor *t)
{
    return bits_tensor(c, t->dtype, t->shape, bits_chance(c, 70) ? BITS_DENSE : BITS_LOOSE);
}

/* -------------------------------------------------------------------------------------- linear */

void bits_linear(bits_case *c)
{
    static const int64_t sizes[] = {1, 3, 8, 16, 17, 33, 64, 65, 100, 129, 200};
    static const int64_t rows[] = {1, 2, 4, 5, 16, 33, 70, 200};
    const attn_dtype dtype = module_type(c);
    const int64_t B = bits_between(c, 1, 2), H = bits_between(c, 1, 3), T = BITS_PICK(c, rows);
    const int64_t In = BITS_PICK(c, sizes), Out = BITS_PICK(c, sizes);
    const int64_t Bw = bits_chance(c, 70) ? 1 : B, Hw = bits_chance(c, 50) ? 1 : H;
    bits_say(c, " B=%" PRId64 " H=%" PRId64 " T=%" PRId64 " In=%" PRId64 " Out=%" PRId64, B, H, T,
             In, Out);
    attn_tensor x = filled(c, dtype, B, H, T, In, 1), weight = filled(c, dtype, Bw, Hw, Out, In, 1);
    attn_tensor bias = filled(c, dtype, Bw, Hw, 1, Out, 1);
    attn_tensor out = bits_new(c, dtype, B, H, T, Out, BITS_LOOSE);
    if (!bits_ok(c, attn_linear_forward(c->ctx, &x, &weight, bits_chance(c, 70) ? &bias : NULL,
                                        &out, &c->err)))
        return;
    bits_hash(c, &out);
    attn_tensor dout = filled(c, dtype, B, H, T, Out, 1);
    attn_tensor dx = result(c, &x), dweight = result(c, &weight), dbias = result(c, &bias);
    if (!bits_ok(c,
                 attn_linear_backward(c->ctx, &dout, &x, &weight, &dx, &dweight, &dbias, &c->err)))
        return;
    bits_hash(c, &dx);
    bits_hash(c, &dweight);
    bits_hash(c, &dbias);
}

/* ------------------------------------------------------------------------ layer norm and others */

static void layer_norm(bits_case *c)
{
    const attn_dtype dtype = module_type(c);
    const int64_t B = bits_between(c, 1, 2), T = bits_between(c, 1, 40),
                  E = bits_between(c, 1, 300);
    bits_say(c, " layer norm B=%" PRId64 " T=%" PRId64 " E=%" PRId64, B, T, E);
    attn_tensor x = filled(c, dtype, B, 1, T, E, 2), dout = filled(c, dtype, B, 1, T, E, 1);
    attn_tensor weight = filled(c, dtype, 1, 1, 1, E, 1), bias = filled(c, dtype, 1, 1, 1, E, 1);
    attn_tensor out = result(c, &x), dx = result(c, &x);
    attn_tensor dweight = result(c, &weight), dbias = result(c, &bias);
    if (!bits_ok(c, attn_layer_norm_forward(c->ctx, &x, &weight, &bias, 1e-5, &out, &c->err)) ||
        !bits_ok(c, attn_layer_norm_backward(c->ctx, &dout, &x, &weight, 1e-5, &dx, &dweight,
                                             &dbias, &c->err)))
        return;
    bits_hash(c, &out);
    bits_hash(c, &dx);
    bits_hash(c, &dweight);
    bits_hash(c, &dbias);
}

/* Only f32: in f64 the last bit depends on libm, whose erfc is fused on some machines. */
static void gelu(bits_case *c)
{
    const attn_dtype dtype = ATTN_F32;
    const int64_t T = bits_between(c, 1, 40), E = bits_between(c, 1, 300);
    bits_say(c, "f32 gelu T=%" PRId64 " E=%" PRId64, T, E);
    attn_tensor x = filled(c, dtype, 1, 1, T, E, 2), dout = filled(c, dtype, 1, 1, T, E, 1);
    attn_tensor out = result(c, &x), dx = result(c, &x);
    if (!bits_ok(c, attn_gelu_forward(c->ctx, &x, &out, &c->err)) ||
        !bits_ok(c, attn_gelu_backward(c->ctx, &dout, &x, &dx, &c->err)))
        return;
    bits_hash(c, &out);
    bits_hash(c, &dx);
}

/* n integers below `end`. */
static int64_t *indices(bits_case *c, int64_t n, int64_t end)
{
    int64_t *x = bits_memory(c, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = bits_between(c, 0, end - 1);
    return x;
}

static void cross_entropy(bits_case *c)
{
    const attn_dtype dtype = module_type(c);
    const int64_t N = bits_between(c, 1, 40), V = bits_between(c, 1, 400);
    bits_say(c, " cross-entropy N=%" PRId64 " V=%" PRId64, N, V);
    attn_tensor logits = filled(c, dtype, 1, 1, N, V, 3), dlogits = result(c, &logits);
    int64_t *targets = indices(c, N, V);
    if (bits_chance(c, 50))
        targets[bits_between(c, 0, N - 1)] = -100;
    double loss;
    if (!bits_ok(c, attn_cross_entropy_forward(c->ctx, &logits, targets, -100, &loss, &c->err)) ||
        !bits_ok(c, attn_cross_entropy_backward(c->ctx, 0.75, &logits, targets, -100, &dlogits,
                                                &c->err)))
        return;
    bits_hash_doubles(c, &loss, 1);
    bits_hash(c, &dlogits);
}

static void embedding(bits_case *c)
{
    const attn_dtype dtype = module_type(c);
    const int64_t V = bits_between(c, 1, 60), E = bits_between(c, 1, 100),
                  n = bits_between(c, 1, 90);
    bits_say(c, " embedding V=%" PRId64 " E=%" PRId64 " n=%" PRId64, V, E, n);
    attn_tensor table = filled(c, dtype, 1, 1, V, E, 1), dout = filled(c, dtype, 1, 1, n, E, 1);
    attn_tensor out = bits_new(c, dtype, 1, 1, n, E, BITS_LOOSE), dtable = result(c, &table);
    const int64_t *ids = indices(c, n, V);
    if (!bits_ok(c, attn_embedding_forward(c->ctx, &table, ids, n, &out, &c->err)) ||
        !bits_ok(c, attn_embedding_backward(c->ctx, &dout, ids, n, &dtable, &c->err)))
        return;
    bits_hash(c, &out);
    bits_hash(c, &dtable);
}

static void adamw(bits_case *c)
{
    const attn_dtype dtype = module_type(c);
    const int64_t rows = bits_between(c, 1, 40), columns = bits_between(c, 1, 200);
    bits_say(c, " adamw %" PRId64 "x%" PRId64, rows, columns);
    attn_adamw_options options = ATTN_ADAMW_OPTIONS_INIT;
    attn_tensor param = bits_new(c, dtype, 1, 1, rows, columns, BITS_LOOSE);
    attn_tensor m = bits_new(c, dtype, 1, 1, rows, columns, BITS_DENSE);
    attn_tensor v = bits_new(c, dtype, 1, 1, rows, columns, BITS_LOOSE);
    bits_fill(c, &param, 1);
    bits_fill(c, &m, 0);
    bits_fill(c, &v, 0);
    for (int64_t step = 1; step <= 4; step++) {
        attn_tensor grad = filled(c, dtype, 1, 1, rows, columns, 0.125);
        if (!bits_ok(c, attn_adamw_step(c->ctx, &options, step, &param, &grad, &m, &v, &c->err)))
            return;
    }
    bits_hash(c, &param);
    bits_hash(c, &m);
    bits_hash(c, &v);
}

static void random_stream(bits_case *c)
{
    enum { N = 40 };
    attn_rng rng;
    float x[3 * N], linear[N];
    attn_rng_seed(&rng, bits_random(c));
    attn_rng_rand(&rng, x, N);
    attn_rng_uniform(&rng, x + N, N, -2, 3);
    attn_rng_randn(&rng, x + (size_t)2 * N, (size_t)bits_between(c, 1, N));
    attn_rng_linear(&rng, linear, linear + N - 5, 7, 5);
    bits_hash_integer(c, attn_rng_u32(&rng), 4);
    bits_say(c, "random numbers");
    const attn_tensor uniform = attn_matrix(x, ATTN_F32, 1, (int64_t)2 * N + 1),
                      weights = attn_matrix(linear, ATTN_F32, 1, 5 * 7);
    bits_hash(c, &uniform);
    bits_hash(c, &weights);
    const attn_tensor mask = bits_new(c, ATTN_BOOL, 2, 3, 20, 45, BITS_LOOSE);
    if (bits_ok(c, attn_dropout_mask(bits_random(c), 0.3, &mask, &c->err)))
        bits_hash(c, &mask);
}

void bits_layers(bits_case *c)
{
    static void (*const layers[])(bits_case *) = {layer_norm, layer_norm, gelu,  cross_entropy,
                                                  embedding,  adamw,      adamw, random_stream};
    BITS_PICK(c, layers)(c);
}

/* ------------------------------------------------------------------------- multi-head attention */

typedef struct bits_module {
    attn_mha_args args; /* points into the members below */
    attn_sdpa_args attention;
    attn_mha_grads grads;
    attn_tensor lse, mask;
    int64_t B, T, S, H, Hk, D, Dv, E, Out;
} bits_module;

static void choose_module_sizes(bits_case *c, bits_module *m)
{
    m->B = bits_between(c, 1, 2);
    m->T = bits_between(c, 1, 40);
    m->Hk = bits_between(c, 1, 3);
    m->H = m->Hk * bits_between(c, 1, 2);
    m->D = bits_between(c, 1, 24);
    m->Dv = bits_chance(c, 60) ? m->D : bits_between(c, 1, 24);
    m->E = bits_between(c, 1, 70);
    m->S = bits_chance(c, 40) ? bits_between(c, 1, 90) : 0; /* 0: self-attention */
    m->Out = bits_chance(c, 75) ? bits_between(c, 1, 70) : 0;
    bits_say(c, " B=%" PRId64 " T=%" PRId64 " S=%" PRId64 " H=%" PRId64 " Hk=%" PRId64, m->B, m->T,
             m->S, m->H, m->Hk);
    bits_say(c, " D=%" PRId64 " Dv=%" PRId64 " E=%" PRId64 " Out=%" PRId64, m->D, m->Dv, m->E,
             m->Out);
}

static void choose_weights(bits_case *c, bits_module *m, attn_dtype dtype)
{
    attn_mha_args *a = &m->args;
    const int64_t Es = m->S ? bits_between(c, 1, 50) : m->E;
    a->x = filled(c, dtype, m->B, 1, m->T, m->E, 1);
    if (m->S)
        a->source = filled(c, dtype, m->B, 1, m->S, Es, 1);
    a->w_q = filled(c, dtype, 1, m->H, m->D, m->E, 0.25);
    a->w_k = filled(c, dtype, 1, m->Hk, m->D, Es, 0.25);
    a->w_v = filled(c, dtype, 1, m->Hk, m->Dv, Es, 0.25);
    if (bits_chance(c, 70)) {
        a->b_q = filled(c, dtype, 1, m->H, 1, m->D, 1);
        a->b_k = filled(c, dtype, 1, m->Hk, 1, m->D, 1);
        a->b_v = filled(c, dtype, 1, m->Hk, 1, m->Dv, 1);
    }
    if (m->Out) {
        a->w_o = filled(c, dtype, 1, 1, m->Out, m->H * m->Dv, 0.25);
        if (bits_chance(c, 70))
            a->b_o = filled(c, dtype, 1, 1, 1, m->Out, 1);
    }
    a->out = bits_new(c, dtype, m->B, 1, m->T, m->Out ? m->Out : m->H * m->Dv, BITS_LOOSE);
}

static void choose_attention(bits_case *c, bits_module *m, attn_dtype dtype)
{
    attn_mha_args *a = &m->args;
    attn_sdpa_args *s = &m->attention;
    s->causal = (attn_causal)bits_between(c, ATTN_CAUSAL_NONE, ATTN_CAUSAL_BOTTOM_RIGHT);
    s->softcap = bits_chance(c, 20) ? 5 : 0;
    s->dropout = bits_chance(c, 20) ? 0.25 : 0;
    s->dropout_seed = bits_random(c);
    s->precision = bits_chance(c, 20) ? ATTN_PRECISION_ACCURATE : ATTN_PRECISION_DEFAULT;
    a->output_dropout = bits_chance(c, 20) ? 0.5 : 0;
    a->output_dropout_seed = bits_random(c);
    if (bits_chance(c, 30)) {
        m->mask = filled(c, dtype, 1, m->H, m->T, m->S ? m->S : m->T, 1);
        s->mask = &m->mask;
    }
    if (bits_chance(c, 30)) {
        m->lse = bits_new(c, ATTN_F64, m->B, m->H, m->T, 1, BITS_DENSE);
        s->lse = &m->lse;
    }
    bits_say(c, " causal=%d%s%s%s", s->causal, s->mask ? " mask" : "",
             s->dropout > 0 ? " dropout" : "", s->precision ? " accurate" : "");
}

static void module_backward(bits_case *c, bits_module *m)
{
    attn_mha_args *a = &m->args;
    attn_mha_grads g = ATTN_MHA_GRADS_INIT;
    const struct {
        attn_tensor *grad;
        const attn_tensor *of;
    } all[] = {{&g.dx, &a->x},     {&g.dsource, &a->source}, {&g.dw_q, &a->w_q}, {&g.dw_k, &a->w_k},
               {&g.dw_v, &a->w_v}, {&g.db_q, &a->b_q},       {&g.db_k, &a->b_k}, {&g.db_v, &a->b_v},
               {&g.dw_o, &a->w_o}, {&g.db_o, &a->b_o}};
    enum { ALL = sizeof all / sizeof *all };
    for (int i = 0; i < ALL; i++)
        if (all[i].of->data)
            *all[i].grad = result(c, all[i].of);
    g.dout = bits_tensor(c, a->out.dtype, a->out.shape, BITS_DENSE);
    bits_fill(c, &g.dout, 1);
    if (!bits_ok(c, attn_mha_backward(c->ctx, a, &g, &c->err)))
        return;
    for (int i = 0; i < ALL; i++)
        bits_hash(c, all[i].grad);
}

void bits_mha(bits_case *c)
{
    bits_module m = {.B = 0};
    attn_mha *module = NULL;
    attn_mha_args_init(&m.args);
    attn_sdpa_args_init(&m.attention);
    m.args.attention = &m.attention;
    const attn_dtype dtype = module_type(c);
    choose_module_sizes(c, &m);
    choose_weights(c, &m, dtype);
    choose_attention(c, &m, dtype);
    if (!bits_ok(c, attn_mha_forward(c->ctx, &m.args, &c->err)))
        return;
    bits_hash(c, &m.args.out);
    if (m.attention.lse)
        bits_hash(c, m.attention.lse);
    if (!bits_ok(c, attn_mha_create(c->ctx, &m.args, &module, &c->err)))
        return;
    bits_fill(c, &m.args.out, 1);
    if (bits_ok(c, attn_mha_run(c->ctx, module, &m.args, &c->err)))
        bits_hash(c, &m.args.out);
    attn_mha_destroy(module);
    if (!c->failed)
        module_backward(c, &m);
}
