/* Random numbers and dropout masks are those of PyTorch and of Philox4x32-10.
 *
 * The expected values come from PyTorch, from the published vectors of Philox, and from a separate
 * program. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <jansson.h>

#include "attn.h"
#include "core/internal.h"
#include "support/test.h"

#define COUNT(x) (sizeof(x) / sizeof *(x))

static const uint64_t seeds[] = {0, 1, 123, 789, 2147483647, 4294967301u};

/* --------------------------------------------------------------------------- torch's stream */

typedef void fill_fn(attn_rng *rng, float *x);

static void fill_rand(attn_rng *rng, float *x) { attn_rng_rand(rng, x, 40); }
static void fill_randn_7(attn_rng *rng, float *x) { attn_rng_randn(rng, x, 7); }
static void fill_randn_16(attn_rng *rng, float *x) { attn_rng_randn(rng, x, 16); }
static void fill_randn_50(attn_rng *rng, float *x) { attn_rng_randn(rng, x, 50); }
static void fill_embedding(attn_rng *rng, float *x) { attn_rng_randn(rng, x, 6 * 16); }
static void fill_linear(attn_rng *rng, float *x) { attn_rng_linear(rng, x, x + 15, 5, 3); }
static void fill_mixed(attn_rng *rng, float *x)
{
    attn_rng_randn(rng, x, 5);
    attn_rng_randn(rng, x + 5, 20);
    attn_rng_rand(rng, x + 25, 3);
}

/* bound 0: to the bit */
static void expect_list(const json_t *want, const float *got, double bound, const char *what)
{
    size_t i;
    json_t *value;
    assert_true(json_is_array(want));
    assert_number(json_array_size(want), >, 0);
    json_array_foreach(want, i, value)
    {
        const double x = json_real_value(value);
        if (!(fabs((double)got[i] - x) <= bound))
            fail_msg("%s[%zu] is %.9g, want torch's %.9g (tolerance %g)", what, i, (double)got[i],
                     x, bound);
    }
}

static void test_goldens(void **state)
{
    static const struct {
        const char *name;
        fill_fn *fill;
        double bound;
        size_t count;
    } rows[] = {
        {"rand", fill_rand, 0, 40},
        {"randn_7", fill_randn_7, 2.4e-7, 7},
        {"randn_16", fill_randn_16, 2.4e-7, 16},
        {"randn_50", fill_randn_50, 2.4e-7, 50},
        {"embedding_6_16", fill_embedding, 2.4e-7, 96},
        {"mixed", fill_mixed, 2.4e-7, 28},
        {"linear_5_3", fill_linear, 0, 18},
    };
    (void)state;
    json_error_t error;
    json_t *golden = json_load_file(ATTN_TEST_DATA "/torch_rng.json", 0, &error);
    if (!golden)
        fail_msg("torch_rng.json: %s", error.text);
    for (size_t s = 0; s < COUNT(seeds); s++)
        for (size_t r = 0; r < COUNT(rows); r++) {
            char key[64];
            float x[96];
            attn_rng rng;
            snprintf(key, sizeof key, "%s_%llu", rows[r].name, (unsigned long long)seeds[s]);
            attn_rng_seed(&rng, seeds[s]);
            rows[r].fill(&rng, x);
            const json_t *want = json_object_get(golden, key);
            if (rows[r].fill == fill_linear) {
                expect_list(json_object_get(want, "weight"), x, 0, key);
                expect_list(json_object_get(want, "bias"), x + 15, 0, key);
            } else {
                assert_int_equal(json_array_size(want), rows[r].count);
                expect_list(want, x, rows[r].bound, key);
            }
        }
    json_decref(golden);
}

/* torch.manual_seed(7); torch.randn(n)[i], PyTorch 2.13: sizes on both sides of 16 and its
 * multiples */
