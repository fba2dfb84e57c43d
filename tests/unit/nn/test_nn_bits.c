/* Modules have the same bits for any number of threads and any strides.
 *
 * labels: threads
 *
 * Tests float and double, on every instruction set. */
#include "nn_tensors.h"

enum { T = 300, IN = 70, OUT = 90 };

/* What the modules read, and what they write. */
enum { X, DOUT, WEIGHT, BIAS, SCALE, INPUTS };
enum {
    LINEAR,
    LINEAR_DX,
    LINEAR_DW,
    LINEAR_DB,
    NORM,
    NORM_DX,
    NORM_DW,
    NORM_DB,
    GELU,
    GELU_DX,
    ENTROPY_DX,
    ROWS,
    ROWS_DW,
    RESULTS
};
static const char *const names[RESULTS] = {"linear",          "linear dx",  "linear dweight",
                                           "linear dbias",    "norm",       "norm dx",
                                           "norm dweight",    "norm dbias", "gelu",
                                           "gelu dx",         "entropy dx", "embedding",
                                           "embedding dtable"};
static const int64_t sizes[RESULTS][2] = {{T, OUT}, {T, IN}, {OUT, IN}, {1, OUT}, {T, IN},
                                          {T, IN},  {1, IN}, {1, IN},   {T, IN},  {T, IN},
                                          {T, IN},  {T, IN}, {OUT, IN}};

static void make_inputs(test_tensor in[INPUTS], attn_dtype dtype)
{
    in[X] = random_tensor(dtype, DENSE, 1, 1, T, IN);
    in[DOUT] = random_tensor(dtype, DENSE, 1, 1, T, OUT);
    in[WEIGHT] = random_tensor(dtype, DENSE, 1, 1, OUT, IN);
    in[BIAS] = random_tensor(dtype, DENSE, 1, 1, 1, OUT);
    in[SCALE] = random_tensor(dtype, DENSE, 1, 1, 1, IN);
}

/* All modules, from copies of `in` into new tensors of `form`; the loss too. */
static double run(attn_context *ctx, const test_tensor in[INPUTS], layout form,
                  test_tensor got[RESULTS])
{
    test_tensor x[INPUTS];
    const attn_tensor *r[RESULTS];
    int64_t ids[T], targets[T];
    double loss = 0;
    attn_error e;
    for (int i = 0; i < INPUTS; i++)
        x[i] = copy_of(&in[i].t, form);
    for (int i = 0; i < RESULTS; i++) {
        got[i] = make_tensor(in[X].t.dtype, form, 1, 1, sizes[i][0], sizes[i][1]);
        r[i] = &got[i].t;
    }
    for (int64_t i = 0; i < T; i++)
        ids[i] = i * 7 % OUT, targets[i] = i % 5 ? i * 3 % IN : -100;
    const attn_tensor *a = &x[X].t, *d = &x[DOUT].t, *w = &x[WEIGHT].t, *s = &x[SCALE].t;
    if (attn_linear_forward(ctx, a, w, &x[BIAS].t, r[LINEAR], &e) ||
        attn_linear_backward(ctx, d, a, w, r[LINEAR_DX], r[LINEAR_DW], r[LINEAR_DB], &e) ||
        attn_layer_norm_forward(ctx, a, s, s, 1e-5, r[NORM], &e) ||
        attn_layer_norm_backward(ctx, r[NORM], a, s, 1e-5, r[NORM_DX], r[NORM_DW], r[NORM_DB],
                                 &e) ||
        attn_gelu_forward(ctx, a, r[GELU], &e) ||
        attn_gelu_backward(ctx, r[NORM], a, r[GELU_DX], &e) ||
        attn_cross_entropy_forward(ctx, a, targets, -100, &loss, &e) ||
        attn_cross_entropy_backward(ctx, 0.7, a, targets, -100, r[ENTROPY_DX], &e) ||
        attn_embedding_forward(ctx, w, ids, T, r[ROWS], &e) ||
        attn_embedding_backward(ctx, a, ids, T, r[ROWS_DW], &e))
        fail_msg("%s", e.message);
    for (int i = 0; i < INPUTS; i++)
        release(&x[i]);
    return loss;
}

