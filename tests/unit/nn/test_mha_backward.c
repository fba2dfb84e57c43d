/* Gradients of multi-head attention agree with central differences of its forward call.
 *
 * labels: threads
 *
 * The differences are in f64, and f32 is compared with f64. Also tests bits, packed weights and
 * errors. */
#include "mha_case.h"

#define STEP 1e-5
enum { W_K = 3, B_K = 7, INPUTS = 11 }; /* x, source, four weights, four biases, mask */

typedef struct gradients {
    attn_mha_grads g;
    test_tensor dout, of[INPUTS];
    attn_tensor dmask;
} gradients;

/* The inputs of a case, in the order of gradients.of; data NULL: not there. */
static void inputs_of(const mha_case *c, const attn_tensor *in[INPUTS])
{
    static const attn_tensor none;
    const attn_mha_args *a = &c->args;
    const attn_tensor *all[INPUTS] = {&a->x,   &a->source, &a->w_q,           &a->w_k,
                                      &a->w_v, &a->w_o,    &a->b_q,           &a->b_k,
                                      &a->b_v, &a->b_o,    a->attention->mask};
    for (int i = 0; i < INPUTS; i++)
        in[i] = all[i] ? all[i] : &none;
}

static void make_gradients(gradients *g, const mha_case *c, const mha_dims *n, bool every)
{
    const attn_tensor *in[INPUTS];
    attn_tensor *to[INPUTS] = {&g->g.dx,   &g->g.dsource, &g->g.dw_q, &g->g.dw_k,
                               &g->g.dw_v, &g->g.dw_o,    &g->g.db_q, &g->g.db_k,
                               &g->g.db_v, &g->g.db_o,    &g->dmask};
    memset(g, 0, sizeof *g);
    g->g = (attn_mha_grads)ATTN_MHA_GRADS_INIT;
    inputs_of(c, in);
    g->dout = random_tensor(n->dtype, n->form, n->B, 1, n->T, n->Out);
    g->g.dout = g->dout.t;
    for (int i = 0; i < INPUTS; i++) {
        const int64_t *s = in[i]->shape;
        if (!in[i]->data || !(every || pick(4)))
            continue;
        g->of[i] = make_tensor(n->dtype, n->form, s[0], s[1], s[2], s[3]);
        *to[i] = g->of[i].t;
    }
    g->g.dmask = g->dmask.data ? &g->dmask : NULL;
}

static void release_gradients(gradients *g)
{
    release(&g->dout);
    for (int i = 0; i < INPUTS; i++)
        release(&g->of[i]);
}

/* sum of dout * out */
static double value(attn_context *ctx, mha_case *c, const gradients *g)
{
    double sum = 0;
    assert_int_equal(attn_mha_forward(ctx, &c->args, NULL), ATTN_OK);
    FOR_ALL(&c->out.t, b, h, i, j)
    sum += get(&c->out.t, b, h, i, j) * get(&g->dout.t, b, h, i, j);
    return sum;
}

static void expect_slope(attn_context *ctx, mha_case *c, const gradients *g, int which,
                         const attn_tensor *in)
{
    const int64_t *n = in->shape;
    const int64_t b = pick(n[0]), h = pick(n[1]), i = pick(n[2]), j = pick(n[3]);
    const double was = get(in, b, h, i, j), got = get(&g->of[which].t, b, h, i, j);
    if (isinf(was)) {
        assert_number(got, ==, 0);
        return;
    }
    put(in, b, h, i, j, was + STEP);
    const double above = value(ctx, c, g);
    put(in, b, h, i, j, was - STEP);
    const double slope = (above - value(ctx, c, g)) / (2 * STEP);
    put(in, b, h, i, j, was);
    const double tolerance = 2e-7 * (1 + fabs(slope));
    if (!(fabs(got - slope) < tolerance))
        fail_msg("gradient %d [%d,%d,%d,%d] is %.17g, want %.17g by differences (tolerance %g)",
                 which, (int)b, (int)h, (int)i, (int)j, got, slope, tolerance);
}

static void random_case(attn_context *ctx)
{
    mha_dims n = random_dims();
    mha_case c;
    gradients g;
    attn_error err = {0};
    const attn_tensor *in[INPUTS];
    n.dtype = ATTN_F64;
    make_case(&c, &n);
    random_options(&c, &n);
    make_gradients(&g, &c, &n, false);
    if (attn_mha_backward(ctx, &c.args, &g.g, &err) != ATTN_OK)
        fail_msg("%s", err.message);
    inputs_of(&c, in);
    for (int k = 0; k < INPUTS; k++) {
        if (!g.of[k].t.data)
            continue;
        expect_gaps(&g.of[k]);
        for (int times = 0; times < 3; times++)
            expect_slope(ctx, &c, &g, k, in[k]);
    }
    release_gradients(&g);
    release_case(&c);
}

