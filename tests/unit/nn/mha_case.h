/* One call of multi-head attention with all that it takes and gives, and its definition in plain
 * loops in double. */
#ifndef MHA_CASE_H
#define MHA_CASE_H

#include "nn_tensors.h"

#include "core/internal.h"

/* ----------------------------------------------------------------------------------- the module */

/* Everything that one call takes and gives. */
typedef struct mha_case {
    attn_mha_args args;
    attn_sdpa_args attention;                                  /* what args.attention points at */
    test_tensor x, source, w[4], b[4], out, scores, lse, mask; /* w, b: q, k, v, o */
    int64_t key_lengths[4];
} mha_case;

typedef struct mha_dims {
    int64_t B, T, S, E, Es, H, Hk, D, Dv, Out;
    attn_dtype dtype;
    layout form;
    bool has_source, has_bias, has_w_o;
} mha_dims;

/* Attention's own outputs included; no masks yet. */
static inline void make_case(mha_case *c, const mha_dims *n)
{
    const int64_t heads[] = {n->H, n->Hk, n->Hk}, widths[] = {n->D, n->D, n->Dv};
    memset(c, 0, sizeof *c);
    attn_mha_args_init(&c->args);
    attn_sdpa_args_init(&c->attention);
    attn_mha_args *a = &c->args;
    a->attention = &c->attention;
    c->x = random_tensor(n->dtype, n->form, n->B, 1, n->T, n->E);
    a->x = c->x.t;
    if (n->has_source) {
        c->source = random_tensor(n->dtype, n->form, n->B, 1, n->S, n->Es);
        a->source = c->source.t;
    }
    attn_tensor *const weights[] = {&a->w_q, &a->w_k, &a->w_v}, *const biases[] = {&a->b_q, &a->b_k,
                                                                                   &a->b_v};
    for (int i = 0; i < 3; i++) {
        c->w[i] = random_tensor(n->dtype, n->form, 1, heads[i], widths[i], i ? n->Es : n->E);
        *weights[i] = c->w[i].t;
        if (n->has_bias) {
            c->b[i] = random_tensor(n->dtype, n->form, 1, heads[i], 1, widths[i]);
            *biases[i] = c->b[i].t;
        }
    }
    if (n->has_w_o) {
        c->w[3] = random_tensor(n->dtype, n->form, 1, 1, n->Out, n->H * n->Dv);
        a->w_o = c->w[3].t;
        if (n->has_bias) {
            c->b[3] = random_tensor(n->dtype, n->form, 1, 1, 1, n->Out);
            a->b_o = c->b[3].t;
        }
    }
    c->out = make_tensor(n->dtype, n->form, n->B, 1, n->T, n->Out);
    c->scores = make_tensor(n->dtype, n->form, n->B, n->H, n->T, n->S);
    c->lse = make_tensor(n->dtype, DENSE, n->B, n->H, n->T, 1);
    a->out = c->out.t;
    c->attention.scores = &c->scores.t;
    c->attention.scores_stage = ATTN_STAGE_WEIGHTS;
    c->attention.lse = &c->lse.t;
}

static inline mha_dims random_dims(void)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 9};
#define SIZE sizes[pick(COUNT(sizes))]
    mha_dims n = {.B = pick(4), .T = pick(5) ? 1 + pick(9) : 0, .D = SIZE, .Dv = SIZE, .E = SIZE};
    n.dtype = pick(3) ? ATTN_F64 : ATTN_F32;
    n.form = pick(2) ? ODD : DENSE;
    n.Hk = pick(8) ? 1 + pick(3) : 0;
    n.H = n.Hk * (1 + pick(3));
    n.has_source = pick(2);
    n.S = n.has_source ? 1 + pick(20) : n.T;
    n.Es = n.has_source ? 1 + pick(6) : n.E;
    if (n.has_source && n.B == 0)
        n.has_source = false, n.S = n.T, n.Es = n.E; /* it would have no data: x would be meant */
    n.has_bias = pick(2);
    n.Out = SIZE;
    n.has_w_o = n.Out * n.H * n.Dv > 0 && pick(3);
    if (!n.has_w_o)
        n.Out = n.H * n.Dv;
    if (!n.has_w_o && n.Out == 0)
        n.has_bias = false;
