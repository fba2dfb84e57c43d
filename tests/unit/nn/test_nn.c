/* The linear layer and the embedding agree with plain loops in double.
 *
 * labels: threads
 */
#include "nn_tensors.h"

/* ------------------------------------------------------------------------------ linear: values */

/* want[b,h,i,o] = sum_d x[i,d] * w[o,d] + bias[o], in double; `size` is the sum of magnitudes,
 * which bounds the rounding of any order of summation. */
static double naive_linear(const attn_tensor *x, const attn_tensor *w, const attn_tensor *bias,
                           int64_t b, int64_t h, int64_t i, int64_t o, double *size)
{
#define OF(t, d, n) ((t)->shape[d] == 1 ? 0 : (n))
    double sum = bias ? get(bias, OF(bias, 0, b), OF(bias, 1, h), 0, o) : 0;
    *size = fabs(sum);
    for (int64_t d = 0; d < x->shape[3]; d++) {
        const double product =
            get(x, OF(x, 0, b), OF(x, 1, h), i, d) * get(w, OF(w, 0, b), OF(w, 1, h), o, d);
        sum += product;
        *size += fabs(product);
    }
#undef OF
    return sum;
}

static void expect_linear(const attn_tensor *x, const attn_tensor *w, const attn_tensor *bias,
                          const attn_tensor *out, const char *what)
{
    const double u = out->dtype == ATTN_F64 ? 0x1p-52 : 0x1p-24;
    FOR_ALL(out, b, h, i, o)
    {
        double size;
        const double want = naive_linear(x, w, bias, b, h, i, o, &size);
        const double got = get(out, b, h, i, o);
        const double tolerance = u * (double)(x->shape[3] + 2) * size;
        if (!(fabs(got - want) <= tolerance) || (got == 0 && signbit(got)))
            fail_msg("%s: [%d,%d,%d,%d] of T=%d In=%d Out=%d is %.17g, want %.17g (tolerance %g)",
                     what, (int)b, (int)h, (int)i, (int)o, (int)out->shape[2], (int)x->shape[3],
                     (int)out->shape[3], got, want, tolerance);
    }
}

static void random_case(attn_context *ctx, const char *what)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 63, 65, 130};
    static const int64_t columns[] = {0, 1, 2, 3, 5, 16, 17, 63, 64, 65, 127, 129, 255, 257, 300};
    const attn_dtype dtype = pick(2) ? ATTN_F32 : ATTN_F64;
    const layout lx = pick(2) ? ODD : DENSE, lw = pick(2) ? ODD : DENSE, lo = pick(2) ? ODD : DENSE;
    const int64_t B = pick(4), H = pick(4), T = sizes[pick(COUNT(sizes))];
    const int64_t In = sizes[pick(COUNT(sizes))], Out = columns[pick(COUNT(columns))];
    describe_case("%s, %s, B=%d H=%d T=%d In=%d Out=%d", what, attn_dtype_name(dtype), (int)B,
                  (int)H, (int)T, (int)In, (int)Out);
    test_tensor x = random_tensor(dtype, lx, one_or(B), one_or(H), T, In);
    test_tensor w = random_tensor(dtype, lw, one_or(B), one_or(H), Out, In);
    test_tensor bias = random_tensor(dtype, lw, one_or(B), one_or(H), 1, Out);
    test_tensor out = make_tensor(dtype, lo, B, H, T, Out);
    const attn_tensor *given = pick(2) ? &bias.t : NULL;
    attn_error err = {0};
    if (attn_linear_forward(ctx, &x.t, &w.t, given, &out.t, &err) != ATTN_OK)
        fail_msg("%s: %s", what, err.message);
    expect_linear(&x.t, &w.t, given, &out.t, what);
    expect_gaps(&out);
    release(&x);
    release(&w);
    release(&bias);
    release(&out);
}

