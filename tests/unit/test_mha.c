/* Multi-head attention against plain loops in double, and against PyTorch's values.
 * labels: threads
 */
#include "nn_tensors.h"
#include <jansson.h>

#include "internal.h"

/* ------------------------------------------------------------------------------------ the module */

/* Everything that one call takes and gives. */
typedef struct mha_case {
    attn_mha_args args;
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
static void make_case(mha_case *c, const mha_dims *n)
{
    const int64_t heads[] = {n->H, n->Hk, n->Hk}, widths[] = {n->D, n->D, n->Dv};
    memset(c, 0, sizeof *c);
    attn_mha_args_init(&c->args);
    attn_mha_args *a = &c->args;
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
    a->attention.scores = &c->scores.t;
    a->attention.scores_stage = ATTN_STAGE_WEIGHTS;
    a->attention.lse = &c->lse.t;
}

static void release_case(mha_case *c)
{
    test_tensor *const all[] = {&c->x, &c->source, &c->out, &c->scores, &c->lse, &c->mask};
    for (size_t i = 0; i < COUNT(all); i++)
        release(all[i]);
    for (int i = 0; i < 4; i++) {
        release(&c->w[i]);
        release(&c->b[i]);
    }
}

/* --------------------------------------------------------------------------- the plain definition */

/* x w^T + b of one element */
static double project(const attn_tensor *x, const attn_tensor *w, const attn_tensor *b,
                      int64_t batch, int64_t h, int64_t i, int64_t d)
{
    double sum = b->data ? get(b, 0, h, 0, d) : 0;
    for (int64_t e = 0; e < x->shape[3]; e++)
        sum += get(x, batch, 0, i, e) * get(w, 0, h, d, e);
    return sum;
}

static bool visible(const mha_case *c, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_sdpa_args *a = &c->args.attention;
    return (a->causal != ATTN_CAUSAL_TOP_LEFT || j <= i) &&
           (!a->key_lengths || j < a->key_lengths[b]) &&
           (!a->mask || get(a->mask, b, h, i, j) > -1e30);
}

/* weights[0..S) of query i, before dropout; returns lse */
static double naive_weights(const mha_case *c, int64_t b, int64_t h, int64_t i, double *weights)
{
    const attn_mha_args *a = &c->args;
    const attn_tensor *source = a->source.data ? &a->source : &a->x;
    const int64_t S = source->shape[2], D = a->w_q.shape[2];
    const int64_t hk = h / (a->w_q.shape[1] / a->w_k.shape[1]);
    const double scale = a->attention.scale != 0 ? a->attention.scale : 1 / sqrt((double)D);
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
            (D ? scale : 1) * sum + (a->attention.mask ? get(a->attention.mask, b, h, i, j) : 0);
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
static void check_row(const mha_case *c, int64_t b, int64_t i, double tolerance)
{
    const attn_mha_args *a = &c->args;
    const attn_tensor *source = a->source.data ? &a->source : &a->x;
    const int64_t S = source->shape[2], H = a->w_q.shape[1], Dv = a->w_v.shape[2];
    const double p = a->attention.dropout, q = a->output_dropout;
    double *weights = calloc((size_t)S + 1, sizeof *weights);
    double *joined = calloc((size_t)(H * Dv) + 1, sizeof *joined);
    assert_true(weights && joined);
    for (int64_t h = 0; h < H; h++) {
        const double lse = naive_weights(c, b, h, i, weights), got = get(&c->lse.t, b, h, i, 0);
        if (!(got == lse || fabs(got - lse) <= tolerance))
            fail_msg("lse [%d,%d,%d]: %.17g, want %.17g", (int)b, (int)h, (int)i, got, lse);
        for (int64_t j = 0; j < S; j++) {
            if (!(fabs(get(&c->scores.t, b, h, i, j) - weights[j]) <= tolerance))
                fail_msg("weight [%d,%d,%d,%d]: %.17g, want %.17g", (int)b, (int)h, (int)i, (int)j,
                         get(&c->scores.t, b, h, i, j), weights[j]);
            const bool keep =
                attni_dropout_keep(a->attention.dropout_seed, attni_dropout_threshold(p),
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
            fail_msg("out [%d,%d,%d]: %.17g, want %.17g", (int)b, (int)i, (int)o, got, want);
    }
    free(weights);
    free(joined);
}

static void check_case(attn_context *ctx, mha_case *c)
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

/* ----------------------------------------------------------------------------------------- values */

static mha_dims random_dims(void)
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

static void random_options(mha_case *c, const mha_dims *n)
{
    attn_sdpa_args *a = &c->args.attention;
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

static void test_random_cases(void **state)
{
    (void)state;
    test_state = 2025;
    for (int k = -1; k < 0 || attn_isa(k).name; k++) {
        if (k >= 0 && !attn_isa(k).usable)
            continue;
        attn_context *ctx = k < 0 ? NULL : make_context(1 + k, attn_isa(k).name, NULL);
        for (int round = 0; round < 60; round++) {
            mha_case c;
            const mha_dims n = random_dims();
            make_case(&c, &n);
            random_options(&c, &n);
            check_case(ctx, &c);
            release_case(&c);
        }
        attn_context_destroy(ctx);
    }
}

/* One tensor of the golden file, which must have so many elements. */
static void read_golden(const json_t *file, const char *name, float *to, size_t count)
{
    const json_t *data = json_object_get(json_object_get(file, name), "data");
    assert_int_equal(json_array_size(data), count);
    for (size_t i = 0; i < count; i++)
        to[i] = (float)json_real_value(json_array_get(data, i));
}

static void expect_near(const json_t *file, const char *name, const float *got, size_t count)
{
    float want[64];
    assert_true(count <= COUNT(want));
    read_golden(file, name, want, count);
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-6f))
            fail_msg("%s[%zu]: %.9g, torch has %.9g", name, i, (double)got[i], (double)want[i]);
}

static void expect_golden_bits(const json_t *file, const char *name, const float *got, size_t count)
{
    float want[64];
    assert_true(count <= COUNT(want));
    read_golden(file, name, want, count);
    assert_memory_equal(got, want, count * sizeof *got);
}

/* torch.manual_seed(123); MultiHeadAttention(d_model=4, num_heads=2).eval() of the lesson: the linear
 * layers of the queries' heads come first, then keys', values', and the output's. */
static void test_lesson_module(void **state)
{
    float w[3][2][2][4], b[3][2][2], w_o[4][4], b_o[4], x[12], heads[2 * 3 * 2], joined[12],
        out[12];
    float weights[2 * 3 * 3];
    attn_rng rng;
    (void)state;
    json_t *golden = json_load_file(ATTN_TEST_DATA "/lessons/module.json", 0, NULL);
    assert_non_null(golden);
    attn_rng_seed(&rng, 123);
    for (int i = 0; i < 3; i++)
        for (int h = 0; h < 2; h++)
            attn_rng_linear(&rng, &w[i][h][0][0], b[i][h], 4, 2);
    attn_rng_linear(&rng, &w_o[0][0], b_o, 4, 4);
    expect_golden_bits(golden, "mha_w_q", &w[0][0][0][0], 16);
    expect_golden_bits(golden, "mha_b_q", &b[0][0][0], 4);
    expect_golden_bits(golden, "mha_w_k", &w[1][0][0][0], 16);
    expect_golden_bits(golden, "mha_b_k", &b[1][0][0], 4);
    expect_golden_bits(golden, "mha_w_v", &w[2][0][0][0], 16);
    expect_golden_bits(golden, "mha_b_v", &b[2][0][0], 4);
    expect_golden_bits(golden, "mha_out_weight", &w_o[0][0], 16);
    expect_golden_bits(golden, "mha_out_bias", b_o, 4);
    read_golden(golden, "mha_inputs", x, 12);

    attn_mha_args a;
    attn_mha_args_init(&a);
    a.x = attn_bhtd(x, ATTN_F32, 1, 1, 3, 4);
    a.w_q = attn_bhtd(w[0], ATTN_F32, 1, 2, 2, 4);
    a.w_k = attn_bhtd(w[1], ATTN_F32, 1, 2, 2, 4);
    a.w_v = attn_bhtd(w[2], ATTN_F32, 1, 2, 2, 4);
    a.b_q = attn_bhtd(b[0], ATTN_F32, 1, 2, 1, 2);
    a.b_k = attn_bhtd(b[1], ATTN_F32, 1, 2, 1, 2);
    a.b_v = attn_bhtd(b[2], ATTN_F32, 1, 2, 1, 2);
    a.out = attn_bhtd(joined, ATTN_F32, 1, 1, 3, 4); /* no w_o: the heads, joined */
    assert_int_equal(attn_mha_forward(NULL, &a, NULL), ATTN_OK);
    expect_near(golden, "mha_concat", joined, 12);
    for (int i = 0; i < 12; i++) /* [h, i, d] of [i, h, d] */
        heads[i] = joined[i / 2 % 3 * 4 + i / 6 * 2 + i % 2];
    expect_near(golden, "mha_heads", heads, 12);

    const attn_tensor scores = attn_bhtd(weights, ATTN_F32, 1, 2, 3, 3);
    a.attention.scores = &scores;
    a.attention.scores_stage = ATTN_STAGE_WEIGHTS;
    a.w_o = attn_bhtd(w_o, ATTN_F32, 1, 1, 4, 4);
    a.b_o = attn_bhtd(b_o, ATTN_F32, 1, 1, 1, 4);
    a.out = attn_bhtd(out, ATTN_F32, 1, 1, 3, 4);
    assert_int_equal(attn_mha_forward(NULL, &a, NULL), ATTN_OK);
    expect_near(golden, "mha_weights", weights, 18);
    expect_near(golden, "mha_output", out, 12);
    json_decref(golden);
}

/* ------------------------------------------------------------------------------------------- bits */

static void test_bits(void **state)
{
    static const int threads[] = {1, 2, 3, 7};
    const mha_dims n = {2, 90, 90, 64, 64, 4, 2, 16, 24, 40, ATTN_F32, DENSE, false, true, true};
    mha_case c, other;
    (void)state;
    test_state = 31;
    make_case(&c, &n);
    c.args.attention.causal = ATTN_CAUSAL_TOP_LEFT;
    c.args.attention.dropout = 0.1;
    c.args.output_dropout = 0.1;
    assert_int_equal(attn_mha_forward(NULL, &c.args, NULL), ATTN_OK);
    for (size_t k = 0; k < COUNT(threads) + 1; k++) {
        int runs = 0;
        attn_context *ctx = k < COUNT(threads) ? make_context(threads[k], NULL, NULL)
                                               : make_context(6, NULL, &runs);
        test_state = 31;
        make_case(&other, &n);
        other.args.attention.causal = ATTN_CAUSAL_TOP_LEFT;
        other.args.attention.dropout = 0.1;
        other.args.output_dropout = 0.1;
        for (int again = 0; again < 2; again++)
            assert_int_equal(attn_mha_forward(ctx, &other.args, NULL), ATTN_OK);
        expect_same_bits(&other.out.t, &c.out.t, "out, threads");
        expect_same_bits(&other.scores.t, &c.scores.t, "weights, threads");
        expect_same_bits(&other.lse.t, &c.lse.t, "lse, threads");
        assert_true(k < COUNT(threads) || runs > 0);
        release_case(&other);
        attn_context_destroy(ctx);
    }
    release_case(&c);
}

/* Packed weights are per-head weights in one piece of memory: PyTorch's in_proj_weight. */
static void test_packed(void **state)
{
    enum { E = 12, H = 3, D = E / H, T = 5 };
    (void)state;
    test_state = 8;
    for (int n = 0; n < 4; n++) {
        const attn_dtype dtype = n % 2 ? ATTN_F32 : ATTN_F64;
        const mha_dims dims = {2, T, T, E, E, H, H, D, D, E, dtype, DENSE, false, n < 2, true};
        mha_case c;
        make_case(&c, &dims);
        test_tensor weight = make_tensor(dtype, DENSE, 3, H, D, E);
        test_tensor bias = make_tensor(dtype, DENSE, 3, H, 1, D),
                    out = make_tensor(dtype, DENSE, 2, 1, T, E);
        FOR_ALL(&weight.t, part, h, d, e)
        put(&weight.t, part, h, d, e, get(&c.w[part].t, 0, h, d, e));
        if (n < 2)
            FOR_ALL(&bias.t, part, h, i, d)
        put(&bias.t, part, h, i, d, get(&c.b[part].t, 0, h, i, d));
        check_case(NULL, &c);

        attn_mha_args packed = c.args;
        memset(&packed.w_q, 0xA5, sizeof packed.w_q);
        memset(&packed.b_k, 0xA5, sizeof packed.b_k);
        packed.out = out.t;
        packed.attention.scores = NULL;
        packed.attention.lse = NULL;
        assert_int_equal(attn_mha_packed(&packed, weight.t.data, n < 2 ? bias.t.data : NULL, dtype,
                                         E, H, NULL),
                         ATTN_OK);
        assert_int_equal(attn_mha_forward(NULL, &packed, NULL), ATTN_OK);
        expect_same_bits(&out.t, &c.out.t, "packed");
        release(&weight);
        release(&bias);
        release(&out);
        release_case(&c);
    }
}

static void test_packed_errors(void **state)
{
    float weight[48], bias[12];
    attn_mha_args a, before;
    attn_error err;
    (void)state;
    attn_mha_args_init(&a);
    before = a;
#define REFUSE_PACKED(w, dtype, E, heads, status, argument, part)                                  \
    do {                                                                                           \
        const attn_status got = attn_mha_packed(&a, w, bias, dtype, E, heads, &err);               \
        expect_error(got, &err, status, argument, part);                                           \
        assert_memory_equal(&a, &before, sizeof a);                                                \
    } while (0)
    REFUSE_PACKED(weight, ATTN_F32, 4, 3, ATTN_ERR_SHAPE, "E",
                  "4 and heads is 3; E must be a multiple");
    REFUSE_PACKED(weight, ATTN_F32, -4, 2, ATTN_ERR_SHAPE, "E", "-4");
    REFUSE_PACKED(weight, ATTN_F32, 4, 0, ATTN_ERR_ARGUMENT, "heads", "at least 1");
    REFUSE_PACKED(weight, ATTN_F32, 4, -2, ATTN_ERR_ARGUMENT, "heads", "-2");
    REFUSE_PACKED(weight, ATTN_F16, 4, 2, ATTN_ERR_DTYPE, "dtype", "f16");
    REFUSE_PACKED(NULL, ATTN_F32, 4, 2, ATTN_ERR_ARGUMENT, "in_proj_weight", "[12, 4]");
    REFUSE_PACKED(weight, ATTN_F64, INT64_C(1) << 31, 2, ATTN_ERR_LIMIT, "E", "2147483648");
    REFUSE_PACKED(weight, ATTN_F32, INT64_C(1) << 40, 2, ATTN_ERR_LIMIT, "E", "address");
    assert_int_equal(attn_mha_packed(&a, weight, NULL, ATTN_F32, 4, 2, NULL), ATTN_OK);
    assert_null(a.b_q.data);
    assert_ptr_equal(a.w_k.data, weight + 16);
    assert_ptr_equal(a.w_v.data, weight + 32);
    assert_int_equal(attn_mha_packed(&a, NULL, NULL, ATTN_F32, 0, 2, NULL), ATTN_OK);
}

/* ----------------------------------------------------------------------------------------- errors */

static void expect_refusal(const mha_case *c, const attn_mha_args *a, attn_status status,
                           const char *argument, const char *part)
{
    attn_error err = {0};
    expect_error(attn_mha_forward(NULL, a, &err), &err, status, argument, part);
    assert_int_equal(attn_mha_forward(NULL, a, NULL), status);
    expect_untouched(&c->out);
    expect_untouched(&c->scores);
    expect_untouched(&c->lse);
}

static void test_errors(void **state)
{
    const mha_dims n = {2, 3, 5, 6, 7, 4, 2, 3, 8, 9, ATTN_F32, DENSE, true, true, true};
    const attn_tensor none = {0};
    mha_case c;
    attn_mha_args a;
    (void)state;
    test_state = 4;
    make_case(&c, &n);
#define REFUSE(change, status, argument, part)                                                     \
    do {                                                                                           \
        a = c.args;                                                                                \
        change;                                                                                    \
        expect_refusal(&c, &a, status, argument, part);                                            \
    } while (0)
    REFUSE(a.struct_size = 0, ATTN_ERR_ARGUMENT, "struct_size", "attn_mha_args_init");
    REFUSE(a.attention.struct_size = 8, ATTN_ERR_ARGUMENT, "struct_size", "of attention 8");
    REFUSE(a.x.shape[1] = 2; a.x.stride[1] = 0, ATTN_ERR_SHAPE, "x", "must be [2, 1, 3, 6]");
    REFUSE(a.x.shape[2] = -1, ATTN_ERR_SHAPE, "x", "-1");
    REFUSE(a.x.shape[3] = 5, ATTN_ERR_SHAPE, "w_q", "must be [1, 4, 3, 5]");
    REFUSE(a.source.shape[0] = 1, ATTN_ERR_SHAPE, "source", "must be [2, 1, 5, 7]");
    REFUSE(a.source.shape[3] = 6, ATTN_ERR_SHAPE, "w_k", "must be [1, 2, 3, 6]");
    REFUSE(a.source = none, ATTN_ERR_SHAPE, "w_k", "must be [1, 2, 3, 6]");
    REFUSE(a.w_q.shape[1] = 3, ATTN_ERR_SHAPE, "w_k", "2 heads and w_q has 3");
    REFUSE(a.w_q.shape[0] = 0, ATTN_ERR_SHAPE, "w_q", "must be [1, 4");
    REFUSE(a.w_k.shape[1] = 0, ATTN_ERR_SHAPE, "w_k", "0 heads");
    REFUSE(a.w_k.shape[2] = 2, ATTN_ERR_SHAPE, "w_k", "must be [1, 2, 3, 7]");
    REFUSE(a.w_v.shape[1] = 1, ATTN_ERR_SHAPE, "w_v", "must be [1, 2, 8, 7]");
    REFUSE(a.w_v.shape[2] = 7, ATTN_ERR_SHAPE, "b_v", "must be [1, 2, 1, 7]");
    REFUSE(a.b_q.shape[3] = 2, ATTN_ERR_SHAPE, "b_q", "must be [1, 4, 1, 3]");
    REFUSE(a.b_k.shape[1] = 1, ATTN_ERR_SHAPE, "b_k", "must be [1, 2, 1, 3]");
    REFUSE(a.w_o.shape[3] = 31, ATTN_ERR_SHAPE, "w_o", "must be [1, 1, 9, 32]");
    REFUSE(a.b_o.shape[3] = 8, ATTN_ERR_SHAPE, "b_o", "must be [1, 1, 1, 9]");
    REFUSE(a.w_o = none, ATTN_ERR_ARGUMENT, "b_o", "without w_o");
    REFUSE(a.w_o = none; a.b_o = none, ATTN_ERR_SHAPE, "out", "must be [2, 1, 3, 32]");
    REFUSE(a.out.shape[3] = 8, ATTN_ERR_SHAPE, "out", "must be [2, 1, 3, 9]");
    REFUSE(a.out.shape[0] = 1, ATTN_ERR_SHAPE, "out", "must be [2, 1, 3, 9]");
    REFUSE(a.out.stride[2] = 8, ATTN_ERR_STRIDE, "out", "stride");
    REFUSE(a.w_q.data = NULL, ATTN_ERR_ARGUMENT, "w_q", "NULL");
    REFUSE(a.x.dtype = ATTN_F16, ATTN_ERR_DTYPE, "x", "f32 and f64");
    REFUSE(a.source.dtype = ATTN_F64, ATTN_ERR_DTYPE, "source", "x is f32");
    REFUSE(a.b_v.dtype = ATTN_BOOL, ATTN_ERR_DTYPE, "b_v", "bool");
    REFUSE(a.out.dtype = ATTN_BF16, ATTN_ERR_DTYPE, "out", "bf16");
    REFUSE(a.output_dropout = 1, ATTN_ERR_ARGUMENT, "output_dropout", "less than 1");
    REFUSE(a.output_dropout = (double)NAN, ATTN_ERR_ARGUMENT, "output_dropout", "nan");
    REFUSE(a.attention.dropout = -1, ATTN_ERR_ARGUMENT, "dropout", "-1");
    REFUSE(a.attention.scores = &c.lse.t, ATTN_ERR_SHAPE, "scores", "5");
    REFUSE(a.attention.mask = &c.x.t, ATTN_ERR_SHAPE, "mask", "mask");
    char workspace[64];
    REFUSE(a.attention.workspace = workspace;
           a.attention.workspace_bytes = sizeof workspace, ATTN_ERR_ARGUMENT, "workspace", "needs");
    attn_error err = {0};
    expect_error(attn_mha_forward(NULL, NULL, &err), &err, ATTN_ERR_ARGUMENT, "args", "NULL");
    check_case(NULL, &c); /* nothing above was wrong but what was changed */
    release_case(&c);
}

/* A larger struct of a later version: fine while what it adds is zero. */
static void test_struct_growth(void **state)
{
    struct {
        attn_mha_args args;
        uint64_t later;
    } grown = {.later = 0};
    const mha_dims n = {1, 2, 2, 3, 3, 1, 1, 2, 2, 2, ATTN_F64, DENSE, false, false, false};
    mha_case c;
    attn_error err = {0};
    (void)state;
    make_case(&c, &n);
    grown.args = c.args;
    grown.args.struct_size = sizeof grown;
    assert_int_equal(attn_mha_forward(NULL, &grown.args, NULL), ATTN_OK);
    grown.later = 1;
    expect_error(attn_mha_forward(NULL, &grown.args, &err), &err, ATTN_ERR_ARGUMENT, "struct_size",
                 "does not know");
    release_case(&c);
}

/* Sizes that no memory has, from tensors that repeat one number. */
static void test_limits(void **state)
{
    static float one = 1;
    const int64_t huge = INT64_C(1) << 40;
    const attn_tensor many = {&one, ATTN_F32, {1, huge, huge / 1024, 1}, {0, 0, 0, 0}};
    attn_mha_args a;
    attn_error err = {0};
    (void)state;
    attn_mha_args_init(&a);
    a.x = attn_bhtd(&one, ATTN_F32, 1, 1, 1, 1);
    a.w_q = a.w_k = a.w_v = many;
    a.out = attn_bhtd(NULL, ATTN_F32, 1, 1, 1, 0);
    expect_error(attn_mha_forward(NULL, &a, &err), &err, ATTN_ERR_LIMIT, "w_v", "addressed");

    a.w_q = a.w_k = a.w_v = attn_bhtd(NULL, ATTN_F32, 1, 0, 0, 1);
    a.x = (attn_tensor){&one, ATTN_F32, {huge, 1, huge / 1024, 1}, {0, 0, 0, 0}};
    a.out = attn_bhtd(NULL, ATTN_F32, huge, 1, huge / 1024, 0);
    a.output_dropout = 0.5;
    expect_error(attn_mha_forward(NULL, &a, &err), &err, ATTN_ERR_LIMIT, "output_dropout", "2^32");
}

/* Memory that fails, at whichever allocation, leaves all outputs as they were. */
static void test_memory(void **state)
{
    const mha_dims n = {2, 20, 20, 8, 8, 2, 2, 4, 4, 8, ATTN_F32, DENSE, false, true, true};
    failing_memory memory;
    mha_case c;
    (void)state;
    test_state = 6;
    make_case(&c, &n);
    attn_context *ctx = make_failing_context(&memory);
    int failures = 0;
    attn_status status = ATTN_ERR_MEMORY;
    for (int allowed = 0; status != ATTN_OK; allowed++) {
        attn_error err = {0};
        memory.left = allowed;
        status = attn_mha_forward(ctx, &c.args, &err);
        if (status == ATTN_OK)
            break;
        expect_error(status, &err, ATTN_ERR_MEMORY, "", "memory");
        expect_untouched(&c.out);
        expect_untouched(&c.scores);
        expect_untouched(&c.lse);
        failures++;
    }
    assert_true(failures > 0);
    memory.left = 0; /* what was kept serves the next call */
    check_case(ctx, &c);
    attn_context_destroy(ctx);
    assert_int_equal(memory.live, 0);

    /* a caller's workspace: no memory at all */
    ctx = make_failing_context(&memory);
    memory.left = 0;
    c.args.attention.workspace_bytes = 1 << 20;
    c.args.attention.workspace = malloc(c.args.attention.workspace_bytes);
    assert_non_null(c.args.attention.workspace);
    check_case(ctx, &c);
    free(c.args.attention.workspace);
    attn_context_destroy(ctx);
    release_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_cases),  cmocka_unit_test(test_lesson_module),
        cmocka_unit_test(test_bits),          cmocka_unit_test(test_packed),
        cmocka_unit_test(test_packed_errors), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_struct_growth), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
