/* The reference computes the definition of attention.
 *
 * All other tests are measured by it. It is compared with results computed by hand, with published
 * vectors, and with itself in three precisions. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "check/check_call.h"
#include "ref/attn_ref.h"
#include "support/test.h"

#define expect_near(got, want) assert_near(got, want, <=, 1e-14 * (1 + fabs((double)(want))))

/* Two keys, D = 4: scores 1 and 0 after 1/sqrt(4), weights e/(e+1) and 1/(e+1). */
static void test_two_keys(void **state)
{
    (void)state;
    double q[4] = {1, 1, 0, 0}, k[8] = {1, 1, 7, 7, 1, -1, 5, 5}, v[4] = {10, 20, 30, 50};
    double out[2], lse[1], stages[4][2], e = exp(1);
    attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
    a.q = attn_bhtd(q, ATTN_F64, 1, 1, 1, 4), a.k = attn_bhtd(k, ATTN_F64, 1, 1, 2, 4);
    a.v = attn_bhtd(v, ATTN_F64, 1, 1, 2, 2), a.out = attn_bhtd(out, ATTN_F64, 1, 1, 1, 2);
    ref_result r = {.out = out, .lse = lse, .stages = {stages[0], stages[1], stages[2], stages[3]}};
    assert_true(ref_sdpa_forward(&a, &r));
    expect_near(stages[0][0], 1);
    expect_near(stages[0][1], 0);
    expect_near(stages[3][0], e / (e + 1));
    expect_near(stages[3][1], 1 / (e + 1));
    expect_near(out[0], (10 * e + 30) / (e + 1));
    expect_near(out[1], (20 * e + 50) / (e + 1));
    expect_near(lse[0], log(e + 1));

    float sink = 1, slope = 0.5f; /* a sink of logit 1 doubles the first key's share of the sum */
    a.sink_logits = &sink;
    assert_true(ref_sdpa_forward(&a, &r));
    expect_near(stages[3][0], e / (2 * e + 1));
    expect_near(lse[0], log(2 * e + 1));
    a.sink_logits = NULL;
    a.alibi_slopes = &slope; /* key 1 is one ahead of query 0 */
    a.softcap = 2;
    assert_true(ref_sdpa_forward(&a, &r));
    expect_near(stages[1][0], 2 * tanh(0.5));
    expect_near(stages[2][1], 0.5);
    a.scale = -3;
    assert_true(ref_sdpa_forward(&a, &r));
    expect_near(stages[0][0], -6);
    expect_near(stages[1][0], 2 * tanh(-3));
}

/* The pictures of attn.h, and more: x where a key is visible, rows parted by /. */
static void test_pictures(void **state)
{
    (void)state;
    static const int64_t packed_q[] = {0, 2, 4}, packed_k[] = {0, 1, 4}, two[] = {2, 3};
    static const struct {
        int64_t T, S;
        attn_causal causal;
        int64_t offset, left, right;
        const int64_t *lengths, *cu_q, *cu_k;
        const char *picture;
    } rows[] = {
        {2, 4, ATTN_CAUSAL_TOP_LEFT, 0, -1, -1, NULL, NULL, NULL, "x.../xx.."},
        {2, 4, ATTN_CAUSAL_BOTTOM_RIGHT, 0, -1, -1, NULL, NULL, NULL, "xxx./xxxx"},
        {4, 2, ATTN_CAUSAL_TOP_LEFT, 0, -1, -1, NULL, NULL, NULL, "x./xx/xx/xx"},
        {4, 2, ATTN_CAUSAL_BOTTOM_RIGHT, 0, -1, -1, NULL, NULL, NULL, "../../x./xx"},
        {3, 3, ATTN_CAUSAL_OFFSET, 1, -1, -1, NULL, NULL, NULL, "xx./xxx/xxx"},
        {3, 3, ATTN_CAUSAL_OFFSET, -1, -1, -1, NULL, NULL, NULL, ".../x../xx."},
        {4, 4, ATTN_CAUSAL_NONE, 9, 1, 0, NULL, NULL, NULL, "x.../xx../.xx./..xx"},
        {4, 4, ATTN_CAUSAL_NONE, 0, -1, 1, NULL, NULL, NULL, "xx../xxx./xxxx/xxxx"},
        {2, 4, ATTN_CAUSAL_BOTTOM_RIGHT, 0, 1, -1, NULL, NULL, NULL, ".xx./..xx"},
        {2, 4, ATTN_CAUSAL_BOTTOM_RIGHT, 0, -1, -1, two, NULL, NULL, "x.../xx.."},
        {2, 4, ATTN_CAUSAL_NONE, 0, -1, -1, two + 1, NULL, NULL, "xxx./xxx."},
        {5, 4, ATTN_CAUSAL_NONE, 0, -1, -1, NULL, packed_q, packed_k, "x.../x.../.xxx/.xxx/...."},
        {4, 4, ATTN_CAUSAL_TOP_LEFT, 0, -1, -1, NULL, packed_q, packed_k, "x.../x.../.x../.xx."},
        {4, 4, ATTN_CAUSAL_BOTTOM_RIGHT, 0, -1, -1, NULL, packed_q, packed_k,
         "..../x.../.xx./.xxx"},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        describe_case("row %zu of rows: %s", n, rows[n].picture);
        double data[8] = {0}, biased[32], lse[8];
        attn_sdpa_args a = ATTN_SDPA_ARGS_INIT;
        a.q = attn_bhtd(data, ATTN_F64, 1, 1, rows[n].T, 1);
        a.k = a.v = attn_bhtd(data, ATTN_F64, 1, 1, rows[n].S, 1);
        a.causal = rows[n].causal, a.causal_offset = rows[n].offset;
        a.window_left = rows[n].left, a.window_right = rows[n].right;
        a.key_lengths = rows[n].lengths;
        a.cu_seqlens_q = rows[n].cu_q, a.cu_seqlens_k = rows[n].cu_k,
        a.sequences = rows[n].cu_q ? 2 : 0;
        assert_true(
            ref_sdpa_forward(&a, &(ref_result){.stages[ATTN_STAGE_BIASED] = biased, .lse = lse}));
        char got[64] = "", *to = got;
        for (int64_t i = 0; i < rows[n].T; i++, *to++ = '/') {
            int seen = 0;
            for (int64_t j = 0; j < rows[n].S; j++) {
                bool visible = biased[i * rows[n].S + j] == 0;
                if (!visible)
                    assert_number(biased[i * rows[n].S + j], ==, -INFINITY);
                *to++ = visible ? 'x' : '.';
                seen += visible;
            }
            if (seen)
                expect_near(lse[i], log(seen));
            else
                assert_number(lse[i], ==, -INFINITY);
        }
        to[-1] = '\0';
        assert_string_equal(got, rows[n].picture);
    }
}