static void test_linear_random(void **state)
{
    (void)state;
    test_state = 0x5eed;
    for (int k = 0; attn_isa(k).name; k++) {
        if (!attn_isa(k).usable)
            continue;
        attn_context *ctx = make_context(2, attn_isa(k).name, NULL);
        for (int n = 0; n < 150; n++)
            random_case(ctx, attn_isa(k).name);
        attn_context_destroy(ctx);
    }
    for (int n = 0; n < 50; n++)
        random_case(NULL, "no context");
}

/* x @ W with W [In,Out]: a weight with swapped strides. */
static void test_linear_transposed(void **state)
{
    static const float x[2][3] = {{1, 2, 3}, {4, 5, 6}};
    static const float W[3][2] = {{1, 10}, {2, 20}, {3, 30}};
    static const float want[2][2] = {{14, 140}, {32, 320}};
    float got[2][2];
    (void)state;
    attn_tensor weight = attn_matrix(W, ATTN_F32, 2, 3);
    weight.stride[2] = 1;
    weight.stride[3] = 2;
    const attn_tensor vx = attn_matrix(x, ATTN_F32, 2, 3), out = attn_matrix(got, ATTN_F32, 2, 2);
    assert_int_equal(attn_linear_forward(NULL, &vx, &weight, NULL, &out, NULL), ATTN_OK);
    assert_same_array(got[0], want[0], sizeof want);
}

/* -------------------------------------------------------------------------------- linear: bits */

/* One big product, as `ctx` computes it, into a new tensor of some layout. */
static test_tensor product_of(attn_context *ctx, const attn_tensor *x, const attn_tensor *w,
                              const attn_tensor *bias, layout form)
{
    test_tensor out =
        make_tensor(x->dtype, form, x->shape[0], w->shape[1], x->shape[2], w->shape[2]);
    assert_int_equal(attn_linear_forward(ctx, x, w, bias, &out.t, NULL), ATTN_OK);
    return out;
}

static void bits_of_threads(const attn_tensor *x, const attn_tensor *w, const attn_tensor *bias,
                            const attn_tensor *want)
{
    static const int threads[] = {1, 2, 3, 7, 16};
    int runs = 0;
    for (size_t n = 0; n < COUNT(threads) + 1; n++) {
        describe_case("%d threads", n < COUNT(threads) ? threads[n] : 5);
        const bool backwards = n == COUNT(threads);
        attn_context *ctx =
            make_context(backwards ? 5 : threads[n], NULL, backwards ? &runs : NULL);
        test_tensor got = product_of(ctx, x, w, bias, DENSE);
        expect_same_bits(&got.t, want, "threads");
        release(&got);
        attn_context_destroy(ctx);
    }
    assert_int_equal(runs, 1); /* else nothing was cut */
}

static void bits_of_layouts(const attn_tensor *x, const attn_tensor *w, const attn_tensor *bias,
                            const attn_tensor *want)
{
    for (int n = 0; n < 4; n++) {
        test_tensor x2 = copy_of(x, ODD), w2 = copy_of(w, ODD), b2 = copy_of(bias, ODD);
        test_tensor got = product_of(NULL, &x2.t, &w2.t, &b2.t, n % 2 ? ODD : DENSE);
        expect_same_bits(&got.t, want, "layouts");
        release(&x2);
        release(&w2);
        release(&b2);
        release(&got);
    }
}

/* One batch, one row, one column alone. */
static void bits_alone(const attn_tensor *x, const attn_tensor *w, const attn_tensor *bias,
                       const attn_tensor *want)
{
    attn_tensor x1 = *x, w1 = *w, b1 = *bias, want1 = *want;
    x1.data = at(x, 1, 0, 41, 0);
    x1.shape[0] = x1.shape[2] = 1;
    want1.data = at(want, 1, 0, 41, 0);
    want1.shape[0] = want1.shape[2] = 1;
    test_tensor row = product_of(NULL, &x1, w, bias, DENSE);
    expect_same_bits(&row.t, &want1, "one row alone");
    release(&row);

    w1.data = at(w, 0, 0, 77, 0);
    w1.shape[2] = 1;
    b1.data = at(bias, 0, 0, 0, 77);
    b1.shape[3] = 1;
    want1 = *want;
    want1.data = at(want, 0, 0, 0, 77);
    want1.shape[3] = 1;
    test_tensor column = product_of(NULL, x, &w1, &b1, DENSE);
    expect_same_bits(&column.t, &want1, "one column alone");
    release(&column);
}