static void test_randn_sizes(void **state)
{
    static const struct {
        size_t n, i;
        float value;
    } rows[] = {
        {15, 0, -0.146795094f},    {15, 3, -1.114344f},      {15, 7, 1.23238575f},
        {15, 14, 1.39545083f},     {17, 0, -0.820134521f},   {17, 1, -0.324566633f},
        {17, 7, -0.724510729f},    {17, 8, -0.848908603f},   {17, 16, -0.866701603f},
        {31, 0, -0.820134521f},    {31, 7, -0.893655419f},   {31, 15, 0.503563881f},
        {31, 30, 0.501121461f},    {32, 0, -0.820134521f},   {32, 7, -0.893655419f},
        {32, 16, -1.58266461f},    {32, 31, -1.35976899f},   {33, 0, -0.820134521f},
        {33, 7, -0.893655419f},    {33, 16, -1.58266461f},   {33, 17, -0.0234779324f},
        {33, 32, -1.6370213f},     {1000, 0, -0.820134521f}, {1000, 7, -0.893655419f},
        {1000, 500, 0.681514263f}, {1000, 984, 2.13946128f}, {1000, 999, -0.848775506f},
    };
    (void)state;
    for (size_t r = 0; r < COUNT(rows); r++) {
        static float x[1000];
        attn_rng rng;
        attn_rng_seed(&rng, 7);
        attn_rng_randn(&rng, x, rows[r].n);
        if (!(fabsf(x[rows[r].i] - rows[r].value) <= 5e-7f))
            fail_msg("randn(%zu)[%zu] is %.9g, want torch's %.9g", rows[r].n, rows[r].i,
                     (double)x[rows[r].i], (double)rows[r].value);
    }
}

/* torch.manual_seed(11), then rand(3), randn(3), randn(20), randn(2), uniform_(-7.1, 100.3) of 4
 * and two of randint(0, 2**24): the first randn leaves half a pair that the third takes. PyTorch
 * 2.13. */
static void test_mixed_calls(void **state)
{
    static const float rand3[] = {0.149041712f, 0.486553133f, 0.985661507f};
    static const float randn3[] = {-0.723560989f, 1.03349924f, 0.993628085f};
    static const float uniform4[] = {69.9154053f, 42.0719414f, 31.2028027f, 44.7859001f};
    float x[20];
    attn_rng rng;
    (void)state;
    attn_rng_seed(&rng, 11);
    attn_rng_rand(&rng, x, 3);
    assert_same_array(x, rand3, sizeof rand3);
    attn_rng_randn(&rng, x, 3);
    for (int i = 0; i < 3; i++)
        assert_near(x[i], randn3[i], <=, 2.4e-7f);
    attn_rng_randn(&rng, x, 20);
    assert_near(x[0], 0.167614222f, <=, 2.4e-7f);
    assert_near(x[9], 0.496174872f, <=, 2.4e-7f);
    assert_near(x[19], -0.683797359f, <=, 2.4e-7f);
    attn_rng_randn(&rng, x, 2);
    assert_near(x[0], 0.173430413f, <=, 2.4e-7f);
    assert_near(x[1], 0.429481238f, <=, 2.4e-7f);
    attn_rng_uniform(&rng, x, 4, -7.1, 100.3);
    assert_same_array(x, uniform4, sizeof uniform4);
    assert_int_equal(attn_rng_u32(&rng) % (1u << 24), 11327927);
    assert_int_equal(attn_rng_u32(&rng) % (1u << 24), 4235599);
}

/* torch.manual_seed(3); nn.Linear(10, 4), whose bits show that torch rounds x * (b - a) + a
 * once. */
static void test_linear_bits(void **state)
{
    static const float bias4[] = {0.0521283001f, -0.0453340784f, -0.0358555466f, -0.205729663f};
    float weight[40], bias[4], again[41];
    attn_rng rng;
    (void)state;
    attn_rng_seed(&rng, 3);
    attn_rng_linear(&rng, weight, bias, 10, 4);
    assert_number(weight[0], ==, -0.31353128f);
    assert_number(weight[1], ==, -0.249459833f);
    assert_number(weight[2], ==, -0.135445103f);
    assert_number(weight[39], ==, 0.00608347496f);
    assert_same_array(bias, bias4, sizeof bias4);

    /* without a bias, none is drawn */
    attn_rng_seed(&rng, 3);
    attn_rng_linear(&rng, again, NULL, 10, 4);
    assert_same_array(again, weight, sizeof weight);
    const uint32_t next = attn_rng_u32(&rng);
    attn_rng_seed(&rng, 3);
    attn_rng_rand(&rng, again, 40);
    assert_int_equal(next, attn_rng_u32(&rng));

    /* no inputs: torch draws the bias between -0 and 0 */
    attn_rng_linear(&rng, again, bias, 0, 4);
    for (int i = 0; i < 4; i++)
        assert_number(bias[i], ==, 0);
    attn_rng_linear(&rng, again, bias, 5, 0);
}