/* As by one thread from and into dense memory. */
static void expect_bits(const char *isa, attn_dtype dtype, const int *threads, size_t counts,
                        layout form, int repeats)
{
    test_tensor in[INPUTS], want[RESULTS], got[RESULTS];
    make_inputs(in, dtype);
    attn_context *one = make_context(1, isa, NULL);
    const double loss = run(one, in, DENSE, want);
    for (size_t t = 0; t < counts; t++) {
        attn_context *ctx = make_context(threads[t], isa, NULL);
        for (int n = 0; n < repeats; n++) {
            assert_number(run(ctx, in, form, got), ==, loss);
            for (int i = 0; i < RESULTS; i++) {
                expect_same_bits(&got[i].t, &want[i].t, names[i]);
                expect_gaps(&got[i]);
                release(&got[i]);
            }
        }
        attn_context_destroy(ctx);
    }
    attn_context_destroy(one);
    for (int i = 0; i < RESULTS; i++)
        release(&want[i]);
    for (int i = 0; i < INPUTS; i++)
        release(&in[i]);
}

static void on_every_set(const int *threads, size_t counts, layout form, int repeats)
{
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int wide = 0; attn_isa(isa).usable && wide < 2; wide++)
            expect_bits(attn_isa(isa).name, wide ? ATTN_F64 : ATTN_F32, threads, counts, form,
                        repeats);
}

static void test_threads(void **state)
{
    (void)state;
    static const int threads[] = {2, 3, 7, 16};
    test_state = 0x7423;
    on_every_set(threads, COUNT(threads), DENSE, 2);
}

static void test_strides(void **state)
{
    (void)state;
    static const int threads[] = {1, 3};
    test_state = 0x57c1;
    on_every_set(threads, COUNT(threads), ODD, 8);
}

/* dweight and dbias do not depend on whether dx is wanted, also if the sums of a row overflow a
 * float, or if a row has a NaN. */
static void test_layer_norm_without_dx(void **state)
{
    enum { ROWS_OF_16 = 16, E = 64 };
    (void)state;
    test_state = 0x1d;
    for (int isa = 0; attn_isa(isa).name; isa++)
        for (int kind = 0; attn_isa(isa).usable && kind < 3; kind++) {
            test_tensor x = random_tensor(ATTN_F32, DENSE, 1, 1, ROWS_OF_16, E);
            test_tensor dout = random_tensor(ATTN_F32, DENSE, 1, 1, ROWS_OF_16, E), got[5];
            for (int c = 0; c < E && kind == 1; c++)
                put(&dout.t, 0, 0, 3, c, 3e38);
            if (kind == 2)
                put(&dout.t, 0, 0, 3, 5, (double)NAN);
            for (int i = 0; i < 5; i++)
                got[i] = make_tensor(ATTN_F32, DENSE, 1, 1, i ? 1 : ROWS_OF_16, E);
            attn_context *ctx = make_context(1, attn_isa(isa).name, NULL);
            for (int i = 0; i < 2; i++)
                assert_int_equal(attn_layer_norm_backward(ctx, &dout.t, &x.t, NULL, 1e-5,
                                                          i ? NULL : &got[0].t, &got[1 + 2 * i].t,
                                                          &got[2 + 2 * i].t, NULL),
                                 ATTN_OK);
            describe_case("%s, kind %d", attn_isa(isa).name, kind);
            expect_same_bits(&got[1].t, &got[3].t, "dweight");
            expect_same_bits(&got[2].t, &got[4].t, "dbias");
            attn_context_destroy(ctx);
            release(&x), release(&dout);
            for (int i = 0; i < 5; i++)
                release(&got[i]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_layer_norm_without_dx),
        cmocka_unit_test(test_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