static void test_linear_bits(void **state)
{
    (void)state;
    test_state = 77;
    for (int n = 0; n < 2; n++) {
        const attn_dtype dtype = n ? ATTN_F32 : ATTN_F64;
        test_tensor x = random_tensor(dtype, DENSE, 2, 1, 150, 67);
        test_tensor w = random_tensor(dtype, DENSE, 1, 2, 290, 67);
        test_tensor bias = random_tensor(dtype, DENSE, 1, 2, 1, 290);
        test_tensor want = product_of(NULL, &x.t, &w.t, &bias.t, DENSE);
        bits_of_threads(&x.t, &w.t, &bias.t, &want.t);
        bits_of_layouts(&x.t, &w.t, &bias.t, &want.t);
        bits_alone(&x.t, &w.t, &bias.t, &want.t);
        release(&x);
        release(&w);
        release(&bias);
        release(&want);
    }
}

/* The first n rows of x, as a call of their own. */
static void bits_of_first_rows(attn_context *ctx, const attn_tensor *x, const attn_tensor *w,
                               const attn_tensor *bias, const attn_tensor *want, int64_t n)
{
    attn_tensor x1 = *x, want1 = *want;
    x1.shape[2] = want1.shape[2] = n;
    test_tensor got = product_of(ctx, &x1, w, bias, DENSE);
    expect_same_bits(&got.t, &want1, "first rows");
    release(&got);
}

/* Each number of rows goes its own way through the micro-kernels; a few have a kernel of their
 * own. */
static void test_linear_rows(void **state)
{
    (void)state;
    test_state = 99;
    for (int k = 0; attn_isa(k).name; k++)
        for (int n = 0; n < 2 && attn_isa(k).usable; n++) {
            const attn_dtype dtype = n ? ATTN_F32 : ATTN_F64;
            attn_context *ctx = make_context(1, attn_isa(k).name, NULL);
            test_tensor x = random_tensor(dtype, DENSE, 1, 1, 40, 205);
            test_tensor w = random_tensor(dtype, DENSE, 1, 1, 150, 205);
            test_tensor bias = random_tensor(dtype, DENSE, 1, 1, 1, 150);
            test_tensor want = product_of(ctx, &x.t, &w.t, &bias.t, DENSE);
            expect_linear(&x.t, &w.t, &bias.t, &want.t, attn_isa(k).name);
            for (int64_t rows = 1; rows < 26; rows++)
                bits_of_first_rows(ctx, &x.t, &w.t, &bias.t, &want.t, rows);
            release(&x);
            release(&w);
            release(&bias);
            release(&want);
            attn_context_destroy(ctx);
        }
}

/* The first columns of a weight give the first columns of out. */
static void bits_of_first_columns(const attn_tensor *x, const attn_tensor *w,
                                  const attn_tensor *want, int64_t n)
{
    attn_tensor w1 = *w, want1 = *want;
    w1.shape[2] = want1.shape[3] = n;
    test_tensor got = product_of(NULL, x, &w1, NULL, DENSE);
    expect_same_bits(&got.t, &want1, "first columns");
    release(&got);
}

/* Rows long enough to be taken in blocks, between which the sums wait in out where out allows it;
 * as far apart as caches dislike; and more of them than one task takes. */