/* Salmon et al.'s own test vectors (Random123, kat_vectors). */
static void test_philox(void **state)
{
    (void)state;
    static const uint32_t rows[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (size_t n = 0; n < 3; n++) {
        describe_case("row %zu of rows", n);
        uint32_t out[4];
        ref_philox4x32(rows[n], rows[n] + 4, out);
        assert_same_array(out, rows[n] + 6, sizeof out);
    }
    int kept = 0; /* and the share that is kept is 1 - p */
    for (int n = 0; n < 40000; n++)
        kept += ref_dropout_keep(42, 0.3, n % 7, n / 100, n % 100);
    assert_near(kept / 40000.0, 0.7, <, 0.01);
}

/* Every binary16 and bfloat16 there is, there and back; and ties go to even. */
static void test_halves(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++)
        for (int type = 0; type < 2; type++) {
            uint16_t half = (uint16_t)bits;
            attn_tensor t = attn_matrix(&half, type ? ATTN_BF16 : ATTN_F16, 1, 1);
            double x = ref_get(&t, 0, 0, 0, 0);
            uint16_t back = type ? check_to_bf16(x) : check_to_f16(x);
            if (isnan(x) ? !(back << 1 & 0x7FFF) : back != half)
                fail_msg("%s %04x is %g, and comes back as %04x", type ? "bf16" : "f16", half, x,
                         back);
        }
    assert_int_equal(check_to_f16(1 + 0x1p-11), 0x3C00);
    assert_int_equal(check_to_f16(1 + 3 * 0x1p-11), 0x3C02);
    assert_int_equal(check_to_f16(65519.9), 0x7BFF);
    assert_int_equal(check_to_f16(-65520), 0xFC00);
    assert_int_equal(check_to_f16(0x1p-25), 0);
    assert_int_equal(check_to_bf16(1 + 0x1p-8), 0x3F80);
    assert_int_equal(check_to_bf16(-1 - 3 * 0x1p-8), 0xBF82);
}

/* Random calls: double agrees with long double to the rounding of double, and float with double to
 * the rounding of float, a plain sum's errors added. */
static void precisions(check_case *c)
{
    check_call call;
    ref_result want = {0}, got = {0};
    check_call_random(c, &call, 5e4);
    call.compute = ATTN_F64;
    check_call_reference(c, &call, &want); /* wide */
    int64_t n = check_count(&call.args.out), Dv = call.args.v.shape[3], S = call.args.k.shape[2];
    double *bound = check_array(c, n);
    got.out = check_array(c, n);
    for (int narrow = 0; narrow < 2; narrow++) {
        double u = narrow ? 0x1p-24 : 0x1p-53;
        (narrow ? ref_sdpa_forward_f32 : ref_sdpa_forward)(&call.args, &got);
        for (int64_t i = 0; i < n; i++)
            bound[i] = (8 + (double)S + (double)call.args.q.shape[3]) * u *
                           (1 + want.reach[i / Dv]) * want.mass[i] +
                       1e-30;
        check_difference d;
        if (!check_within(got.out, want.out, bound, n, &d))
            check_fail(c, "%s: %.17g want %.17g", narrow ? "float" : "double", d.got, d.want);
    }
}

static void test_precisions(void **state)
{
    (void)state;
    check_run_state r = {.out = stderr, .buffers = check_buffers_create()};
    for (uint64_t seed = 1; seed <= 200; seed++)
        check_one(&r, "ref", precisions, 0, 64, 0, seed * 0x9E3779B97F4A7C15, NULL);
    check_buffers_destroy(r.buffers);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.passed, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_keys),   cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_philox),     cmocka_unit_test(test_halves),
        cmocka_unit_test(test_precisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
