/* Gradients of the linear layer and of the embedding agree with plain loops in double.
 *
 * labels: threads
 */
#include "nn_tensors.h"

/* --------------------------------------------------------------------------------------- Linear */

typedef struct layer {
    test_tensor dout, x, w, dx, dw, db;
} layer;

#define OF(t, d, n) ((t)->shape[d] == 1 ? 0 : (n))

/* The terms of one element of a gradient, added in double; `size` adds their magnitudes. */
static double naive(const layer *l, char of, const int64_t at[4], double *size)
{
    const attn_tensor *dout = &l->dout.t, *x = &l->x.t, *w = &l->w.t;
    const attn_tensor *to = of == 'x' ? &l->dx.t : of == 'w' ? &l->dw.t : &l->db.t;
    double sum = 0;
    *size = 0;
    FOR_ALL(dout, b, h, t, o)
    {
        const bool here = OF(to, 0, b) == at[0] && OF(to, 1, h) == at[1] &&
                          (of == 'x' ? t == at[2] : o == (of == 'w' ? at[2] : at[3]));
        if (!here)
            continue;
        double term = get(dout, b, h, t, o);
        if (of == 'x')
            term *= get(w, OF(w, 0, b), OF(w, 1, h), o, at[3]);
        if (of == 'w')
            term *= get(x, OF(x, 0, b), OF(x, 1, h), t, at[3]);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static void expect_gradient(const layer *l, char of, const test_tensor *got)
{
    const double u = got->t.dtype == ATTN_F64 ? 0x1p-52 : 0x1p-23;
    const int64_t *n = l->dout.t.shape;
    const double terms = (double)(n[0] * n[1] * n[2] + n[3]);
    FOR_ALL(&got->t, b, h, i, j)
    {
        double size;
        const double want = naive(l, of, (int64_t[]){b, h, i, j}, &size);
        const double off = fabs(get(&got->t, b, h, i, j) - want);
        const double tolerance = u * (terms + 2) * size;
        if (!(off <= tolerance))
            fail_msg("d%c[%d,%d,%d,%d] is %.17g, want %.17g (tolerance %g)", of, (int)b, (int)h,
                     (int)i, (int)j, get(&got->t, b, h, i, j), want, tolerance);
    }
    expect_gaps(got);
}

static layer random_layer(attn_dtype dtype, int64_t B, int64_t H, int64_t T, int64_t In,
                          int64_t Out)
{
    const int64_t xb = one_or(B), xh = one_or(H), wb = one_or(B), wh = one_or(H);
    layer l;
#define FORM (pick(2) ? ODD : DENSE)
    l.dout = random_tensor(dtype, FORM, B, H, T, Out);
    l.x = random_tensor(dtype, FORM, xb, xh, T, In);
    l.w = random_tensor(dtype, FORM, wb, wh, Out, In);
    l.dx = make_tensor(dtype, FORM, xb, xh, T, In);
    l.dw = make_tensor(dtype, FORM, wb, wh, Out, In);
    l.db = make_tensor(dtype, FORM, one_or(B), one_or(H), 1, Out);
#undef FORM
    return l;
}

static void release_layer(layer *l)
{
    test_tensor *all[] = {&l->dout, &l->x, &l->w, &l->dx, &l->dw, &l->db};
    for (size_t i = 0; i < COUNT(all); i++)
        release(all[i]);
}

static void random_case(attn_context *ctx)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 8, 17, 33};
    layer l =
        random_layer(pick(2) ? ATTN_F32 : ATTN_F64, pick(4), pick(4), sizes[pick(COUNT(sizes))],
                     sizes[pick(COUNT(sizes))], sizes[pick(COUNT(sizes))]);
    const int wanted = 1 + (int)pick(7);
    describe_case("%s, B=%d H=%d T=%d In=%d Out=%d, wanted %d", attn_dtype_name(l.x.t.dtype),
                  (int)l.dout.t.shape[0], (int)l.dout.t.shape[1], (int)l.dout.t.shape[2],
                  (int)l.x.t.shape[3], (int)l.dout.t.shape[3], wanted);
    attn_error err = {0};
    if (attn_linear_backward(ctx, &l.dout.t, wanted & 2 ? &l.x.t : NULL, wanted & 1 ? &l.w.t : NULL,
                             wanted & 1 ? &l.dx.t : NULL, wanted & 2 ? &l.dw.t : NULL,
                             wanted & 4 ? &l.db.t : NULL, &err))
        fail_msg("%s", err.message);
    if (wanted & 1)
        expect_gradient(&l, 'x', &l.dx);
    if (wanted & 2)
        expect_gradient(&l, 'w', &l.dw);
    if (wanted & 4)
        expect_gradient(&l, 'b', &l.db);
    release_layer(&l);
}