static void test_linear_large(void **state)
{
    (void)state;
    test_state = 6;
    for (int n = 0; n < 2; n++) {
        const attn_dtype dtype = n ? ATTN_F32 : ATTN_F64;
        const int64_t In = n ? 2300 : 1100;
        test_tensor x = random_tensor(dtype, DENSE, 1, 1, 35, 3072), wide = x;
        test_tensor w = random_tensor(dtype, DENSE, 1, 1, 130, In);
        wide.t.shape[3] = In; /* a part of longer rows */
        test_tensor want = product_of(NULL, &wide.t, &w.t, NULL, DENSE);
        expect_linear(&wide.t, &w.t, NULL, &want.t, "long rows");
        bits_of_first_columns(&wide.t, &w.t, &want.t, 128); /* whole panels: in blocks */
        bits_of_first_columns(&wide.t, &w.t, &want.t, 64);
        bits_of_first_columns(&wide.t, &w.t, &want.t, 1);
        bits_of_first_rows(NULL, &wide.t, &w.t, NULL, &want.t, 3);
        test_tensor close = copy_of(&wide.t, DENSE);
        test_tensor got = product_of(NULL, &close.t, &w.t, NULL, ODD);
        expect_same_bits(&got.t, &want.t, "rows without gaps");
        release(&x);
        release(&w);
        release(&want);
        release(&close);
        release(&got);

        x = random_tensor(dtype, DENSE, 1, 1, 1100, 70);
        w = random_tensor(dtype, DENSE, 1, 1, 40, 70);
        want = product_of(NULL, &x.t, &w.t, NULL, DENSE);
        expect_linear(&x.t, &w.t, NULL, &want.t, "many rows");
        bits_of_first_rows(NULL, &x.t, &w.t, NULL, &want.t, 517);
        release(&x);
        release(&w);
        release(&want);
    }
}

/* NaN and Inf stay in the rows and columns that they belong to. */
static void test_linear_special(void **state)
{
    (void)state;
    test_state = 5;
    test_tensor x = random_tensor(ATTN_F32, DENSE, 1, 1, 70, 9);
    test_tensor w = random_tensor(ATTN_F32, DENSE, 1, 1, 66, 9);
    test_tensor clean = product_of(NULL, &x.t, &w.t, NULL, DENSE);
    put(&x.t, 0, 0, 13, 4, (double)NAN);
    put(&w.t, 0, 0, 65, 8, (double)INFINITY);
    test_tensor got = product_of(NULL, &x.t, &w.t, NULL, DENSE);
    FOR_ALL(&got.t, b, h, i, o)
    {
        const double value = get(&got.t, b, h, i, o);
        if (i == 13)
            assert_nan(value);
        else if (o == 65)
            assert_true(isinf(value) || isnan(value));
        else
            assert_number(value, ==, get(&clean.t, b, h, i, o));
    }
    release(&x);
    release(&w);
    release(&clean);
    release(&got);
}

/* ------------------------------------------------------------------------------ linear: errors */

typedef struct linear_args {
    attn_tensor x, weight, bias, out;
} linear_args;

static void expect_linear_error(attn_context *ctx, const linear_args *a, attn_status status,
                                const char *argument, const char *part)
{
    attn_error err = {0};
    const attn_status got = attn_linear_forward(ctx, &a->x, &a->weight, &a->bias, &a->out, &err);
    expect_error(got, &err, status, argument, part);
    assert_int_equal(attn_linear_forward(ctx, &a->x, &a->weight, &a->bias, &a->out, NULL), status);
}

/* If memory fails, nothing is written, and the next call works. */
static void expect_linear_without_memory(const linear_args *good, const test_tensor *out)
{
    failing_memory memory;
    attn_context *ctx = make_failing_context(&memory);
    attn_error err = {0};
    memory.left = 0;
    const attn_status got =
        attn_linear_forward(ctx, &good->x, &good->weight, NULL, &good->out, &err);
    expect_error(got, &err, ATTN_ERR_MEMORY, "", "memory");
    expect_untouched(out);
    memory.left = 1;
    assert_int_equal(attn_linear_forward(ctx, &good->x, &good->weight, NULL, &good->out, NULL),
                     ATTN_OK);
    attn_context_destroy(ctx);
    assert_int_equal(memory.live, 0);
}