#undef SIZE
    return n;
}

static inline void random_options(mha_case *c, const mha_dims *n)
{
    attn_sdpa_args *a = &c->attention;
    a->causal = pick(3) ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_TOP_LEFT;
    a->scale = pick(3) ? 0 : uniform();
    a->dropout = pick(3) ? 0 : 0.4;
    a->dropout_seed = draw();
    a->precision = pick(4) ? ATTN_PRECISION_DEFAULT : ATTN_PRECISION_ACCURATE;
    c->args.output_dropout = pick(3) ? 0 : 0.3;
    c->args.output_dropout_seed = draw();
    if (pick(3) == 0 && n->B <= (int64_t)COUNT(c->key_lengths)) {
        for (int64_t b = 0; b < n->B; b++)
            c->key_lengths[b] = pick(n->S + 1);
        a->key_lengths = c->key_lengths;
    }
    if (pick(3) == 0) {
        c->mask = random_tensor(n->dtype, n->form, n->B, n->H, n->T, n->S);
        FOR_ALL(&c->mask.t, b, h, i, j)
        if (pick(4) == 0)
            put(&c->mask.t, b, h, i, j, -(double)INFINITY);
        a->mask = &c->mask.t;
    }
}

static inline void release_case(mha_case *c)
{
    test_tensor *const all[] = {&c->x, &c->source, &c->out, &c->scores, &c->lse, &c->mask};
    for (size_t i = 0; i < COUNT(all); i++)
        release(all[i]);
    for (int i = 0; i < 4; i++) {
        release(&c->w[i]);
        release(&c->b[i]);
    }
}

/* ------------------------------------------------------------------------- the plain definition */

/* x w^T + b of one element */
static inline double project(const attn_tensor *x, const attn_tensor *w, const attn_tensor *b,
                             int64_t batch, int64_t h, int64_t i, int64_t d)
{
    double sum = b->data ? get(b, 0, h, 0, d) : 0;
    for (int64_t e = 0; e < x->shape[3]; e++)
        sum += get(x, batch, 0, i, e) * get(w, 0, h, d, e);
    return sum;
}

static inline bool visible(const mha_case *c, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_sdpa_args *a = &c->attention;
    return (a->causal != ATTN_CAUSAL_TOP_LEFT || j <= i) &&
           (!a->key_lengths || j < a->key_lengths[b]) &&
           (!a->mask || get(a->mask, b, h, i, j) > -1e30);
}

/* weights[0..S) of query i, before dropout; returns lse */
static inline double naive_weights(const mha_case *c, int64_t b, int64_t h, int64_t i,
                                   double *weights)
{
    const attn_mha_args *a = &c->args;
    const attn_tensor *source = a->source.data ? &a->source : &a->x;
    const int64_t S = source->shape[2], D = a->w_q.shape[2];
    const int64_t hk = h / (a->w_q.shape[1] / a->w_k.shape[1]);
    const double scale = a->attention->scale != 0 ? a->attention->scale : 1 / sqrt((double)D);
    double most = -(double)INFINITY, total = 0;
    for (int64_t j = 0; j < S; j++) {
        weights[j] = -(double)INFINITY;
        if (!visible(c, b, h, i, j))
            continue;
        double sum = 0;
        for (int64_t d = 0; d < D; d++)
            sum += project(&a->x, &a->w_q, &a->b_q, b, h, i, d) *
                   project(source, &a->w_k, &a->b_k, b, hk, j, d);
        weights[j] =
            (D ? scale : 1) * sum + (a->attention->mask ? get(a->attention->mask, b, h, i, j) : 0);
        most = weights[j] > most ? weights[j] : most;
    }
    for (int64_t j = 0; j < S; j++) {
        weights[j] = isinf(weights[j]) ? 0 : exp(weights[j] - most);
        total += weights[j];
    }
    for (int64_t j = 0; j < S; j++)
        weights[j] = total > 0 ? weights[j] / total : 0;
    return most + log(total);
}