/* The first and the ten thousandth word of seed 5489: the C++ standard, [rand.predef]. */
static void test_mersenne_twister(void **state)
{
    attn_rng rng, copy;
    (void)state;
    attn_rng_seed(&rng, 5489);
    assert_int_equal(attn_rng_u32(&rng), 3499211612u);
    for (int i = 2; i < 10000; i++)
        attn_rng_u32(&rng);
    copy = rng; /* a copy forks the stream */
    assert_int_equal(attn_rng_u32(&rng), 4123659995u);
    assert_int_equal(attn_rng_u32(&copy), 4123659995u);

    /* a seed's high word does not matter; seeding forgets the half pair */
    float a[3], b[3];
    attn_rng_seed(&rng, 5);
    attn_rng_randn(&rng, a, 3);
    attn_rng_seed(&rng, (UINT64_C(77) << 32) + 5);
    attn_rng_randn(&rng, b, 3);
    assert_same_array(a, b, sizeof a);
    attn_rng_randn(&rng, NULL, 0);
    attn_rng_rand(&rng, NULL, 0);
    attn_rng_randn(&rng, b, 1);
    assert_false(b[0] == a[0]);
}

/* ----------------------------------------------------------------------------------- Philox */

/* Random123's known answers for philox4x32, 10 rounds. */
static void test_philox(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t r = 0; r < COUNT(rows); r++) {
        describe_case("row %zu of rows", r);
        uint32_t got[4];
        attni_philox4x32(rows[r].counter, rows[r].key, got);
        assert_same_array(got, rows[r].want, sizeof got);
    }
}

static void test_threshold(void **state)
{
    (void)state;
    assert_int_equal(attni_dropout_threshold(0), 0);
    assert_int_equal(attni_dropout_threshold(0.5), 32768);
    assert_int_equal(attni_dropout_threshold(0.3), 19661);               /* 19660.8 */
    assert_int_equal(attni_dropout_threshold(0x1.fffffffffffffp-18), 0); /* just under a half */
    assert_int_equal(attni_dropout_threshold(0x1p-17), 1);
    assert_int_equal(attni_dropout_threshold(0x1.fffffffffffffp-1), 65536);
}

/* seed 0x0123456789abcdef, p = 0.3, [1, 2, 3, 19]: written by a separate program from the
 * definition */
static void test_mask(void **state)
{
    static const char *const want[2][3] = {
        {"0111101101010111011", "0101111100011011101", "1111111101011111100"},
        {"1111111011111110110", "0001111101011101110", "1100111111011101011"},
    };
    const uint64_t seed = UINT64_C(0x0123456789abcdef);
    const uint32_t threshold = attni_dropout_threshold(0.3);
    uint8_t mask[1 * 2 * 3 * 19], strided[2 * 3 * 40];
    (void)state;
    attn_tensor out = attn_bhtd(mask, ATTN_BOOL, 1, 2, 3, 19);
    assert_int_equal(attn_dropout_mask(seed, 0.3, &out, NULL), ATTN_OK);
    /* the same as [B, H, T, S] = [2, 1, 3, 19]: only b*H + h counts; seen backwards and with
     * gaps */
    attn_tensor odd = {strided + 2 * 3 * 40 - 1, ATTN_BOOL, {2, 1, 3, 19}, {-120, 7, -40, -2}};
    memset(strided, 7, sizeof strided);
    assert_int_equal(attn_dropout_mask(seed, 0.3, &odd, NULL), ATTN_OK);
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 19; j++) {
                const int keep = want[h][i][j] - '0';
                assert_int_equal(mask[(h * 3 + i) * 19 + j], keep);
                assert_int_equal(strided[239 - h * 120 - i * 40 - j * 2], keep);
                assert_int_equal(strided[238 - h * 120 - i * 40 - j * 2], 7);
                assert_int_equal(attni_dropout_keep(seed, threshold, (uint64_t)h, (uint64_t)i,
                                                    (uint64_t)j),
                                 keep);
            }
}