static void test_linear_errors(void **state)
{
    (void)state;
    test_tensor x = random_tensor(ATTN_F32, DENSE, 2, 3, 5, 4);
    test_tensor w = random_tensor(ATTN_F32, DENSE, 2, 1, 6, 4);
    test_tensor bias = random_tensor(ATTN_F32, DENSE, 1, 3, 1, 6);
    test_tensor out = make_tensor(ATTN_F32, DENSE, 2, 3, 5, 6);
    const linear_args good = {x.t, w.t, bias.t, out.t};
    linear_args a;
#define REFUSE(change, status, argument, part)                                                     \
    do {                                                                                           \
        a = good;                                                                                  \
        change;                                                                                    \
        expect_linear_error(NULL, &a, status, argument, part);                                     \
    } while (0)
    REFUSE(a.weight.shape[3] = 3, ATTN_ERR_SHAPE, "weight", "must be [2 or 1, 3 or 1, 6, 4]");
    REFUSE(a.weight.shape[2] = 5, ATTN_ERR_SHAPE, "weight", "[2, 1, 5, 4]");
    REFUSE(a.x.shape[0] = 0, ATTN_ERR_SHAPE, "x", "must be [2 or 1");
    REFUSE(a.x.shape[1] = 2, ATTN_ERR_SHAPE, "x", "3 or 1");
    REFUSE(a.x.shape[2] = 4, ATTN_ERR_SHAPE, "x", "5, 4]");
    REFUSE(a.x.shape[3] = 3, ATTN_ERR_SHAPE, "weight", "6, 3]");
    REFUSE(a.bias.shape[3] = 5, ATTN_ERR_SHAPE, "bias", "1, 6]");
    REFUSE(a.bias.shape[1] = 2, ATTN_ERR_SHAPE, "bias", "3 or 1");
    REFUSE(a.bias.shape[2] = 5; a.bias.stride[2] = 0, ATTN_ERR_SHAPE, "bias", "1, 6]");
    REFUSE(a.out.shape[2] = -1, ATTN_ERR_SHAPE, "out", "-1");
    REFUSE(a.x.dtype = ATTN_BF16, ATTN_ERR_DTYPE, "x", "bf16");
    REFUSE(a.weight.dtype = ATTN_F16, ATTN_ERR_DTYPE, "weight", "f32 and f64");
    REFUSE(a.bias.dtype = ATTN_I64, ATTN_ERR_DTYPE, "bias", "i64");
    REFUSE(a.out.dtype = ATTN_F64, ATTN_ERR_DTYPE, "out", "x is f32");
    REFUSE(a.out.dtype = (attn_dtype)99, ATTN_ERR_DTYPE, "out", "99");
    REFUSE(a.out.stride[2] = 5, ATTN_ERR_STRIDE, "out", "stride");
    REFUSE(a.out.stride[0] = 0, ATTN_ERR_STRIDE, "out", "stride");
    REFUSE(a.x.data = NULL, ATTN_ERR_ARGUMENT, "x", "NULL");
    REFUSE(a.out.data = NULL, ATTN_ERR_ARGUMENT, "out", "NULL");
    REFUSE(a.weight.stride[2] = INT64_MAX / 2, ATTN_ERR_LIMIT, "weight", "address");
    REFUSE(a.x.shape[3] = INT64_C(1) << 58, ATTN_ERR_LIMIT, "x", "at most 2^56");
    /* a row that repeats one number 2^56 times has an address, but no tile of 40 has */
    REFUSE(a.x = a.weight = attn_bhtd(a.x.data, ATTN_F32, 1, 1, 1, INT64_C(1) << 56);
           a.x.shape[2] = 40; a.weight.shape[2] = 6; a.bias.shape[1] = 1;
           memset(a.x.stride, 0, sizeof a.x.stride);
           memset(a.weight.stride, 0, sizeof a.weight.stride);
           a.out = attn_matrix(a.out.data, ATTN_F32, 40, 6), ATTN_ERR_LIMIT, "x",
           "rows of 72057594037927936");
    expect_untouched(&out);
    expect_linear_without_memory(&good, &out);
    release(&x);
    release(&w);
    release(&bias);
    release(&out);
}

/* ----------------------------------------------------------------------------------- embedding */