/* One output row; and the weights and lse of its heads held against what the call gave. */
static inline void check_row(const mha_case *c, int64_t b, int64_t i, double tolerance)
{
    const attn_mha_args *a = &c->args;
    const attn_tensor *source = a->source.data ? &a->source : &a->x;
    const int64_t S = source->shape[2], H = a->w_q.shape[1], Dv = a->w_v.shape[2];
    const double p = a->attention->dropout, q = a->output_dropout;
    double *weights = calloc((size_t)S + 1, sizeof *weights);
    double *joined = calloc((size_t)(H * Dv) + 1, sizeof *joined);
    assert_true(weights && joined);
    for (int64_t h = 0; h < H; h++) {
        const double lse = naive_weights(c, b, h, i, weights), got = get(&c->lse.t, b, h, i, 0);
        if (!(got == lse || fabs(got - lse) <= tolerance))
            fail_msg("lse [%d,%d,%d] is %.17g, want %.17g (tolerance %g)", (int)b, (int)h, (int)i,
                     got, lse, tolerance);
        for (int64_t j = 0; j < S; j++) {
            if (!(fabs(get(&c->scores.t, b, h, i, j) - weights[j]) <= tolerance))
                fail_msg("weight [%d,%d,%d,%d] is %.17g, want %.17g (tolerance %g)", (int)b, (int)h,
                         (int)i, (int)j, get(&c->scores.t, b, h, i, j), weights[j], tolerance);
            const bool keep =
                attni_dropout_keep(a->attention->dropout_seed, attni_dropout_threshold(p),
                                   (uint64_t)(b * H + h), (uint64_t)i, (uint64_t)j);
            const double weight = p > 0 ? keep ? weights[j] / (1 - p) : 0 : weights[j];
            for (int64_t d = 0; d < Dv; d++)
                joined[h * Dv + d] +=
                    weight * project(source, &a->w_v, &a->b_v, b, h / (H / a->w_k.shape[1]), j, d);
        }
    }
    for (int64_t o = 0; o < a->out.shape[3]; o++) {
        double want = a->w_o.data ? 0 : joined[o];
        for (int64_t d = 0; a->w_o.data && d < H * Dv; d++)
            want += joined[d] * get(&a->w_o, 0, 0, o, d);
        want += a->b_o.data ? get(&a->b_o, 0, 0, 0, o) : 0;
        if (q > 0)
            want = attni_dropout_keep(a->output_dropout_seed, attni_dropout_threshold(q), 0,
                                      (uint64_t)(b * a->x.shape[2] + i), (uint64_t)o)
                       ? want / (1 - q)
                       : 0;
        const double got = get(&a->out, b, 0, i, o);
        if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
            fail_msg("out [%d,%d,%d] is %.17g, want %.17g (tolerance %g)", (int)b, (int)i, (int)o,
                     got, want, tolerance * (1 + fabs(want)));
    }
    free(weights);
    free(joined);
}

static inline void check_case(attn_context *ctx, mha_case *c)
{
    attn_error err = {0};
    if (attn_mha_forward(ctx, &c->args, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    for (int64_t b = 0; b < c->args.x.shape[0]; b++)
        for (int64_t i = 0; i < c->args.x.shape[2]; i++)
            check_row(c, b, i, c->out.t.dtype == ATTN_F64 ? 1e-12 : 2e-4);
    expect_gaps(&c->out);
    expect_gaps(&c->scores);
}

/* Checks random cases on a NULL context and on one of each instruction set; `more`, if it is not
 * NULL, then looks at the call that was made. */
static inline void check_random_cases(uint64_t seed, void (*more)(attn_context *ctx, mha_case *c))
{
    test_state = seed;
    for (int k = -1; k < 0 || attn_isa(k).name; k++) {
        if (k >= 0 && !attn_isa(k).usable)
            continue;
        attn_context *ctx = k < 0 ? NULL : make_context(1 + k, attn_isa(k).name, NULL);
        for (int round = 0; round < 60; round++) {
            describe_case("%s, seed %" PRIu64 ", round %d", k < 0 ? "no context" : attn_isa(k).name,
                          seed, round);
            mha_case c;
            const mha_dims n = random_dims();
            make_case(&c, &n);
            random_options(&c, &n);
            check_case(ctx, &c);
            if (more)
                more(ctx, &c);
            release_case(&c);
        }
        attn_context_destroy(ctx);
    }
}

#endif