static void test_linear_random(void **state)
{
    (void)state;
    test_state = 0x11ea;
    for (int k = 0; attn_isa(k).name; k++) {
        if (!attn_isa(k).usable)
            continue;
        attn_context *ctx = make_context(2, attn_isa(k).name, NULL);
        for (int n = 0; n < 100; n++)
            random_case(ctx);
        attn_context_destroy(ctx);
    }
    for (int n = 0; n < 50; n++)
        random_case(NULL);
}

/* More columns and rows than the bias's gradient sums at a time. */
static void test_bias_of_many_columns(void **state)
{
    (void)state;
    test_state = 0xb1a5;
    for (int k = 0; k < 4; k++) {
        const attn_dtype dtype = k & 1 ? ATTN_F64 : ATTN_F32;
        test_tensor dout = random_tensor(dtype, k & 2 ? ODD : DENSE, 1, 1, 37, 1100);
        layer l = {.dout = dout, .db = make_tensor(dtype, DENSE, 1, 1, 1, 1100)};
        for (int threads = 1; threads <= 3; threads++) {
            describe_case("%s, %s, %d threads", attn_dtype_name(dtype), k & 2 ? "odd" : "dense",
                          threads);
            attn_context *ctx = make_context(threads, NULL, NULL);
            assert_int_equal(attn_linear_backward(ctx, &l.dout.t, NULL, NULL, NULL, NULL, &l.db.t,
                                                  NULL),
                             ATTN_OK);
            expect_gradient(&l, 'b', &l.db);
            attn_context_destroy(ctx);
        }
        release(&l.dout);
        release(&l.db);
    }
}

/* A weight that all of B shares, so that its gradient sums over B and T: in one piece where memory
 * is dense, through a copy elsewhere. The same bits, whatever the layout and the threads. */
static void test_linear_bits(void **state)
{
    (void)state;
    test_state = 0xb175;
    enum { B = 3, T = 200, IN = 70, OUT = 130 };
    static const int threads[] = {1, 2, 3, 7};
    test_tensor dout = random_tensor(ATTN_F32, DENSE, B, 1, T, OUT);
    test_tensor x = random_tensor(ATTN_F32, DENSE, B, 1, T, IN);
    test_tensor w = random_tensor(ATTN_F32, DENSE, 1, 1, OUT, IN);
    test_tensor want[3] = {make_tensor(ATTN_F32, DENSE, B, 1, T, IN),
                           make_tensor(ATTN_F32, DENSE, 1, 1, OUT, IN),
                           make_tensor(ATTN_F32, DENSE, 1, 1, 1, OUT)};
    assert_int_equal(attn_linear_backward(NULL, &dout.t, &x.t, &w.t, &want[0].t, &want[1].t,
                                          &want[2].t, NULL),
                     ATTN_OK);
    for (size_t k = 0; k < COUNT(threads); k++) {
        describe_case("%d threads", threads[k]);
        attn_context *ctx = make_context(threads[k], NULL, NULL);
        for (int n = 0; n < 4; n++) {
            const layout form = n ? ODD : DENSE;
            test_tensor in[3] = {copy_of(&dout.t, form), copy_of(&x.t, form), copy_of(&w.t, form)};
            test_tensor got[3];
            for (int i = 0; i < 3; i++)
                got[i] = copy_of(&want[i].t, form);
            for (int i = 0; i < 3; i++)
                FOR_ALL(&got[i].t, b, h, t, j)
            put(&got[i].t, b, h, t, j, 7);
            assert_int_equal(attn_linear_backward(ctx, &in[0].t, &in[1].t, &in[2].t, &got[0].t,
                                                  &got[1].t, &got[2].t, NULL),
                             ATTN_OK);
            for (int i = 0; i < 3; i++) {
                expect_same_bits(&got[i].t, &want[i].t, "linear");
                release(&in[i]);
                release(&got[i]);
            }
        }
        attn_context_destroy(ctx);
    }
    test_tensor *all[] = {&dout, &x, &w, &want[0], &want[1], &want[2]};
    for (size_t i = 0; i < COUNT(all); i++)
        release(all[i]);
}

/* ------------------------------------------------------------------------------------ Embedding */