static void test_differences(void **state)
{
    (void)state;
    test_state = 0x3b;
    attn_context *ctx = make_context(2, NULL, NULL);
    for (int n = 0; n < 250; n++)
        random_case(n % 3 ? ctx : NULL);
    attn_context_destroy(ctx);
}

static mha_dims plain_dims(attn_dtype dtype, layout form)
{
    return (mha_dims){.B = 2,
                      .T = 60,
                      .S = 60,
                      .E = 24,
                      .Es = 24,
                      .H = 4,
                      .Hk = 2,
                      .D = 8,
                      .Dv = 10,
                      .Out = 30,
                      .dtype = dtype,
                      .form = form,
                      .has_bias = true,
                      .has_w_o = true};
}

/* The same case in another type, layout or context: all gradients. */
static void repeat(attn_context *ctx, const mha_case *c, const gradients *g, const mha_dims *n,
                   mha_case *other, gradients *others)
{
    const attn_tensor *from[INPUTS], *to[INPUTS];
    make_case(other, n);
    other->attention.causal = c->attention.causal;
    make_gradients(others, other, n, true);
    copy_into(&others->dout.t, &g->dout.t);
    inputs_of(c, from);
    inputs_of(other, to);
    for (int k = 0; k < INPUTS; k++)
        if (from[k]->data)
            copy_into(to[k], from[k]);
    assert_int_equal(attn_mha_backward(ctx, &other->args, &others->g, NULL), ATTN_OK);
}

static void test_f32_against_f64(void **state)
{
    (void)state;
    test_state = 0xf32;
    const mha_dims n = plain_dims(ATTN_F32, DENSE), wide = plain_dims(ATTN_F64, DENSE);
    mha_case c, exact;
    gradients g, want;
    make_case(&c, &n);
    c.attention.causal = ATTN_CAUSAL_TOP_LEFT;
    make_gradients(&g, &c, &n, true);
    assert_int_equal(attn_mha_backward(NULL, &c.args, &g.g, NULL), ATTN_OK);
    repeat(NULL, &c, &g, &wide, &exact, &want);
    double of_weight = 0; /* w_k's largest */
    for (int k = 0; k < INPUTS; k++) {
        double largest = 0, worst = 0;
        FOR_ALL(&want.of[k].t, b, h, i, j)
        {
            largest = fmax(largest, fabs(get(&want.of[k].t, b, h, i, j)));
            worst = fmax(worst, fabs(get(&g.of[k].t, b, h, i, j) - get(&want.of[k].t, b, h, i, j)));
        }
        if (k == B_K) { /* the same for all keys, so the softmax does not see it: rounding alone */
            assert_number(largest, <, 1e-12);
            largest = of_weight;
        }
        of_weight = k == W_K ? largest : of_weight;
        if (!(worst <= 5e-6 * largest))
            fail_msg("gradient %d is off by %g, tolerance %g", k, worst, 5e-6 * largest);
    }
    release_gradients(&g);
    release_gradients(&want);
    release_case(&c);
    release_case(&exact);
}

static void test_bits(void **state)
{
    (void)state;
    test_state = 0xb1;
    const mha_dims n = plain_dims(ATTN_F32, DENSE), odd = plain_dims(ATTN_F32, ODD);
    static const int threads[] = {1, 2, 3, 7, 2, 2};
    mha_case c, other;
    gradients g, got;
    make_case(&c, &n);
    make_gradients(&g, &c, &n, true);
    assert_int_equal(attn_mha_backward(NULL, &c.args, &g.g, NULL), ATTN_OK);
    for (size_t k = 0; k < COUNT(threads); k++) {
        describe_case("%d threads", threads[k]);
        attn_context *ctx = make_context(threads[k], NULL, NULL);
        repeat(ctx, &c, &g, k > 3 ? &odd : &n, &other, &got);
        for (int i = 0; i < INPUTS; i++)
            if (g.of[i].t.data)
                expect_same_bits(&got.of[i].t, &g.of[i].t, "mha backward");
        release_gradients(&got);
        release_case(&other);
        attn_context_destroy(ctx);
    }
    release_gradients(&g);
    release_case(&c);
}