static void test_embedding(void **state)
{
    static const int64_t ids[] = {3, 0, 6, 6, 1};
    (void)state;
    for (int n = 0; n < 40; n++) {
        const attn_dtype dtype = n % 2 ? ATTN_F32 : ATTN_F64;
        const int64_t count = pick(6), E = pick(9);
        describe_case("round %d: %s, %d rows of %d", n, attn_dtype_name(dtype), (int)count, (int)E);
        test_tensor table = random_tensor(dtype, n % 3 ? ODD : DENSE, 1, 1, 7, E);
        test_tensor out = make_tensor(dtype, n % 5 ? ODD : DENSE, 1, 1, count, E);
        assert_int_equal(attn_embedding_forward(NULL, &table.t, ids, count, &out.t, NULL), ATTN_OK);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < E; j++)
                assert_number(get(&out.t, 0, 0, i, j), ==, get(&table.t, 0, 0, ids[i], j));
        expect_gaps(&out);
        release(&table);
        release(&out);
    }
    const attn_tensor table = attn_matrix(NULL, ATTN_F32, 0, 4),
                      out = attn_matrix(NULL, ATTN_F32, 0, 4);
    assert_int_equal(attn_embedding_forward(NULL, &table, NULL, 0, &out, NULL), ATTN_OK);
}

static void test_embedding_errors(void **state)
{
    static const int64_t ids[] = {0, 6, 7}, negative[] = {-1, 0, 0};
    (void)state;
    test_tensor table = random_tensor(ATTN_F32, DENSE, 1, 1, 7, 4);
    test_tensor out = make_tensor(ATTN_F32, DENSE, 1, 1, 3, 4);
    attn_tensor t, o;
    attn_error err;
#define REFUSE_IDS(change, ids, count, status, argument, part)                                     \
    do {                                                                                           \
        t = table.t;                                                                               \
        o = out.t;                                                                                 \
        change;                                                                                    \
        memset(&err, 0, sizeof err);                                                               \
        const attn_status got = attn_embedding_forward(NULL, &t, ids, count, &o, &err);            \
        expect_error(got, &err, status, argument, part);                                           \
        expect_untouched(&out);                                                                    \
    } while (0)
    REFUSE_IDS((void)0, ids, 3, ATTN_ERR_ARGUMENT, "ids",
               "[2] is 7; it must be at least 0 and less "
               "than 7");
    REFUSE_IDS((void)0, negative, 3, ATTN_ERR_ARGUMENT, "ids", "[0] is -1");
    REFUSE_IDS((void)0, NULL, 3, ATTN_ERR_ARGUMENT, "ids", "NULL");
    REFUSE_IDS((void)0, ids, -1, ATTN_ERR_ARGUMENT, "count", "-1");
    REFUSE_IDS((void)0, ids, 2, ATTN_ERR_SHAPE, "out", "must be [1, 1, 2, 4]");
    REFUSE_IDS(o.shape[3] = 3, ids, 3, ATTN_ERR_SHAPE, "out", "must be [1, 1, 3, 4]");
    REFUSE_IDS(t.shape[1] = 2; t.stride[1] = 0, ids, 3, ATTN_ERR_SHAPE, "table", "[1, 1, 7, 4]");
    REFUSE_IDS(t.dtype = ATTN_F16, ids, 3, ATTN_ERR_DTYPE, "table", "f16");
    REFUSE_IDS(o.dtype = ATTN_F64, ids, 1, ATTN_ERR_DTYPE, "out", "table is f32");
    REFUSE_IDS(o.stride[2] = 1, ids, 3, ATTN_ERR_STRIDE, "out", "stride");
    REFUSE_IDS(t.data = NULL, ids, 3, ATTN_ERR_ARGUMENT, "table", "NULL");
    release(&table);
    release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_random),    cmocka_unit_test(test_linear_transposed),
        cmocka_unit_test(test_linear_bits),      cmocka_unit_test(test_linear_special),
        cmocka_unit_test(test_linear_rows),      cmocka_unit_test(test_linear_large),
        cmocka_unit_test(test_linear_errors),    cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_embedding_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
