/* Multi-head attention agrees with plain loops in double and with PyTorch's values.
 *
 * labels: threads
 */
#include "mha_case.h"
#include <jansson.h>

/* --------------------------------------------------------------------------------------- values */

static void test_random_cases(void **state)
{
    (void)state;
    check_random_cases(2025, NULL);
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
    assert_number(count, <=, COUNT(want));
    read_golden(file, name, want, count);
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-6f))
            fail_msg("%s[%zu] is %.9g, want torch's %.9g (tolerance 1e-6)", name, i, (double)got[i],
                     (double)want[i]);
}

static void expect_golden_bits(const json_t *file, const char *name, const float *got, size_t count)
{
    float want[64];
    assert_number(count, <=, COUNT(want));
    read_golden(file, name, want, count);
    assert_same_array(got, want, count * sizeof *got);
}

/* torch.manual_seed(123); MultiHeadAttention(d_model=4, num_heads=2).eval() of the lesson: the
 * linear layers of the queries' heads come first, then keys', values', and the output's. */
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
    attn_sdpa_args attention = ATTN_SDPA_ARGS_INIT;
    attention.scores = &scores;
    attention.scores_stage = ATTN_STAGE_WEIGHTS;
    a.attention = &attention;
    a.w_o = attn_bhtd(w_o, ATTN_F32, 1, 1, 4, 4);
    a.b_o = attn_bhtd(b_o, ATTN_F32, 1, 1, 1, 4);
    a.out = attn_bhtd(out, ATTN_F32, 1, 1, 3, 4);
    assert_int_equal(attn_mha_forward(NULL, &a, NULL), ATTN_OK);
    expect_near(golden, "mha_weights", weights, 18);
    expect_near(golden, "mha_output", out, 12);
    json_decref(golden);
}

/* ----------------------------------------------------------------------------------------- bits */

static void test_bits(void **state)
{
    static const int threads[] = {1, 2, 3, 7};
    const mha_dims n = {2, 90, 90, 64, 64, 4, 2, 16, 24, 40, ATTN_F32, DENSE, false, true, true};
    mha_case c, other;
    (void)state;
    test_state = 31;
    make_case(&c, &n);
    c.attention.causal = ATTN_CAUSAL_TOP_LEFT;
    c.attention.dropout = 0.1;
    c.args.output_dropout = 0.1;
    assert_int_equal(attn_mha_forward(NULL, &c.args, NULL), ATTN_OK);
    for (size_t k = 0; k < COUNT(threads) + 1; k++) {
        describe_case("%d threads", k < COUNT(threads) ? threads[k] : 6);
        int runs = 0;
        attn_context *ctx = k < COUNT(threads) ? make_context(threads[k], NULL, NULL)
                                               : make_context(6, NULL, &runs);
        test_state = 31;
        make_case(&other, &n);
        other.attention.causal = ATTN_CAUSAL_TOP_LEFT;
        other.attention.dropout = 0.1;
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
        describe_case("%s, %s bias", n % 2 ? "f32" : "f64", n < 2 ? "with" : "without");
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
        packed.attention = NULL; /* all defaults */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_cases),
        cmocka_unit_test(test_lesson_module),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