/* Packed weights and gradients have the memory of torch's in_proj_weight [3E,E]. */
static void test_packed(void **state)
{
    (void)state;
    enum { E = 6, H = 3, T = 5 };
    double w[3 * E * E], b[3 * E], dw[3 * E * E], db[3 * E], x[T * E], dout[T * E];
    attn_mha_args a;
    attn_mha_grads g = ATTN_MHA_GRADS_INIT;
    attn_error e;
    test_state = 0x9ac;
    for (int i = 0; i < 3 * E * E; i++)
        w[i] = uniform();
    for (int i = 0; i < 3 * E; i++)
        b[i] = uniform();
    for (int i = 0; i < T * E; i++)
        x[i] = uniform(), dout[i] = uniform();
    attn_mha_args_init(&a);
    a.x = attn_bhtd(x, ATTN_F64, 1, 1, T, E);
    attn_sdpa_args attention = ATTN_SDPA_ARGS_INIT;
    attention.causal = ATTN_CAUSAL_TOP_LEFT;
    a.attention = &attention;
    g.dout = attn_bhtd(dout, ATTN_F64, 1, 1, T, E);
    assert_int_equal(attn_mha_packed(&a, w, b, ATTN_F64, E, H, NULL), ATTN_OK);
    assert_int_equal(attn_mha_packed_grads(&g, dw, db, ATTN_F64, E, H, NULL), ATTN_OK);
    assert_int_equal(attn_mha_backward(NULL, &a, &g, &e), ATTN_OK);
    for (int row = 0; row < 3 * E; row++) { /* element [row, 2] and the bias of row */
        describe_case("row %d", row);
        double *const at[2] = {&w[row * E + 2], &b[row]}, got[2] = {dw[row * E + 2], db[row]};
        for (int k = 0; k < 2; k++) {
            double out[T * E], side[2] = {0, 0}, was = *at[k];
            a.out = attn_bhtd(out, ATTN_F64, 1, 1, T, E);
            for (int s = 0; s < 2; s++) {
                *at[k] = was + (s ? -STEP : STEP);
                assert_int_equal(attn_mha_forward(NULL, &a, NULL), ATTN_OK);
                for (int i = 0; i < T * E; i++)
                    side[s] += out[i] * dout[i];
            }
            *at[k] = was;
            assert_near((side[0] - side[1]) / (2 * STEP), got[k], <, 1e-8);
        }
    }
    expect_error(attn_mha_packed_grads(&g, dw, db, ATTN_F64, E, 4, &e), &e, ATTN_ERR_SHAPE, "E",
                 "multiple of heads");
}

static void test_errors(void **state)
{
    (void)state;
    attn_error e = {0};
    const mha_dims n = plain_dims(ATTN_F32, DENSE);
    mha_case c;
    gradients g;
    failing_memory memory;
    test_state = 0xe;
    make_case(&c, &n);
    make_gradients(&g, &c, &n, true);
    attn_mha_grads bad = g.g;
#define WANT(status, argument, part)                                                               \
    expect_error(attn_mha_backward(NULL, &c.args, &bad, &e), &e, status, argument, part);          \
    bad = g.g
    expect_error(attn_mha_backward(NULL, &c.args, NULL, &e), &e, ATTN_ERR_ARGUMENT, "grads",
                 "NULL");
    bad.struct_size = 8;
    WANT(ATTN_ERR_ARGUMENT, "struct_size", "attn_mha_grads_init");
    bad.dout.shape[2] = 7;
    WANT(ATTN_ERR_SHAPE, "dout", "60, 30]");
    bad.dx.shape[3] = 5;
    WANT(ATTN_ERR_SHAPE, "dx", "[2, 1, 60, 24]");
    bad.dw_v.dtype = ATTN_F64;
    WANT(ATTN_ERR_DTYPE, "dw_v", "f64");
    bad.db_o.stride[3] = 0;
    WANT(ATTN_ERR_STRIDE, "db_o", "share memory");
    bad.dsource = g.g.dx;
    WANT(ATTN_ERR_ARGUMENT, "dsource", "source is not given");
    attn_context *ctx = make_failing_context(&memory);
    assert_int_equal(attn_mha_backward(ctx, &c.args, &g.g, &e), ATTN_ERR_MEMORY);
    attn_context_destroy(ctx);
    assert_int_equal(memory.live, 0);
    for (int k = 0; k < INPUTS; k++)
        expect_untouched(&g.of[k]);
    release_gradients(&g);
    release_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences), cmocka_unit_test(test_f32_against_f64),
        cmocka_unit_test(test_bits),        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