static void test_embedding(void **state)
{
    (void)state;
    test_state = 0xe3b;
    for (int n = 0; n < 60; n++) {
        const attn_dtype dtype = pick(2) ? ATTN_F32 : ATTN_F64;
        const int64_t V = 1 + pick(6), E = pick(300), count = pick(40);
        int64_t ids[40];
        for (int64_t i = 0; i < count; i++)
            ids[i] = pick(V);
        test_tensor dout = random_tensor(dtype, pick(2) ? ODD : DENSE, 1, 1, count, E);
        test_tensor got = make_tensor(dtype, pick(2) ? ODD : DENSE, 1, 1, V, E);
        attn_context *ctx = make_context(1 + (int)pick(7), NULL, NULL);
        assert_int_equal(attn_embedding_backward(ctx, &dout.t, ids, count, &got.t, NULL), ATTN_OK);
        FOR_ALL(&got.t, b, h, v, j)
        {
            double want = 0; /* in order, rounded as the type rounds: the very bits */
            for (int64_t i = 0; i < count; i++)
                if (ids[i] == v)
                    want += get(&dout.t, 0, 0, i, j), want = dtype == ATTN_F32 ? (float)want : want;
            assert_number(get(&got.t, b, h, v, j), ==, want);
        }
        expect_gaps(&got);
        attn_context_destroy(ctx);
        release(&dout);
        release(&got);
    }
}

/* --------------------------------------------------------------------------------------- Errors */

static void test_errors(void **state)
{
    (void)state;
    attn_error e = {0};
    test_tensor dout = random_tensor(ATTN_F32, DENSE, 2, 1, 3, 5);
    test_tensor x = random_tensor(ATTN_F32, DENSE, 2, 1, 3, 4);
    test_tensor w = random_tensor(ATTN_F32, DENSE, 1, 1, 5, 4);
    test_tensor dx = make_tensor(ATTN_F32, DENSE, 2, 1, 3, 4);
    test_tensor dw = make_tensor(ATTN_F32, DENSE, 1, 1, 5, 4);
    test_tensor db = make_tensor(ATTN_F32, DENSE, 1, 1, 1, 5);
    attn_tensor twice = dx.t;
    twice.stride[0] = 0;
    const attn_tensor *D = &dout.t, *X = &x.t, *W = &w.t;
#define WANT(call, status, argument, part) expect_error(call, &e, status, argument, part)
#define BACKWARD(...) attn_linear_backward(NULL, __VA_ARGS__, &e)
    WANT(BACKWARD(NULL, X, W, &dx.t, NULL, NULL), ATTN_ERR_ARGUMENT, "dout", "NULL");
    WANT(BACKWARD(D, X, NULL, &dx.t, NULL, NULL), ATTN_ERR_ARGUMENT, "weight", "dx needs it");
    WANT(BACKWARD(D, NULL, W, NULL, &dw.t, NULL), ATTN_ERR_ARGUMENT, "x", "dweight needs it");
    WANT(BACKWARD(D, X, W, &twice, NULL, NULL), ATTN_ERR_STRIDE, "dx", "share memory");
    WANT(BACKWARD(D, X, W, &dw.t, NULL, NULL), ATTN_ERR_SHAPE, "dx", "[2 or 1, 1 or 1, 3, 4]");
    WANT(BACKWARD(D, X, X, &dx.t, NULL, NULL), ATTN_ERR_SHAPE, "weight", "5, 4]");
    WANT(BACKWARD(D, X, W, NULL, NULL, &dw.t), ATTN_ERR_SHAPE, "dbias", "1, 5]");
    test_tensor half = random_tensor(ATTN_F32, DENSE, 1, 1, 3, 4);
    WANT(BACKWARD(D, &half.t, W, &dx.t, &dw.t, NULL), ATTN_ERR_SHAPE, "dx", "[1, 1, 3, 4]");
    int64_t ids[3] = {0, 5, 1};
    test_tensor rows = random_tensor(ATTN_F32, DENSE, 1, 1, 3, 4);
    WANT(attn_embedding_backward(NULL, &rows.t, ids, 3, &dw.t, &e), ATTN_ERR_ARGUMENT, "ids",
         "ids[1] is 5");
    WANT(attn_embedding_backward(NULL, &rows.t, NULL, 3, &dw.t, &e), ATTN_ERR_ARGUMENT, "ids",
         "NULL");
    WANT(attn_embedding_backward(NULL, &rows.t, ids, 2, &dw.t, &e), ATTN_ERR_SHAPE, "dout",
         "2, 4]");
    failing_memory memory;
    attn_context *ctx = make_failing_context(&memory);
    WANT(attn_linear_backward(ctx, D, X, W, &dx.t, &dw.t, &db.t, &e), ATTN_ERR_MEMORY, "", "");
    attn_context_destroy(ctx);
    assert_int_equal(memory.live, 0);
    expect_untouched(&dx);
    expect_untouched(&dw);
    expect_untouched(&db);
    test_tensor *all[] = {&dout, &x, &w, &dx, &dw, &db, &half, &rows};
    for (size_t i = 0; i < COUNT(all); i++)
        release(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_random), cmocka_unit_test(test_bias_of_many_columns),
        cmocka_unit_test(test_linear_bits),   cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