/* p = 0 keeps all, p just under 1 keeps none, and between the share is right within 5
 * deviations. */
static void test_mask_share(void **state)
{
    enum { N = 64 * 257 };
    static const double ps[] = {0, 0.1, 0.5, 0.9, 0x1.fffffffffffffp-1};
    static uint8_t mask[N];
    (void)state;
    for (size_t r = 0; r < COUNT(ps); r++) {
        const double p = ps[r];
        int kept = 0;
        attn_tensor out = attn_bhtd(mask, ATTN_BOOL, 2, 4, 8, 257);
        assert_int_equal(attn_dropout_mask(99, p, &out, NULL), ATTN_OK);
        for (int i = 0; i < N; i++)
            kept += mask[i];
        if (!(fabs(kept - (1 - p) * N) <= 5 * sqrt(p * (1 - p) * N)))
            fail_msg("p = %g kept %d of %d", p, kept, N);
    }
}

static void expect_refusal(double p, attn_tensor out, attn_status status, const char *argument,
                           const char *part)
{
    attn_error err = {0};
    assert_int_equal(attn_dropout_mask(1, p, &out, &err), status);
    assert_int_equal(attn_dropout_mask(1, p, &out, NULL), status);
    assert_int_equal(err.status, status);
    assert_string_equal(err.argument, argument);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
}

static void test_mask_refusals(void **state)
{
    uint8_t mask[6];
    const int64_t huge = INT64_C(1) << 32;
    (void)state;
    memset(mask, 9, sizeof mask);
    const attn_tensor good = attn_bhtd(mask, ATTN_BOOL, 1, 1, 2, 3);
    const double bad[] = {NAN, -0.1, 1, 1.5, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_refusal(bad[i], good, ATTN_ERR_ARGUMENT, "p", "less than 1");

    attn_tensor out = good;
    out.dtype = ATTN_F32;
    out.data = NULL;
    out.shape[3] = 0;
    expect_refusal(0.5, out, ATTN_ERR_DTYPE, "out", "f32");
    out = good;
    out.stride[3] = 0;
    expect_refusal(0.5, out, ATTN_ERR_STRIDE, "out", "stride");
    out = good;
    out.shape[1] = -1;
    expect_refusal(0.5, out, ATTN_ERR_SHAPE, "out", "-1");
    out = good;
    out.data = NULL;
    expect_refusal(0.5, out, ATTN_ERR_ARGUMENT, "out", "NULL");

    expect_refusal(0.5, attn_bhtd(NULL, ATTN_BOOL, 1, 1, huge, 0), ATTN_ERR_LIMIT, "out", "2^32");
    expect_refusal(0.5, attn_bhtd(NULL, ATTN_BOOL, 1, 1, 0, 8 * huge), ATTN_ERR_LIMIT, "out",
                   "2^32");
    expect_refusal(0.5, attn_bhtd(NULL, ATTN_BOOL, 65536, 65536, 0, 1), ATTN_ERR_LIMIT, "out",
                   "2^32");
    out = attn_bhtd(NULL, ATTN_BOOL, INT64_C(1) << 56, INT64_C(1) << 56, 0, 1);
    expect_refusal(0.5, out, ATTN_ERR_LIMIT, "out", "2^32");
    for (size_t i = 0; i < sizeof mask; i++)
        assert_int_equal(mask[i], 9);

    out = attn_bhtd(NULL, ATTN_BOOL, 65537, 65535, huge - 1, 0);
    assert_int_equal(attn_dropout_mask(1, 0.5, &out, NULL), ATTN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),          cmocka_unit_test(test_randn_sizes),
        cmocka_unit_test(test_mixed_calls),      cmocka_unit_test(test_linear_bits),
        cmocka_unit_test(test_mersenne_twister), cmocka_unit_test(test_philox),
        cmocka_unit_test(test_threshold),        cmocka_unit_test(test_mask),
        cmocka_unit_test(test_mask_share),       cmocka_unit_test(test_mask_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
